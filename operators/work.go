package operators

import (
	"context"
	"path/filepath"
	"reflect"
	"slices"

	"github.com/dagctl/dagctl/engine"
	"github.com/dagctl/dagctl/internal/relations"
)

// work is the engine of one run: taken when the run first needs one, and given back after it. It is for one goroutine.
type work struct {
	engines *engine.Engines
	purpose engine.Purpose
	taken   *engine.Engine
	opened  *engine.Open // what is open in it, with the files as the server knows them
	tell    func(percent int, state string)
}

// Use lets the task work with engines of its own, until release. A Runner does so by itself.
func (t *Task) Use(engines *engine.Engines) (release func()) {
	t.work = (&Runner{Registry: &Registry{engines: engines}}).workOf(t.Assignment)
	return t.work.release
}

// workOf returns the work of an assignment: its engine serves the job's runs, one after the other, and nobody else.
func (r *Runner) workOf(a Assignment) *work {
	return &work{engines: r.Registry.engines, purpose: engine.Purpose{Kind: engine.Job, Org: a.OrgID.String(),
		Of: a.DAG + "/" + a.Job, Limits: r.Registry.limits}}
}

// engine returns the work's engine.
func (w *work) engine(ctx context.Context) (*engine.Engine, error) {
	if w.taken == nil {
		waited := false
		taken, err := w.engines.TakeTelling(ctx, w.purpose, func() {
			waited = true
			w.say("waiting for a free engine")
		})
		if err != nil {
			return nil, err
		}
		if w.taken = taken; waited {
			w.say("")
		}
	}
	return w.taken, nil
}

// say tells the run's progress, before it has done anything.
func (w *work) say(state string) {
	if w.tell != nil {
		w.tell(0, state)
	}
}

// release gives the engine back.
func (w *work) release() {
	if w.taken != nil {
		w.taken.Release()
		w.taken, w.opened = nil, nil
	}
}

// ask asks a question that needs no more than its answer.
func (w *work) ask(ctx context.Context, q engine.Question, answer any) error {
	g, err := w.engine(ctx)
	if err != nil {
		return err
	}
	return g.Do(ctx, q, answer)
}

// open opens relations for a scope, with their files, in place of those that were open.
func (w *work) open(ctx context.Context, scope relations.Scope, all []relations.Relation) error {
	g, err := w.engine(ctx)
	if err != nil {
		return err
	}

	w.opened = nil
	inside := slices.Clone(all)
	for i := range inside {
		if inside[i].Files, err = g.In(all[i].Files...); err != nil {
			return err
		}
	}
	if err := g.Do(ctx, engine.Open{Scope: scope, Relations: inside}, nil); err != nil {
		return err
	}
	w.opened = &engine.Open{Scope: scope, Relations: all}
	return nil
}

// add opens one more relation beside some, which are open as a rule: the run that made it has read them.
func (w *work) add(
	ctx context.Context, scope relations.Scope, beside []relations.Relation, one relations.Relation,
) error {
	if !w.has(scope, beside) {
		return w.open(ctx, scope, append([]relations.Relation{one}, beside...))
	}
	g, err := w.engine(ctx)
	if err != nil {
		return err
	}
	if one.Files, err = g.In(one.Files...); err != nil {
		return err
	}
	return g.Do(ctx, engine.Add{Relation: one}, nil)
}

// has reports whether relations are open, just as they are given.
func (w *work) has(scope relations.Scope, all []relations.Relation) bool {
	return w.opened != nil && reflect.DeepEqual(w.opened.Scope, scope) &&
		!slices.ContainsFunc(all, func(r relations.Relation) bool {
			return !slices.ContainsFunc(w.opened.Relations, func(open relations.Relation) bool {
				return reflect.DeepEqual(open, r)
			})
		})
}

// write asks for a file and moves it to its place; question gets the path that the engine writes to.
func (w *work) write(
	ctx context.Context, target string, question func(inside string) engine.Question, answer any,
) error {
	g, err := w.engine(ctx)
	if err != nil {
		return err
	}
	inside := g.Out(filepath.Base(target))
	if err := g.Do(ctx, question(inside), answer); err != nil {
		return err
	}
	return g.Fetch(inside, target)
}
