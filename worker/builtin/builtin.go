// Package builtin runs the platform's own operators on a worker: the same operators and the same Runner as in the
// server's process, with inputs and outputs that go over HTTP. So a worker needs no credentials for storage or
// database; the server seals the uploads when the task completes.
package builtin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"

	"github.com/google/uuid"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/secret"
	"github.com/dagctl/dagctl/operators"
	"github.com/dagctl/dagctl/storage"
	"github.com/dagctl/dagctl/worker"
	"github.com/dagctl/dagctl/worker/protocol"
)

// Options say which operators a worker runs, and how.
type Options struct {
	Registry   *operators.Registry
	Only       []string // names; empty: all
	ScratchDir string   // for the tasks' folders; empty: the system's
	// Roots are the folders that an org's file sources may read here; nil: none.
	Roots func(org, dag string) []string
}

// Register registers the operators with the worker.
func Register(w *worker.Worker, o Options) error {
	names := o.Only
	if len(names) == 0 {
		names = o.names()
	}
	for _, name := range names {
		op, ok := o.Registry.Get(name)
		if !ok {
			return fmt.Errorf("unknown operator %q; the operators are %q", name, o.names())
		}
		if _, server := op.(operators.ServerOnly); server {
			return fmt.Errorf("operator %q runs in the server's own processes only", name)
		}
		w.HandleOperator(protocol.Operator{Name: name, Version: op.Spec().Version}, o.run)
	}
	return nil
}

// names returns the operators that a worker can run.
func (o Options) names() []string {
	return slices.DeleteFunc(o.Registry.Names(), func(name string) bool {
		op, _ := o.Registry.Get(name)
		_, server := op.(operators.ServerOnly)
		return server
	})
}

// run runs a task of an operator as the server's own process would.
func (o Options) run(ctx context.Context, t *worker.Task) (json.RawMessage, error) {
	a, err := o.assignment(ctx, t)
	if err != nil {
		return nil, err
	}
	a.Committer = &committer{task: t, outputs: a.Outputs}
	runner := operators.Runner{Registry: o.Registry, Carrier: carrier{t}, ScratchDir: o.ScratchDir, Log: t.Log,
		KeepLog: keepLog(t)}
	out := runner.Run(ctx, a, t.Progress)
	switch {
	case operators.SaysNothing(out.Err):
		return nil, worker.ColumnsUnknown(fault.Hinted(out.Err))
	case out.Err != nil && !out.Retryable:
		return nil, worker.NotRetryable(fault.Hinted(out.Err))
	case out.Err != nil:
		return nil, fault.Hinted(out.Err)
	}

	if out.Unchanged {
		t.Unchanged()
	}
	if out.State != nil {
		if err := t.SetState(out.State); err != nil {
			return nil, err
		}
	}
	if out.Cursor != nil {
		t.CursorTo(*out.Cursor)
	}
	t.SourceVersion(out.SourceVersion)
	t.SettleReading(out.Reading)
	for _, c := range out.Columns {
		t.Lineage(protocol.ColumnOrigin(c))
	}

	for _, asked := range out.Tasks {
		t.Enqueue(protocol.EnqueuedTask(asked))
	}
	return out.Result.Result, nil
}

// assignment returns the task as operators know it. The server has already applied `where` and the bounds of a slice to
// the data that it sends.
func (o Options) assignment(ctx context.Context, t *worker.Task) (operators.Assignment, error) {
	a := operators.Assignment{TaskID: t.TaskID, Attempt: t.Attempt, OrgSlug: t.Org, DAG: t.Job.DAGName, Job: t.Job.Name,
		Operator: t.Operator, OperatorVersion: t.OperatorVersion, Config: dag.Config(t.Config),
		Payload: t.Payload, Metadata: t.Metadata,
		State: t.OperatorState, Reading: t.Reading, TimeoutAt: t.TimeoutAt}
	if len(t.PartitionBy) > 0 {
		if err := json.Unmarshal(t.PartitionBy, &a.PartitionBy); err != nil {
			return a, worker.NotRetryable(fmt.Errorf("partition_by: %w", err))
		}
	}

	if p := t.Partition; p != nil {
		a.Partition = &operators.PartitionRange{Key: p.Key, Start: p.Start, End: p.End}
	}
	if c := t.Cursor; c != nil {
		a.Cursor = &operators.CursorPosition{Epoch: c.Epoch, Value: c.From}
	}

	for _, in := range t.Inputs {
		assigned := operators.AssignedInput{Index: in.Index, As: in.As}
		for _, p := range in.Partitions {
			assigned.Partitions = append(assigned.Partitions, storage.Partition{Key: p.Key, Revision: p.Revision})
		}
		for _, c := range in.Schema {
			assigned.Schema = append(assigned.Schema, storage.Column(c))
		}
		a.Inputs = append(a.Inputs, assigned)
	}

	for _, out := range t.Outputs {
		assigned := operators.AssignedOutput{Index: out.Index, Name: out.Name,
			UpdateStrategy: dag.UpdateStrategy(out.UpdateStrategy), Purged: out.Purged}
		for _, c := range out.Schema {
			assigned.Standing = append(assigned.Standing, storage.Column(c))
		}
		a.Outputs = append(a.Outputs, assigned)
	}
	if t.UDF != nil {
		a.UDF = &dag.UDF{Hash: t.UDF.Hash, Entrypoint: t.UDF.Entrypoint}
	}

	if o.Roots != nil {
		a.Roots = o.Roots(t.Org, t.Job.DAGName)
	}
	if len(t.Task.Secrets) > 0 {
		bound, err := t.BoundSecrets(ctx)
		if err != nil {
			return a, err
		}
		a.Secrets = map[string]secret.Value{}
		for name, text := range bound.Secrets {
			a.Secrets[name] = secret.New(name, text, bound.Hosts[name])
			if slices.Contains(bound.Granted, name) {
				a.Secrets[name] = a.Secrets[name].Granted()
			}
		}
	}
	return a, nil
}

// carrier moves inputs and outputs over HTTP.
type carrier struct{ task *worker.Task }

func (c carrier) Fetch(
	ctx context.Context, in operators.AssignedInput, keyed bool, dir string,
) (files, keys []string, err error) {
	if len(in.Partitions) == 0 {
		return nil, nil, nil // it has a schema and no rows
	}
	i := slices.IndexFunc(c.task.Inputs, func(have protocol.Input) bool { return have.Index == in.Index })
	if i < 0 {
		return nil, nil, errors.New("the claim does not have this input")
	}
	input, err := c.task.Input(c.task.Inputs[i].As)
	if err != nil {
		return nil, nil, err
	}
	if !keyed {
		file, err := input.Save(ctx, dir, worker.Parquet)
		return []string{file}, nil, err
	}

	for _, p := range in.Partitions {
		file, err := input.SavePartition(ctx, p.Key, dir, worker.Parquet)
		if err != nil {
			return nil, nil, err
		}
		files, keys = append(files, file), append(keys, p.Key)
	}
	return files, keys, nil
}

// Deliver uploads the outputs. The server publishes them when it accepts the completion.
func (c carrier) Deliver(
	ctx context.Context, a operators.Assignment, dirs []string, result operators.Result, _ string,
) (operators.Outcome, error) {
	outcome := operators.Outcome{Result: result}
	if result.Unchanged {
		return outcome, nil
	}

	for i, assigned := range a.Outputs {
		files, err := filepath.Glob(filepath.Join(dirs[i], "*.parquet"))
		if err != nil {
			return outcome, err
		}
		output, err := c.task.Output(assigned.Name)
		if err != nil {
			return outcome, err
		}

		slices.Sort(files)
		for _, file := range files {
			if err := output.Upload(ctx, filepath.Base(file), worker.Parquet, file); err != nil {
				return outcome, err
			}
		}
	}
	return outcome, nil
}

// keepLog sends an operator's log to the server as the task's log, with secrets redacted.
func keepLog(t *worker.Task) func(*slog.Logger, uuid.UUID, uuid.UUID, int, func(string) string) (*slog.Logger, func()) {
	return func(_ *slog.Logger, _, _ uuid.UUID, _ int, redact func(string) string) (*slog.Logger, func()) {
		return slog.New(redacting{t.Log.Handler(), redact}), func() {}
	}
}

type redacting struct {
	slog.Handler
	redact func(string) string
}

func (h redacting) Handle(ctx context.Context, r slog.Record) error {
	clean := slog.NewRecord(r.Time, r.Level, h.redact(r.Message), r.PC)
	r.Attrs(func(a slog.Attr) bool {
		clean.AddAttrs(h.clean(a))
		return true
	})
	return h.Handler.Handle(ctx, clean)
}

func (h redacting) WithAttrs(attrs []slog.Attr) slog.Handler {
	clean := make([]slog.Attr, len(attrs))
	for i, a := range attrs {
		clean[i] = h.clean(a)
	}
	return redacting{h.Handler.WithAttrs(clean), h.redact}
}

func (h redacting) WithGroup(name string) slog.Handler {
	return redacting{h.Handler.WithGroup(name), h.redact}
}

// clean returns an attribute as it is, or as text if that shows a secret.
func (h redacting) clean(a slog.Attr) slog.Attr {
	text := a.Value.Resolve().String()
	if clean := h.redact(text); clean != text {
		return slog.String(a.Key, clean)
	}
	return a
}
