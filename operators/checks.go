package operators

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/engine"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/relations"
	"github.com/dagctl/dagctl/storage"
)

// CheckTask is the checks of one revision of an output, which is either held for them or published.
type CheckTask struct {
	Generation storage.Generation
	Held       *storage.Manifest  // exactly one of Held and Published is set
	Published  *storage.Partition //
	// Those of the job: its zone, and getvariable('partition'), ('start') and ('end') in SQL checks
	PartitionBy dag.Partitioning
	Partition   *PartitionRange
	Inputs      []AssignedInput // the job's inputs, for relationships and SQL
	Checks      []dag.Check
	Now         time.Time // the time that freshness is measured from
}

// CheckOutcome is the outcome of one check.
type CheckOutcome = engine.CheckOutcome

// Check runs the checks, each on its own. A check that cannot run, because of a missing column or broken SQL for
// example, has an outcome that says so; an error means that no check could run for now.
func (r *Runner) Check(ctx context.Context, t CheckTask) ([]CheckOutcome, error) {
	dir, err := r.Scratch(uuid.Nil, 0)
	if err != nil {
		return nil, err
	}
	defer dir.Remove()
	scratch := dir.Path

	data := checkedData{scope: scopeOf(t.PartitionBy, t.Partition)}
	if data.output, err = r.openChecked(ctx, t, scratch); err != nil {
		return nil, fmt.Errorf("open the output: %w", err)
	}
	for i, in := range t.Inputs {
		if !readBy(t.Checks, in.As) {
			continue
		}
		dir := filepath.Join(scratch, fmt.Sprintf("input%d", i))
		if err := os.Mkdir(dir, 0o700); err != nil {
			return nil, err
		}
		partitions, err := r.Storage.Open(ctx, in.Generation, in.Partitions, dir)
		if err != nil {
			return nil, fmt.Errorf("input %q: %w", in.As, err)
		}
		rel := relation(in, slices.Concat(partitions...))
		if rel.Keyed = anyNamesPartition(t.Checks); rel.Keyed {
			rel.Keys = storage.KeysOf(in.Partitions, partitions)
		}
		data.inputs = append(data.inputs, rel)
	}

	w := r.workOf(Assignment{OrgID: t.Generation.OrgID, Job: t.Generation.Dataset.String()})
	defer w.release()
	return w.check(ctx, data, t.Checks, t.Now)
}

// checkedData is what the checks of one revision read: local files of the output, and inputs of the job.
type checkedData struct {
	scope  relations.Scope
	output []string
	inputs []relations.Relation // those that a check reads
}

// check runs checks. Freshness is measured from now.
func (w *work) check(
	ctx context.Context, data checkedData, checks []dag.Check, now time.Time,
) (outcomes []CheckOutcome, err error) {
	output := relations.Relation{Name: engine.Output, Files: data.output}
	if err := w.add(ctx, data.scope, data.inputs, output); err != nil {
		return nil, err
	}
	return outcomes, w.ask(ctx, engine.Check{Checks: checks, Now: now}, &outcomes)
}

// readBy reports whether a check reads the input. An input that no check reads is not opened, so it cannot fail them.
func readBy(checks []dag.Check, as string) bool {
	return as != engine.Output && slices.ContainsFunc(checks, func(c dag.Check) bool {
		return c.Kind == "sql" || c.To != nil && c.To.Input == as
	})
}

func (r *Runner) openChecked(ctx context.Context, t CheckTask, scratch string) ([]string, error) {
	dir := filepath.Join(scratch, "output")
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, err
	}
	switch {
	case (t.Held == nil) == (t.Published == nil):
		return nil, fault.New(fault.Internal, "a check needs either a held or a published revision")
	case t.Held != nil:
		return r.Storage.OpenSealed(ctx, t.Generation, *t.Held, dir)
	}

	files, err := r.Storage.Open(ctx, t.Generation, []storage.Partition{*t.Published}, dir)
	if err != nil {
		return nil, err
	}
	return files[0], nil
}
