package sources

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/dispatcher/tasks"
	"github.com/dagctl/dagctl/dispatcher/wakeup"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/registry"
)

// Reading says what became of a wish to read a source now.
type Reading struct {
	DAG   string    `json:"dag"`
	Job   string    `json:"job"`
	DueAt time.Time `json:"due_at" doc:"When it is due: now, or since when it has been"`
	Asked bool      `json:"asked" doc:"False if it was due already: it is read once"`
}

// Readable reports whether a source of a kind is read at times, so that it can be read now.
func Readable(kind string) bool { return kind == "poll" || kind == "cron" }

// ReadNow makes a source of the version that serves due now, and changes none of the times of its schedule. A source
// that is due already, and that nobody has begun to read, is read once. It refuses a source that is paused.
func (src *Sources) ReadNow(
	ctx context.Context, caller authz.Caller, dagName, name string, now time.Time,
) (r Reading, err error) {
	err = pg.InOrgTx(ctx, src.requests, caller.OrgID, func(ctx context.Context, tx pgx.Tx) error {
		r = Reading{DAG: dagName, Job: name}
		job, err := src.dispatcher.LockedJob(ctx, tx, caller.OrgID, dagName, name)
		if err != nil {
			return err
		}
		if err := src.mayBeRead(ctx, tx, caller, job); err != nil {
			return err
		}

		if err := forgetPosition(ctx, tx, job); err != nil {
			return err
		}
		if r.DueAt, r.Asked, err = makeDue(ctx, tx, job, now); err != nil || !r.Asked {
			return err
		}
		return authz.Audit(ctx, tx, caller, "source.read", job.Address(), map[string]any{"due_at": r.DueAt})
	})
	if err != nil {
		return r, fmt.Errorf("read source %s/%s: %w", dagName, name, err)
	}
	src.wake.Send(wakeup.Sources)
	return r, nil
}

// mayBeRead refuses what is no source that is read at times, and what is not to be read now.
func (src *Sources) mayBeRead(ctx context.Context, tx pgx.Tx, caller authz.Caller, job *registry.Job) error {
	switch {
	case job.Def.Source == nil:
		return fault.New(fault.Invalid, "%s is no source: its tasks come from its inputs", job.Address()).
			WithHint("`dagctl backfill %s` computes partitions again", job.Address())
	case !Readable(job.Def.Source.Kind):
		return fault.New(fault.Invalid, "the source of %s is of kind %s, and is not read at times", job.Address(),
			job.Def.Source.Kind).WithHint("sources of the kinds poll and cron can be read now")
	}

	pauses, err := tasks.PausesOf(ctx, tx, caller.OrgID)
	if err != nil {
		return err
	}
	if p := tasks.WidestPause(pauses, job.DAG, job.Name); p != nil {
		return fault.New(fault.Conflict, "%s is paused by %s", p.What(), p.Actor).
			WithHint("once it is resumed, the source can be read")
	}
	return src.pressure.HasRoom(caller.OrgID, job.Def.Runtime)
}

// makeDue makes a source due now, unless it is due already. One that is being read is read once more, because its
// reader may have been past what is new. It returns when the source is due.
func makeDue(ctx context.Context, tx pgx.Tx, job *registry.Job, now time.Time) (at time.Time, made bool, err error) {
	err = tx.QueryRow(ctx, `
		WITH before AS (
			SELECT org_id, dag_name, job_name, next_fire_at,
			       coalesce(next_fire_at <= $4, false) AND coalesce(reading_until <= $4, true) AS due
			FROM sources WHERE org_id = $1 AND dag_name = $2 AND job_name = $3 FOR UPDATE)
		UPDATE sources s SET next_fire_at = CASE WHEN b.due THEN b.next_fire_at ELSE $4 END, asked = true FROM before b
		WHERE s.org_id = b.org_id AND s.dag_name = b.dag_name AND s.job_name = b.job_name
		RETURNING s.next_fire_at, NOT b.due`, job.OrgID, job.DAG, job.Name, now).Scan(&at, &made)
	if errors.Is(err, pgx.ErrNoRows) {
		return at, false, fault.New(fault.Conflict, "%s does not serve yet", job.Address()).
			WithHint("`dagctl status %s` says what the DAG waits for", job.DAG)
	}
	return at, made, err
}

// forgetPosition makes the next listing of a source whole: whoever asks for one looks for what the others did not find.
// That of a calendar is always whole, and its position says from where it looks back.
func forgetPosition(ctx context.Context, tx pgx.Tx, job *registry.Job) error {
	if job.Def.Asked() {
		return nil
	}
	_, err := tx.Exec(ctx, `UPDATE enumerations SET position = NULL WHERE org_id = $1 AND job_id = $2`, job.OrgID,
		job.ID)
	return err
}
