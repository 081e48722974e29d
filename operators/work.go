package operators

import (
	"context"
	"path/filepath"

	"github.com/dagctl/dagctl/engine"
	"github.com/dagctl/dagctl/internal/relations"
)

// work is the engine of one run: taken when the run first needs one, and given back after it. It is for one goroutine.
type work struct {
	engines *engine.Engines
	purpose engine.Purpose
	taken   *engine.Engine
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
		taken, err := w.engines.Take(ctx, w.purpose)
		if err != nil {
			return nil, err
		}
		w.taken = taken
	}
	return w.taken, nil
}

// release gives the engine back.
func (w *work) release() {
	if w.taken != nil {
		w.taken.Release()
		w.taken = nil
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

// open opens relations for a scope, with their files.
func (w *work) open(
	ctx context.Context, scope relations.Scope, all []relations.Relation,
) (opened engine.Opened, err error) {
	g, err := w.engine(ctx)
	if err != nil {
		return opened, err
	}
	for i := range all {
		if all[i].Files, err = g.In(all[i].Files...); err != nil {
			return opened, err
		}
	}
	return opened, g.Do(ctx, engine.Open{Scope: scope, Relations: all}, &opened)
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
