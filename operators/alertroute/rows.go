package alertroute

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/sqltext"
	"github.com/dagctl/dagctl/operators"
	"github.com/dagctl/dagctl/operators/alerts"
)

// mostRows is how many alerts a task may read.
const mostRows = 50_000

// read returns the newest row of each alert that the task reads, by name and key, without those that are late.
func read(ctx context.Context, t *operators.Task) (rows []alerts.Alert, err error) {
	if len(t.InputFiles[0]) == 0 {
		return nil, nil
	}
	query, err := query(t.Inputs[0])
	if err != nil {
		return nil, operators.Permanent(err)
	}
	found, err := t.Ask(ctx, query, mostRows)
	if fault.Is(err, fault.TooLarge) {
		err = operators.Permanent(err)
	}
	if err != nil {
		return nil, err
	}

	for _, row := range found {
		a, err := alertOf(row)
		if err != nil {
			return nil, operators.Permanent(err)
		}
		rows = append(rows, a)
	}
	return rows, nil
}

// columnsFault returns why rows with some columns are no alerts; nil: they may be.
func columnsFault(in string, columns []dag.Column) *fault.Error {
	var have, lacks []string
	for _, c := range columns {
		have = append(have, c.Name)
		if sqltext.Same(c.Name, "labels") && c.Type != "" && c.Type != "VARCHAR" && c.Type != "JSON" {
			return fault.New(fault.Invalid, "column labels of the input %q is %s: it is text, a JSON object", in,
				c.Type).WithHint("write to_json(labels)::VARCHAR AS labels in a sql job before")
		}
	}

	for _, c := range alerts.Columns {
		if !alerts.HasColumn(have, c.Name) && !slices.Contains(alerts.Optional, c.Name) {
			lacks = append(lacks, c.Name)
		}
	}
	if len(lacks) == 0 {
		return nil
	}
	return fault.New(fault.Invalid, "the input %q has no column %s; it has %s", in, strings.Join(lacks, ", "),
		strings.Join(have[:min(30, len(have))], ", ")).
		WithHint("alerts have at least the columns alert, key, severity, status, started_at and evaluated_at")
}

// shape is the Shape: it refuses an input whose columns are known and none of alerts.
func shape(job *dag.Job, inputs [][]dag.Column) (s dag.Shape, err error) {
	if len(inputs) != 1 || len(inputs[0]) == 0 {
		return s, nil
	}
	if wrong := columnsFault(job.Inputs[0].As, inputs[0]); wrong != nil {
		s.Refused = append(s.Refused, dag.ConfigError{Message: fault.Hinted(wrong).Error()})
	}
	return s, nil
}

// query returns the SELECT of the columns of alerts, all as text but the times, which are microseconds.
func query(in operators.AssignedInput) (string, error) {
	var have []string
	known := make([]dag.Column, len(in.Schema))
	for i, c := range in.Schema {
		have, known[i] = append(have, c.Name), dag.Column{Name: c.Name, Type: c.Type}
	}
	if wrong := columnsFault(in.As, known); wrong != nil {
		return "", wrong
	}

	var columns []string
	for _, c := range alerts.Columns {
		name := sqltext.Quote(c.Name)
		switch {
		case !alerts.HasColumn(have, c.Name):
			columns = append(columns, "NULL::VARCHAR")
		case strings.HasPrefix(c.Type, "TIMESTAMP"):
			columns = append(columns, "epoch_us("+name+"::TIMESTAMPTZ)::VARCHAR")
		default:
			columns = append(columns, name+"::VARCHAR")
		}
	}
	where := ""
	if alerts.HasColumn(have, "late") {
		where = " WHERE late IS NOT TRUE"
	}
	return fmt.Sprintf("SELECT %s FROM %s%s QUALIFY row_number() OVER (PARTITION BY alert::VARCHAR, key::VARCHAR "+
		"ORDER BY evaluated_at::TIMESTAMPTZ DESC NULLS LAST, status::VARCHAR, "+
		"started_at::TIMESTAMPTZ DESC NULLS LAST, severity::VARCHAR) = 1 ORDER BY alert::VARCHAR, key::VARCHAR",
		strings.Join(columns, ", "), sqltext.Quote(in.As), where), nil
}

// alertOf reads a row of the query.
func alertOf(row []any) (a alerts.Alert, err error) {
	text := func(i int) string {
		if row[i] == nil {
			return ""
		}
		return fmt.Sprint(row[i])
	}
	a = alerts.Alert{Name: text(0), Key: text(1), Severity: text(2), Status: alerts.Status(text(3)), Summary: text(8)}
	refuse := func(format string, args ...any) (alerts.Alert, error) {
		return a, fault.New(fault.Invalid, "alert %q, key %q: %s", a.Name, a.Key, fmt.Sprintf(format, args...))
	}
	switch {
	case a.Name == "":
		return refuse("it has no name")
	case !slices.Contains(alerts.Severities, a.Severity):
		return refuse("severity %q is none of %s", a.Severity, strings.Join(alerts.Severities, ", "))
	case a.Status != alerts.Firing && a.Status != alerts.Resolved:
		return refuse("status %q is neither firing nor resolved", a.Status)
	}

	for i, to := range map[int]*time.Time{4: &a.StartedAt, 5: &a.EvaluatedAt} {
		us, err := strconv.ParseInt(text(i), 10, 64)
		*to = time.UnixMicro(us).UTC()
		if err != nil || to.Year() < 1 || to.Year() > 9999 {
			return refuse("%s is no time in the years 1 to 9999", alerts.Columns[i].Name)
		}
	}
	if value, err := strconv.ParseFloat(text(6), 64); err == nil && !math.IsNaN(value) && !math.IsInf(value, 0) {
		a.Value = &value
	}
	if a.Labels, err = alerts.ParseLabels(text(7)); err != nil {
		return refuse("%s", err)
	}
	return a, nil
}
