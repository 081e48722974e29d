package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/dispatcher/builds"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/internal/wait"
	"github.com/dagctl/dagctl/operators"
	"github.com/dagctl/dagctl/registry"
	"github.com/dagctl/dagctl/registry/deploy"
)

// The figures about deploys measure what a person waits for, and how long a cutover keeps others from a DAG. Each
// baseline is the same of a DAG as small as can be.

// tableDAG describes a DAG of so many jobs that publish a dataset each. The query of the first edited jobs differs from
// other edits, and all descriptions from other descriptions.
func tableDAG(jobs, edited int, edit, description string) string {
	var yaml strings.Builder
	yaml.WriteString("name: tables\njobs:\n  - {name: events, operator: feed, source: {kind: poll, every: 24h}, " +
		"partition_by: key}\n")
	for i := range jobs {
		made := "first"
		if i < edited {
			made = edit
		}
		fmt.Fprintf(&yaml, "  - {name: %s, operator: emit, inputs: [{from: {job: events}}], config: {made: %s}}\n",
			workName(i), made)
	}

	yaml.WriteString("publish:\n")
	for i := range jobs {
		fmt.Fprintf(&yaml, "  set_%04d: {from: {job: %s}, description: %s}\n", i, workName(i), description)
	}
	return yaml.String()
}

// inTables runs f in a world whose DAG of tables serves one partition.
func (b *bench) inTables(
	ctx context.Context, jobs int, f func(w *world, caller authz.Caller, dsn string) error,
) (err error) {
	dsn, drop, err := b.migrated(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, drop()) }()
	w, err := b.world(ctx, dsn, runtimes[0])
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.close()) }()

	w.feed.put([]operators.Unit{unit("p0", "1")})
	caller, err := w.org(ctx, "bench")
	if err != nil {
		return err
	}
	if err := w.deploy(ctx, caller, "tables", tableDAG(jobs, 0, "first", "first")); err != nil {
		return err
	}
	if err := w.settle(ctx, caller, jobs+1); err != nil {
		return err
	}
	err = f(w, caller, dsn)
	if w.statements != nil {
		w.statements.print(b.stderr, fmt.Sprintf("%d tables", jobs), b.swaps)
	}
	return err
}

// park deploys a document, and waits until its version is ready and waits for its promotion.
func (w *world) park(ctx context.Context, caller authz.Caller, yaml string) (registry.Version, error) {
	no := false
	d, err := deploy.New(w.registry).Deploy(ctx, caller, "tables", registry.DeployRequest{YAML: yaml, Activate: &no})
	if err != nil {
		return d.Version, err
	}
	w.dispatcher.Wake()
	return d.Version, w.reach(ctx, d.Version, registry.Ready)
}

// reach waits until a version has a status.
func (w *world) reach(ctx context.Context, v registry.Version, want registry.Status) error {
	for {
		var status registry.Status
		var reason string
		if err := w.pool.QueryRow(ctx, `SELECT status, coalesce(error, '') FROM dag_versions WHERE id = $1`, v.ID).
			Scan(&status, &reason); err != nil {
			return err
		}
		switch {
		case status == want:
			return nil
		case status == registry.Failed:
			return fmt.Errorf("version %d failed: %s", v.Number, reason)
		}
		if err := wait.For(ctx, time.Millisecond); err != nil {
			return fmt.Errorf("version %d is %s: %w", v.Number, status, err)
		}
	}
}

// swapTimes are how long promotions and rollbacks took, as their caller sees them.
type swapTimes struct{ promotions, rollbacks []time.Duration }

func (s swapTimes) detail() map[string]any {
	return map[string]any{
		"promotion_ms":      milliseconds(quantile(s.promotions, 0.5)),
		"promotion_most_ms": milliseconds(slices.Max(s.promotions)),
		"rollback_ms":       milliseconds(quantile(s.rollbacks, 0.5)),
		"rollback_most_ms":  milliseconds(slices.Max(s.rollbacks)),
	}
}

// swap promotes a document and rolls it back again, once unmeasured and then as often as the options say.
func (b *bench) swap(ctx context.Context, w *world, caller authz.Caller, yaml string) (s swapTimes, err error) {
	for i := range b.swaps + 1 {
		v, err := w.park(ctx, caller, yaml)
		if err != nil {
			return s, err
		}
		start := time.Now()
		if _, err := w.dispatcher.Builds.Promote(ctx, caller, "tables", v.Number); err != nil {
			return s, err
		}
		if err := w.reach(ctx, v, registry.Active); err != nil {
			return s, err
		}
		promoted := time.Now()
		if err := w.settle(ctx, caller, 0); err != nil {
			return s, err
		}

		back := time.Now()
		if _, err := w.dispatcher.Builds.Rollback(ctx, caller, "tables", builds.RollbackRequest{}); err != nil {
			return s, err
		}
		if i > 0 {
			s.promotions, s.rollbacks = append(s.promotions, promoted.Sub(start)), append(s.rollbacks, time.Since(back))
		}
		if err := w.settle(ctx, caller, 0); err != nil {
			return s, err
		}
	}
	return s, nil
}

// swapFigure: promotion of a version that waits, and rollback, where one job differs and where all do.
func swapFigure(ctx context.Context, b *bench) (result, error) {
	of := func(datasets int) (one, all swapTimes, err error) {
		err = b.inTables(ctx, datasets, func(w *world, caller authz.Caller, _ string) (err error) {
			if one, err = b.swap(ctx, w, caller, tableDAG(datasets, 1, "one", "first")); err != nil {
				return err
			}
			all, err = b.swap(ctx, w, caller, tableDAG(datasets, datasets, "all", "first"))
			return err
		})
		return one, all, err
	}

	_, small, err := of(1)
	if err != nil {
		return result{}, err
	}
	one, all, err := of(b.datasets)
	if err != nil {
		return result{}, err
	}
	return result{value: milliseconds(quantile(all.promotions, 0.5)),
		baseline: milliseconds(quantile(small.promotions, 0.5)),
		params:   map[string]any{"datasets": b.datasets, "swaps": b.swaps},
		detail:   map[string]any{"one_differs": one.detail(), "all_differ": all.detail(), "baseline": small.detail()},
	}, nil
}

// gateFigure: the longest that a session waits for the DAG's lock while a version is promoted whose gate looks at many
// partitions.
func gateFigure(ctx context.Context, b *bench) (result, error) {
	of := func(partitions int) (longest, took time.Duration, err error) {
		err = b.inTables(ctx, 1, func(w *world, caller authz.Caller, dsn string) error {
			v, err := w.park(ctx, caller, tableDAG(1, 1, "all", "first"))
			if err != nil {
				return err
			}
			if err := morePartitions(ctx, dsn, partitions-1); err != nil {
				return err
			}

			watching, stop := context.WithCancel(ctx)
			watched := make(chan time.Duration, 1)
			go func() { watched <- w.waitsForLock(watching, caller) }()
			start := time.Now()
			_, err = w.dispatcher.Builds.Promote(ctx, caller, "tables", v.Number)
			if err == nil {
				err = w.reach(ctx, v, registry.Active)
			}
			took = time.Since(start)
			stop()
			longest = <-watched
			return err
		})
		return longest, took, err
	}
	least, _, err := of(1)
	if err != nil {
		return result{}, err
	}
	longest, took, err := of(b.partitions)
	if err != nil {
		return result{}, err
	}
	return result{value: milliseconds(longest), baseline: milliseconds(least),
		params: map[string]any{"partitions": b.partitions},
		detail: map[string]any{"promotion_ms": milliseconds(took)}}, nil
}

// morePartitions gives each generation so many more partitions like its first one, made from each other in the same
// way. Only here and in makeHistory the bench inserts rows itself.
func morePartitions(ctx context.Context, dsn string, more int) (err error) {
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conn.Close(context.WithoutCancel(ctx))) }()
	for _, sql := range []string{`BEGIN`, `
		INSERT INTO partition_versions (org_id, dataset_uuid, dataset_version, partition_key, revision, state, location,
			files, row_count, bytes, schema, schema_hash, source_version, task_id, attempt)
		SELECT p.org_id, p.dataset_uuid, p.dataset_version, 'q' || n, 1, p.state, p.location, p.files, p.row_count,
			p.bytes, p.schema, p.schema_hash, p.source_version, p.task_id, p.attempt
		FROM partition_versions p, generate_series(1, $1::int) AS n WHERE p.partition_key = 'p0'`, `
		INSERT INTO partition_inputs (org_id, output_version, output_key, output_revision, input_index, input_dataset,
			input_version, input_key, input_revision, compared)
		SELECT i.org_id, i.output_version, 'q' || n, 1, i.input_index, i.input_dataset, i.input_version, 'q' || n, 1,
			i.compared
		FROM partition_inputs i, generate_series(1, $1::int) AS n WHERE i.output_key = 'p0'`, `COMMIT`,
		`VACUUM ANALYZE`} {
		var args []any
		if strings.Contains(sql, "$1") {
			args = append(args, more)
		}
		if _, err := conn.Exec(ctx, sql, args...); err != nil {
			return fmt.Errorf("make partitions: %w", err)
		}
	}
	return nil
}

// waitsForLock shares the lock of the DAG again and again, as completions do, and returns the longest wait.
func (w *world) waitsForLock(ctx context.Context, caller authz.Caller) (longest time.Duration) {
	for ctx.Err() == nil {
		start := time.Now()
		err := pg.InTx(ctx, w.pool, func(ctx context.Context, tx pgx.Tx) error {
			return registry.LockDAGShared(ctx, tx, caller.OrgID, "tables")
		})
		if err == nil {
			longest = max(longest, time.Since(start))
		}
		_ = wait.For(ctx, time.Millisecond)
	}
	return longest
}

// historyFigure: swaps of a DAG of 100 jobs with many old versions, and a new file of its source, which all its jobs
// read.
func historyFigure(ctx context.Context, b *bench) (result, error) {
	jobs := min(b.datasets, 100)
	var few, many swapTimes
	var fewUpdate, manyUpdate time.Duration
	err := b.inTables(ctx, jobs, func(w *world, caller authz.Caller, dsn string) (err error) {
		yaml := tableDAG(jobs, 1, "one", "first")
		if few, err = b.swap(ctx, w, caller, yaml); err != nil {
			return err
		}
		if fewUpdate, err = b.updates(ctx, w, caller, "few", jobs); err != nil {
			return err
		}
		if err := oldVersions(ctx, dsn, b.versions); err != nil {
			return err
		}
		if manyUpdate, err = b.updates(ctx, w, caller, "many", jobs); err != nil {
			return err
		}
		many, err = b.swap(ctx, w, caller, yaml)
		return err
	})

	if err != nil {
		return result{}, err
	}
	return result{value: milliseconds(quantile(many.promotions, 0.5)),
		baseline: milliseconds(quantile(few.promotions, 0.5)),
		params:   map[string]any{"jobs": jobs, "versions": b.versions, "swaps": b.swaps},
		detail: map[string]any{"many_versions": many.detail(), "two_versions": few.detail(),
			"update": map[string]any{"many_versions_ms": milliseconds(manyUpdate),
				"two_versions_ms": milliseconds(fewUpdate)}},
	}, nil
}

// updates returns the median of how long files of the source take until all jobs have read them, in so many events as
// there are swaps.
func (b *bench) updates(
	ctx context.Context, w *world, caller authz.Caller, key string, jobs int,
) (time.Duration, error) {
	var took []time.Duration
	for i := range b.swaps + 1 {
		w.feed.put([]operators.Unit{unit(fmt.Sprintf("%s%d", key, i), "1")})
		ran, start := w.feed.ran(), time.Now()
		if err := w.poll(ctx, caller); err != nil {
			return 0, err
		}
		if err := w.settle(ctx, caller, ran+jobs+1); err != nil {
			return 0, err
		}
		if i > 0 {
			took = append(took, time.Since(start))
		}
	}
	return quantile(took, 0.5), nil
}

// oldVersions gives the DAG so many more versions that served once, like the one that serves.
func oldVersions(ctx context.Context, dsn string, more int) (err error) {
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conn.Close(context.WithoutCancel(ctx))) }()

	// The copies refer to what exists, so their foreign keys need not be checked, which takes most of the time.
	for _, sql := range []string{`SET session_replication_role = replica`, `
		CREATE TEMP TABLE old AS SELECT uuid_v7() AS id, n, c.dag_version_id AS like_id
		FROM dag_current_versions c, generate_series(1, $1::int) AS n`, `
		INSERT INTO dag_versions (id, org_id, dag_name, number, yaml_hash, source_hash, yaml, status, contract,
			created_by, created_at, building_at, ready_at, activated_at, ended_at, tasks_ended_at)
		SELECT o.id, v.org_id, v.dag_name, 1000 + o.n, 'old' || o.n, v.source_hash, v.yaml, 'Superseded', v.contract,
			v.created_by, w.at, w.at, w.at, w.at, w.at, w.at
		FROM old o JOIN dag_versions v ON v.id = o.like_id, LATERAL (SELECT now() - o.n * interval '144 minutes' AS at) w`, `
		INSERT INTO dag_activations (id, org_id, dag_name, dag_version_id, reason, actor, at)
		SELECT uuid_v7(), v.org_id, v.dag_name, v.id, 'deploy', 'user:bench', v.activated_at
		FROM old o JOIN dag_versions v ON v.id = o.id`, `
		INSERT INTO dag_version_datasets SELECT p.org_id, o.id, p.dataset_uuid, p.dataset_version, p.job_name,
			p.output_index, p.name, p.published_name, p.publication
		FROM old o JOIN dag_version_datasets p ON p.dag_version_id = o.like_id`, `
		CREATE TEMP TABLE old_jobs AS SELECT gen_random_uuid() AS id, o.id AS version, j.id AS like_id
		FROM old o JOIN jobs j ON j.dag_version_id = o.like_id`, `
		INSERT INTO jobs (id, org_id, name, dag_name, dag_version_id, origin_job_id, fingerprint, base_fingerprint,
			activation, runtime, operator, operator_version, source, execution_strategy, trigger, config, config_hash,
			input_datasets, output_datasets, partition_by, update_strategy, effect, definition)
		SELECT o.id, j.org_id, j.name, j.dag_name, o.version, j.origin_job_id, j.fingerprint, j.base_fingerprint,
			j.activation, j.runtime, j.operator, j.operator_version, j.source, j.execution_strategy, j.trigger, j.config,
			j.config_hash, j.input_datasets, j.output_datasets, j.partition_by, j.update_strategy, j.effect, j.definition
		FROM old_jobs o JOIN jobs j ON j.id = o.like_id`, `
		INSERT INTO job_inputs (org_id, job_id, input_index, dataset_uuid, in_dag, triggers, partition_by, dag_version_id)
		SELECT i.org_id, o.id, i.input_index, i.dataset_uuid, i.in_dag, i.triggers, i.partition_by, o.version
		FROM old_jobs o JOIN job_inputs i ON i.job_id = o.like_id`, `VACUUM ANALYZE`} {
		var args []any
		if strings.Contains(sql, "$1") {
			args = append(args, more)
		}
		if _, err := conn.Exec(ctx, sql, args...); err != nil {
			return fmt.Errorf("make old versions: %w", err)
		}
	}
	return nil
}

// editFigure: the deploy of an edited description.
func editFigure(ctx context.Context, b *bench) (result, error) {
	of := func(datasets int) (edits []time.Duration, err error) {
		err = b.inTables(ctx, datasets, func(w *world, caller authz.Caller, _ string) error {
			for i := range b.swaps {
				// One description, as a person edits.
				yaml := strings.Replace(tableDAG(datasets, 0, "first", "first"), "description: first",
					fmt.Sprintf("description: edit_%d", i), 1)
				start := time.Now()
				d, err := deploy.New(w.registry).Deploy(ctx, caller, "tables", registry.DeployRequest{YAML: yaml})
				if err != nil {
					return err
				}
				edits = append(edits, time.Since(start))
				w.dispatcher.Wake()
				if err := w.reach(ctx, d.Version, registry.Active); err != nil {
					return err
				}
			}
			return nil
		})
		return edits, err
	}

	small, err := of(1)
	if err != nil {
		return result{}, err
	}
	edits, err := of(b.datasets)
	if err != nil {
		return result{}, err
	}
	return result{value: milliseconds(quantile(edits, 0.5)), baseline: milliseconds(quantile(small, 0.5)),
		params: map[string]any{"datasets": b.datasets, "edits": b.swaps},
		detail: map[string]any{"most_ms": milliseconds(slices.Max(edits))}}, nil
}

// planFigure: the plan of one edited job, and the first deploy.
func planFigure(ctx context.Context, b *bench) (result, error) {
	of := func(jobs int) (first time.Duration, plans []time.Duration, err error) {
		dsn, drop, err := b.migrated(ctx)
		if err != nil {
			return 0, nil, err
		}
		defer func() { err = errors.Join(err, drop()) }()
		w, err := b.world(ctx, dsn, runtimes[0])
		if err != nil {
			return 0, nil, err
		}
		defer func() { err = errors.Join(err, w.close()) }()
		caller, err := w.org(ctx, "bench")
		if err != nil {
			return 0, nil, err
		}

		start := time.Now()
		d, err := deploy.New(w.registry).Deploy(ctx, caller, "tables",
			registry.DeployRequest{YAML: tableDAG(jobs, 0, "first", "first")})
		if err != nil {
			return 0, nil, err
		}
		first = time.Since(start)
		w.dispatcher.Wake()
		if err := w.reach(ctx, d.Version, registry.Active); err != nil {
			return 0, nil, err
		}
		for range b.swaps {
			start := time.Now()
			if _, err := deploy.New(w.registry).Plan(ctx, caller, "tables",
				registry.DeployRequest{YAML: tableDAG(jobs, 1, "edited", "first")}); err != nil {
				return 0, nil, err
			}
			plans = append(plans, time.Since(start))
		}
		if w.statements != nil {
			w.statements.print(b.stderr, fmt.Sprintf("plan of %d jobs", jobs), b.swaps)
		}
		return first, plans, nil
	}

	_, small, err := of(1)
	if err != nil {
		return result{}, err
	}
	first, plans, err := of(b.jobs)
	if err != nil {
		return result{}, err
	}
	return result{value: milliseconds(quantile(plans, 0.5)), baseline: milliseconds(quantile(small, 0.5)),
		params: map[string]any{"jobs": b.jobs, "plans": b.swaps},
		detail: map[string]any{"first_deploy_ms": milliseconds(first), "most_ms": milliseconds(slices.Max(plans))}}, nil
}
