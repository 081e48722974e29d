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
			SELECT error_group(f.error_message), min(error_pattern(f.error_message)), count(*),
			       (array_agg(DISTINCT job_address(f.job_id)))[1:10], min(f.at), max(f.at),
			       (array_agg(f.id ORDER BY f.id DESC))[1]
			FROM (SELECT t.id, t.job_id, t.error_message, coalesce(t.completed_at, t.started_at, t.created_at) AS at
			      FROM tasks t
			      WHERE %s AND t.status = 'Failed' AND t.error_message IS NOT NULL AND t.job_id <> ALL($%d)) AS f
			GROUP BY 1 ORDER BY 3 DESC, 1 LIMIT $%d`, where, len(args)-1, len(args)), args...)
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
