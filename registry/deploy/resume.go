package deploy

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/registry"
)

// resumable returns the failed version of the document that a resume takes up: existing, or one with other epochs, such
// as a rematerialize. Every deploy of a document takes its version up again, with everything it has built; a resume
// makes sure that there is such a version.
func (d *deploy) resumable(ctx context.Context, tx pgx.Tx, existing *registry.Version,
	hash string) (*registry.Version, string, error) {
	if existing != nil && (existing.Status == registry.Failed || existing.Status == registry.Abandoned) {
		return existing, hash, nil
	}

	failed, newest, err := d.failedWithEpochs(ctx, tx)
	switch {
	case err != nil:
		return nil, "", err
	case failed != nil:
		return failed, failed.Hash, nil
	case existing != nil:
		return nil, "", fault.New(fault.Conflict, "there is nothing to resume: version %d of %s is %s",
			existing.Number, d.doc.Name, existing.Status)
	case newest == 0:
		return nil, "", fault.New(fault.Conflict, "there is nothing to resume: no version of %s has failed",
			d.doc.Name).WithHint("deploy without --resume")
	}
	return nil, "", fault.New(fault.Conflict, "version %d of %s failed, but this is another document", newest,
		d.doc.Name).WithHint("deploy without --resume: whatever is the same as before is reused")
}

// resumableAmong is how many of the newest versions that did not come to serve are looked through for a document.
const resumableAmong = 20

// failedWithEpochs returns the newest version that failed or was abandoned and is this document with the epochs of the
// deploy or higher ones, and makes those the deploy's; nil if there is none. It also returns the number of the newest
// version that failed.
func (d *deploy) failedWithEpochs(ctx context.Context, tx pgx.Tx) (*registry.Version, int, error) {
	rows, err := tx.Query(ctx, `
		SELECT v.number, v.yaml_hash, v.status = 'Failed', jsonb_object_agg(j.name, j.build_epoch)
		FROM (SELECT id, number, yaml_hash, status FROM dag_versions
			WHERE org_id = $1 AND dag_name = $2 AND status IN ('Failed', 'Abandoned')
			  AND shrunk_at IS NULL
			ORDER BY number DESC LIMIT $3) AS v
		JOIN jobs j ON j.dag_version_id = v.id
		GROUP BY v.number, v.yaml_hash, v.status ORDER BY v.number DESC`, d.caller.OrgID, d.doc.Name, resumableAmong)
	if err != nil {
		return nil, 0, fmt.Errorf("look for failed versions: %w", err)
	}

	type candidate struct {
		Number int
		Hash   string
		Failed bool
		Epochs map[string]int
	}
	candidates, err := pgx.CollectRows(rows, pgx.RowToStructByPos[candidate])
	if err != nil {
		return nil, 0, fmt.Errorf("look for failed versions: %w", err)
	}

	newest := 0
	for _, c := range candidates {
		if c.Failed {
			newest = max(newest, c.Number)
		}
		if dag.Hash(d.doc, c.Epochs, d.bindings) != c.Hash || d.outdates(c.Epochs) {
			continue
		}
		if failed, err := d.withEpochs(ctx, tx, c.Hash, c.Epochs); err != nil || failed != nil {
			return failed, newest, err
		}
	}
	return nil, newest, nil
}

// outdates reports whether some of the deploy's jobs have been computed anew since with higher epochs than these.
func (d *deploy) outdates(epochs map[string]int) bool {
	for job, epoch := range d.epoch {
		if epoch > epochs[job] {
			return true
		}
	}
	return false
}
