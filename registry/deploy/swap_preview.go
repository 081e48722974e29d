package deploy

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/registry"
	"github.com/dagctl/dagctl/registry/contract"
)

// SwapPreview is what readers of a DAG's datasets would see change if another of its versions served now.
type SwapPreview struct {
	DAG       string          `json:"dag"`
	From      *int            `json:"from_version,omitempty" doc:"The version that serves"`
	To        int             `json:"to_version"`
	Status    registry.Status `json:"status" doc:"Of the version to serve"`
	Datasets  []Swapped       `json:"datasets" nullable:"false" doc:"In the order of their names, published ones first"`
	KeptUntil time.Time       `json:"kept_until" doc:"Until then, going back to the version that serves now is instant, if the swap is now"`

	Cancels  []registry.CanceledQueue `json:"cancels,omitempty" doc:"Tasks of manual, timer and webhook jobs that it cancels"`
	Findings []contract.Finding       `json:"findings,omitempty" doc:"What readers have to know, agree to, or are kept from"`
	Agreed   []contract.Consent       `json:"agreed,omitempty" doc:"What was agreed to when the version to serve was deployed"`
}

// Swapped is one dataset in a swap.
type Swapped struct {
	Dataset   string    `json:"dataset"`
	Published bool      `json:"published"`
	Action    string    `json:"action" enum:"create,swap-only,reuse,remove"`
	Before    *Holdings `json:"before,omitempty" doc:"What readers see now; absent if it does not serve"`
	After     *Holdings `json:"after,omitempty" doc:"What they would see; absent if the version does not have it"`
}

// Holdings are the published partitions of one generation of a dataset.
type Holdings struct {
	Partitions int64 `json:"partitions"`
	Rows       int64 `json:"rows"`
	Bytes      int64 `json:"bytes"`
}

// PreviewSwap returns what a cutover to a version that is being built or ready, or a rollback to one that served, would
// change for readers now. Without a number, it is the version that served before the active one. It returns Conflict
// for a version that can do neither, and Forbidden where the caller may not read all that the version has.
func (dp *Deployer) PreviewSwap(ctx context.Context, caller authz.Caller, dagName string, to *int,
	now time.Time) (SwapPreview, error) {
	preview := SwapPreview{DAG: dagName, KeptUntil: now.Add(registry.RollbackWindow)}
	err := pg.InOrgTx(ctx, dp.requests, caller.OrgID, func(ctx context.Context, tx pgx.Tx) error {
		b, back, err := swapTarget(ctx, tx, caller.OrgID, dagName, to)
		if err != nil {
			return err
		}
		preview.To, preview.Status, preview.Agreed = b.Number, b.Status, b.Consents
		if preview.From, err = registry.ActiveNumber(ctx, tx, caller.OrgID, dagName); err != nil {
			return err
		}
		if err := refuseHiddenSwap(ctx, tx, caller, b); err != nil {
			return err
		}
		if preview.Datasets, err = swapped(ctx, tx, b); err != nil {
			return err
		}

		moves, err := QueueMoves(ctx, tx, caller.OrgID, dagName, b.ID)
		if err != nil {
			return err
		}
		if preview.Cancels, err = CanceledByMoves(ctx, tx, moves); err != nil {
			return err
		}
		var lost []registry.Removal
		if back {
			if lost, err = registry.PurgedRemovals(ctx, tx, b.ID); err != nil {
				return err
			}
		}
		if _, preview.Findings, err = dp.compare(ctx, tx, b, lost, back); err != nil {
			return err
		}
		misfits, err := previewMisfits(ctx, tx, b)
		preview.Findings = append(preview.Findings, misfits...)
		return err
	})
	if err != nil {
		return SwapPreview{}, fmt.Errorf("preview of %s: %w", dagName, err)
	}
	return preview, nil
}

// swapTarget returns the version that a swap is to, and whether the swap goes back.
func swapTarget(ctx context.Context, tx pgx.Tx, org uuid.UUID, dagName string, to *int) (registry.Build, bool, error) {
	if to != nil {
		b := registry.Build{OrgID: org, DAG: dagName, Number: *to}
		rows, err := tx.Query(ctx, `SELECT id, status, activate, consents FROM dag_versions
			WHERE org_id = $1 AND dag_name = $2 AND number = $3 AND status IN ('Building', 'Ready')`, org, dagName, *to)
		if err != nil {
			return b, false, fmt.Errorf("find version %d: %w", *to, err)
		}
		found := false
		_, err = pgx.ForEachRow(rows, []any{&b.ID, &b.Status, &b.Activate, &b.Consents},
			func() error { found = true; return nil })
		if err != nil || found {
			return b, false, err
		}
	}
	b, err := RollbackTarget(ctx, tx, org, dagName, to)
	return b, true, err
}

// refuseHiddenSwap refuses a swap between versions of which the caller may not read everything.
func refuseHiddenSwap(ctx context.Context, tx pgx.Tx, caller authz.Caller, b registry.Build) error {
	versions := []uuid.UUID{b.ID}
	rows, err := tx.Query(ctx, `SELECT dag_version_id FROM dag_current_versions WHERE org_id = $1 AND dag_name = $2`,
		b.OrgID, b.DAG)
	if err != nil {
		return fmt.Errorf("version of %s that serves: %w", b.DAG, err)
	}
	serving, err := pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
	if err != nil {
		return fmt.Errorf("version of %s that serves: %w", b.DAG, err)
	}

	hidden, err := registry.HiddenVersions(ctx, tx, caller, append(versions, serving...))
	if err != nil {
		return err
	}
	if len(hidden) > 0 {
		return fault.New(fault.Forbidden, "%s reads or makes what %s may not read", b.DAG, caller.Actor).
			WithHint("ask an admin of the org %s for the org roles that may read it", caller.OrgSlug)
	}
	return nil
}

// swapped compares what serves with what a version has. What a generation holds comes from
// idx_partition_versions_published, one range for each dataset.
func swapped(ctx context.Context, tx pgx.Tx, b registry.Build) ([]Swapped, error) {
	rows, err := tx.Query(ctx, `
		WITH live AS (
			SELECT p.dataset_uuid, p.dataset_version, p.name, p.published_name IS NOT NULL AS published
			FROM dag_current_versions c
			JOIN dag_version_datasets p ON p.org_id = c.org_id AND p.dag_version_id = c.dag_version_id
			WHERE c.org_id = $1 AND c.dag_name = $2
		), next AS (
			SELECT p.dataset_uuid, p.dataset_version, p.name, p.published_name IS NOT NULL AS published
			FROM dag_version_datasets p WHERE p.org_id = $1 AND p.dag_version_id = $3
		)
		SELECT coalesce(n.name, l.name), coalesce(n.published, l.published),
		       CASE WHEN l.dataset_version IS NULL THEN 'create' WHEN n.dataset_version IS NULL THEN 'remove'
		            WHEN l.dataset_version = n.dataset_version THEN 'reuse' ELSE 'swap-only' END,
		       lh.*, nh.*
		FROM live l FULL JOIN next n ON n.dataset_uuid = l.dataset_uuid
		CROSS JOIN LATERAL (SELECT count(*), coalesce(sum(r.row_count), 0)::bigint, coalesce(sum(r.bytes), 0)::bigint
			FROM partition_versions r WHERE r.dataset_version = l.dataset_version AND r.state = 'Published') AS lh
		CROSS JOIN LATERAL (SELECT count(*), coalesce(sum(r.row_count), 0)::bigint, coalesce(sum(r.bytes), 0)::bigint
			FROM partition_versions r WHERE r.dataset_version = n.dataset_version AND r.state = 'Published') AS nh
		ORDER BY 2 DESC, 1`, b.OrgID, b.DAG, b.ID)
	if err != nil {
		return nil, fmt.Errorf("datasets of a swap to %s v%d: %w", b.DAG, b.Number, err)
	}

	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (s Swapped, err error) {
		var before, after Holdings
		err = row.Scan(&s.Dataset, &s.Published, &s.Action, &before.Partitions, &before.Rows, &before.Bytes,
			&after.Partitions, &after.Rows, &after.Bytes)
		if s.Action != Create {
			s.Before = &before
		}
		if s.Action != Remove {
			s.After = &after
		}
		return s, err
	})
}
