package rest

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"github.com/danielgtaylor/huma/v2"
)

// Examples in the OpenAPI document are made from the schemas, so that none can be out of date: a field shows the
// example of its tag, else its first allowed value, else what exampleTexts has for fields of its name.

// illustrate gives an operation examples of its JSON body and of its JSON answers.
func illustrate(schemas huma.Registry, op *huma.Operation) {
	if op.RequestBody != nil {
		illustrateMedia(schemas, op.RequestBody.Content, true)
	}
	for status, response := range op.Responses {
		if strings.HasPrefix(status, "2") {
			illustrateMedia(schemas, response.Content, false)
		}
	}
}

func illustrateMedia(schemas huma.Registry, content map[string]*huma.MediaType, sent bool) {
	media := content["application/json"]
	if media == nil || media.Schema == nil || media.Example != nil || len(media.Examples) > 0 {
		return
	}
	e := examples{schemas: schemas, sent: sent, within: map[*huma.Schema]bool{}}
	media.Example, _ = e.of(media.Schema, "")
}

// examples makes examples of schemas. within are the schemas that it is in the middle of, which it does not repeat.
type examples struct {
	schemas huma.Registry
	sent    bool // by the client: what only the server says is left out
	within  map[*huma.Schema]bool
}

// of returns an example of a schema for a field of a name. It reports whether there is one: a schema within itself has
// none.
func (e examples) of(s *huma.Schema, name string) (any, bool) {
	if s.Ref != "" {
		s = e.schemas.SchemaFromRef(s.Ref)
	}
	switch {
	case s == nil, e.within[s]:
		return nil, false
	case len(s.Examples) > 0:
		return s.Examples[0], true
	case len(s.Enum) > 0:
		return s.Enum[0], true
	}
	for _, either := range [][]*huma.Schema{s.OneOf, s.AnyOf} {
		if len(either) > 0 {
			return e.of(either[0], name)
		}
	}

	e.within[s] = true
	defer delete(e.within, s)
	switch s.Type {
	case huma.TypeObject:
		return e.object(s, name), true
	case huma.TypeArray:
		return e.array(s, name), true
	case huma.TypeString:
		return exampleText(s, name), true
	case huma.TypeInteger, huma.TypeNumber:
		return exampleNumber(s, name), true
	case huma.TypeBoolean:
		return !e.sent, true // a request asks for nothing special
	}
	return map[string]any{}, true
}

func (e examples) object(s *huma.Schema, name string) map[string]any {
	made := map[string]any{}
	for _, field := range slices.Sorted(maps.Keys(s.Properties)) {
		if e.sent && s.Properties[field].ReadOnly {
			continue
		}
		if value, found := e.of(s.Properties[field], field); found {
			made[field] = value
		}
	}
	if values, ok := s.AdditionalProperties.(*huma.Schema); ok && len(made) == 0 {
		if value, found := e.of(values, name); found {
			made["region"] = value
		}
	}
	return made
}

func (e examples) array(s *huma.Schema, name string) []any {
	if s.Items == nil || s.MaxItems != nil && *s.MaxItems == 0 {
		return []any{}
	}
	value, found := e.of(s.Items, strings.TrimSuffix(name, "s"))
	if !found {
		return []any{}
	}
	return []any{value}
}

// exampleFormats are examples of texts by their format.
var exampleFormats = map[string]string{
	"uuid":      "0199c2f4-6d3e-7a51-9b0c-2f1f3d5a7b90",
	"date-time": "2026-03-01T06:00:00Z",
	"date":      "2026-03-01",
	"time":      "06:00:00",
	"uri":       "https://example.com/hook",
	"email":     "ada@example.com",
}

// exampleTexts are examples of texts by the names of their fields, of a DAG that counts flights by the day.
var exampleTexts = map[string]string{
	"access_key_id":             "AKIAEXAMPLE",
	"action":                    "deploy",
	"activation":                "immediate",
	"actor":                     "user:ada@example.com",
	"add_host":                  "api.example.com",
	"alg":                       "ES256",
	"as":                        "all",
	"at":                        "2026-03-01T06:00:00Z",
	"audience":                  "dagctl",
	"authority":                 "user:ada@example.com",
	"base_url":                  "https://dagctl.example.com",
	"bucket":                    "example-data",
	"by":                        "user:ada@example.com",
	"capability_token":          "eyJhbGciOiJFUzI1NiJ9.e30.c2ln",
	"client":                    "laptop",
	"code":                      "K7QX-2M9D",
	"code_version":              "3f9a1c",
	"column":                    "delay",
	"command":                   "dagctl tasks retry 0199c2f4",
	"concurrency_key":           "airport-SFO",
	"consent":                   "cancel-tasks",
	"consumer":                  "flights.monthly",
	"created_by":                "user:ada@example.com",
	"critical_path":             "flights.daily",
	"cron":                      "0 6 * * *",
	"crv":                       "P-256",
	"currency":                  "EUR",
	"cursor":                    "eyJhZnRlciI6MTB9",
	"dag":                       "flights",
	"dag_name":                  "flights",
	"dataset":                   "flights.daily",
	"dataset_uuid":              "0199c2f4-6d3e-7a51-9b0c-2f1f3d5a7b90",
	"dataset_version":           "flights.daily@12",
	"dedupe_key":                "flights/daily/2026-03-01",
	"default_read_role":         "analysts",
	"delimiter":                 ",",
	"description":               "Flights by the day",
	"detail":                    "there is no DAG flight",
	"device_code":               "Zt4nWq8s",
	"effect":                    "rebuild",
	"email":                     "ada@example.com",
	"encoding":                  "utf-8",
	"endpoint":                  "https://storage.example.com",
	"entrypoint":                "daily.py",
	"error":                     "the file has no column delay",
	"error_group":               "no-such-column",
	"etag":                      `"3f9a1c"`,
	"event_id":                  "0199c2f4-6d3e-7a51-9b0c-2f1f3d5a7b90",
	"event_type":                "partition",
	"example":                   "2026-03-01",
	"execution_strategy":        "partition",
	"existing":                  "keep",
	"failure_reason":            "the file has no column delay",
	"field":                     "jobs[0].query",
	"format":                    "csv",
	"forward_from":              "2026-03-01",
	"from":                      "2026-03-01",
	"group":                     "monday-report",
	"handler":                   "flights.daily",
	"hash":                      "3f9a1c2b5d",
	"head":                      "SELECT day, count(*)",
	"hint":                      "did you mean flights?",
	"hook_path":                 "orders",
	"host":                      "api.example.com",
	"hostname":                  "worker-1",
	"id":                        "0199c2f4-6d3e-7a51-9b0c-2f1f3d5a7b90",
	"idempotency_key":           "report-2026-03-01",
	"incarnation":               "1",
	"input":                     "flights.raw",
	"input_column":              "delay",
	"issuer":                    "https://login.example.com",
	"job":                       "daily",
	"key":                       "2026-03-01",
	"kid":                       "2026-03",
	"kind":                      "sql",
	"lease_token":               "0199c2f4-6d3e-7a51-9b0c-2f1f3d5a7b90",
	"local":                     "2026-03-01T09:00:00",
	"location":                  "body.name",
	"map":                       "same",
	"message":                   "the file has no column delay",
	"name":                      "daily",
	"namespace":                 "airflow",
	"newest":                    "2026-03-01",
	"next_cursor":               "eyJhZnRlciI6MTB9",
	"node":                      "flights.daily",
	"object":                    "flights",
	"operator":                  "sql",
	"operator_version":          "1",
	"org":                       "analytics",
	"org_role":                  "analysts",
	"outcome":                   "triggered",
	"output_column":             "mean_delay",
	"owner":                     "team-flights",
	"partition":                 "2026-03-01",
	"partition_key":             "2026-03-01",
	"path":                      "flights/2026-03-01.csv",
	"pattern":                   "flights.*",
	"plan":                      "PROJECTION",
	"prefix":                    "flights/",
	"program":                   "/usr/bin/python3",
	"propagate":                 "all",
	"quota":                     "queued_tasks",
	"read_prefixe":              "flights/",
	"read_role":                 "analysts",
	"reason":                    "the source was late",
	"region":                    "eu-central-1",
	"remove_host":               "old.example.com",
	"request_id":                "7c1e0f42",
	"role":                      "reader",
	"root":                      "flights",
	"runtime":                   "python",
	"schedule":                  "0 6 * * *",
	"scope":                     "partition",
	"secret":                    "a-secret-value",
	"secret_access_key":         "an-example-key",
	"session_token":             "an-example-token",
	"severity":                  "error",
	"slug":                      "analysts",
	"source":                    "landing",
	"source_hash":               "3f9a1c2b5d",
	"source_ref":                "3f9a1c",
	"source_version":            "2026-03-01T05:58:00Z",
	"sql":                       "SELECT day, count(*) AS flights FROM flights_daily GROUP BY day",
	"start":                     "2026-03-01",
	"state":                     "reading",
	"state_key":                 "SFO",
	"status":                    "Completed",
	"step":                      "swap",
	"storage":                   "s3",
	"subject":                   "repo:example/flights:ref:refs/heads/main",
	"suggestion":                "daily",
	"tag":                       "aviation",
	"target_timestamp_local":    "2026-03-01T09:00:00",
	"target_timezone":           "Europe/Berlin",
	"task":                      "0199c2f4-6d3e-7a51-9b0c-2f1f3d5a7b90",
	"task_id":                   "0199c2f4-6d3e-7a51-9b0c-2f1f3d5a7b90",
	"text":                      "day,flights",
	"timezone":                  "Europe/Berlin",
	"title":                     "Not Found",
	"to":                        "2026-03-31",
	"token":                     "dagctl_example",
	"traceparent":               "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
	"trigger":                   "flights.raw",
	"type":                      "VARCHAR",
	"update_strategy":           "replace",
	"url":                       "https://dagctl.example.com/dags/flights",
	"user":                      "ada@example.com",
	"user_code":                 "K7QX-2M9D",
	"value":                     "a-secret-value",
	"verification_uri":          "https://dagctl.example.com/device",
	"verification_uri_complete": "https://dagctl.example.com/device?code=K7QX-2M9D",
	"verifier":                  "dBjftJeZ4CVP",
	"version":                   "12",
	"why":                       "the input flights.raw has a new revision",
	"worker_id":                 "worker-1",
	"write_prefixe":             "flights/",
	"yaml": "name: flights\n" +
		"jobs: [{name: daily, operator: handler, source: {kind: manual}, config: {handler: flights.daily}}]\n",
	"yaml_hash": "3f9a1c2b5d",
}

func exampleText(s *huma.Schema, name string) string {
	if text, known := exampleFormats[s.Format]; known {
		return text
	}
	text, known := exampleTexts[name]
	switch {
	case s.ContentEncoding == "base64":
		return "AAEC"
	case !known:
		text = "text"
	}

	if s.MaxLength != nil && len(text) > *s.MaxLength {
		return text[:*s.MaxLength]
	}
	if s.MinLength != nil && len(text) < *s.MinLength {
		text += strings.Repeat("x", *s.MinLength-len(text))
	}
	return text
}

// exampleNumbers are examples of numbers by the names of their fields.
var exampleNumbers = map[string]float64{
	"attempts":    1,
	"bytes":       20480,
	"duration_ms": 840,
	"files":       2,
	"limit":       100,
	"partitions":  31,
	"percent":     40,
	"port":        5432,
	"priority":    100,
	"revision":    1,
	"rows":        412,
	"size":        20480,
	"tasks":       12,
	"version":     12,
}

func exampleNumber(s *huma.Schema, name string) any {
	number := cmp.Or(exampleNumbers[name], 1)
	switch {
	case s.Minimum != nil && *s.Minimum > number:
		number = *s.Minimum
	case s.Maximum != nil && *s.Maximum < number:
		number = *s.Maximum
	}
	if s.Type == huma.TypeInteger {
		return int64(number)
	}
	return number
}
