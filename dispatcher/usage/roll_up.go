package usage

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/dispatcher/tasks"
	"github.com/dagctl/dagctl/dispatcher/workitems"
	"github.com/dagctl/dagctl/internal/clock"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/registry/footprint"
)

// KindCount is the kind of the work item that counts attempts.
const KindCount = "usage"

const (
	// countEvery is how long counting rests after it has come to the end of what is settled.
	countEvery = 15 * time.Second
	// stepRows is how many rows of the trail a step reads.
	stepRows = 5000
)

// Counting is the work of counting the attempts that have ended. Its position is in usage_progress.
func (u *Usage) Counting() workitems.Kind {
	return workitems.Kind{
		Name: KindCount, Objects: []string{""}, Every: countEvery,
		Begin: func(context.Context, string, time.Time) (workitems.Step, error) { return u.count, nil },
	}
}

// count counts the next rows of the trail. Whoever does it at the same time waits, and goes on behind them.
func (u *Usage) count(ctx context.Context, _ string) (done workitems.Progress, err error) {
	err = pg.InTx(ctx, u.pool, func(ctx context.Context, tx pgx.Tx) error {
		done = workitems.Progress{}
		p, err := u.settle(ctx, tx)
		if err != nil {
			return err
		}

		until := tasks.LowestIDAt(p.settled)
		rows, err := readTrail(ctx, tx, p.after, until)
		if err != nil {
			return err
		}
		if err := add(ctx, tx, rows); err != nil {
			return err
		}

		if done.Rows, done.Over = int64(len(rows)), len(rows) < stepRows; done.Over {
			p.after, p.counted = until, p.settled
		} else {
			p.after = rows[len(rows)-1].id
			p.counted = tasks.MadeAt(p.after).UTC()
		}
		_, err = tx.Exec(ctx, `UPDATE usage_progress SET after = $1, counted = $2 WHERE after < $1`, p.after, p.counted)
		return err
	})
	if err != nil {
		return done, fmt.Errorf("count usage: %w", err)
	}
	return done, nil
}

// progress is how far the trail is counted, and how far it is settled.
type progress struct {
	after            uuid.UUID
	counted, settled time.Time
}

// settle locks the progress, and finds how far the trail is settled. The id of a row of the trail has the time at which
// it was made, by a transaction that had its own id by then. So once all transactions have ended that had one at a
// moment, nobody adds a row from before that moment, whatever the order in which they commit.
func (u *Usage) settle(ctx context.Context, tx pgx.Tx) (p progress, err error) {
	var over bool
	err = tx.QueryRow(ctx, `
		SELECT after, counted, CASE WHEN done THEN greatest(settled, settling) ELSE settled END, done OR unknown
		FROM (
			SELECT *, coalesce(pg_snapshot_xmin(pg_current_snapshot()) >= settling_xid, false) AS done,
				-- Behind a restore, the ids of transactions may begin anew.
				coalesce(settling_xid > pg_snapshot_xmax(pg_current_snapshot()), true) AS unknown
			FROM usage_progress FOR UPDATE) AS p`).Scan(&p.after, &p.counted, &p.settled, &over)
	if err != nil || !over {
		return p, err
	}
	_, err = tx.Exec(ctx, `
		UPDATE usage_progress SET settled = $1, settling_xid = pg_snapshot_xmax(pg_current_snapshot()),
			settling = statement_timestamp() - make_interval(secs => $2)`, p.settled, u.Margin.Seconds())
	return p, err
}

// Lag returns how long ago the last attempts ended that may not be counted yet. What they left behind must stay.
func (u *Usage) Lag(ctx context.Context) (time.Duration, error) {
	counted, err := u.counted(ctx)
	return max(clock.Now().Sub(counted), 0), err
}

// counted returns the time before which all attempts that ended are counted.
func (u *Usage) counted(ctx context.Context) (at time.Time, err error) {
	if err = u.pool.QueryRow(ctx, `SELECT counted FROM usage_progress`).Scan(&at); err != nil {
		return at, fmt.Errorf("how far usage is counted: %w", err)
	}
	return at.UTC(), nil
}

// ended is a row of the trail, and what its task says of the attempt.
type ended struct {
	id, task   uuid.UUID
	attempt    int
	leaves     bool // the attempt ended by it
	completes  bool // the task completed by it
	fails      bool
	at         time.Time
	origin     *uuid.UUID // nil: it is of no interest, or its task is gone
	began, was *time.Time // when the attempt began, and when it ended for the platform
}

// readTrail reads rows of the trail, and looks up the tasks and attempts of those that end something. It relies on the
// primary keys.
func readTrail(ctx context.Context, tx pgx.Tx, after, until uuid.UUID) ([]ended, error) {
	rows, err := tx.Query(ctx, `
		WITH trail AS MATERIALIZED (
			SELECT id, task_id, attempt, from_status, to_status, at FROM task_events
			WHERE id > $1 AND id < $2 ORDER BY id LIMIT $3)
		SELECT e.id, e.task_id, e.attempt, coalesce(e.from_status = $4 AND e.to_status <> $4, false),
			coalesce(e.to_status = $5 AND e.from_status <> $5, false), e.to_status = $6, e.at, t.job_id,
			coalesce(a.started_at, t.started_at), a.ended_at
		FROM trail e
		LEFT JOIN LATERAL (SELECT job_id, started_at FROM tasks WHERE id = e.task_id AND e.from_status <> e.to_status
			AND (e.from_status = $4 OR e.to_status = $5) LIMIT 1) AS t ON true
		LEFT JOIN LATERAL (SELECT started_at, ended_at FROM task_attempts
			WHERE t.job_id IS NOT NULL AND task_id = e.task_id AND attempt = e.attempt LIMIT 1) AS a ON true
		ORDER BY e.id`, after, until, stepRows, tasks.Running, tasks.Completed, tasks.Failed)
	if err != nil {
		return nil, err
	}

	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (e ended, err error) {
		err = row.Scan(&e.id, &e.task, &e.attempt, &e.leaves, &e.completes, &e.fails, &e.at, &e.origin, &e.began,
			&e.was)
		return e, err
	})
}

// place is the output of a job in a span of time.
type place struct {
	footprint.JobName
	output int
	at     time.Time
}

// tally is what is to be added.
type tally struct {
	Amount
	durations histogram
}

// add adds what ended by rows of the trail to the hours and days.
func add(ctx context.Context, tx pgx.Tx, rows []ended) error {
	rows = slices.DeleteFunc(slices.Clone(rows), func(e ended) bool { return e.origin == nil })
	if len(rows) == 0 {
		return nil
	}
	origins, ends := make([]uuid.UUID, len(rows)), make(map[footprint.Attempt]int64, len(rows))
	for i, e := range rows {
		origins[i] = *e.origin
		ends[e.key()] = e.end().UnixMicro()
	}
	names, err := footprint.JobNames(ctx, tx, tasks.SortedIDs(origins))
	if err != nil {
		return err
	}
	written, err := footprint.WrittenBy(ctx, tx, ends)
	if err != nil {
		return err
	}

	hours, days := map[place]*tally{}, map[place]*tally{}
	for _, e := range rows {
		name, ok := names[*e.origin]
		if !ok {
			continue
		}
		e.tell(hours, name, e.at.UTC().Truncate(time.Hour), written[e.key()])
		e.tell(days, name, e.at.UTC().Truncate(24*time.Hour), written[e.key()])
	}
	if err := store(ctx, tx, "usage_hours", "hour", hours, false); err != nil {
		return err
	}
	return store(ctx, tx, "usage_days", "day", days, true)
}

func (e ended) key() footprint.Attempt { return footprint.Attempt{Task: e.task, Number: e.attempt} }

// end returns when the attempt ended for the platform: what it wrote later belongs to a late completion.
func (e ended) end() time.Time {
	if e.was != nil {
		return *e.was
	}
	return e.at
}

// tell adds what ended to the place of its time. An attempt whose lease ran out has ended, and may complete its task
// nevertheless: what it has written by either is told with that one.
func (e ended) tell(into map[place]*tally, name footprint.JobName, at time.Time, written []footprint.Written) {
	t := tallyAt(into, place{name, 0, at})
	if e.completes {
		t.Tasks++
	}
	if e.leaves {
		t.Attempts++
		if e.fails {
			t.Failed++
		}
		if e.began != nil {
			took := max(e.at.Sub(*e.began), 0)
			t.Seconds += took.Seconds()
			if e.completes {
				t.durations.add(took)
			}
		}
	}

	for _, w := range written {
		if e.leaves && e.completes || w.Late == e.completes {
			t := tallyAt(into, place{name, w.Output, at})
			t.Rows, t.Bytes = t.Rows+w.Rows, t.Bytes+w.Bytes
		}
	}
}

// tallyAt returns the tally of a place, which begins with nothing.
func tallyAt(into map[place]*tally, p place) *tally {
	if into[p] == nil {
		into[p] = new(tally)
	}
	return into[p]
}

// sum is a row to add to a table of usage; its fields are in the order of the columns.
type sum struct {
	Org                     uuid.UUID
	DAG, Job                string
	Output                  int
	At                      time.Time
	Attempts, Tasks, Failed int64
	Seconds                 float64
	Rows, Bytes             int64
	Durations               string
}

// store adds tallies to one of the two tables, in the order of its key.
func store(ctx context.Context, tx pgx.Tx, table, unit string, tallies map[place]*tally, durations bool) error {
	sums := make([]sum, 0, len(tallies))
	for p, t := range tallies {
		sums = append(sums, sum{p.Org, p.DAG, p.Job, p.output, p.at, t.Attempts, t.Tasks, t.Failed, t.Seconds, t.Rows,
			t.Bytes, t.durations.text()})
	}
	column, value, change := "", "", ""
	if durations {
		column, value = ", durations", ", durations::bigint[]"
		change = ", durations = add_each(u.durations, EXCLUDED.durations)"
	}

	_, err := tx.Exec(ctx, `
		INSERT INTO `+table+` AS u
			(org_id, dag_name, job_name, output, `+unit+`, attempts, tasks, failed, seconds, rows, bytes`+column+`)
		SELECT org, dag, job, output, at, attempts, tasks, failed, seconds, rows, bytes`+value+`
		FROM unnest($1::uuid[], $2::text[], $3::text[], $4::int[], $5::timestamptz[], $6::bigint[], $7::bigint[],
			$8::bigint[], $9::float8[], $10::bigint[], $11::bigint[], $12::text[])
			AS s(org, dag, job, output, at, attempts, tasks, failed, seconds, rows, bytes, durations)
		ORDER BY org, dag, job, output, at
		ON CONFLICT (org_id, dag_name, job_name, output, `+unit+`) DO UPDATE SET
			attempts = u.attempts + EXCLUDED.attempts, tasks = u.tasks + EXCLUDED.tasks,
			failed = u.failed + EXCLUDED.failed, seconds = u.seconds + EXCLUDED.seconds,
			rows = u.rows + EXCLUDED.rows, bytes = u.bytes + EXCLUDED.bytes`+change, pg.Columns(sums)...)
	if err != nil {
		return fmt.Errorf("add to %s: %w", table, err)
	}
	return nil
}
