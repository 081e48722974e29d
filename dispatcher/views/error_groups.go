package views

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/internal/pg"
)

// ErrorGroup is a group of failed tasks whose errors differ only in ids, dates and numbers.
type ErrorGroup struct {
	Group     string    `json:"error_group" doc:"Its name, for filters"`
	Error     string    `json:"error" doc:"What the errors have in common: ID, DATE and N stand for what differs"`
	Count     int64     `json:"count"`
	Jobs      []string  `json:"jobs" nullable:"false" doc:"DAG/JOB, at most ten"`
	FirstSeen time.Time `json:"first_seen"`
	LastSeen  time.Time `json:"last_seen"`
	Example   uuid.UUID `json:"example" doc:"The newest of the tasks"`
}

// maxErrorGroups is how many groups ErrorGroups returns at most.
const maxErrorGroups = 200

// masked is the error of task t with all digits alike. Errors that are then the same have the same pattern, which has
// none of their digits, so that it is found once for them: that takes much longer than to read them.
const masked = `translate(left(t.error_message, 600), '123456789', '000000000')`

// ErrorGroups groups the failed tasks of a selection by error, the largest group first. It leaves out tasks whose error
// the caller may not read.
func (vs *Views) ErrorGroups(ctx context.Context, caller authz.Caller, s TaskSelection) ([]ErrorGroup, error) {
	groups := []ErrorGroup{}
	err := pg.InOrgTx(ctx, vs.requests, caller.OrgID, func(ctx context.Context, tx pgx.Tx) error {
		where, args, err := vs.Selected(ctx, tx, caller, s)
		if err != nil {
			return err
		}
		hidden, err := vs.registry.HiddenOrigins(ctx, tx, caller)
		if err != nil {
			return err
		}

		args = append(args, hidden, maxErrorGroups)
		rows, err := tx.Query(ctx, fmt.Sprintf(`
			WITH alike AS MATERIALIZED (
				SELECT error_pattern(f.masked) AS pattern, count(*) AS n, array_agg(DISTINCT f.job_id) AS jobs,
				       min(f.at) AS first, max(f.at) AS last, max(f.id::text) AS newest
				FROM (SELECT t.id, t.job_id, coalesce(t.completed_at, t.started_at, t.created_at) AS at, %s AS masked
				      FROM tasks t
				      WHERE %s AND t.status = 'Failed' AND t.error_message IS NOT NULL AND t.job_id <> ALL($%d)) AS f
				GROUP BY f.masked),
			groups AS (
				SELECT a.pattern, sum(a.n)::bigint AS n, min(a.first) AS first, max(a.last) AS last,
				       max(a.newest)::uuid AS example
				FROM alike a GROUP BY a.pattern
				ORDER BY 2 DESC, error_group(a.pattern) LIMIT $%d)
			SELECT error_group(g.pattern), g.pattern, g.n,
			       (ARRAY(SELECT DISTINCT job_address(j) AS address FROM alike a, unnest(a.jobs) AS j
			              WHERE a.pattern = g.pattern ORDER BY 1))[1:10],
			       g.first, g.last, g.example
			FROM groups g ORDER BY g.n DESC, 1`, masked, where, len(args)-1, len(args)), args...)
		if err != nil {
			return err
		}
		groups, err = pgx.CollectRows(rows, pgx.RowToStructByPos[ErrorGroup])
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("group tasks by error: %w", err)
	}
	return append([]ErrorGroup{}, groups...), nil
}
