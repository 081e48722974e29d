package tasks

import (
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/dagctl/dagctl/internal/pg"
)

// trailRow is a row of the audit trail. Its texts are plain strings: pgx encodes arrays of them without reflection.
type trailRow struct {
	ID, Org, Task uuid.UUID
	Attempt       int
	From, To      string
	Actor, State  string
	Note          string
	At            time.Time
}

// onTrail returns the row of a task that goes from one status to another.
func onTrail(r Row, from, to Status, actor, state string, detail []byte, at time.Time) trailRow {
	return trailRow{uuid.Must(uuid.NewV7()), r.Org, r.ID, r.Attempt, string(from), string(to), actor, state,
		string(detail), at}
}

// insertTrail adds rows to the audit trail, in order.
func insertTrail(b *pg.Batch, rows []trailRow) {
	b.Exec(fmt.Sprintf("audit trail of %d tasks", len(rows)), `
		INSERT INTO task_events (id, org_id, task_id, attempt, from_status, to_status, actor, state, detail, at)
		SELECT id, org, task, attempt, was, status, actor, NULLIF(state, ''), NULLIF(note, '')::jsonb, at
		FROM unnest($1::uuid[], $2::uuid[], $3::uuid[], $4::int[], $5::text[], $6::text[], $7::text[], $8::text[],
			$9::text[], $10::timestamptz[])
			AS w(id, org, task, attempt, was, status, actor, state, note, at)`, pg.Columns(rows)...)
}
