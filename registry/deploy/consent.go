package deploy

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/registry"
)

// removed returns what readers of an output would lose; nil if that is nothing, or if only the build can tell. Where
// the output is partitioned in another way than before, no partition is the same, and the plan says that instead.
func (b *behind) removed(live, next planned, job *dag.Job, stays map[string]bool) *registry.Removal {
	will := b.of(job.Name)
	if will.unknown || live.generation == next.generation || live.partitionBy != next.partitionBy ||
		next.partitionBy.Kind == dag.ByCursor || next.reset {
		return nil
	}

	r := registry.Removal{Dataset: next.dataset, Keys: sortedKeys(b.published[live.generation])}
	if !r.Only(func(key string) bool {
		_, comes := slices.BinarySearch(will.keys, key)
		return !comes && !stays[key]
	}) {
		return nil
	}
	r.Why = b.whyNot(job, r.Keys[0])
	return &r
}

// whyNot returns why a job will not make a partition: the first of its inputs that lacks something.
func (b *behind) whyNot(job *dag.Job, key string) string {
	for _, in := range job.Inputs {
		if ok, err := b.enough(in, job.PartitionBy, key); err == nil && !ok {
			return fmt.Sprintf("input %q has nothing for it", in.As)
		}
	}
	return ""
}

// refuseRemovals refuses to lose partitions that are served, unless the deploy agrees to it.
func (d *deploy) refuseRemovals(changes []registry.Change) error {
	if d.planning || slices.Contains(d.given, registry.AllowRemovals) {
		return nil
	}

	var texts []string
	for _, c := range changes {
		if c.Removes != nil {
			texts = append(texts, c.Removes.String())
		}
	}
	if len(texts) == 0 {
		return nil
	}

	refusal := fault.New(fault.Conflict, "%s", strings.Join(texts, "; "))
	if d.req.Force != nil {
		return refusal.WithHint("restore what they are made from, or pass --allow-removals to let them go")
	}
	return refusal.WithHint("pass --allow-removals to let them go; --forward-only keeps what would be rebuilt as it is")
}

// consent records what the deploy agreed to.
func (d *deploy) consent(ctx context.Context, tx pgx.Tx, version uuid.UUID) error {
	_, err := tx.Exec(ctx, `UPDATE dag_versions SET consents = $3 WHERE org_id = $1 AND id = $2 AND consents <> $3`,
		d.caller.OrgID, version, d.given)
	if err != nil {
		return fmt.Errorf("record what the deploy agreed to: %w", err)
	}
	return nil
}

// consents returns what the deploy agrees to, with what was agreed to when the build that it joins began.
func (d *deploy) consents(before []registry.Consent) []registry.Consent {
	given := slices.Clone(before)
	if given == nil {
		given = []registry.Consent{} // nil would be NULL
	}
	add := func(c registry.Consent, asked bool) {
		if asked && !slices.Contains(given, c) {
			given = append(given, c)
		}
	}
	add(registry.CancelTasks, d.req.CancelTasks)
	add(registry.AllowRemovals, d.req.AllowRemovals)
	return given
}
