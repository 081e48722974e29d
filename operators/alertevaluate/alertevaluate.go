// Package alertevaluate has the operator alert_evaluate, which makes alerts of the rows for which rules hold.
//
// Vocabulary: an evaluation is a look at one partition of the input, and has the time of that data. A stream is what
// evaluations follow each other in: all partitions of time of the job, or one other partition in its revisions. What is
// remembered of a stream is the operator state of the job; see history, which decides what is firing. It owns no
// tables.
package alertevaluate

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/spelling"
	"github.com/dagctl/dagctl/operators"
	"github.com/dagctl/dagctl/operators/alerts"
)

type operator struct{ statements operators.Statements }

// New returns the operator.
func New(o operators.Options) (operators.Operator, error) {
	return &operator{operators.NewStatements(o)}, nil
}

// Spec implements operators.Operator.
func (o *operator) Spec() dag.OperatorSpec { return spec(o.statements) }

// ForOrg implements operators.PerOrg.
func (o *operator) ForOrg(c dag.Catalog, org dag.Org) dag.Catalog {
	own := spec(o.statements.For(org))
	known := c.Operators[own.Name]
	known.Canonical, known.CheckJob, known.Shape = own.Canonical, own.CheckJob, own.Shape
	c.Operators = maps.Clone(c.Operators)
	c.Operators[own.Name] = known
	return c
}

func spec(s operators.Statements) dag.OperatorSpec {
	return dag.OperatorSpec{
		Name: "alert_evaluate", Version: "1.0.0", Reactive: true, Effect: dag.EffectInternal,
		ConfigSchema: json.RawMessage(configSchema),
		Canonical:    func(given map[string]any) (any, *dag.ConfigError) { return canonical(given, s) },
		CheckJob:     func(job *dag.Job) *dag.ConfigError { return checkJob(job, s) }, CheckPartitions: checkPartitions,
		Shape: func(job *dag.Job, inputs [][]dag.Column) (dag.Shape, error) {
			return shape(job, inputs, s)
		},
	}
}

const (
	ownTime  = "partitions of time are evaluated at their end: leave `time` out"
	needTime = "set `time` to the column with the time of the rows: the partitions do not tell it"
	oneState = "what fires over partitions of time is one state: leave `state_key` out"
	ownState = "each partition is a stream of its own: set `state_key: \"{partition}\"`"
	noRanges = "evaluates partitions of time, by key or none: give the job such a `partition_by`"
)

// refuse returns a fault of a job at a field of its config.
func refuse(key, text string) *dag.ConfigError {
	return &dag.ConfigError{Key: key, Message: "alert_evaluate: " + text}
}

// checkPartitions refuses jobs whose evaluations would not follow each other.
func checkPartitions(job *dag.Job) *dag.ConfigError {
	timed := job.Config["time"] != nil
	switch kind := job.PartitionBy.Kind; {
	case kind == dag.ByRange || kind == dag.ByCursor:
		return refuse("", "it "+noRanges)
	case kind == dag.ByTime && timed:
		return refuse("time", ownTime)
	case kind == dag.ByTime && job.StateKey != "":
		return refuse("", oneState)
	case kind == dag.ByKey && !strings.Contains(job.StateKey, "{partition}"):
		return refuse("", ownState)
	case kind != dag.ByTime && !timed:
		return refuse("time", needTime)
	}
	return nil
}

// checkJob refuses jobs with other inputs and outputs than an evaluation has, and SQL that reads something else.
func checkJob(job *dag.Job, s operators.Statements) *dag.ConfigError {
	c, wrong := parse(job.Config)
	if wrong != nil {
		return wrong
	}
	switch {
	case len(job.Inputs) != 1 || len(job.Outputs) != 1:
		return refuse("", "it has one input and one output: join in a sql job before it")
	case job.UpdateStrategy == dag.Append:
		return refuse("", "a partition has the alerts of its evaluation: leave `update_strategy: append` out")
	}

	if job.Inputs[0].As == "" {
		return nil // the input is at fault itself
	}
	var found faults
	for i, r := range c.Rules {
		if unknown := s.UnknownInput(job, r.query(job.Inputs[0].As), "rule "+r.Name); unknown != nil {
			if unknown.Unseen != nil {
				return unknown
			}
			unknown.Key, unknown.Within = "rules", []string{number(i)}
			found = append(found, unknown)
		}
	}
	return found.first()
}

// unknown refuses the columns that the config names outside of SQL and that its input does not have; nil: its columns
// are not known.
func (c config) unknown(input []dag.Column) (refused []dag.ConfigError) {
	if input == nil {
		return nil
	}
	have := make([]string, len(input))
	for i, column := range input {
		have[i] = column.Name
	}
	refuse := func(key, where string, names []string) {
		for _, name := range names {
			if alerts.HasColumn(have, name) {
				continue
			}
			meant := "the columns are " + strings.Join(have[:min(len(have), 20)], ", ")
			if near := spelling.Nearest(name, have); near != "" {
				meant = fmt.Sprintf("did you mean %q?", near)
			}
			refused = append(refused, dag.ConfigError{Key: key, Message: fmt.Sprintf(
				"%s names the column %q, which the input does not have; %s", where, name, meant)})
		}
	}

	if c.Time != "" {
		refuse("time", "`time`", []string{c.Time})
	}
	for i, r := range c.Rules {
		key, of := "rules."+number(i), "rule "+r.Name+": "
		refuse(key, of+"`key`", r.keyColumns())
		refuse(key, of+"`summary`", r.summary.Columns())
		for _, name := range slices.Sorted(maps.Keys(r.labels)) {
			refuse(key, of+"label "+name, r.labels[name].Columns())
		}
	}
	return refused
}

// shape returns the columns that the rules read, and those of alerts.
func shape(job *dag.Job, inputs [][]dag.Column, s operators.Statements) (dag.Shape, error) {
	known := dag.Shape{Writes: [][]dag.Column{alerts.Columns}}
	c, wrong := parse(job.Config)
	if wrong != nil || len(job.Inputs) != 1 {
		return known, nil
	}

	known.Refused = c.unknown(inputs[0])
	lacking := map[string]bool{}
	for _, one := range known.Refused {
		lacking[one.Key] = true
	}
	var queries []string
	for _, r := range c.Rules {
		queries = append(queries, r.query(job.Inputs[0].As))
	}
	_, refused, err := s.Reads(job, inputs, queries)
	for i, one := range refused {
		if one != nil && !lacking["rules."+number(i)] {
			known.Refused = append(known.Refused, dag.ConfigError{Key: "rules." + number(i),
				Message: "rule " + c.Rules[i].Name + ": " + one.Message})
		}
	}
	return known, err
}

// Run implements operators.Operator.
func (o *operator) Run(ctx context.Context, t *operators.Task) (result operators.Result, err error) {
	c, wrong := parse(t.Config)
	if wrong != nil {
		return result, operators.Permanent(operators.ConfigError(wrong))
	}
	if err := ctx.Err(); err != nil {
		return result, err
	}
	stream, err := c.stream(t)
	if err != nil {
		return result, operators.Permanent(err)
	}
	known, of, err := decode(t.State)
	if err == nil && len(t.State) > 0 && of != stream {
		err = fault.New(fault.Invalid, "alert_evaluate: %s", ownState)
	}
	if err != nil {
		return result, operators.Permanent(err)
	}

	t.Progress(0, "reading the rows")
	at, dated, err := c.at(ctx, t)
	if err != nil {
		return result, err
	}
	if !dated {
		return c.nothing(ctx, t)
	}
	found := found{}
	for i, r := range c.Rules {
		t.Progress(100*i/len(c.Rules), "evaluating "+r.Name)
		if err := r.look(ctx, t, found); err != nil {
			return result, err
		}
	}

	rows := c.evaluate(known, at, stream != "", found)
	if err := write(ctx, t, rows); err != nil {
		return result, err
	}
	var failed [2]error
	result.Result, failed[0] = json.Marshal(summarize(at, rows))
	result.State, failed[1] = known.encode(stream)
	return result, operators.Permanent(errors.Join(failed[:]...))
}

// stream returns the stream of a task: the key of its partition, or empty for partitions of time. A job may inherit its
// partitions, so what checkJob cannot see is refused here.
func (c config) stream(t *operators.Task) (string, error) {
	if len(t.Inputs) != 1 || len(t.Outputs) != 1 {
		return "", fault.New(fault.Invalid, "alert_evaluate has one input and one output")
	}
	kind := t.PartitionBy.Kind
	if kind == dag.ByRange || kind == dag.ByCursor {
		return "", fault.New(fault.Invalid, "alert_evaluate %s", noRanges)
	}

	if t.Partition != nil && t.Partition.End != nil {
		if c.Time != "" {
			return "", operators.ConfigError(&dag.ConfigError{Key: "time", Message: ownTime})
		}
		return "", nil
	}
	if c.Time == "" {
		return "", operators.ConfigError(&dag.ConfigError{Key: "time", Message: needTime})
	}
	if t.Partition == nil {
		return dag.WholeKey, nil
	}
	return t.Partition.Key, nil
}

// evaluate returns the alerts of an evaluation, with all that rows say of them, and notes it in the history. The
// alerts of a stream that is no time say at each evaluation what has ended lately: each takes the place of the one
// before, which nobody may have read.
func (c config) evaluate(known *history, at time.Time, replaced bool, found found) []alerts.Alert {
	rules, severities := map[string]patience{}, map[string]string{}
	for _, r := range c.Rules {
		rules[r.Name], severities[r.Name] = r.patience, r.Severity
	}
	holds := held{}
	for which, f := range found {
		holds[which] = alerts.LabelsText(f.labels)
	}

	newest := len(known.evaluations) == 0 || !at.Before(known.evaluations[len(known.evaluations)-1].at)
	rows := known.take(at, holds, rules, c.Remember)
	if replaced && newest && len(known.evaluations) > 0 {
		rows = slices.DeleteFunc(rows, func(a alerts.Alert) bool { return a.Status == alerts.Resolved })
		rows = inOrder(append(rows, known.lately(len(known.evaluations)-1, rules)...))
	}
	for i := range rows {
		rows[i].Severity = severities[rows[i].Name]
		if f, holds := found[id{rows[i].Name, rows[i].Key}]; holds && rows[i].Status == alerts.Firing {
			rows[i].Value, rows[i].Summary = f.value, f.summary
		}
	}
	return rows
}

// nothing writes no alert: a stream without rows has no time at which nothing holds.
func (c config) nothing(ctx context.Context, t *operators.Task) (operators.Result, error) {
	err := write(ctx, t, nil)
	return operators.Result{Result: json.RawMessage(`{"firing": 0, "resolved": 0}`)}, err
}

// summary is the result of a run for people.
type summary struct {
	EvaluatedAt time.Time `json:"evaluated_at"`
	Firing      int       `json:"firing"`
	Resolved    int       `json:"resolved"`
	Late        int       `json:"late,omitempty"` // among these
}

func summarize(at time.Time, rows []alerts.Alert) summary {
	s := summary{EvaluatedAt: at}
	for _, a := range rows {
		switch a.Status {
		case alerts.Firing:
			s.Firing++
		case alerts.Resolved:
			s.Resolved++
		}
		if a.Late {
			s.Late++
		}
	}
	return s
}

// write writes alerts as the task's output.
func write(ctx context.Context, t *operators.Task, rows []alerts.Alert) (err error) {
	path := filepath.Join(t.Scratch, "alerts.ndjson")
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	out := json.NewEncoder(file)
	for _, a := range rows {
		err = cmp.Or(err, out.Encode(a.Row()))
	}
	if err := errors.Join(err, file.Close()); err != nil {
		return err
	}
	return t.WriteJSON(ctx, 0, alerts.Columns, path)
}
