package upkeep

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/dispatcher/workitems"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/registry"
)

// A collection goes through phases, in small steps. What one marks or removes stays so: a collection that was cut off
// goes on where it was, and two at once do no harm.

const kindGC = "gc"

// collection is one pass over the garbage of an org.
type collection struct {
	*Upkeep
	org   uuid.UUID
	now   time.Time
	found Garbage
	dags  []string // those with unreachable generations; nil until a step asks for them
	// failed holds the failures until the end of the collection: what cannot be removed now must not keep the rest from
	// being so.
	failed []error
}

func (u *Upkeep) newCollection(org uuid.UUID, now time.Time) *collection {
	return &collection{Upkeep: u, org: org, now: now, found: Garbage{Generations: []registry.GarbageGeneration{}}}
}

// phase is a part of a collection. A step of it begins at a place that the step before returned; "" is the beginning,
// and as a result the end of the phase.
type phase struct {
	name string
	step func(c *collection, ctx context.Context, from string) (next string, err error)
}

// phases are in their order.
var phases = []phase{
	{"generations", (*collection).markGenerations},
	{"revisions", (*collection).markRevisions},
	{"staging", (*collection).removeStaging},
	{"uploads", (*collection).removeUploads},
	{"bytes", func(c *collection, ctx context.Context, _ string) (string, error) {
		return again(c.removeRevisions(ctx, c.org))
	}},
	{"data", func(c *collection, ctx context.Context, _ string) (string, error) {
		return again(c.removeGenerations(ctx, c.org, c.now))
	}},
}

// again returns the next place of a phase that takes the same step until nothing is left.
func again(more bool, err error) (next string, _ error) {
	if more {
		next = "on"
	}
	return next, err
}

// collecting is the work of collecting the garbage of orgs.
func (u *Upkeep) collecting() workitems.Kind {
	return workitems.Kind{
		Name: kindGC,
		Begin: func(_ context.Context, object string, now time.Time) (workitems.Step, error) {
			org, err := uuid.Parse(object)
			return u.newCollection(org, now).step, err
		},
	}
}

// step takes the step at a position, which is the name of a phase and a place in it. It implements workitems.Step. A
// failure is kept for the end, and ends the phase unless the step says where it goes on.
func (c *collection) step(ctx context.Context, position string) (done workitems.Progress, err error) {
	name, from, _ := strings.Cut(position, " ")
	i := slices.IndexFunc(phases, func(p phase) bool { return p.name == name })
	if i < 0 { // the beginning, or a phase of another version's
		i, from = 0, ""
	}
	next, err := phases[i].step(c, ctx, from)
	if err != nil {
		if ctx.Err() != nil {
			return done, err
		}
		c.failed = append(c.failed, fmt.Errorf("collect garbage, %s: %w", phases[i].name, err))
	}

	if next == "" {
		i++
	}
	if i == len(phases) {
		c.tell()
		return workitems.Progress{Gone: true}, errors.Join(c.failed...)
	}
	return workitems.Progress{Position: phases[i].name + " " + next}, nil
}

// tell logs what the collection has found since it went on.
func (c *collection) tell() {
	if f := c.found; len(f.Generations) > 0 || f.Revisions > 0 || f.Staging > 0 || f.Uploads > 0 {
		c.log.Info("collected garbage", "org", c.org, "generations", len(f.Generations), "revisions", f.Revisions,
			"staging", f.Staging, "uploads", f.Uploads)
	}
}

// markGenerations marks the unreachable generations of the DAG that follows one.
func (c *collection) markGenerations(ctx context.Context, dag string) (next string, err error) {
	if c.dags == nil {
		if c.dags, err = c.dagsWithGarbage(ctx, c.org, c.now); err != nil {
			return "", err
		}
	}
	i := behind(c.dags, dag, strings.Compare)
	if i == len(c.dags) {
		return "", nil
	}

	marked, err := c.Upkeep.markGenerations(ctx, c.org, c.dags[i], c.now)
	if fault.Is(err, fault.Conflict) {
		c.log.Info("the garbage of a DAG stays until its lock is free", "org", c.org, "dag", c.dags[i])
		err = nil
	}
	c.found.Generations = append(c.found.Generations, marked...)
	return c.dags[i], err
}

// markRevisions marks the revisions that nothing reaches in some partitions that follow one.
func (c *collection) markRevisions(ctx context.Context, from string) (next string, err error) {
	var after registry.Ref
	if from != "" {
		if err := json.Unmarshal([]byte(from), &after); err != nil {
			return "", fmt.Errorf("position in the revisions: %w", err)
		}
	}
	var marked registry.MarkedGarbage
	err = pg.InOrgTx(ctx, c.requests, c.org, func(ctx context.Context, tx pgx.Tx) error {
		use, err := inUse(ctx, tx, c.org)
		if err != nil {
			return err
		}
		marked, err = registry.MarkGarbageRevisions(ctx, tx, c.org, use, c.now, after)
		return err
	})
	if err != nil {
		return "", err
	}

	c.found.Revisions += marked.Revisions
	c.found.RevisionBytes += marked.Bytes
	if marked.More {
		last, err := json.Marshal(marked.Last)
		return string(last), err
	}
	return "", nil
}

func (c *collection) removeStaging(ctx context.Context, from string) (next string, err error) {
	locations, next, err := c.sweepStaging(ctx, c.org, c.now, from, false)
	c.found.Staging += locations
	return next, err
}

func (c *collection) removeUploads(ctx context.Context, _ string) (next string, err error) {
	c.found.Uploads, err = c.sweepUploads(ctx, c.org, c.now, true)
	return "", err
}
