// Package alerts has what those who make alerts and those who send them agree on: the columns of a dataset of alerts,
// their order of severity, and patterns.
//
// Vocabulary: an alert is a row that says whether a rule's condition holds for a key. It is firing while the condition
// holds, and resolved once it does not hold any more. It owns no tables.
package alerts

import (
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/dagctl/dagctl/dag"
)

// Status is what a row says of an alert.
type Status string

// The statuses of alerts.
const (
	Firing   Status = "firing"
	Resolved Status = "resolved"
)

// Severities are the severities of alerts, the least first.
var Severities = []string{"info", "warning", "error", "critical"}

// SeverityEnum is the JSON Schema of a severity, without what describes it.
const SeverityEnum = `"enum": ["info", "warning", "error", "critical"]`

// AtLeast reports whether a severity is another one or above it.
func AtLeast(severity, least string) bool {
	return slices.Index(Severities, severity) >= slices.Index(Severities, least)
}

// Alert is one row of a dataset of alerts. In JSON it is what receivers get.
type Alert struct {
	Name        string            `json:"alert"`
	Key         string            `json:"key"` // for what it fires; of one name, there is one alert for each key
	Severity    string            `json:"severity"`
	Status      Status            `json:"status"`
	StartedAt   time.Time         `json:"started_at"`   // since when the condition holds, or held
	EvaluatedAt time.Time         `json:"evaluated_at"` // the time of the data that says so
	Value       *float64          `json:"value"`        // nil: it has none
	Labels      map[string]string `json:"labels"`
	Summary     string            `json:"summary"`
	Late        bool              `json:"-"` // newer data was evaluated before, so nobody is to be told
}

// Columns are those of a dataset of alerts, in their order.
var Columns = []dag.Column{{Name: "alert", Type: "VARCHAR"}, {Name: "key", Type: "VARCHAR"},
	{Name: "severity", Type: "VARCHAR"}, {Name: "status", Type: "VARCHAR"},
	{Name: "started_at", Type: "TIMESTAMP WITH TIME ZONE"}, {Name: "evaluated_at", Type: "TIMESTAMP WITH TIME ZONE"},
	{Name: "value", Type: "DOUBLE"}, {Name: "labels", Type: "VARCHAR"}, {Name: "summary", Type: "VARCHAR"},
	{Name: "late", Type: "BOOLEAN"}}

// Optional are the columns that a dataset of alerts may lack. They are NULL then.
var Optional = []string{"value", "labels", "summary", "late"}

// Row returns an alert as an object of NDJSON with Columns.
func (a Alert) Row() map[string]any {
	return map[string]any{"alert": a.Name, "key": a.Key, "severity": a.Severity, "status": a.Status,
		"started_at": a.StartedAt.UTC().Format(time.RFC3339Nano), "value": a.Value, "labels": LabelsText(a.Labels),
		"evaluated_at": a.EvaluatedAt.UTC().Format(time.RFC3339Nano), "summary": a.Summary, "late": a.Late}
}

// LabelsText returns labels as the text of a JSON object, in the order of their names.
func LabelsText(labels map[string]string) string {
	if len(labels) == 0 {
		return "{}"
	}
	text, _ := json.Marshal(labels) // texts always are JSON
	return string(text)
}

// ParseLabels reads the text of a JSON object whose values are texts, numbers, booleans or null. Empty text has none.
func ParseLabels(text string) (map[string]string, error) {
	labels := map[string]string{}
	if text == "" {
		return labels, nil
	}

	var fields map[string]json.RawMessage
	if err := json.Unmarshal([]byte(text), &fields); err != nil {
		return nil, fmt.Errorf("labels are no JSON object: %w", err)
	}
	for name, value := range fields {
		var one string
		switch {
		case string(value) == "null":
		case json.Unmarshal(value, &one) == nil:
			labels[name] = one
		case value[0] == '{' || value[0] == '[':
			return nil, fmt.Errorf("label %q is no text", name)
		default:
			labels[name] = string(value)
		}
	}
	return labels, nil
}

// Pattern is text in which * stands for any text, and ? for any character.
type Pattern string

// Match reports whether the pattern is that of the whole text.
func (p Pattern) Match(text string) bool {
	expression := regexp.QuoteMeta(string(p))
	expression = strings.NewReplacer(`\*`, `.*`, `\?`, `.`).Replace(expression)
	return regexp.MustCompile(`(?s)\A` + expression + `\z`).MatchString(text) // quoted, it always is an expression
}
