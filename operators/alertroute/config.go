package alertroute

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/operators"
	"github.com/dagctl/dagctl/operators/alerts"
	"github.com/dagctl/dagctl/operators/webhook"
)

const configSchema = `{
  "$schema": "https://json-schema.org/draft/2020-12/schema",
  "type": "object",
  "additionalProperties": false,
  "required": ["receivers", "routes"],
  "properties": {
    "receivers": {"type": "object", "minProperties": 1, "propertyNames": {"pattern": "^[A-Za-z][A-Za-z0-9_-]{0,99}$"},
      "description": "Who is told, by name: webhooks.",
      "additionalProperties": {
        "type": "object",
        "additionalProperties": false,
        "required": ["url"],
        "properties": {
          "url": {"type": "string", "minLength": 1,
            "description": "Where to send: {secret: NAME} with https://HOST/PATH#KEY, which also signs, or a URL."},
          "sign": {"type": "string", "minLength": 1,
            "description": "The key to sign with, such as {secret: NAME}, if the URL is no secret."},` +
	webhook.HeadersSchema + `
        }
      }},
    "routes": {"type": "array", "minItems": 1, "maxItems": 200,
      "description": "Which alerts go where: each goes by the first route that matches it, and on if that says so.",
      "items": {
        "type": "object",
        "additionalProperties": false,
        "required": ["to"],
        "properties": {` + matcherSchema + `,
          "to": {"type": "array", "minItems": 1, "uniqueItems": true, "items": {"type": "string", "minLength": 1},
            "description": "The receivers."},
          "group_by": {"type": "array", "uniqueItems": true, "items": {"type": "string", "minLength": 1},
            "description": "Labels: alerts with the same values of them are one message. By default all are."},
          "repeat_every": {"type": "string", "minLength": 1,
            "description": "After how long an alert that still fires is sent again, such as 4h, the default, or never."},
          "continue": {"type": "boolean",
            "description": "Whether alerts of the route go on to the routes behind it; false by default."}
        }
      }},
    "mute": {"type": "array", "maxItems": 1000,
      "description": "Alerts of which nobody is told for a while.",
      "items": {
        "type": "object",
        "additionalProperties": false,
        "required": ["until"],
        "properties": {` + matcherSchema + `,
          "until": {"type": "string", "minLength": 1,
            "description": "Up to which time of the data, as RFC 3339, such as 2026-01-31T18:00:00Z."}
        }
      }},` + webhook.PaceSchema + `
  }
}`

// matcherSchema describes a matcher.
const matcherSchema = `
          "severity": {` + alerts.SeverityEnum + `, "description": "The least severity; info by default."},
          "alerts": {"type": "array", "minItems": 1, "items": {"type": "string", "minLength": 1},
            "description": "Names of alerts, with * and ?; all by default."},
          "match": {"type": "object", "minProperties": 1,
            "additionalProperties": {"oneOf": [{"type": "string"},
              {"type": "array", "minItems": 1, "items": {"type": "string"}}]},
            "description": "Labels and what they have to be, with * and ?; one of several. A label that is not there is empty."}`

// matcher selects alerts.
type matcher struct {
	Severity string         `json:"severity"`
	Alerts   []string       `json:"alerts"`
	Match    map[string]any `json:"match"` // text, or a list of texts
}

func (m matcher) matches(a alerts.Alert) bool {
	if m.Severity != "" && !alerts.AtLeast(a.Severity, m.Severity) {
		return false
	}
	if len(m.Alerts) > 0 && !anyMatches(m.Alerts, a.Name) {
		return false
	}
	for label, want := range m.Match {
		if !anyMatches(texts(want), a.Labels[label]) {
			return false
		}
	}
	return true
}

func anyMatches(patterns []string, text string) bool {
	return slices.ContainsFunc(patterns, func(p string) bool { return alerts.Pattern(p).Match(text) })
}

// texts returns a text or a list of texts as a list.
func texts(v any) (list []string) {
	if many, ok := v.([]any); ok {
		for _, one := range many {
			list = append(list, fmt.Sprint(one))
		}
		return list
	}
	return []string{fmt.Sprint(v)}
}

type receiver struct {
	URL     any            `json:"url"` // text, or {secret: NAME}
	Sign    any            `json:"sign"`
	Headers map[string]any `json:"headers"`
}

type route struct {
	matcher
	To       []string `json:"to"`
	GroupBy  []string `json:"group_by"`
	Repeat   string   `json:"repeat_every"`
	Continue bool     `json:"continue"`

	repeat time.Duration // 0: never
}

type mute struct {
	matcher
	Until string `json:"until"`

	until time.Time
}

type config struct {
	webhook.Sending

	Receivers map[string]receiver `json:"receivers"`
	Routes    []route             `json:"routes"`
	Mute      []mute              `json:"mute"`
}

// faults collects what is wrong with a config.
type faults []*dag.ConfigError

func (f *faults) add(fault dag.ConfigError) { *f = append(*f, &fault) }

// parse returns a config, with its defaults, or all that is wrong with it.
func parse(given map[string]any) (c config, first *dag.ConfigError) {
	if err := operators.DecodeConfig(given, &c); err != nil {
		return c, &dag.ConfigError{Message: err.Error()}
	}
	var wrong faults
	if err := c.Sending.Check(); err != nil {
		wrong.add(*err)
	}
	for _, name := range slices.Sorted(maps.Keys(c.Receivers)) {
		c.Receivers[name].check(name, &wrong)
	}

	known := slices.Sorted(maps.Keys(c.Receivers))
	for i := range c.Routes {
		r, at := &c.Routes[i], []string{fmt.Sprint(i)}
		for n, name := range r.To {
			if _, ok := c.Receivers[name]; !ok {
				wrong.add(dag.ConfigError{Key: "routes", Within: append(at, "to", fmt.Sprint(n)), Unknown: name,
					Known: known, Message: fmt.Sprintf("there is no receiver %q", name)})
			}
		}
		var err error
		switch r.Repeat {
		case "never":
		case "":
			r.repeat = 4 * time.Hour
		default:
			if r.repeat, err = dag.ParseDuration(r.Repeat); err != nil || r.repeat <= 0 {
				wrong.add(dag.ConfigError{Key: "routes", Within: append(at, "repeat_every"), Message: fmt.Sprintf(
					"%q is no duration such as 30m, 4h or 1d, and not never", r.Repeat)})
			}
		}
	}

	for i := range c.Mute {
		m := &c.Mute[i]
		var err error
		if m.until, err = time.Parse(time.RFC3339, m.Until); err != nil {
			wrong.add(dag.ConfigError{Key: "mute", Within: []string{fmt.Sprint(i), "until"},
				Message: fmt.Sprintf("%q is no time such as 2026-01-31T18:00:00Z", m.Until)})
		}
	}
	if len(wrong) == 0 {
		return c, nil
	}
	wrong[0].More = wrong[1:]
	return c, wrong[0]
}

// check checks a receiver.
func (r receiver) check(name string, wrong *faults) {
	at := func(field, message string) {
		wrong.add(dag.ConfigError{Key: "receivers", Within: []string{name, field}, Message: message})
	}
	address, written := r.URL.(string)
	switch {
	case written && !operators.IsURL(address):
		at("url", "it must be a URL with a host and without a password, or {secret: NAME}")
	case !written && r.Sign != nil:
		at("sign", "the secret of `url` signs: write it as https://HOST/PATH#KEY, and leave `sign` out")
	}

	if err := operators.WrittenOut("sign", "key", r.Sign); err != nil {
		at("sign", err.Message)
	}
	if err := webhook.CheckHeaders(r.Headers); err != nil {
		at("headers", err.Message)
	}
	if err := operators.CheckRequest("", r.Headers); err != nil {
		at("headers", err.Message)
	}
}

// secretTo returns the URLs that a secret goes to: empty where another secret has them.
func secretTo(given map[string]any, name string) (urls []string) {
	var c config
	if operators.DecodeConfig(given, &c) != nil {
		return nil
	}
	is := func(field any) bool {
		named, ok := field.(map[string]any)
		return ok && named["secret"] == name
	}

	for _, of := range slices.Sorted(maps.Keys(c.Receivers)) {
		r := c.Receivers[of]
		address, _ := r.URL.(string)
		used := is(r.URL) || is(r.Sign)
		for _, value := range r.Headers {
			used = used || is(value)
		}
		if used && !slices.Contains(urls, address) {
			urls = append(urls, address)
		}
	}
	return urls
}

// checkJob refuses jobs that could tell somebody twice.
func checkJob(job *dag.Job) *dag.ConfigError {
	if _, err := parse(job.Config); err != nil {
		return err
	}
	switch {
	case len(job.Outputs) > 0:
		return &dag.ConfigError{Message: "alert_route sends alerts and writes nothing: give the job `outputs: 0`"}
	case len(job.Inputs) != 1:
		return &dag.ConfigError{Message: "alert_route reads one input with alerts: give each a job"}
	case job.MaxConcurrency != 1:
		return &dag.ConfigError{Message: "alert_route sends an alert once, so one task looks at a time: give the job " +
			"`scaling: { max_concurrency: 1 }`"}
	}
	return nil
}

// checkPartitions refuses jobs that would follow a cursor.
func checkPartitions(job *dag.Job) *dag.ConfigError {
	if job.PartitionBy.Kind == dag.ByCursor {
		return &dag.ConfigError{Message: "alert_route follows no cursor: give the job `partition_by: none`"}
	}
	return nil
}

// targets returns whom a job tells of what: another job with the same routes from the same alerts to the same address
// would tell it everything once more.
func targets(_ string, job *dag.Job) (all []dag.Target) {
	c, fault := parse(job.Config)
	if fault != nil || len(job.Inputs) != 1 {
		return nil
	}

	in := job.Inputs[0]
	for _, name := range slices.Sorted(maps.Keys(c.Receivers)) {
		var routes []any
		for _, r := range c.Routes {
			if slices.Contains(r.To, name) {
				routes = append(routes, r.matcher)
			}
		}
		if len(routes) == 0 {
			continue
		}

		text, _ := json.Marshal([]any{in.Job, in.Output, in.Dataset, in.Where, routes}) // they came from YAML
		address, _ := json.Marshal(c.Receivers[name].URL)
		all = append(all, dag.Target{
			Key: "receivers", Name: fmt.Sprintf("receiver %s for each alert of %s", name, in.Source()),
			Path: []string{"alerts", string(address), string(text)},
			Harm: "it would be told of each alert twice; leave one of the jobs or routes out",
		})
	}
	return all
}
