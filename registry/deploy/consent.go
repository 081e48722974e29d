package deploy

import (
	"context"
	"fmt"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/registry"
	"github.com/dagctl/dagctl/registry/contract"
)

// removed returns what readers of an output would lose; nil if that is nothing, or if only the build can tell. Where
// the output is partitioned in another way than before, no partition is the same, and the plan says that instead; but
// all are lost if nothing is made for the new partitioning, since what they were made from cannot be read again.
func (b *behind) removed(
	live []planned, next planned, job *dag.Job, stays func(key string) bool,
) *registry.Removal {
	will := b.of(job.Name)
	if will.unknown || next.partitionBy.Kind == dag.ByCursor || next.reset {
		return nil
	}

	r, anew := registry.Removal{Dataset: next.dataset}, false
	empty := len(will.keys) == 0 && len(b.published[next.generation]) == 0
	for _, l := range live {
		same := l.partitionBy == next.partitionBy
		if l.generation != next.generation && (same || empty) {
			r.Keys, anew = union(r.Keys, sortedKeys(b.published[l.generation])), anew || !same
		}
	}
	if !r.Only(func(key string) bool {
		_, comes := slices.BinarySearch(will.keys, key)
		_, there := b.published[next.generation][key]
		// What was purged is made again only where its inputs have changed since.
		return !stays(key) && !(comes && (there || b.wants(job, key)))
	}) {
		return nil
	}
	switch {
	case anew:
		r.Why = registry.NothingAnew
	case b.purged[next.generation][r.Keys[0]]:
		r.Why = registry.Purged
	default:
		r.Why = b.whyNot(job, r.Keys[0])
	}
	return &r
}

// whyNot returns why a job will not make a partition: the first of its inputs that lacks something.
func (b *behind) whyNot(job *dag.Job, key string) string {
	for _, in := range job.Inputs {
		if ok, err := b.enough(in, job.TasksBy(), key); err == nil && !ok {
			return fmt.Sprintf("input %q has nothing for it", in.As)
		}
	}
	return ""
}

// shownAgain returns the partitions of a version that its swap shows although checks of other versions refused them.
func (d *deploy) shownAgain(ctx context.Context, tx pgx.Tx, next []planned) (map[registry.Ref]bool, error) {
	checks := map[uuid.UUID][]dag.Check{}
	for _, p := range next {
		if job, ok := d.doc.Job(p.job); ok && p.exists {
			checks[p.generation] = job.ErrorChecks(p.output)
		}
	}
	return registry.ShownAgain(ctx, tx, checks)
}

// refuseFindings refuses what readers would miss, unless the deploy agrees to it.
func (d *deploy) refuseFindings() error {
	if d.planning {
		return nil
	}
	return contract.Refusal(d.findings, d.given)
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
	for _, c := range d.req.Consents() {
		if !slices.Contains(given, c) {
			given = append(given, c)
		}
	}
	return given
}
