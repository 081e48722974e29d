package alertevaluate

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/internal/sqltext"
	"github.com/dagctl/dagctl/operators"
	"github.com/dagctl/dagctl/operators/alerts"
)

const configSchema = `{
  "$schema": "https://json-schema.org/draft/2020-12/schema",
  "type": "object",
  "additionalProperties": false,
  "required": ["rules"],
  "properties": {
    "rules": {"type": "array", "minItems": 1, "maxItems": 200,
      "description": "What to look for. Each rule has its own alerts, one for each key.",
      "items": {
        "type": "object",
        "additionalProperties": false,
        "required": ["name", "condition", "key"],
        "properties": {
          "name": {"type": "string", "pattern": "^[A-Za-z][A-Za-z0-9_.-]{0,99}$",
            "description": "The name of the rule's alerts."},
          "condition": {"type": "string", "minLength": 1,
            "description": "A SQL expression over the columns of the input: the alert of a row's key fires if it is true."},
          "key": {"oneOf": [
              {"type": "array", "minItems": 1, "uniqueItems": true, "items": {"type": "string", "minLength": 1}},
              {"type": "string", "minLength": 1}],
            "description": "What an alert is about: columns, or text with columns in braces."},
          "severity": {` + alerts.SeverityEnum + `, "description": "How bad it is; warning by default."},
          "for": {"oneOf": [{"type": "integer", "minimum": 1, "maximum": 10000}, {"type": "string", "minLength": 1}],
            "description": "How long the condition has to hold before the alert fires: so many evaluations in a row, or a duration, such as 30m."},
          "summary": {"type": "string", "minLength": 1,
            "description": "What to tell people, with columns in braces."},
          "value": {"type": "string", "minLength": 1,
            "description": "A SQL expression over the columns of the input: a number that comes with the alert."},
          "labels": {"type": "object", "propertyNames": {"pattern": "^[A-Za-z_][A-Za-z0-9_]{0,99}$"},
            "additionalProperties": {"type": "string"},
            "description": "Labels by which alerts are routed and grouped; values are text with columns in braces."}
        }
      }},
    "time": {"type": "string", "minLength": 1,
      "description": "The column whose latest value is the time of an evaluation. Partitions of time have theirs: their end."},
    "remember": {"type": "integer", "minimum": 1, "maximum": 1000,
      "description": "How many evaluations are remembered, so that older data may still come; 50 by default."}
  }
}`

// mostKey and mostText are how many bytes the key of an alert, and its summary or a label, may have.
const (
	mostKey  = 1000
	mostText = 4000
)

type config struct {
	Rules    []rule `json:"rules"`
	Time     string `json:"time"`
	Remember int    `json:"remember"`
}

type rule struct {
	Name      string            `json:"name"`
	Condition string            `json:"condition"`
	Key       any               `json:"key"` // columns, or a template
	Severity  string            `json:"severity"`
	For       any               `json:"for"` // a number, or a duration
	Summary   string            `json:"summary"`
	Value     string            `json:"value"`
	Labels    map[string]string `json:"labels"`

	patience patience
	columns  []string // of the key, if it is a list
	key      alerts.Template
	summary  alerts.Template
	labels   map[string]alerts.Template
}

// faults collects what is wrong with the rules of a config.
type faults []*dag.ConfigError

// add adds a fault of a field of a rule.
func (f *faults) add(rule int, field string, format string, args ...any) {
	*f = append(*f, &dag.ConfigError{Key: "rules", Within: []string{fmt.Sprint(rule), field},
		Message: fmt.Sprintf(format, args...)})
}

// first returns the faults as one, with the others behind it.
func (f faults) first() *dag.ConfigError {
	if len(f) == 0 {
		return nil
	}
	f[0].More = f[1:]
	return f[0]
}

// parse returns a config, with its defaults, or all that is wrong with it.
func parse(given map[string]any) (config, *dag.ConfigError) {
	c := config{Remember: 50}
	if err := operators.DecodeConfig(given, &c); err != nil {
		return c, &dag.ConfigError{Message: err.Error()}
	}
	var wrong faults
	names := map[string]bool{}
	for i := range c.Rules {
		r := &c.Rules[i]
		if names[r.Name] {
			wrong.add(i, "name", "there are two rules %q: alerts are known by the name of their rule", r.Name)
		}
		names[r.Name] = true
		r.parse(i, &wrong)
	}
	return c, wrong.first()
}

// parse reads what the schema leaves open.
func (r *rule) parse(i int, wrong *faults) {
	if r.Severity == "" {
		r.Severity = "warning"
	}
	template := func(field, text string) alerts.Template {
		t, err := alerts.ParseTemplate(text)
		if err != nil {
			wrong.add(i, field, "%s", err)
		}
		return t
	}
	r.summary, r.labels = template("summary", r.Summary), map[string]alerts.Template{}
	for _, name := range slices.Sorted(maps.Keys(r.Labels)) {
		r.labels[name] = template("labels", r.Labels[name])
	}

	switch key := r.Key.(type) {
	case string:
		r.key = template("key", key)
	case []any:
		for _, column := range key {
			r.columns = append(r.columns, fmt.Sprint(column))
		}
	}

	r.patience = patience{evaluations: 1}
	switch lasting := r.For.(type) {
	case nil:
	case float64:
		r.patience.evaluations = int(lasting)
	default:
		d, err := dag.ParseDuration(fmt.Sprint(lasting))
		if err != nil || d <= 0 {
			wrong.add(i, "for", "%q is neither a number of evaluations nor a duration such as 90s, 30m or 2d", lasting)
		}
		r.patience.lasting = d
	}
}

// reads returns the columns that the rule's texts name, each once.
func (r rule) reads() (names []string) {
	all := slices.Concat(r.columns, r.key.Columns(), r.summary.Columns())
	for _, name := range slices.Sorted(maps.Keys(r.labels)) {
		all = append(all, r.labels[name].Columns()...)
	}
	for _, name := range all {
		if !alerts.HasColumn(names, name) {
			names = append(names, name)
		}
	}
	return names
}

// keyColumns returns the columns that make the key.
func (r rule) keyColumns() []string {
	if r.columns != nil {
		return r.columns
	}
	return r.key.Columns()
}

// rowNumber is a name that no input has.
const rowNumber = "_dagctl_row"

// query returns the SELECT of the rows for which the rule's condition holds, the first of each key, in the order of the
// input: the value, and the texts of the columns that reads returns.
func (r rule) query(input string) string {
	texts := []string{"NULL::DOUBLE"}
	if r.Value != "" {
		texts[0] = "(" + r.Value + "\n)::DOUBLE"
	}
	for _, column := range r.reads() {
		texts = append(texts, sqltext.Quote(column)+"::VARCHAR")
	}
	keys := []string{"0"}
	for _, column := range r.keyColumns() {
		keys = append(keys, sqltext.Quote(column)+"::VARCHAR")
	}
	return fmt.Sprintf("SELECT %[1]s FROM (SELECT *, row_number() OVER () AS %[2]s FROM %[3]s) AS %[3]s WHERE %[4]s "+
		"QUALIFY row_number() OVER (PARTITION BY %[5]s ORDER BY %[2]s) = 1 ORDER BY %[2]s", strings.Join(texts, ", "),
		rowNumber, sqltext.Quote(input), isTrue(r.Condition), strings.Join(keys, ", "))
}

// isTrue returns an expression that is true or false, and never NULL.
func isTrue(condition string) string { return "CASE WHEN " + condition + "\n THEN true ELSE false END" }

// expressions returns the rule's SQL, by the field that has it.
func (r rule) expressions() map[string]string {
	all := map[string]string{"condition": r.Condition}
	if r.Value != "" {
		all["value"] = r.Value
	}
	return all
}

// canonical returns the config with its SQL in its parsed form. It refuses what is no expression by itself, such as two
// of them, or one that ends the parenthesis around it.
func canonical(given map[string]any, s operators.Statements) (any, *dag.ConfigError) {
	c, wrong := parse(given)
	if wrong != nil {
		return nil, wrong
	}
	var found faults
	for i := range c.Rules {
		r := &c.Rules[i]
		for _, field := range slices.Sorted(maps.Keys(r.expressions())) {
			text := r.expressions()[field]
			form, fault := s.Form("SELECT " + isTrue(text))
			if fault == nil {
				_, fault = s.Form("SELECT (" + text + "\n)")
			}
			if fault != nil {
				if fault.Unseen != nil {
					return nil, fault
				}
				fault.Key, fault.Within = "rules", []string{fmt.Sprint(i), field}
				fault.Message = "it is no SQL expression by itself: " + fault.Message
				found = append(found, fault)
			}
			if field == "condition" {
				r.Condition = form
			} else {
				r.Value = form
			}
		}
	}

	if wrong := found.first(); wrong != nil {
		return nil, wrong
	}
	text, err := json.Marshal(c)
	if err != nil {
		return nil, &dag.ConfigError{Message: err.Error()}
	}
	return json.RawMessage(text), nil
}
