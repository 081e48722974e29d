package stale

import (
	"context"
	"slices"

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
// is made again: where something has come that the definition which made it would read, too. What only the new one
// reads is no reason for that, and of an input that the deploy computed as a whole, neither is what there was at the
// cutover.
func (e *Examiner) noteArrivals(ctx context.Context, tx pgx.Tx, targets []Target, wants [][]InputFacts,
	made []*registry.Made) error {
	lacks := map[int][]registry.Pin{} // by target
	var asked []deploy.Revised
	for i, m := range made {
		if m == nil || !m.Inherited || ReadsNew(targets[i].Job) {
			continue
		}
		if pins := notCompared(wants[i], m.Pins); len(pins) > 0 {
			lacks[i], asked = pins, append(asked, revisedOf(targets[i], m))
		}
	}
	if len(asked) == 0 {
		return nil
	}

	originals, err := deploy.Originals(ctx, tx, asked)
	if err != nil {
		return err
	}
	makers, err := e.registry.Makers(ctx, tx, originals.Generations())
	if err != nil {
		return err
	}

	var since []registry.Later
	for i, pins := range lacks {
		maker := makers[originals[revisedOf(targets[i], made[i])]]
		for _, p := range pins {
			switch {
			case maker == nil || !reads(maker, p, targets[i].Key):
			case !begun(p, made[i].Pins):
				made[i].Inherited = false
			default:
				ref, _ := targets[i].Ref()
				since = append(since, registry.Later{Target: i, Generation: ref.Version, Pin: p})
			}
		}
	}
	later, err := registry.MadeSinceServing(ctx, tx, since)
	for _, l := range later {
		made[l.Target].Inherited = false
	}
	return err
}

// revisedOf returns the revision that a target was last made as.
func revisedOf(t Target, made *registry.Made) deploy.Revised {
	ref, _ := t.Ref()
	return deploy.Revised{Ref: ref, Revision: made.Revision}
}

// notCompared returns what a taken over revision would be made from now, where nothing says what it was made from.
func notCompared(inputs []InputFacts, was []registry.Pin) []registry.Pin {
	var found []registry.Pin
	for _, in := range inputs {
		for _, p := range ComparedPins(in.Pins()) {
			same := func(w registry.Pin) bool { return w.Compared && w.Input == p.Input && w.Key == p.Key }
			if !slices.ContainsFunc(was, same) {
				found = append(found, p)
			}
		}
	}
	return found
}

// begun reports whether the deploy that took a revision over computed its input as a whole.
func begun(p registry.Pin, was []registry.Pin) bool {
	return slices.ContainsFunc(was, func(w registry.Pin) bool { return w.Input == p.Input && !w.Compared })
}

// reads reports whether a job makes an output partition from a partition of an input.
func reads(job *registry.Job, p registry.Pin, key string) bool {
	return slices.ContainsFunc(job.Inputs, func(in registry.JobInput) bool {
		if in.Dataset != p.Dataset || !in.Def.Triggers() && !in.Def.Refresh {
			return false
		}
		keys, all, err := in.Def.Map.InputKeys(in.PartitionBy, job.Def.TasksBy(), key)
		return err == nil && (all || slices.Contains(keys, p.Key))
	})
}
