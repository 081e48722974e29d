package tasks

import (
	"encoding/binary"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/dagctl/dagctl/internal/clock"
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
	return onTrailAs(EventID(clock.Now(), uuid.New()), r, from, to, actor, state, detail, at)
}

// onTrailAs is onTrail for a row whose place in the trail is not its end.
func onTrailAs(
	id uuid.UUID, r Row, from, to Status, actor, state string, detail []byte, at time.Time,
) trailRow {
	return trailRow{id, r.Org, r.ID, r.Attempt, string(from), string(to), actor, state,
		string(detail), at}
}

// EventID returns an id whose order is that of time, by the database's clock: a UUID of version 7 with the end of
// another one.
func EventID(at time.Time, end uuid.UUID) (id uuid.UUID) {
	var ms [8]byte
	binary.BigEndian.PutUint64(ms[:], uint64(at.UnixMilli()))
	copy(id[:6], ms[2:])
	fraction := at.Nanosecond() % int(time.Millisecond) >> 8 // 12 bits
	id[6], id[7] = 0x70|byte(fraction>>8), byte(fraction)
	copy(id[8:], end[8:])
	return id
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
