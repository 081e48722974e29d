package attention

import (
	"context"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/dispatcher"
	"github.com/dagctl/dagctl/dispatcher/backends"
	"github.com/dagctl/dagctl/dispatcher/tasks"
	"github.com/dagctl/dagctl/dispatcher/views"
	"github.com/dagctl/dagctl/internal/atonce"
	"github.com/dagctl/dagctl/internal/clock"
	"github.com/dagctl/dagctl/internal/pg"
)

// Desk finds what needs somebody.
type Desk struct {
	d        *dispatcher.Dispatcher
	views    *views.Views
	runtimes backends.RuntimeMap
}

// New returns the desk of a dispatcher, whose runtimes map to backends.
func New(d *dispatcher.Dispatcher, v *views.Views, runtimes backends.RuntimeMap) *Desk {
	return &Desk{d, v, runtimes}
}

// Most bounds how many DAGs and late datasets one look takes in: an org with more has lists for them.
const Most = 500

// mostQueued is how many queued tasks of each need are counted.
const mostQueued = 10_000

// Attention is what needs somebody in one org, as far as the caller may see it.
type Attention struct {
	Items []Item `json:"items" nullable:"false"`
	More  bool   `json:"more" doc:"There are more than 500 DAGs or late datasets: this is about the first ones"`
}

// Of lists what needs somebody in the caller's org, the most urgent first. What the caller may not read is left out.
func (k *Desk) Of(ctx context.Context, caller authz.Caller) (Attention, error) {
	s, err := k.look(ctx, caller)
	if err != nil {
		return Attention{}, fmt.Errorf("look for what needs somebody: %w", err)
	}
	a := Attention{More: len(s.dags) > Most || len(s.late) > Most}
	s.dags, s.late = s.dags[:min(len(s.dags), Most)], s.late[:min(len(s.late), Most)]
	a.Items = append([]Item{}, items(s)...)
	return a, nil
}

// mostAtOnce is how many connections of the database one look uses.
const mostAtOnce = 4

// look asks for all that may need somebody, several things at once: none of them depends on another.
func (k *Desk) look(ctx context.Context, caller authz.Caller) (s seen, err error) {
	err = atonce.Do(ctx, mostAtOnce,
		func(ctx context.Context) (err error) {
			s.dags, err = k.views.States(ctx, caller, "", Most+1)
			return err
		},
		func(ctx context.Context) (err error) {
			s.dead, err = k.views.ErrorGroups(ctx, caller, views.TaskSelection{Dead: true})
			return err
		},
		func(ctx context.Context) (err error) {
			s.late, err = k.d.Registry.LateOutlines(ctx, caller, Most+1)
			return err
		},
		func(ctx context.Context) (err error) {
			s.sources, err = k.views.Sources(ctx, caller)
			return err
		},
		func(ctx context.Context) error {
			usage, err := authz.OrgUsageOf(ctx, k.d.Requests, caller)
			s.usage = usage.Items
			return err
		},
		func(ctx context.Context) (err error) {
			s.pressure, err = k.d.Pressure.Pressure(ctx, caller)
			return err
		},

		func(ctx context.Context) error { return k.ofOrg(ctx, caller, &s) },
		func(ctx context.Context) error { return k.ofServers(ctx, caller, &s) })
	return s, err
}

// ofOrg takes in who has paused what, and what jobs make.
func (k *Desk) ofOrg(ctx context.Context, caller authz.Caller, s *seen) error {
	return pg.InOrgTx(ctx, k.d.Requests, caller.OrgID, func(ctx context.Context, tx pgx.Tx) (err error) {
		if s.pauses, err = views.PausesOf(ctx, tx, caller); err != nil {
			return err
		}
		s.made, err = k.d.Registry.ProductsOf(ctx, tx, caller)
		return err
	})
}

// ofServers takes in which runtimes nobody serves, and which servers and workers are unfit.
func (k *Desk) ofServers(ctx context.Context, caller authz.Caller, s *seen) error {
	err := pg.InTx(ctx, k.d.Pool, func(ctx context.Context, tx pgx.Tx) (err error) {
		s.unserved, err = tasks.QueuesOf(ctx, tx, caller.OrgID, caller.OrgSlug, mostQueued, clock.Now())
		if err != nil {
			return err
		}
		s.servers, err = dispatcher.TroubledServers(ctx, tx, clock.Now())
		if err != nil || caller.Role != authz.RoleAdmin { // others do not know which secrets there are
			return err
		}

		var keys []string
		for _, server := range s.servers {
			keys = append(keys, server.Lacks...)
		}
		s.secrets, err = authz.SecretsUnder(ctx, tx, caller.OrgID, keys)
		return err
	})
	s.unserved = slices.DeleteFunc(s.unserved, func(q tasks.OrgQueue) bool {
		backend, _ := k.runtimes.Backend(q.Runtime, tasks.OperatorOf(q.Needs), caller.OrgSlug)
		function := backend.Kind == backends.Lambda && q.Runtime != dispatcher.CheckRuntime // it needs no worker
		return q.Served || function
	})
	return err
}
