package tasks

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/registry"
)

// Queue names a queue: tasks that the same workers run, of one org, class and DAG.
type Queue struct {
	Runtime, Needs string
	Org            uuid.UUID
	Class          Class
	DAG            string
}

// lane returns the lane of a queue. Where a DAG's tasks need different things, its lane has several queues.
func (q Queue) lane() lane { return lane{q.Org, q.Class, q.DAG} }

// Scope says which queues a claimant serves. A claim descends to each of those and to no other, whatever others have
// queued.
type Scope struct {
	Runtimes []string
	Needs    []string    // nil: whatever the tasks of the runtimes need
	Orgs     []uuid.UUID // nil: those of all orgs

	// Operators restricts what tasks need to these operators, unless it is nil.
	Operators []string
	// Elsewhere lists, by runtime, the operators that others run.
	Elsewhere map[string][]string
	NoChecks  bool
	// Runs reports whether the claimant may run the tasks of a queue; nil: it may run all.
	Runs func(ctx context.Context, tx pgx.Tx, q Queue) (bool, error)

	// Where is one more condition on a queue q, or empty. Its arguments, Args, begin at FirstArg.
	Where string
	Args  []any
}

// FirstArg is the number of the first argument of Scope.Where.
const FirstArg = 8

// Key returns a name for the scope: claimants with the same scope take turns together.
func (s Scope) Key() string {
	return fmt.Sprintf("%q %q %v %q %v %s %v", s.Runtimes, s.Needs, s.Orgs, s.Operators, s.NoChecks, s.Where, s.Args)
}

// OperatorColumn is the SQL expression for the operator in ready.needs.
const OperatorColumn = `CASE WHEN starts_with(q.needs, 'handler:') THEN 'handler' ELSE split_part(q.needs, '@', 1) END`

// RunsAsColumn is the SQL expression for RunsAsOf(ready.needs).
const RunsAsColumn = `CASE WHEN starts_with(q.needs, 'handler:') THEN 'handler'
	ELSE regexp_replace(q.needs, '@[^ ]*', '') END`

// walk returns the SQL of the recursive CTE "queues", the queues of the scope that are not empty, and its arguments. It
// relies on idx_ready_queue, and touches one place of it for each queue; where the scope names no needs, one more for
// each that there are.
func (s Scope) walk() (with string, args []any) {
	served := `
		SELECT runtime, needs FROM unnest($1::text[]) AS r(runtime) CROSS JOIN unnest($2::text[]) AS n(needs)`
	if s.Needs == nil {
		served = `
		(SELECT name AS runtime, (
			SELECT f.needs FROM ready f WHERE f.runtime = name ORDER BY f.runtime, f.needs LIMIT 1) AS needs
		 FROM unnest($1::text[]) AS r(name))
		UNION ALL
		SELECT s.runtime, (
			SELECT f.needs FROM ready f WHERE f.runtime = s.runtime AND f.needs > s.needs
			ORDER BY f.runtime, f.needs LIMIT 1)
		FROM served s WHERE s.needs IS NOT NULL AND $2::text[] IS NULL`
	}

	// Within given orgs the walk goes from class to class and DAG to DAG, otherwise from org to org, too.
	from, first, then := `q`, `$3::uuid[] IS NULL`, `(f.org_id, f.class, f.turn) > (q.org_id, q.class, q.turn)`
	if s.Orgs != nil {
		from, first = `q CROSS JOIN unnest($3::uuid[]) AS o(id)`, `f.org_id = o.id`
		then = `f.org_id = q.org_id AND (f.class, f.turn) > (q.class, q.turn)`
	}
	const head = `
		CROSS JOIN LATERAL (
			SELECT f.org_id, f.class, f.turn FROM ready f WHERE f.runtime = q.runtime AND f.needs = q.needs AND %s
			ORDER BY f.runtime, f.needs, f.org_id, f.class, f.turn LIMIT 1) AS n`

	runtimes, operators := s.others()
	with = `
		served AS (` + served + `),
		queues AS (
			SELECT q.runtime, q.needs, n.* FROM served ` + from + fmt.Sprintf(head, first) + `
			WHERE q.needs IS NOT NULL AND ($4::text[] IS NULL OR ` + OperatorColumn + ` = ANY($4))
				AND NOT EXISTS (SELECT FROM unnest($5::text[], $6::text[]) AS e(runtime, operator)
					WHERE e.runtime = q.runtime AND e.operator = ` + OperatorColumn + `)
				AND (NOT $7 OR q.needs <> '` + NeedCheck + `')
			UNION ALL
			SELECT q.runtime, q.needs, n.* FROM queues q` + fmt.Sprintf(head, then) + `)`
	return with, append([]any{s.Runtimes, s.Needs, s.Orgs, s.Operators, runtimes, operators, s.NoChecks}, s.Args...)
}

// others returns the operators that others run, each with its runtime.
func (s Scope) others() (runtimes, operators []string) {
	for runtime, names := range s.Elsewhere {
		for _, name := range names {
			runtimes, operators = append(runtimes, runtime), append(operators, name)
		}
	}
	return runtimes, operators
}

// where returns the scope's own condition.
func (s Scope) where() string { return cmp.Or(s.Where, "true") }

// may returns those of some queues whose tasks the claimant may run.
func (s Scope) may(ctx context.Context, tx pgx.Tx, queues []Queue) ([]Queue, error) {
	if s.Runs == nil {
		return queues, nil
	}
	kept := make([]Queue, 0, len(queues))
	for _, q := range queues {
		runs, err := s.Runs(ctx, tx, q)
		if err != nil {
			return nil, err
		}
		if runs {
			kept = append(kept, q)
		}
	}
	return kept, nil
}

// QueuesReady returns the queues of a scope that are not empty, sorted by their lanes, and the approximate number of
// dead rows in the ready set.
func QueuesReady(ctx context.Context, tx pgx.Tx, s Scope) (found []Queue, dead int64, err error) {
	var (
		b pg.Batch
		q Queue
	)
	with, args := s.walk()
	b.Query("find queues", []any{&q.Runtime, &q.Needs, &q.Org, &q.Class, &q.DAG, &dead}, func() error {
		found = append(found, q)
		return nil
	}, `WITH RECURSIVE `+with+`
		SELECT q.runtime, q.needs, q.org_id, q.class, q.turn, pg_stat_get_dead_tuples('ready'::regclass)
		FROM queues q WHERE `+s.where(), args...)
	if err := b.Send(ctx, tx); err != nil {
		return nil, 0, err
	}
	slices.SortFunc(found, byLane)
	return found, dead, nil
}

func byLane(a, b Queue) int {
	return cmp.Or(bytes.Compare(a.Org[:], b.Org[:]), cmp.Compare(a.Class, b.Class), strings.Compare(a.DAG, b.DAG),
		strings.Compare(a.Runtime, b.Runtime), strings.Compare(a.Needs, b.Needs))
}

// CountReady adds a query that counts the tasks of a scope that are ready, up to most.
func CountReady(b *pg.Batch, s Scope, most int) *pg.Later[int] {
	var n int
	with, args := s.walk()
	args = append(args, most)
	b.Query("count ready tasks", []any{&n}, func() error { return nil }, fmt.Sprintf(`
		WITH RECURSIVE %s
		SELECT count(*) FROM (
			SELECT FROM queues q CROSS JOIN LATERAL (
				SELECT FROM ready r WHERE r.runtime = q.runtime AND r.needs = q.needs AND r.org_id = q.org_id
					AND r.class = q.class AND r.turn = q.turn
				ORDER BY r.runtime, r.needs, r.org_id, r.class, r.turn LIMIT $%[2]d) AS r
			WHERE %[3]s LIMIT $%[2]d) AS counted`, with, len(args), s.where()), args...)
	return pg.Answer(b, &n)
}

// OrgRuntime is an org's part of what is queued for a runtime.
type OrgRuntime struct {
	Org     uuid.UUID
	Runtime string
}

// CountQueued counts, for each org, the tasks that are ready for some runtimes, and those that wait for a limit or a
// sibling and would then be for one of these: up to most of each. It relies on idx_ready_queue and idx_waiting_org.
func CountQueued(ctx context.Context, tx pgx.Tx, runtimes []string, most int) (map[OrgRuntime]int64, error) {
	var (
		b       pg.Batch
		of      OrgRuntime
		origin  uuid.UUID
		n       int64
		counts  = map[OrgRuntime]int64{}
		waiting = map[uuid.UUID]int64{} // by origin
		orgs    = map[uuid.UUID]uuid.UUID{}
	)

	with, args := Scope{Runtimes: runtimes}.walk()
	args = append(args, most)
	b.Query("count ready tasks", []any{&of.Org, &of.Runtime, &n}, func() error { counts[of] += n; return nil },
		fmt.Sprintf(`
		WITH RECURSIVE %s
		SELECT q.org_id, q.runtime, c.n FROM queues q CROSS JOIN LATERAL (
			SELECT count(*) AS n FROM (
				SELECT FROM ready r WHERE r.runtime = q.runtime AND r.needs = q.needs AND r.org_id = q.org_id
					AND r.class = q.class AND r.turn = q.turn
				ORDER BY r.runtime, r.needs, r.org_id, r.class, r.turn LIMIT $%d) AS r) AS c`, with, len(args)), args...)
	b.Query("count waiting tasks", []any{&of.Org, &origin, &n}, func() error {
		waiting[origin], orgs[origin] = n, of.Org
		return nil
	}, `
		WITH RECURSIVE crowd AS (
			(SELECT org_id FROM waiting ORDER BY org_id LIMIT 1)
			UNION ALL
			SELECT (SELECT w.org_id FROM waiting w WHERE w.org_id > o.org_id ORDER BY w.org_id LIMIT 1)
			FROM crowd o WHERE o.org_id IS NOT NULL)
		SELECT o.org_id, w.origin_job_id, count(*) FROM crowd o
		CROSS JOIN LATERAL (
			SELECT origin_job_id FROM waiting w WHERE w.org_id = o.org_id AND w.reason IN ('limit', 'sibling')
			LIMIT $1) AS w
		GROUP BY o.org_id, w.origin_job_id`, most)
	if err := b.Send(ctx, tx); err != nil {
		return nil, err
	}

	runtimeOf, err := registry.RuntimesOf(ctx, tx, slices.Collect(maps.Keys(waiting)))
	if err != nil {
		return nil, err
	}
	for origin, n := range waiting {
		if runtime := runtimeOf[origin]; slices.Contains(runtimes, runtime) {
			counts[OrgRuntime{orgs[origin], runtime}] += n
		}
	}
	return counts, nil
}

// Waits returns how long the next task of each queue has been ready; 0: it has none by now.
func Waits(ctx context.Context, tx pgx.Tx, queues []Queue, now time.Time) ([]time.Duration, error) {
	picks := make([]pick, len(queues))
	for i, q := range queues {
		picks[i] = pick{Queue: q, low: fromStart}
	}
	rows, err := tx.Query(ctx, `
		SELECT h.n, r.rank, t.priority FROM unnest($1::text[], $2::text[], $3::uuid[], $4::smallint[], $5::text[],
			$6::bigint[]) WITH ORDINALITY AS h(runtime, needs, org_id, class, turn, low, n)
		CROSS JOIN LATERAL (
			SELECT q.task_id, q.rank FROM ready q WHERE `+inQueue("h")+` ORDER BY `+queueOrder+` LIMIT 1) AS r
		CROSS JOIN LATERAL (SELECT priority FROM tasks WHERE id = r.task_id LIMIT 1) AS t`, columnsOf(picks)[:6]...)
	if err != nil {
		return nil, fmt.Errorf("find the next in line: %w", err)
	}

	var (
		n        int
		rank     int64
		priority int
		waits    = make([]time.Duration, len(queues))
	)
	_, err = pgx.ForEachRow(rows, []any{&n, &rank, &priority}, func() error {
		// The rank is the time of queueing, less what the priority is worth.
		queued := rank - rankOf(priority, time.UnixMilli(0))
		waits[n-1] = time.Duration(now.UnixMilli()-queued) * time.Millisecond
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("find the next in line: %w", err)
	}
	return waits, nil
}
