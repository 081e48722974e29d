package sources

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/dagctl/dagctl/dispatcher"
	"github.com/dagctl/dagctl/dispatcher/tasks"
	"github.com/dagctl/dagctl/dispatcher/wakeup"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/registry"
)

// Reading a source means to ask its operator what there is, which may take long: a folder of a million files, a file of
// gigabytes whose content is hashed. Each source is read by a goroutine of its own, by one process at a time, and an
// org has only a few at once: a slow one holds up its org's others at most.

const (
	// readersPerOrg is how many sources of an org a process reads at once.
	readersPerOrg = 2
	// readingFor is how long a source counts as being read without a word of its reader: its process may be gone.
	readingFor = time.Minute
)

// readers counts who reads in this process.
type readers struct {
	mu      sync.Mutex
	of      map[uuid.UUID]int // sources by org
	running sync.WaitGroup
}

// busy returns the orgs that read, and how many sources each.
func (r *readers) busy() (orgs []uuid.UUID, counts []int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for org, n := range r.of {
		orgs, counts = append(orgs, org), append(counts, n)
	}
	return orgs, counts
}

// add counts one more, or less, of an org.
func (r *readers) add(org uuid.UUID, n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.of == nil {
		r.of = map[uuid.UUID]int{}
	}
	if r.of[org] += n; r.of[org] == 0 {
		delete(r.of, org)
	}
}

// read begins to read the sources that are due, as far as their orgs have readers free.
func (src *Sources) read(ctx context.Context, now time.Time) error {
	due, err := src.takeToRead(ctx, now)
	if err != nil {
		return err
	}
	for _, s := range due {
		src.readers.add(s.Org, 1)
		src.readers.running.Go(func() {
			defer src.readers.add(s.Org, -1)
			src.readOne(ctx, s, now)
		})
	}
	return nil
}

// EndReading waits for the sources that are being read.
func (src *Sources) EndReading() { src.readers.running.Wait() }

// takeToRead takes sources that are due and that nobody reads, but for those that other servers may list, and this one
// may not. They stay due until they have been read: if that is cut off, another process reads them.
func (src *Sources) takeToRead(ctx context.Context, now time.Time) ([]dueSource, error) {
	orgs, counts := src.readers.busy()
	held := src.pressure.Held()
	rows, err := src.pool.Query(ctx, `
		WITH due AS (
			SELECT org_id, dag_name, job_name, row_number() OVER (PARTITION BY org_id ORDER BY next_fire_at) AS n
			FROM sources
			WHERE next_fire_at <= $8 AND enumerates AND state <> 'Draining' AND NOT `+held.Condition(9)+`
			  AND coalesce(reading_until <= $1, true) AND `+tasks.NotPaused+`
			  AND (coalesce($6::jsonb -> operator ? org_slug(org_id), true)
				OR NOT `+dispatcher.MayRun("sources.operator", "org_slug(sources.org_id)", "$7")+`)),
		taken AS (
			SELECT s.org_id, s.dag_name, s.job_name FROM sources s
			JOIN due d ON d.org_id = s.org_id AND d.dag_name = s.dag_name AND d.job_name = s.job_name
			LEFT JOIN unnest($2::uuid[], $3::int[]) AS b(org, reads) ON b.org = s.org_id
			WHERE d.n <= $4 - coalesce(b.reads, 0) AND s.next_fire_at <= $8 AND coalesce(s.reading_until <= $1, true)
			FOR UPDATE OF s SKIP LOCKED)
		UPDATE sources s SET reading_until = $5, last_fire_at = $1, state = 'Running', updated_at = $1
		FROM taken t WHERE t.org_id = s.org_id AND t.dag_name = s.dag_name AND t.job_name = s.job_name
		RETURNING s.org_id, s.dag_name, s.job_name, s.next_fire_at`,
		append([]any{now, orgs, counts, readersPerOrg, now.Add(readingFor), src.dispatcher.Only,
			now.Add(-tasks.WorkerDeadAfter), src.dueBy(now)}, held.Args()...)...)
	if err != nil {
		return nil, fmt.Errorf("take sources to read: %w", err)
	}

	due, err := collectDue(rows)
	if err != nil {
		return nil, fmt.Errorf("take sources to read: %w", err)
	}
	return due, nil
}

// readOne reads a source, and says in its row when it is due again or why it could not be read.
func (src *Sources) readOne(ctx context.Context, s dueSource, now time.Time) {
	began := time.Now()
	reading, stop := context.WithCancel(ctx)
	var renewing sync.WaitGroup
	renewing.Go(func() { src.keepReading(reading, s, now) })

	next, failed := src.enumerateDue(ctx, s, now)
	stop()
	renewing.Wait()
	ended := now.Add(time.Since(began))

	text := ""
	switch {
	case ctx.Err() != nil: // the process stops: another reads it at once
		next = &s.FireAt
	case failed != nil:
		again := ended.Add(fireAgain)
		if next == nil || again.Before(*next) {
			next = &again
		}
		text = strings.ToValidUTF8(fault.Text(failed), "\uFFFD") // names of files are any bytes
		src.log.Error("a source cannot be read, will try again", "dag", s.DAG, "job", s.Name, "error", failed)
	case next != nil && next.Before(ended): // it took longer than it rests
		next = &ended
	}

	ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	if err := src.noteRead(ending, s, next, text); err != nil {
		src.log.Warn("a source counts as being read for a while", "dag", s.DAG, "job", s.Name, "error", err)
	}
	src.wake.Send(wakeup.Claim, wakeup.Sources)
}

// enumerateDue enumerates a source that is due, and returns when it is due again. Its operator may be another by now,
// which does not list anything.
func (src *Sources) enumerateDue(ctx context.Context, s dueSource, now time.Time) (next *time.Time, err error) {
	var job *registry.Job
	err = pg.InTx(ctx, src.pool, func(ctx context.Context, tx pgx.Tx) error {
		job, err = src.registry.ActiveJob(ctx, tx, s.Org, s.DAG, s.Name)
		return err
	})
	if err != nil {
		return nil, err
	}

	op, ok := src.Enumerator(job)
	if !ok {
		return &now, src.setEnumerates(ctx, src.pool, job, false)
	}
	if next, err = nextFire(job.Def.Source, s.FireAt, now, false); err != nil {
		return nil, err
	}
	_, err = src.Enumerate(ctx, job, due(op), true, now)
	return next, err
}

// execer is a pool or a transaction.
type execer interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
}

// setEnumerates notes whether a source lists what there is to read.
func (src *Sources) setEnumerates(ctx context.Context, db execer, job *registry.Job, does bool) error {
	_, err := db.Exec(ctx, `UPDATE sources SET enumerates = $4 WHERE org_id = $1 AND dag_name = $2 AND job_name = $3`,
		job.OrgID, job.DAG, job.Name, does)
	return err
}

// keepReading says until ctx ends that a source is being read.
func (src *Sources) keepReading(ctx context.Context, s dueSource, now time.Time) {
	began := time.Now()
	tick := time.NewTicker(readingFor / 3)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		_, _ = src.pool.Exec(ctx, `
			UPDATE sources SET reading_until = $4
			WHERE org_id = $1 AND dag_name = $2 AND job_name = $3 AND reading_until IS NOT NULL`,
			s.Org, s.DAG, s.Name, now.Add(time.Since(began)+readingFor)) // the next tick tries again
	}
}

// noteRead records that a source has been read, or why it could not be. A time that was set meanwhile stands.
func (src *Sources) noteRead(ctx context.Context, s dueSource, next *time.Time, failed string) error {
	_, err := src.pool.Exec(ctx, `
		UPDATE sources SET error = NULLIF($4, ''), reading_until = NULL,
			next_fire_at = CASE WHEN next_fire_at = $5 THEN $6 ELSE next_fire_at END
		WHERE org_id = $1 AND dag_name = $2 AND job_name = $3`, s.Org, s.DAG, s.Name, failed, s.FireAt, next)
	return err
}
