package dispatcher

import (
	"context"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/registry"
)

// maxBelow bounds how many output partitions are followed downstream of some tasks.
const maxBelow = 200_000

// deadBelow lists the dead tasks of everything that is made, directly or not, from what the given tasks make: the failed
// subgraph below them. It follows the mappings by which events are routed, through what has not failed too.
func (d *Dispatcher) deadBelow(ctx context.Context, tx pgx.Tx, tasks []uuid.UUID) ([]uuid.UUID, error) {
	rows, err := tx.Query(ctx, `SELECT DISTINCT job_id, partitions[1] FROM tasks WHERE id = ANY($1) AND partitions[1] IS NOT NULL`, tasks)
	if err != nil {
		return nil, fmt.Errorf("partitions of %d tasks: %w", len(tasks), err)
	}
	next, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (s slotOf, err error) { return s, row.Scan(&s.origin, &s.slot) })
	if err != nil {
		return nil, fmt.Errorf("partitions of %d tasks: %w", len(tasks), err)
	}
	seen := map[slotOf]bool{}
	for _, s := range next {
		seen[s] = true
	}
	var below []slotOf
	for len(next) > 0 {
		fed, err := d.fedBy(ctx, tx, next)
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
			return nil, fault.New(fault.TooLarge, "more than %d partitions lie downstream", maxBelow).WithHint("choose fewer tasks")
		}
	}
	origins, slots := make([]uuid.UUID, len(below)), make([]string, len(below))
	for i, s := range below {
		origins[i], slots[i] = s.origin, s.slot
	}
	rows, err = tx.Query(ctx, `SELECT w.task_id FROM waiting w JOIN unnest($1::uuid[], $2::text[]) AS s(origin, slot)
		ON w.job_id = s.origin AND w.slot = s.slot WHERE w.reason = 'dead'`, origins, slots) // idx_waiting_slot
	if err != nil {
		return nil, fmt.Errorf("dead tasks downstream: %w", err)
	}
	return pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
}

// fedBy lists the output partitions that are made from the given ones.
func (d *Dispatcher) fedBy(ctx context.Context, tx pgx.Tx, from []slotOf) ([]slotOf, error) {
	keys := map[uuid.UUID][]string{} // by origin
	var origins []uuid.UUID
	for _, s := range from {
		keys[s.origin] = append(keys[s.origin], s.slot)
		origins = append(origins, s.origin)
	}
	acting, err := d.Registry.ActingJobs(ctx, tx, dedupeIDs(origins))
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
	consumers, err := d.Registry.Consumers(ctx, tx, generations)
	if err != nil {
		return nil, err
	}
	var fed []slotOf
	for _, c := range consumers {
		in := c.Job.Inputs[c.Input]
		found, err := outputKeysOf(c.Job, in, made[c.Generation])
		if err != nil {
			return nil, err
		}
		for _, key := range found {
			fed = append(fed, slotOf{c.Job.Origin, key})
		}
	}
	return fed, nil
}

// outputKeysOf are the output partitions of a job that given partitions of one input go into.
func outputKeysOf(job *registry.Job, in registry.JobInput, keys []string) ([]string, error) {
	if len(job.Outputs) == 0 && job.Def.PartitionBy.Kind == "" {
		return []string{dag.WholeKey}, nil
	}
	var all []string
	for _, key := range keys {
		found, err := in.Def.Map.OutputKeys(in.PartitionBy, job.Def.PartitionBy, key)
		if err != nil {
			return nil, fmt.Errorf("map partition %q of %s: %w", key, in.Producer, err)
		}
		all = append(all, found...)
	}
	return all, nil
}
