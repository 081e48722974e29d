package authz

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// ReadBy says how often somebody read a dataset.
type ReadBy struct {
	Actor string    `json:"actor" doc:"user:ID, token:NAME or workload:RULE"`
	Reads int64     `json:"reads" doc:"Queries and previews"`
	Rows  int64     `json:"rows" doc:"Rows that these answered, of all datasets that a query read"`
	Last  time.Time `json:"last_at"`
}

// mostReads bounds the entries that ReadersOf looks at, the newest ones.
const mostReads = 100_000

// ReadersOf counts, from the audit log, who has read a dataset of a name since a time, the most frequent reader first.
// Whoever calls it decides who may know. It relies on idx_audit_log_reads.
func ReadersOf(ctx context.Context, tx pgx.Tx, org uuid.UUID, dataset string, since time.Time) ([]ReadBy, error) {
	rows, err := tx.Query(ctx, `
		SELECT r.actor, count(*), coalesce(sum((r.detail ->> 'rows')::bigint), 0)::bigint, max(r.at)
		FROM (SELECT actor, detail, at FROM audit_log
		      WHERE org_id = $1 AND at > $3 AND action IN ('dataset.preview', 'query.run')
		      ORDER BY at DESC LIMIT $4) AS r
		WHERE r.detail -> 'datasets' @> jsonb_build_array(jsonb_build_object('dataset', $2::text))
		  AND r.detail ->> 'failed' IS NULL
		GROUP BY r.actor ORDER BY 2 DESC, 1 LIMIT 50`, org, dataset, since, mostReads)
	if err != nil {
		return nil, fmt.Errorf("readers of %s: %w", dataset, err)
	}
	return pgx.CollectRows(rows, pgx.RowToStructByPos[ReadBy])
}
