package tasks

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/internal/pg"
)

// Pause is a pause that somebody set on an org, a DAG or a job.
type Pause struct {
	DAG    string    `json:"dag,omitempty" doc:"Absent: the whole org"`
	Job    string    `json:"job,omitempty" doc:"Absent: the whole DAG"`
	Actor  string    `json:"actor"`
	Reason string    `json:"reason,omitempty"`
	At     time.Time `json:"at"`
}

// covers reports whether the pause applies to a job.
func (p Pause) covers(dagName, job string) bool {
	return p.DAG == "" || p.DAG == dagName && (p.Job == "" || p.Job == job)
}

// What names what is paused, for people and as the blocker of the tasks that wait.
func (p Pause) What() string {
	switch {
	case p.DAG == "":
		return "the org"
	case p.Job == "":
		return p.DAG
	}
	return p.DAG + "/" + p.Job
}

// Resume is the command that ends the pause.
func (p Pause) Resume() string {
	if p.DAG == "" {
		return "dagctl resume --org"
	}
	return "dagctl resume " + p.What()
}

// WidestPause returns the widest pause that applies to a job, or nil. The pauses are in the order of PausesOf.
func WidestPause(pauses []Pause, dagName, job string) *Pause {
	for i, p := range pauses {
		if p.covers(dagName, job) {
			return &pauses[i]
		}
	}
	return nil
}

// PausesOf lists an org's pauses: first the pause of the org itself, then pauses of DAGs, then pauses of jobs.
func PausesOf(ctx context.Context, tx pgx.Tx, org uuid.UUID) ([]Pause, error) {
	rows, err := tx.Query(ctx, `SELECT dag_name, job_name, actor, coalesce(reason, ''), at FROM pauses WHERE org_id = $1
		ORDER BY dag_name <> '', job_name <> '', dag_name, job_name`, org)
	if err != nil {
		return nil, fmt.Errorf("list pauses: %w", err)
	}
	found, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Pause])
	if err != nil {
		return nil, fmt.Errorf("list pauses: %w", err)
	}
	return append([]Pause{}, found...), nil
}

// NotPaused is the SQL condition on sources that no pause applies.
const NotPaused = `NOT EXISTS (SELECT FROM pauses p WHERE p.org_id = sources.org_id
	AND (p.dag_name = '' OR p.dag_name = sources.dag_name AND p.job_name IN ('', sources.job_name)))`

// OfAuthority is the blocker of paused tasks that no pause keeps, but that run on no authority any more; OfPartition is
// that of tasks that wait for a server that knows such partitions as theirs.
const (
	OfAuthority = "authority"
	OfPartition = "partition"
)

// PutAside puts tasks that were taken from the ready set into the waiting set as paused by a blocker, and gives back
// what they held of limits.
func (st *Store) PutAside(ctx context.Context, tx pgx.Tx, taken []Taken, blocker string, now time.Time) error {
	return st.untake(ctx, tx, taken, WaitPaused, blocker, nil, now)
}

// LeaveToOthers puts tasks that were taken from the ready set into the waiting set until a time, because this server
// does not know their partitions, and gives back what they held of limits. Unknown says of each why.
func (st *Store) LeaveToOthers(ctx context.Context, tx pgx.Tx, taken []Taken, until, now time.Time) error {
	list, reasons := make([]uuid.UUID, len(taken)), make([]string, len(taken))
	for i, c := range taken {
		list[i], reasons[i] = c.Task, c.Unknown
	}
	_, err := tx.Exec(ctx, `UPDATE tasks t SET state = w.reason FROM unnest($1::uuid[], $2::text[]) AS w(id, reason)
		WHERE t.id = w.id`, list, reasons)
	if err != nil {
		return fmt.Errorf("put %d tasks aside: %w", len(taken), err)
	}
	return st.untake(ctx, tx, taken, WaitRunAt, OfPartition, &until, now)
}

// untake puts tasks that were taken from the ready set into the waiting set.
func (st *Store) untake(
	ctx context.Context, tx pgx.Tx, taken []Taken, reason Wait, blocker string, until *time.Time, now time.Time,
) error {
	freed := map[Limit]int{}
	rows := make([]waitRow, len(taken))
	for i, c := range taken {
		rows[i] = waitRow{c.Task, c.Org, c.Origin, c.Slot, string(reason), blocker, until, c.rank}
		AddFreed(freed, c.Org, c.Limits)
	}

	var b pg.Batch
	insertWaiting(&b, rows)
	if err := b.SendLast(ctx, tx); err != nil {
		return err
	}
	return st.ReleaseAll(ctx, tx, freed, now)
}
