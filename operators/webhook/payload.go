package webhook

import (
	"context"
	"encoding/json"
	"maps"
	"slices"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/operators"
)

// A job with a source of kind manual or timer sends the payload of each of its tasks: one delivery, which decides how
// the task ends.

// timerFields are what a task of a timer sends beside its payload.
var timerFields = []string{"target_timestamp_local", "target_timestamp_utc", "target_timezone"}

// checkPayloadJob checks a job that sends payloads.
func checkPayloadJob(job *dag.Job, c config) *dag.ConfigError {
	switch {
	case job.Source.Kind != "manual" && job.Source.Kind != "timer":
		return &dag.ConfigError{Message: job.Operator + " sends the payloads of sources of kind manual or " +
			"timer only. To send what another source reads, give that a job of its own, and this one `inputs`"}
	case len(job.Outputs) != 0:
		return &dag.ConfigError{Message: job.Operator + " writes no rows about a payload, whose task says how it was " +
			"delivered: give the job `outputs: 0`"}
	case operators.ExpandURL(c.URL, nil) != c.URL:
		return &dag.ConfigError{Key: "url", Message: "the tasks of a source of kind " + job.Source.Kind +
			" have no partition: leave {partition}, {start} and {end} out"}
	}

	if len(job.PayloadSchema) == 0 {
		return nil
	}
	var schema struct {
		Required []string `json:"required"`
	}
	if json.Unmarshal(job.PayloadSchema, &schema) != nil {
		return nil // a schema that is true or false says nothing of fields
	}
	sure := schema.Required
	if job.Source.Kind == "timer" {
		sure = append(sure, timerFields...)
	}
	for _, name := range c.Key {
		if !slices.Contains(sure, name) {
			return &dag.ConfigError{Key: "key", Message: "the payload may be without " + name +
				": let `payload_schema` require it"}
		}
	}
	return nil
}

// payloadRow returns the payload of a task as a row, with the fields of its timer if it has one.
func payloadRow(t *operators.Task) (Row, error) {
	r := Row{from: "payload"}
	if json.Unmarshal(t.Payload, &r.values) != nil || r.values == nil {
		return r, operators.Permanent(fault.New(fault.Invalid, "the payload is not a JSON object").
			WithHint("let `payload_schema` say `type: object`"))
	}

	var metadata struct {
		Timer *struct {
			Local string `json:"due_local"`
			UTC   string `json:"due_at"`
			Zone  string `json:"timezone"`
		} `json:"timer"`
	}
	_ = json.Unmarshal(t.Metadata, &metadata) // that of a manual task may be anything
	if due := metadata.Timer; due != nil {
		for i, text := range []string{due.Local, due.UTC, due.Zone} {
			value, err := json.Marshal(text)
			if err != nil {
				return r, err
			}
			r.values[timerFields[i]] = value
		}
	}

	var err error
	r.Text, err = r.Body(slices.Sorted(maps.Keys(r.values)))
	return r, err
}

// runPayload delivers one message. Its task fails for good if the receiver refuses it, and is tried again if it is
// delivered in none of the attempt's tries.
func (s *Sender) runPayload(ctx context.Context, m Message) (r operators.Result, err error) {
	if err := ctx.Err(); err != nil {
		return r, err
	}

	m.id = s.ledger.ID(m.Key)
	d, err := s.deliver(ctx, m)
	switch {
	case err != nil:
		return r, err
	case d.Status == operators.Delivered:
		r.Result, err = json.Marshal(rowOf(m.Key, d))
		return r, err
	case d.Status == operators.Refused:
		return r, operators.Permanent(fault.New(fault.Invalid, "%s", d.Error))
	}
	return r, fault.New(fault.Unavailable, "%s", d.Error).WithHint("the next attempt sends it again under the same " +
		"Idempotency-Key; let `retry` wait long enough")
}
