package stream

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/dispatcher/tasks"
	"github.com/dagctl/dagctl/internal/clock"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/registry"
)

// sight is what a probe saw.
type sight struct {
	at       time.Time
	orgs     map[uuid.UUID]bool // it looked at
	marks    map[place]string
	news     map[uuid.UUID]place // of events and new tasks, by their ids
	watched  map[uuid.UUID]bool  // tasks that it looked at
	datasets []uuid.UUID         // that changed since the sight before
	snapshot registry.Snapshot
}

// place is where something may change.
type place struct {
	org    uuid.UUID
	kind   string
	dag    string    // empty: the whole org, or that of the origin
	job    string    // of sources and pauses; empty: the whole DAG
	origin uuid.UUID // of tasks
	task   uuid.UUID // that somebody watches
}

// Bounds of a probe.
const (
	lateCommits = 5 * time.Second // how long after an event's time it may be committed and still be found
	mostEvents  = 5000            // how many of the newest events are looked at, and of each org's newest tasks
)

// probe looks at the database for all listeners, and tells them of what differs from the sight before.
func (s *Stream) probe(ctx context.Context, before *sight) (*sight, error) {
	s.probes.Add(1)
	listeners := s.listening()
	orgs, watched, datasets := wanted(listeners)
	now := &sight{at: clock.Now(), orgs: map[uuid.UUID]bool{}, marks: map[place]string{}, news: map[uuid.UUID]place{},
		watched: map[uuid.UUID]bool{}}
	for _, id := range orgs {
		now.orgs[id] = true
	}
	since := now.at
	if before != nil {
		since = before.at
	}

	err := pg.InTx(ctx, s.Pool, func(ctx context.Context, tx pgx.Tx) (err error) {
		// The snapshot comes first: what later statements see beyond it is found again by the next probe.
		if now.snapshot, err = registry.CurrentSnapshot(ctx, tx); err != nil {
			return err
		}
		if err := now.readTasks(ctx, tx, orgs, watched, tasks.LowestIDAt(since.Add(-lateCommits))); err != nil {
			return err
		}
		dags, err := registry.DAGMarks(ctx, tx, orgs)
		for _, d := range dags {
			now.marks[place{org: d.Org, kind: Versions, dag: d.DAG}] = d.Mark
		}
		if err == nil && before != nil && len(datasets) > 0 {
			now.datasets, err = registry.DatasetsChangedSince(ctx, tx, before.snapshot, datasets)
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("look for changes: %w", err)
	}

	if before != nil {
		if err := s.announce(ctx, listeners, before.changes(now), now.datasets); err != nil {
			return nil, err
		}
	}
	for _, l := range listeners {
		l.begin()
	}
	return now, nil
}

// wanted returns whose changes the listeners want to hear of, each once.
func wanted(listeners []*Listener) (orgs, watched, datasets []uuid.UUID) {
	seen := map[uuid.UUID]bool{}
	add := func(list *[]uuid.UUID, id uuid.UUID) {
		if !seen[id] {
			seen[id] = true
			*list = append(*list, id)
		}
	}

	for _, l := range listeners {
		add(&orgs, l.caller.OrgID)
		if l.filter.Task != uuid.Nil {
			add(&watched, l.filter.Task)
		}
		if l.dataset != nil {
			add(&datasets, l.dataset.ID)
		}
	}
	return orgs, watched, datasets
}

// readTasks reads everything of the dispatcher's tables, in one round trip.
func (s *sight) readTasks(ctx context.Context, tx pgx.Tx, orgs, watched []uuid.UUID, since uuid.UUID) error {
	var b pg.Batch
	var id uuid.UUID
	var p place
	var mark string

	// What began to run is among the leases; all else that becomes of a task is on its trail, except that it was made.
	b.Query("newest events", []any{&p.org, &p.origin, &id}, func() error {
		s.news[id] = place{org: p.org, kind: Tasks, origin: p.origin}
		return nil
	}, `
		SELECT e.org_id, t.job_id, e.id
		FROM (
			SELECT id, org_id, task_id FROM task_events WHERE id >= $2
			ORDER BY id DESC LIMIT $3) AS e -- its primary key
		CROSS JOIN LATERAL (SELECT job_id FROM tasks WHERE id = e.task_id LIMIT 1) AS t
		WHERE e.org_id = ANY($1)
		UNION ALL
		SELECT o.id, t.job_id, t.id
		FROM unnest($1::uuid[]) AS o(id) CROSS JOIN LATERAL (
			SELECT t.id, t.job_id FROM tasks t WHERE t.org_id = o.id AND t.id >= $2
			ORDER BY t.id DESC LIMIT $3) AS t -- idx_tasks_org`, orgs, since, mostEvents)

	b.Query("running tasks", []any{&p.org, &p.origin, &mark}, func() error {
		s.marks[place{org: p.org, kind: Tasks, origin: p.origin}] = mark
		return nil
	}, `
		SELECT org_id, origin_job_id,
			sum(hashtextextended(concat_ws(' ', task_id, attempt, progress, cancel_requested, state), 0))::text
		FROM leases WHERE org_id = ANY($1) GROUP BY org_id, origin_job_id`, orgs)

	named := func() error {
		s.marks[place{org: p.org, kind: p.kind, dag: p.dag, job: p.job}] = mark
		return nil
	}
	b.Query("sources and pauses", []any{&p.kind, &p.org, &p.dag, &p.job, &mark}, named, `
		SELECT 'sources', org_id, dag_name, job_name, concat_ws(' ', state, error)
		FROM sources WHERE org_id = ANY($1)
		UNION ALL
		SELECT 'pauses', org_id, dag_name, job_name, concat_ws(' ', at, actor)
		FROM pauses WHERE org_id = ANY($1)`, orgs)

	b.Query("watched tasks", []any{&p.org, &p.origin, &id, &mark}, func() error {
		s.marks[place{org: p.org, kind: Tasks, origin: p.origin, task: id}] = mark
		s.watched[id] = true
		return nil
	}, `
		SELECT t.org_id, t.job_id, t.id,
			concat_ws(' ', t.version, l.progress, l.heartbeat_at, l.cancel_requested, w.reason, w.available_at, l.state)
		FROM unnest($1::uuid[]) AS wanted(id)
		CROSS JOIN LATERAL (SELECT org_id, job_id, id, version FROM tasks WHERE id = wanted.id LIMIT 1) AS t
		LEFT JOIN leases l ON l.task_id = t.id
		LEFT JOIN waiting w ON w.task_id = t.id
		WHERE t.org_id = ANY($2)`, watched, orgs)
	return b.Send(ctx, tx)
}

// changes returns the places that differ between two sights. It knows nothing of an org, or a watched task, that was
// not looked at before. What the later sight finds of the trail again, the earlier one has found.
func (s *sight) changes(next *sight) map[place]bool {
	found := map[place]bool{}
	known := func(p place) bool { return s.orgs[p.org] && (p.task == uuid.Nil || s.watched[p.task]) }
	for p, mark := range next.marks {
		if before, was := s.marks[p]; known(p) && (!was || before != mark) {
			found[p] = true
		}
	}
	for p := range s.marks {
		_, is := next.marks[p]
		if !is && next.orgs[p.org] && p.task == uuid.Nil {
			found[p] = true
		}
	}

	for id, p := range next.news {
		if _, heard := s.news[id]; !heard && s.orgs[p.org] {
			found[p] = true
		}
	}
	return found
}
