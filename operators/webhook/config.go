package webhook

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"time"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/operators"
)

const configSchema = `{
  "$schema": "https://json-schema.org/draft/2020-12/schema",
  "type": "object",
  "additionalProperties": false,
  "required": ["url", "key"],
  "properties": {
    "url": {"type": "string", "pattern": "^https?://",
      "description": "Where to send. {partition}, {start}, {end}: the task's partition and its range (RFC 3339)."},
    "method": {"enum": ["POST", "PUT", "PATCH"], "description": "POST by default."},
    "key": {"type": "array", "minItems": 1, "uniqueItems": true, "items": {"type": "string", "minLength": 1},
      "description": "The columns that identify a row: what is sent once for each key."},
    "columns": {"type": "array", "minItems": 1, "uniqueItems": true, "items": {"type": "string", "minLength": 1},
      "description": "The columns to send, in this order; all by default."},` + Schema + `
  }
}`

// Schema is the part of a config schema that describes a Sending.
const Schema = HeadersSchema + `,
    "sign": {"type": "string", "minLength": 1,
      "description": "The key to sign with, as Standard Webhooks defines it, such as {secret: NAME}; by default nothing is signed."},` +
	PaceSchema

// HeadersSchema is the part of a config schema that describes headers.
const HeadersSchema = `
    "headers": {"type": "object", "propertyNames": {"pattern": "^[A-Za-z0-9-]+$"},
      "additionalProperties": {"type": "string"}, "description": "Request headers. A value may be {secret: NAME}."}`

// PaceSchema is the part of a config schema that says how many requests are sent, and how often.
const PaceSchema = `
    "request_timeout_seconds": {"type": "integer", "minimum": 1, "maximum": 30,
      "description": "How long a request may take; 10 by default."},
    "max_tries": {"type": "integer", "minimum": 1, "maximum": 20,
      "description": "The most requests for a message within an attempt of the task; 5 by default."},
    "concurrency": {"type": "integer", "minimum": 1, "maximum": 64,
      "description": "The most requests at the same time; 4 by default. With 1, messages are sent in their order."},
    "requests_per_second": {"type": "number", "exclusiveMinimum": 0, "maximum": 1000,
      "description": "The most requests to send in a second, on average; no bound by default."}`

// Operational are the fields of a Sending that cannot change what is sent.
var Operational = []string{"request_timeout_seconds", "max_tries", "concurrency", "requests_per_second"}

// Sending is the part of a config that says how requests are sent. Values of type any are text or {secret: NAME}.
type Sending struct {
	Headers        map[string]any `json:"headers"`
	Sign           any            `json:"sign"`
	RequestSeconds int            `json:"request_timeout_seconds"`
	MaxTries       int            `json:"max_tries"`
	Concurrency    int            `json:"concurrency"`
	Rate           float64        `json:"requests_per_second"`
}

type config struct {
	Sending
	URL     string   `json:"url"`
	Method  string   `json:"method"`
	Key     []string `json:"key"`
	Columns []string `json:"columns"`
}

// own are the headers that the operator sets.
var own = []string{"Idempotency-Key", "Content-Type", "Content-Length", "Host", "User-Agent", "Webhook-Id",
	"Webhook-Timestamp", "Webhook-Signature"}

// Check sets the defaults and checks what the schema cannot express.
func (s *Sending) Check() *dag.ConfigError {
	for _, d := range []struct {
		field *int
		value int
	}{{&s.RequestSeconds, 10}, {&s.MaxTries, 5}, {&s.Concurrency, 4}} {
		if *d.field == 0 {
			*d.field = d.value
		}
	}

	if err := operators.WrittenOut("sign", "key", s.Sign); err != nil {
		return err
	}
	return CheckHeaders(s.Headers)
}

// CheckHeaders refuses headers that the operator sets.
func CheckHeaders(headers map[string]any) *dag.ConfigError {
	for _, name := range slices.Sorted(maps.Keys(headers)) {
		if slices.Contains(own, http.CanonicalHeaderKey(name)) {
			return &dag.ConfigError{Key: "headers", Message: fmt.Sprintf("%s is set by the operator", name)}
		}
	}
	return nil
}

func (s Sending) timeout() time.Duration { return time.Duration(s.RequestSeconds) * time.Second }

// parse returns a config, with its defaults.
func parse(from map[string]any) (config, *dag.ConfigError) {
	c := config{Method: http.MethodPost}
	if err := operators.DecodeConfig(from, &c); err != nil {
		return c, &dag.ConfigError{Message: err.Error()}
	}
	if !operators.IsURL(operators.ExpandURL(c.URL, nil)) {
		return c, &dag.ConfigError{Key: "url", Message: "it must be a URL with a host and without a password"}
	}
	if err := c.Sending.Check(); err != nil {
		return c, err
	}
	return c, operators.CheckRequest(c.URL, c.Headers)
}

// checkJob refuses jobs that would lose rows about deliveries, or could not tell them apart.
func checkJob(job *dag.Job) *dag.ConfigError {
	c, err := parse(job.Config)
	switch {
	case err != nil:
		return err
	case job.Source != nil:
		return checkPayloadJob(job, c)
	}
	return CheckJob(job)
}

// CheckJob checks what a job that delivers needs besides its config.
func CheckJob(job *dag.Job) *dag.ConfigError {
	switch {
	case len(job.Outputs) != 1:
		return &dag.ConfigError{Message: job.Operator + " has one output, with a row for each delivery"}
	case len(job.Inputs) != 1:
		return &dag.ConfigError{Message: job.Operator + " reads one input: give each a job"}
	case job.UpdateStrategy != dag.Append || !slices.Equal(job.UniqueKey, []string{"key"}):
		return &dag.ConfigError{Message: job.Operator + " adds to what was delivered before: give the job " +
			"`update_strategy: append` and `unique_key: key`"}
	}
	return nil
}

// checkPartitions refuses jobs that would make segments of a cursor.
func checkPartitions(job *dag.Job) *dag.ConfigError {
	if job.PartitionBy.Kind == dag.ByCursor {
		return &dag.ConfigError{Message: job.Operator + " makes no segments of a cursor: give the job `partition_by: " +
			"none`"}
	}
	return nil
}

// targets returns what a job with an input delivers: the rows of the input, to an address, under keys. Another job that
// does so too would deliver each row once more. Tasks with payloads are each their own.
func targets(_ string, job *dag.Job) []dag.Target {
	c, fault := parse(job.Config)
	if fault != nil || len(job.Inputs) != 1 {
		return nil
	}
	in := job.Inputs[0]
	text, _ := json.Marshal([]any{in.Job, in.Output, in.Dataset, in.Where, c.Key}) // they came from YAML
	return []dag.Target{{
		Key: "url", Name: fmt.Sprintf("%s for each row of %s", shown(c.URL), in.Source()),
		Path: []string{"deliveries", c.Method, c.URL, string(text)},
		Harm: "each row would be delivered twice; leave one of the jobs out",
	}}
}

// shown returns a URL without what may be a key.
func shown(address string) string {
	u, err := url.Parse(operators.ExpandURL(address, nil))
	if err != nil {
		return "its address"
	}
	return u.Host
}
