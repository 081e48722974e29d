package stream

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/internal/pg"
)

// change is a place that differs, with what decides who may know.
type change struct {
	place
	origins []uuid.UUID // whoever one of them is closed to hears nothing
	dataset uuid.UUID   // of kind datasets
}

// announce tells listeners of the changes that they want to hear of and may know.
func (s *Stream) announce(
	ctx context.Context, listeners []*Listener, places map[place]bool, datasets []uuid.UUID,
) error {
	byOrg := map[uuid.UUID][]*Listener{}
	for _, l := range listeners {
		byOrg[l.caller.OrgID] = append(byOrg[l.caller.OrgID], l)
	}

	for org, listening := range byOrg {
		var changes []change
		for p := range places {
			if p.org == org {
				changes = append(changes, change{place: p})
			}
		}
		if err := s.name(ctx, org, changes); err != nil {
			return err
		}
		for _, id := range datasets {
			changes = append(changes, change{place: place{org: org, kind: Datasets}, dataset: id})
		}
		for _, alike := range classes(listening) {
			if err := s.announceTo(alike, changes); err != nil {
				return err
			}
		}
	}
	return nil
}

// name adds the DAGs, jobs and origins of an org's changes.
func (s *Stream) name(ctx context.Context, org uuid.UUID, changes []change) error {
	if len(changes) == 0 {
		return nil
	}
	return pg.InOrgTx(ctx, s.Requests, org, func(ctx context.Context, tx pgx.Tx) error {
		var origins []uuid.UUID
		for _, c := range changes {
			if c.origin != uuid.Nil {
				origins = append(origins, c.origin)
			}
		}
		jobs, err := s.Registry.KnownJobs(ctx, tx, origins)
		if err != nil {
			return err
		}

		for i := range changes {
			c := &changes[i]
			switch job, known := jobs[c.origin]; {
			case known:
				c.dag, c.job, c.origins = job.DAG, job.Name, []uuid.UUID{c.origin}
			case c.job != "":
				c.origins, err = s.Registry.Origins(ctx, tx, authz.Caller{OrgID: org}, c.dag, c.job)
				if err != nil {
					return err
				}
			}
		}
		return nil
	})
}

// classes groups listeners whose callers may know the same.
func classes(listeners []*Listener) map[string][]*Listener {
	alike := map[string][]*Listener{}
	for _, l := range listeners {
		class := ""
		if !l.caller.ReadsAll() {
			class = fmt.Sprint(l.caller.Role, l.caller.Grants, l.caller.OrgRoles)
		}
		alike[class] = append(alike[class], l)
	}
	return alike
}

// announceTo tells listeners whose callers may know the same. What they may know is asked for once, when one of them
// would hear something.
func (s *Stream) announceTo(alike []*Listener, changes []change) error {
	type told struct {
		to *Listener
		of change
	}
	var all []told
	var origins, datasets []uuid.UUID
	for _, l := range alike {
		for _, c := range changes {
			if !l.wants(c) {
				continue
			}
			all, origins = append(all, told{l, c}), append(origins, c.origins...)
			if l.dataset != nil {
				datasets = append(datasets, l.dataset.ID)
			}
		}
	}
	if len(all) == 0 {
		return nil
	}

	closed, readable, err := s.mayKnow(alike[0], distinct(origins), distinct(datasets))
	if err != nil {
		return err
	}
	for _, t := range all {
		blind := slices.ContainsFunc(t.of.origins, func(id uuid.UUID) bool { return closed[id] })
		if t.of.job != "" && len(t.of.origins) == 0 && !t.to.caller.ReadsAll() {
			blind = true // of a job that nobody knows
		}
		dag := t.of.dag
		if d := t.to.dataset; d != nil {
			blind, dag = blind || readable[d.ID] == "", d.DAG
		}
		if !blind {
			t.to.tell(dag, t.of.kind)
		}
	}
	return nil
}

// mayKnow returns which of some origins make or read what is closed to a listener's caller, and the names of the
// datasets that it may read. That a job is there, and how it stands, everybody sees: see registry.ClosedAmong.
func (s *Stream) mayKnow(l *Listener, origins, datasets []uuid.UUID) (
	closed map[uuid.UUID]bool, readable map[uuid.UUID]string, err error,
) {
	const most = 10 * time.Second
	ctx, cancel := context.WithTimeout(l.ctx, most)
	defer cancel()
	s.Registry.KeepHidden(ctx, l.caller)
	err = pg.InOrgTx(ctx, s.Requests, l.caller.OrgID, func(ctx context.Context, tx pgx.Tx) error {
		if closed, err = s.Registry.ClosedAmong(ctx, tx, l.caller, origins); err != nil || len(datasets) == 0 {
			return err
		}
		readable, err = s.Registry.ReadableNames(ctx, tx, l.caller, datasets)
		return err
	})
	if err != nil {
		return nil, nil, fmt.Errorf("what %s may know of changes: %w", l.caller.Actor, err)
	}
	return closed, readable, nil
}

// wants reports whether a change passes the listener's filter.
func (l *Listener) wants(c change) bool {
	f, d := l.filter, l.dataset
	switch {
	case f.DAG != "" && c.dag != "" && c.dag != f.DAG:
		return false
	case c.task != f.Task:
		return false // what becomes of one task is told to those who listen to it, and nothing else is
	case f.Dataset == "":
		return c.kind != Datasets
	case d == nil:
		return false
	case c.kind == Datasets:
		return c.dataset == d.ID && (f.DAG == "" || f.DAG == d.DAG)
	}
	return (c.dag == "" || c.dag == d.DAG) && (c.job == "" || c.job == d.Job)
}

// distinct returns each of some ids once.
func distinct(ids []uuid.UUID) []uuid.UUID {
	slices.SortFunc(ids, func(a, b uuid.UUID) int { return slices.Compare(a[:], b[:]) })
	return slices.Compact(ids)
}
