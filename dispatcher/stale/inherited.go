package stale

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/registry"
	"github.com/dagctl/dagctl/registry/deploy"
)

// countInherited counts what was made from a revision as made from its copy in the generation that is read now, and
// likewise from its original: a forward-only deploy, and a rollback of it, make no job read unchanged data again.
func countInherited(ctx context.Context, tx pgx.Tx, wants [][]InputFacts, made []*registry.Made) error {
	var asked []deploy.Revised
	// each calls with for every pin of a generation that is no longer read, with its revision then and now.
	each := func(with func(p *registry.Pin, was, is deploy.Revised)) {
		for i, m := range made {
			if m == nil {
				continue
			}
			for n := range m.Pins {
				p := &m.Pins[n]
				if p.Compared && p.Input < len(wants[i]) && wants[i][p.Input].Generation != p.Version {
					was := deploy.Revised{Ref: registry.Ref{Version: p.Version, Key: p.Key}, Revision: p.Revision}
					is := was
					is.Version = wants[i][p.Input].Generation
					with(p, was, is)
				}
			}
		}
	}

	each(func(_ *registry.Pin, was, is deploy.Revised) { asked = append(asked, was, is) })
	if len(asked) == 0 {
		return nil
	}

	originals, err := deploy.Originals(ctx, tx, asked)
	if err != nil {
		return err
	}

	each(func(p *registry.Pin, was, is deploy.Revised) {
		if originals.Same(was, is) {
			p.Version = is.Version
		}
	})
	return nil
}

// noteArrivals finds what was taken over and is stale all the same, and has it count as any other revision, so that it
// is made again: see deploy.Overtaken.
func (e *Examiner) noteArrivals(ctx context.Context, tx pgx.Tx, targets []Target, wants [][]InputFacts,
	made []*registry.Made) error {
	var kept []deploy.Kept
	var of []*registry.Made
	for i, m := range made {
		if m == nil || !m.Inherited || ReadsNew(targets[i].Job) {
			continue
		}
		ref, _ := targets[i].Ref()
		k := deploy.Kept{Revised: deploy.Revised{Ref: ref, Revision: m.Revision}, Pins: m.Pins}
		for _, in := range wants[i] {
			k.Now = append(k.Now, ComparedPins(in.Pins())...)
		}
		kept, of = append(kept, k), append(of, m)
	}

	outdated, err := deploy.Overtaken(ctx, tx, e.registry, kept)
	for _, n := range outdated {
		of[n].Inherited = false
	}
	return err
}
