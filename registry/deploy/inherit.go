package deploy

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/registry"
	"github.com/dagctl/dagctl/storage"
)

// An inherited revision is a copy, under the same number, of a revision of the generation that its own generation
// continues. It has its own bytes, so gc, purge and rollback treat it like any other. It names its original, so that
// having read one counts as having read the other.

// heir is a generation that takes revisions over.
type heir struct {
	storage.Generation
	from   uuid.UUID // the generation that it continues
	job    uuid.UUID // the row of the job that fills it
	output int       // output index of that job
}

// heldRevision is a revision that is to be taken over.
type heldRevision struct {
	revision int64
	task     uuid.UUID // that made it
	attempt  int
}

// publishedBy returns the published revisions of a generation by partition key; if key is given, only that partition's.
func publishedBy(ctx context.Context, tx pgx.Tx, generation uuid.UUID, key *string) (map[string]heldRevision, error) {
	sql, args := `
		SELECT partition_key, revision, task_id, attempt FROM partition_versions
		WHERE dataset_version = $1 AND state = 'Published'`, []any{generation}
	if key != nil { // one statement for both would be planned to read all
		sql, args = sql+` AND partition_key = $2`, append(args, *key)
	}

	rows, err := tx.Query(ctx, sql, args...)
	if err != nil {
		return nil, fmt.Errorf("published partitions of %s: %w", generation, err)
	}

	found := map[string]heldRevision{}
	var (
		k string
		h heldRevision
	)
	_, err = pgx.ForEachRow(rows, []any{&k, &h.revision, &h.task, &h.attempt}, func() error {
		found[k] = h
		return nil
	})
	return found, err
}

// hold records the revisions that a generation takes over, with their figures and what they were made from. An input
// counts in deciding whether the partition is stale only if the job still reads that dataset and its generation is the
// same or continues one: otherwise the very change that is deployed would make everything stale.
func (dp *Deployer) hold(ctx context.Context, tx pgx.Tx, h heir, keys map[string]heldRevision) error {
	type row struct {
		Key      string `json:"key"`
		Revision int64  `json:"revision"`
		Location string `json:"location"`
	}

	rows := make([]row, 0, len(keys))
	for _, key := range slices.Sorted(maps.Keys(keys)) {
		k := keys[key]
		location := dp.storage.Location(storage.Attempt{Generation: h.Generation, Partition: key, Task: k.task,
			Number: k.attempt, Output: h.output})
		rows = append(rows, row{key, k.revision, location})
	}

	for _, sql := range []string{`
		INSERT INTO partition_versions (org_id, dataset_uuid, dataset_version, partition_key, revision, state, materialized_at, location,
			row_count, bytes, schema, schema_hash, source_version, task_id, attempt, range_start, range_end, passed_checks, inherited_from)
		SELECT o.org_id, o.dataset_uuid, $3, o.partition_key, o.revision, 'Held', o.materialized_at, w.location,
			o.row_count, o.bytes, o.schema, o.schema_hash, o.source_version, o.task_id, o.attempt, o.range_start, o.range_end, o.passed_checks,
			coalesce(o.inherited_from, o.dataset_version)
		FROM jsonb_to_recordset($4) AS w(key text, revision bigint, location text)
		JOIN partition_versions o ON o.org_id = $1 AND o.dataset_version = $2 AND o.partition_key = w.key AND o.revision = w.revision
		WHERE $5::uuid IS NOT NULL`, `
		INSERT INTO partition_inputs (org_id, output_version, output_key, output_revision, input_index, input_dataset,
			input_version, input_key, input_revision, compared, accepted)
		SELECT DISTINCT ON (i.output_key, 5, i.input_key) i.org_id, $3::uuid, i.output_key, w.revision, coalesce(e.input_index, 100 + i.input_index) AS at,
			i.input_dataset, i.input_version, i.input_key, i.input_revision,
			i.compared AND coalesce(NOT e.in_dag OR g.id = i.input_version OR g.continues IS NOT NULL, false), i.accepted
		FROM jsonb_to_recordset($4) AS w(key text, revision bigint, location text)
		JOIN partition_inputs i ON i.org_id = $1 AND i.output_version = $2 AND i.output_key = w.key
		JOIN partition_versions o ON o.dataset_version = $2 AND o.partition_key = w.key AND o.revision = i.output_revision AND o.state <> 'Rejected'
		JOIN jobs j ON j.id = $5 AND (i.output_revision = w.revision OR j.update_strategy = 'append' AND i.output_revision < w.revision)
		LEFT JOIN LATERAL (SELECT e.input_index, e.in_dag FROM job_inputs e WHERE e.job_id = j.id AND e.dataset_uuid = i.input_dataset
		                   ORDER BY e.input_index <> i.input_index, e.input_index LIMIT 1) AS e ON true
		LEFT JOIN dag_version_datasets p ON p.dag_version_id = j.dag_version_id AND p.dataset_uuid = i.input_dataset
		LEFT JOIN dataset_versions g ON g.id = p.dataset_version
		ORDER BY i.output_key, 5, i.input_key, i.output_revision DESC`, `
		INSERT INTO check_results (org_id, dataset_version, partition_key, revision, name, severity, outcome, failures, sample, error, task_id, at)
		SELECT c.org_id, $3, c.partition_key, c.revision, c.name, c.severity, c.outcome, c.failures, c.sample, c.error, c.task_id, c.at
		FROM jsonb_to_recordset($4) AS w(key text, revision bigint, location text)
		JOIN check_results c ON c.org_id = $1 AND c.dataset_version = $2 AND c.partition_key = w.key AND c.revision = w.revision
		WHERE $5::uuid IS NOT NULL`,
	} {
		if _, err := tx.Exec(ctx, sql, h.OrgID, h.from, h.Version, rows, h.job); err != nil {
			return fmt.Errorf("record what %s takes over: %w", h.Version, err)
		}
	}
	return nil
}

// pending is a revision that is recorded to be taken over but has no bytes yet.
type pending struct {
	heir
	heldRevision
	key    string
	purged bool // what it is to be taken from
	held   storage.Manifest
}

// Inherit gives a build's inherited revisions their bytes and publishes them, up to limit at once; more reports whether
// some are left. Nothing else of a build may be decided before. A revision that has been replaced since the deploy is
// taken over in its present state.
func (dp *Deployer) Inherit(ctx context.Context, b registry.Build, limit int) (more bool, err error) {
	err = pg.InTx(ctx, dp.pool, func(ctx context.Context, tx pgx.Tx) error {
		waiting, err := pendingOf(ctx, tx, b, limit)
		if err != nil {
			return err
		}
		for _, p := range waiting {
			if p.purged {
				return fault.New(fault.Invalid, "generation %s, whose partitions it takes over, has been removed",
					p.from)
			}
			if err := dp.takeOver(ctx, tx, p); err != nil {
				return err
			}
		}

		left, err := pendingOf(ctx, tx, b, 1)
		more = len(left) > 0
		return err
	})
	if err != nil {
		return false, fmt.Errorf("take over partitions for %s v%d: %w", b.DAG, b.Number, err)
	}
	return more, nil
}

// pendingOf returns up to limit revisions that a build has yet to take over, and locks their rows. It reads as many of
// each generation, in the order of idx_partition_versions_held, and never sorts all that are left.
func pendingOf(ctx context.Context, tx pgx.Tx, b registry.Build, limit int) ([]pending, error) {
	rows, err := tx.Query(ctx, `
		SELECT org_slug(r.org_id), r.dataset_uuid, r.dataset_version, g.storage, g.continues, j.id, p.output_index, r.partition_key, r.revision,
		       r.task_id, r.attempt, c.purged_at IS NOT NULL, r.row_count, r.bytes, r.schema, r.schema_hash
		FROM dag_version_datasets p
		JOIN dataset_versions g ON g.id = p.dataset_version
		JOIN dataset_versions c ON c.id = g.continues
		JOIN jobs j ON j.dag_version_id = p.dag_version_id AND j.name = p.job_name
		CROSS JOIN LATERAL (SELECT * FROM partition_versions h
			WHERE h.dataset_version = g.id AND h.state = 'Held' AND h.inherited_from IS NOT NULL
			ORDER BY h.dataset_version, h.partition_key LIMIT $3 FOR UPDATE) AS r
		WHERE p.org_id = $1 AND p.dag_version_id = $2
		ORDER BY r.dataset_version, r.partition_key LIMIT $3`, b.OrgID, b.ID, limit)
	if err != nil {
		return nil, fmt.Errorf("find what is to be taken over: %w", err)
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (pending, error) {
		p := pending{heir: heir{Generation: storage.Generation{OrgID: b.OrgID}}}
		var (
			version uuid.UUID
			store   []byte
		)
		if err := row.Scan(&p.OrgSlug, &p.Dataset, &version, &store, &p.from, &p.job, &p.output, &p.key, &p.revision,
			&p.task, &p.attempt,
			&p.purged, &p.held.Rows, &p.held.Bytes, &p.held.Schema, &p.held.SchemaHash); err != nil {
			return p, err
		}
		return p, registry.SetGeneration(&p.Generation, version, store)
	})
}

// takeOver copies the bytes of one revision and publishes the copy.
func (dp *Deployer) takeOver(ctx context.Context, tx pgx.Tx, p pending) error {
	job, err := dp.registry.Jobs(ctx, tx, []uuid.UUID{p.job})
	if err != nil {
		return err
	}
	p.UniqueKey = job[p.job].Outputs[p.output].Generation.UniqueKey // by which the generation's table is made

	from := p.Generation
	from.Version = p.from
	m := p.held
	err = tx.QueryRow(ctx, `SELECT location, files FROM partition_versions
		WHERE dataset_version = $1 AND partition_key = $2 AND revision = $3 AND state IN ('Published', 'Replaced') AND location <> '' AND purged_at IS NULL`,
		p.from, p.key, p.revision).Scan(&m.Location, &m.Files)
	if errors.Is(err, pgx.ErrNoRows) {
		return dp.holdAnew(ctx, tx, p)
	}
	if err != nil {
		return fmt.Errorf("find revision %d of partition %q: %w", p.revision, p.key, err)
	}

	to := storage.Attempt{Generation: p.Generation, Partition: p.key, Task: p.task, Number: p.attempt, Output: p.output}
	m, err = dp.storage.TakeOver(ctx, tx, from, to, p.revision, m)
	if fault.Is(err, fault.Conflict) {
		return dp.holdAnew(ctx, tx, p)
	}
	if err != nil {
		return err
	}
	return publishInherited(ctx, tx, p, m)
}

// holdAnew records what is published now in place of a revision that no longer exists.
func (dp *Deployer) holdAnew(ctx context.Context, tx pgx.Tx, p pending) error {
	if _, err := tx.Exec(ctx, `DELETE FROM partition_versions WHERE dataset_version = $1 AND partition_key = $2 AND revision = $3`,
		p.Version, p.key, p.revision); err != nil {
		return fmt.Errorf("record partition %q anew: %w", p.key, err)
	}
	published, err := publishedBy(ctx, tx, p.from, &p.key)
	if err != nil {
		return err
	}
	return dp.hold(ctx, tx, p.heir, published)
}

// publishInherited publishes a revision that has its bytes, in place of an older one, unless a newer one is already
// published. The generation's schema is the schema of its own revisions, once it has one.
func publishInherited(ctx context.Context, tx pgx.Tx, p pending, m storage.Manifest) error {
	files, err := json.Marshal(m.Files)
	if err != nil {
		return err
	}
	if m.Files == nil {
		files = []byte("[]")
	}

	if _, err := tx.Exec(ctx, `
		UPDATE partition_versions SET state = 'Replaced', ended_at = now()
		WHERE dataset_version = $1 AND partition_key = $2 AND revision < $3 AND state = 'Published'`,
		p.Version, p.key, p.revision); err != nil {
		return fmt.Errorf("replace inherited partition %q: %w", p.key, err)
	}
	if _, err := tx.Exec(ctx, `
		UPDATE partition_versions r SET location = $4, files = $5,
			state = CASE WHEN n.newer THEN 'Rejected' ELSE 'Published' END, ended_at = CASE WHEN n.newer THEN now() END
		FROM (SELECT EXISTS (SELECT FROM partition_versions WHERE dataset_version = $1 AND partition_key = $2 AND state = 'Published') AS newer) AS n
		WHERE r.dataset_version = $1 AND r.partition_key = $2 AND r.revision = $3 AND r.state = 'Held'`,
		p.Version, p.key, p.revision, m.Location, files); err != nil {
		return fmt.Errorf("publish inherited partition %q: %w", p.key, err)
	}

	_, err = tx.Exec(ctx, `UPDATE dataset_versions SET schema = $2, schema_hash = $3
		WHERE id = $1 AND schema_hash IS NULL`, p.Version, m.Schema, m.SchemaHash)
	return err
}

// Revised is one revision of one partition of a generation.
type Revised struct {
	registry.Ref
	Revision int64
}

// CopiedFrom maps inherited revisions to the generation of their original.
type CopiedFrom map[Revised]uuid.UUID

// of returns the generation that a revision was made in.
func (c CopiedFrom) of(r Revised) uuid.UUID {
	if original, ok := c[r]; ok {
		return original
	}
	return r.Version
}

// Same reports whether two revisions are the same one, or copies of the same one.
func (c CopiedFrom) Same(a, b Revised) bool { return a.Revision == b.Revision && c.of(a) == c.of(b) }

// Generations returns the generations of the originals.
func (c CopiedFrom) Generations() []uuid.UUID { return slices.Collect(maps.Values(c)) }

// Originals returns the generation of the original of every inherited revision; others are absent.
func Originals(ctx context.Context, tx pgx.Tx, revisions []Revised) (CopiedFrom, error) {
	versions, keys := make([]uuid.UUID, len(revisions)), make([]string, len(revisions))
	numbers := make([]int64, len(revisions))
	for i, r := range revisions {
		versions[i], keys[i], numbers[i] = r.Version, r.Key, r.Revision
	}

	rows, err := tx.Query(ctx, `
		SELECT p.dataset_version, p.partition_key, p.revision, p.inherited_from
		FROM unnest($1::uuid[], $2::text[], $3::bigint[]) AS w(version, key, revision)
		JOIN partition_versions p ON p.dataset_version = w.version AND p.partition_key = w.key AND p.revision = w.revision AND p.inherited_from IS NOT NULL`,
		versions, keys, numbers)
	if err != nil {
		return nil, fmt.Errorf("originals of %d revisions: %w", len(revisions), err)
	}

	found := CopiedFrom{}
	var (
		r        Revised
		original uuid.UUID
	)
	_, err = pgx.ForEachRow(rows, []any{&r.Version, &r.Key, &r.Revision, &original}, func() error {
		found[r] = original
		return nil
	})
	return found, err
}

// Kept is a revision that was taken over from another generation.
type Kept struct {
	Revised
	Pins []registry.Pin // what it was made from
	Now  []registry.Pin // what it would be made from now, as far as it is compared
}

// Overtaken returns which kept revisions are to be made again although nothing that they were made from has changed:
// those where something has come that the definition which made them would read, too. What only the new one reads is no
// reason for that, and of an input that the deploy computed as a whole, neither is what there was at the cutover.
func Overtaken(ctx context.Context, tx pgx.Tx, r *registry.Registry, kept []Kept) (outdated []int, err error) {
	lacks := map[int][]registry.Pin{} // by index
	var asked []Revised
	for i, k := range kept {
		if pins := k.lacks(); len(pins) > 0 {
			lacks[i], asked = pins, append(asked, k.Revised)
		}
	}
	if len(asked) == 0 {
		return nil, nil
	}

	originals, err := Originals(ctx, tx, asked)
	if err != nil {
		return nil, err
	}
	makers, err := r.Makers(ctx, tx, originals.Generations())
	if err != nil {
		return nil, err
	}

	var since []registry.Later
	for i, pins := range lacks {
		k := kept[i]
		maker := makers[originals[k.Revised]]
		for _, p := range pins {
			switch {
			case maker == nil || !reads(maker, p, k.Key):
			case !k.begun(p):
				outdated = append(outdated, i)
			default:
				since = append(since, registry.Later{Target: i, Generation: k.Version, Pin: p})
			}
		}
	}
	later, err := registry.MadeSinceServing(ctx, tx, since)
	for _, l := range later {
		outdated = append(outdated, l.Target)
	}
	return outdated, err
}

// lacks returns what the revision would be made from now, where nothing says what it was made from.
func (k Kept) lacks() (pins []registry.Pin) {
	for _, p := range k.Now {
		same := func(w registry.Pin) bool { return w.Compared && w.Input == p.Input && w.Key == p.Key }
		if !slices.ContainsFunc(k.Pins, same) {
			pins = append(pins, p)
		}
	}
	return pins
}

// begun reports whether the deploy that took the revision over computed its input as a whole.
func (k Kept) begun(p registry.Pin) bool {
	return slices.ContainsFunc(k.Pins, func(w registry.Pin) bool { return w.Input == p.Input && !w.Compared })
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
