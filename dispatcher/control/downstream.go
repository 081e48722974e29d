package control

import (
	"context"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/dispatcher/stale"
	"github.com/dagctl/dagctl/dispatcher/tasks"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/registry"
)

// maxBelow bounds how many output partitions deadBelow follows.
const maxBelow = 200_000

// deadBelow lists the dead tasks downstream of the given tasks: those of every partition that is made, directly or not,
// from what the given tasks make. It follows the mappings by which events are routed, also through partitions that have
// not failed.
func (ctl *Control) deadBelow(ctx context.Context, tx pgx.Tx, list []uuid.UUID) ([]uuid.UUID, error) {
	rows, err := tx.Query(ctx, `
		SELECT DISTINCT job_id, partitions[1] FROM tasks WHERE id = ANY($1) AND partitions[1] IS NOT NULL`, list)
	if err != nil {
		return nil, fmt.Errorf("partitions of %d tasks: %w", len(list), err)
	}
	next, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (s tasks.Slot, err error) {
		return s, row.Scan(&s.Origin, &s.Key)
	})
	if err != nil {
		return nil, fmt.Errorf("partitions of %d tasks: %w", len(list), err)
	}

	seen := map[tasks.Slot]bool{}
	for _, s := range next {
		seen[s] = true
	}

	// One round for each step downstream.
	var below []tasks.Slot
	for len(next) > 0 {
		fed, err := ctl.fedBy(ctx, tx, next)
		if err != nil {
			return nil, err
		}
		next = nil
		for _, s := range fed {
			if !seen[s] {
				seen[s] = true
				next = append(next, s)
			}
		}
		if below = append(below, next...); len(below) > maxBelow {
			return nil, fault.New(fault.TooLarge, "more than %d partitions lie downstream", maxBelow).
				WithHint("choose fewer tasks")
		}
	}

	origins, slots := make([]uuid.UUID, len(below)), make([]string, len(below))
	for i, s := range below {
		origins[i], slots[i] = s.Origin, s.Key
	}
	// It relies on idx_waiting_slot.
	rows, err = tx.Query(ctx, `
		SELECT w.task_id FROM waiting w
		JOIN unnest($1::uuid[], $2::text[]) AS s(origin, slot) ON w.origin_job_id = s.origin AND w.slot = s.slot
		WHERE w.reason = 'dead'`, origins, slots)
	if err != nil {
		return nil, fmt.Errorf("dead tasks downstream: %w", err)
	}
	return pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
}

// fedBy lists the output partitions that are made from the given ones.
func (ctl *Control) fedBy(ctx context.Context, tx pgx.Tx, from []tasks.Slot) ([]tasks.Slot, error) {
	keys := map[uuid.UUID][]string{} // by origin
	var origins []uuid.UUID
	for _, s := range from {
		keys[s.Origin] = append(keys[s.Origin], s.Key)
		origins = append(origins, s.Origin)
	}

	acting, err := ctl.registry.ActingJobs(ctx, tx, tasks.SortedIDs(origins))
	if err != nil {
		return nil, err
	}

	made := map[uuid.UUID][]string{} // by generation
	var generations []uuid.UUID
	for origin, a := range acting {
		for _, o := range a.Job.Outputs {
			made[o.Generation.Version] = keys[origin]
			generations = append(generations, o.Generation.Version)
		}
	}

	consumers, err := ctl.registry.Consumers(new(pg.Batch), generations).Get(ctx, tx)
	if err != nil {
		return nil, err
	}

	var fed []tasks.Slot
	for _, c := range consumers {
		for _, key := range outputKeysOf(c, made[c.Generation]) {
			fed = append(fed, tasks.Slot{Origin: c.Job.Origin, Key: key})
		}
	}
	return fed, nil
}

// outputKeysOf lists the output partitions of a consumer that are made from given partitions of its input.
func outputKeysOf(c registry.Consumer, keys []string) (all []string) {
	if len(c.Job.Outputs) == 0 && c.Job.Def.PartitionBy.Kind == "" {
		return []string{dag.WholeKey}
	}
	for _, key := range keys {
		fed, _ := stale.OutputKeys(c.Job, c.Job.Inputs[c.Input], c.PartitionBy, key)
		all = append(all, fed...)
	}
	return all
}
