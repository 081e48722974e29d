package deploy

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/registry"
)

// resumable refuses to resume anything but a failed version of this document. Every deploy of a document takes its
// version up again, with everything it has built; a resume makes sure that there is such a version.
func (d *deploy) resumable(ctx context.Context, tx pgx.Tx, existing *registry.Version) error {
	if existing != nil && (existing.Status == registry.Failed || existing.Status == registry.Abandoned) {
		return nil
	}
	if existing != nil {
		return fault.New(fault.Conflict, "there is nothing to resume: version %d of %s is %s", existing.Number,
			d.doc.Name, existing.Status)
	}

	var number int
	err := tx.QueryRow(ctx, `SELECT number FROM dag_versions WHERE org_id = $1 AND dag_name = $2 AND status = 'Failed'
		    ORDER BY number DESC LIMIT 1`,
		d.caller.OrgID, d.doc.Name).Scan(&number)
	if errors.Is(err, pgx.ErrNoRows) {
		return fault.New(fault.Conflict, "there is nothing to resume: no version of %s has failed", d.doc.Name).
			WithHint("deploy without --resume")
	}
	if err != nil {
		return fmt.Errorf("look for failed versions: %w", err)
	}
	return fault.New(fault.Conflict, "version %d of %s failed, but this is another document", number, d.doc.Name).
		WithHint("deploy without --resume: whatever is the same as before is reused")
}
