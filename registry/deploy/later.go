package deploy

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/internal/plural"
	"github.com/dagctl/dagctl/registry"
)

// A changed definition of a forward-only job rebuilds nothing, so its dataset is reused. Plans and diffs say that the
// definition changed all the same, and from when on it counts; and which partitions a source is asked for.

// noteLater says both in the changes between two pointer sets. version is that of live, and next returns the definition
// of a job in the other; false if it has none.
func (dp *Deployer) noteLater(
	ctx context.Context, tx pgx.Tx, changes []registry.Change, live []planned, version uuid.UUID,
	next func(job string) (*dag.Job, bool),
) error {
	if err := noteAsked(ctx, tx, changes, live, version, next); err != nil {
		return err
	}
	forwardOnly := func(job *dag.Job) bool { return job.ForwardOnly(dp.catalog.Operators[job.Operator]) }
	reused, err := reusedBy(ctx, tx, changes, live, version, next, forwardOnly)
	if err != nil {
		return err
	}

	for i, job := range reused {
		same, err := sameContent(job.was, job.is, dp.catalog)
		if err != nil {
			return err
		}
		if same {
			continue
		}
		c := &changes[i]
		if c.Reason = "definition changed, for later tasks only: its input cannot be read again"; job.is.Source == nil {
			c.Reason = "definition changed, for later tasks only: effects are not repeated"
		}
	}
	return nil
}

// noteAsked says which sources are asked from another first partition on, which computes nothing during a build.
func noteAsked(ctx context.Context, tx pgx.Tx, changes []registry.Change, live []planned, version uuid.UUID,
	next func(job string) (*dag.Job, bool)) error {
	reused, err := reusedBy(ctx, tx, changes, live, version, next, (*dag.Job).Asked)
	if err != nil {
		return err
	}

	for i, job := range reused {
		if !job.was.Asked() {
			continue
		}
		c := &changes[i]
		reason, err := askedFrom(job.was, job.is)
		if err != nil {
			return fmt.Errorf("job %s: %w", c.Job, err)
		}
		c.Reason = cmp.Or(reason, c.Reason)
	}
	return nil
}

// redefined has the definitions of a job before and after.
type redefined struct{ was, is *dag.Job }

// reusedBy returns the jobs of those changes that reuse their datasets and are of a kind, by the indexes of the
// changes: as version, that of live, has them, and as next does. Jobs that are in one of them only are left out.
func reusedBy(
	ctx context.Context, tx pgx.Tx, changes []registry.Change, live []planned, version uuid.UUID,
	next func(job string) (*dag.Job, bool), kind func(*dag.Job) bool,
) (map[int]redefined, error) {
	before := byDataset(live)
	reused, names := map[int]redefined{}, []string{}
	for i, c := range changes {
		if job, ok := next(c.Job); ok && c.Action == Reuse && kind(job) {
			reused[i], names = redefined{is: job}, append(names, before[c.ID].job)
		}
	}
	if len(names) == 0 {
		return nil, nil
	}

	was, err := definitionsOf(ctx, tx, version, names)
	for i, job := range reused {
		if job.was = was[before[changes[i].ID].job]; job.was == nil {
			delete(reused, i)
			continue
		}
		reused[i] = job
	}
	return reused, err
}

// askedFrom says what becomes of a source that is asked from another first partition on; empty: it is the same one.
func askedFrom(old, job *dag.Job) (string, error) {
	was, is := old.Source.FirstPartition, job.Source.FirstPartition
	if was == is {
		return "", nil
	}

	end, _, err := job.PartitionBy.Bounds(was)
	if err != nil {
		return "", err
	}
	more, err := job.PartitionBy.CompleteFrom(is, end)
	if err != nil {
		return "", err
	}
	if len(more) == 0 {
		return fmt.Sprintf("asked from %s on; what it has made from %s on stays", is, was), nil
	}
	return fmt.Sprintf("asked from %s on, for %s, once it serves", is, plural.Of(len(more), "more partition")), nil
}

// noteLaterBetween says it in the changes between two versions, of whose pointer sets live is the first.
func (dp *Deployer) noteLaterBetween(
	ctx context.Context, tx pgx.Tx, changes []registry.Change, live []planned, versions [2]uuid.UUID,
) error {
	var names []string
	for _, c := range changes {
		if c.Action == Reuse {
			names = append(names, c.Job)
		}
	}
	after, err := definitionsOf(ctx, tx, versions[1], names)
	if err != nil {
		return err
	}
	return dp.noteLater(ctx, tx, changes, live, versions[0], func(name string) (*dag.Job, bool) {
		job, ok := after[name]
		return job, ok
	})
}

// sameContent compares a definition that was stored with one that perhaps was not.
func sameContent(old, job *dag.Job, cat dag.Catalog) (bool, error) {
	text, err := json.Marshal(job)
	if err != nil {
		return false, err
	}
	stored := new(dag.Job)
	if err := json.Unmarshal(text, stored); err != nil {
		return false, err
	}
	return old.SameContent(stored, cat.Operators[job.Operator])
}

// definitionsOf returns the definitions of some jobs of a version, by name.
func definitionsOf(
	ctx context.Context, tx pgx.Tx, version uuid.UUID, names []string,
) (map[string]*dag.Job, error) {
	rows, err := tx.Query(ctx, `
		SELECT name, definition FROM jobs WHERE dag_version_id = $1 AND name = ANY($2)`, version, names)
	if err != nil {
		return nil, fmt.Errorf("definitions of version %s: %w", version, err)
	}

	found := map[string]*dag.Job{}
	var (
		name string
		text []byte
	)
	_, err = pgx.ForEachRow(rows, []any{&name, &text}, func() error {
		found[name] = new(dag.Job)
		return json.Unmarshal(text, found[name])
	})
	if err != nil {
		return nil, fmt.Errorf("definitions of version %s: %w", version, err)
	}
	return found, nil
}
