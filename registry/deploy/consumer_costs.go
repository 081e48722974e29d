package deploy

import (
	"context"
	"fmt"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/registry"
	"github.com/dagctl/dagctl/registry/contract"
)

// What a change costs jobs of other DAGs: these follow a dataset to its next generation, and compute again what they
// made of those partitions that it does not take over unchanged.

// mostMapped is how many partitions a plan follows to those of consumers: a plan is not to take longer than people wait
// for it, whatever history there is.
const mostMapped = 100_000

// consumerCost is a cost that is being worked out.
type consumerCost struct {
	*registry.ConsumerCost
	reader contract.Consumer // the version of the job that serves, if one does
	keys   map[string]bool   // of its partitions, those that may be computed again
	all    bool              // they are all of them
}

// noteConsumers adds to each change the jobs of other DAGs that read the dataset, and what the change costs them. Those
// that are hidden from the caller are left out.
func (d *deploy) noteConsumers(
	ctx context.Context, tx pgx.Tx, changes []registry.Change, consumers map[uuid.UUID][]contract.Consumer,
) error {
	outputs, err := d.consumerOutputs(ctx, tx, consumers)
	if err != nil {
		return err
	}

	var costs []consumerCost
	left := mostMapped
	for i := range changes {
		c := &changes[i]
		c.ReadBy = addresses(consumers[c.ID])
		visible := slices.DeleteFunc(slices.Clone(consumers[c.ID]), func(reader contract.Consumer) bool {
			return outputs[versionJob{reader.Version, reader.Job}].hidden
		})
		c.Consumers = addresses(visible)

		c.ConsumerCosts = make([]registry.ConsumerCost, len(c.Consumers))
		for n, address := range c.Consumers {
			reading := readingAs(visible, address)
			cost := consumerCost{ConsumerCost: &c.ConsumerCosts[n], reader: reading[0]}
			*cost.ConsumerCost = registry.ConsumerCost{Job: address, Columns: columnsOf(reading),
				Origin: reading[0].Origin}
			if d.follow(&cost, *c, reading, &left) {
				costs = append(costs, cost)
			}
		}
	}
	return addHeld(ctx, tx, costs, outputs)
}

// addresses returns the addresses of consumers, each once, in their order.
func addresses(consumers []contract.Consumer) (list []string) {
	for _, c := range consumers {
		if at := c.Address(); !slices.Contains(list, at) {
			list = append(list, at)
		}
	}
	return list
}

// readingAs returns the inputs by which one job reads a dataset: in the version that serves, or else in one on its way.
func readingAs(consumers []contract.Consumer, address string) (reading []contract.Consumer) {
	for _, c := range consumers {
		switch {
		case c.Address() != address:
		case len(reading) == 0 || c.Serves && !reading[0].Serves:
			reading = []contract.Consumer{c}
		case c.Version == reading[0].Version:
			reading = append(reading, c)
		}
	}
	return reading
}

// columnsOf returns the columns that a job reads through any of its inputs; * where that is not known.
func columnsOf(reading []contract.Consumer) []string {
	columns := []string{}
	for _, c := range reading {
		if c.Columns == nil {
			return []string{"*"}
		}
		columns = append(columns, c.Columns...)
	}
	slices.Sort(columns)
	return slices.Compact(columns)
}

// follow maps what moves in a dataset to the partitions of a consumer. It reports whether that can be told, and takes
// what it looks at from left.
func (d *deploy) follow(
	cost *consumerCost, c registry.Change, reading []contract.Consumer, left *int,
) bool {
	none := 0
	switch {
	case c.Partitions == nil && (c.Action == Reuse || c.Action == Remove):
		cost.Partitions = &none
		return false
	case c.Partitions == nil:
		return false
	}
	job, ok := d.doc.Job(c.Job)
	if !ok {
		return false
	}

	cost.keys = map[string]bool{}
	for _, reader := range reading {
		in := reader.Def.Inputs[slices.IndexFunc(reader.Def.Inputs, func(in dag.Input) bool {
			return in.As == reader.As
		})]
		if !in.Triggers() {
			cost.all = cost.all || in.Refresh && len(c.Moved) > 0
			continue
		}
		if *left -= len(c.Moved); *left < 0 {
			return false
		}
		for _, key := range c.Moved {
			keys, err := in.Map.OutputKeys(job.PartitionBy, reader.Def.TasksBy(), key)
			if err != nil {
				return false // a finding says that the mapping does not fit
			}
			for _, key := range keys {
				cost.keys[key] = true
			}
		}
	}
	*left -= len(cost.keys)
	return *left >= 0
}

// versionJob is a job in one version of its DAG.
type versionJob struct {
	version uuid.UUID
	job     string
}

// consumerOutput is what a consumer makes.
type consumerOutput struct {
	generations []uuid.UUID
	hidden      bool // the caller may not see all of it, and so not the job
}

// consumerOutputs returns what the consumers make.
func (d *deploy) consumerOutputs(
	ctx context.Context, tx pgx.Tx, consumers map[uuid.UUID][]contract.Consumer,
) (map[versionJob]consumerOutput, error) {
	var (
		versions []uuid.UUID
		jobs     []string
	)
	for _, readers := range consumers {
		for _, c := range readers {
			versions, jobs = append(versions, c.Version), append(jobs, c.Job)
		}
	}
	if len(versions) == 0 {
		return nil, nil
	}

	args := []any{d.caller.OrgID, versions, jobs}
	visible := registry.VisibleTo(d.caller, &args)
	rows, err := tx.Query(ctx, `
		SELECT w.version, w.job, array_agg(p.dataset_version ORDER BY p.output_index), NOT bool_and(coalesce(`+visible+`, false))
		FROM (SELECT DISTINCT version, job FROM unnest($2::uuid[], $3::text[]) AS w(version, job)) AS w
		JOIN dag_version_datasets p ON p.dag_version_id = w.version AND p.job_name = w.job AND p.org_id = $1
		JOIN datasets d ON d.id = p.dataset_uuid
		GROUP BY w.version, w.job`, args...)
	if err != nil {
		return nil, fmt.Errorf("what consumers make: %w", err)
	}

	found := map[versionJob]consumerOutput{}
	var (
		at   versionJob
		made consumerOutput
	)
	_, err = pgx.ForEachRow(rows, []any{&at.version, &at.job, &made.generations, &made.hidden}, func() error {
		found[at], made = made, consumerOutput{}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("what consumers make: %w", err)
	}
	return found, nil
}

// addHeld adds how many of the partitions to be computed again each consumer has, and what they hold. A consumer
// without outputs has no partitions: what it did for each is done again.
func addHeld(
	ctx context.Context, tx pgx.Tx, costs []consumerCost, outputs map[versionJob]consumerOutput,
) error {
	var (
		some, whole      []int // indexes of costs
		versions, wholes []uuid.UUID
		keys             []string
	)
	partitions := make([]int, len(costs))
	for i, cost := range costs {
		cost.Partitions = &partitions[i]
		made := outputs[versionJob{cost.reader.Version, cost.reader.Job}]
		if len(made.generations) == 0 {
			partitions[i] = len(cost.keys)
		}
		for _, generation := range made.generations {
			if cost.all {
				whole, wholes = append(whole, i), append(wholes, generation)
				continue
			}
			for key := range cost.keys {
				some, versions, keys = append(some, i), append(versions, generation), append(keys, key)
			}
		}
	}
	if len(some)+len(whole) == 0 {
		return nil
	}

	// Each partition is looked up by itself, by idx_partition_versions_published; see registry.PublishedAt.
	rows, err := tx.Query(ctx, `
		SELECT w.i, count(*), coalesce(sum(p.bytes), 0)::bigint
		FROM unnest($1::int[], $2::uuid[], $3::text[]) AS w(i, version, key)
		CROSS JOIN LATERAL (SELECT r.bytes FROM partition_versions r
			WHERE r.dataset_version = w.version AND r.partition_key = w.key AND r.state = 'Published' LIMIT 1) AS p
		GROUP BY w.i, w.version
		UNION ALL
		SELECT w.i, p.n, p.bytes
		FROM unnest($4::int[], $5::uuid[]) AS w(i, version)
		CROSS JOIN LATERAL (SELECT count(*) AS n, coalesce(sum(r.bytes), 0)::bigint AS bytes FROM partition_versions r
			WHERE r.dataset_version = w.version AND r.state = 'Published') AS p`, some, versions, keys, whole, wholes)
	if err != nil {
		return fmt.Errorf("partitions of consumers: %w", err)
	}
	var (
		i, n  int
		bytes int64
	)
	_, err = pgx.ForEachRow(rows, []any{&i, &n, &bytes}, func() error {
		partitions[i] = max(partitions[i], n) // its outputs have the same ones
		costs[i].Bytes += bytes
		return nil
	})
	if err != nil {
		return fmt.Errorf("partitions of consumers: %w", err)
	}
	return foretellFirst(ctx, tx, costs, outputs, partitions)
}

// foretellFirst says of the consumers that were never filled how many partitions they will make, where that is known:
// what they have says nothing.
func foretellFirst(
	ctx context.Context, tx pgx.Tx, costs []consumerCost, outputs map[versionJob]consumerOutput, partitions []int,
) error {
	var (
		at          []int
		generations []uuid.UUID
	)
	for i, cost := range costs {
		made := outputs[versionJob{cost.reader.Version, cost.reader.Job}]
		if partitions[i] == 0 && len(made.generations) > 0 {
			at, generations = append(at, i), append(generations, made.generations[0])
		}
	}
	if len(at) == 0 {
		return nil
	}
	rows, err := tx.Query(ctx, `
		SELECT w.i FROM unnest($1::int[], $2::uuid[]) AS w(i, version)
		WHERE NOT EXISTS (SELECT FROM partition_versions r WHERE r.dataset_version = w.version AND r.state = 'Published')`,
		at, generations)
	if err != nil {
		return fmt.Errorf("consumers that were never filled: %w", err)
	}

	var i int
	_, err = pgx.ForEachRow(rows, []any{&i}, func() error {
		if partitions[i] = len(costs[i].keys); costs[i].all {
			costs[i].Partitions = nil
		}
		return nil
	})
	return err
}
