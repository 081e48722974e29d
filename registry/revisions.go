package registry

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/storage"
)

// NewRevision is one output partition that a completion commits.
type NewRevision struct {
	OrgID         uuid.UUID
	Dataset       uuid.UUID
	Version       uuid.UUID
	Key           string
	Revision      int64 // one above the newest
	Manifest      storage.Manifest
	SourceVersion string
	TaskID        uuid.UUID
	Attempt       int
	Held          bool // error checks decide before anyone sees it
	Split         bool // the marker of a split, which nobody reads: it has no content
	PartitionBy   dag.Partitioning
	Pins          []Pin
	Now           time.Time
}

// Commit adds statements to a batch that record revisions, each numbered one above the highest that its caller has
// found in this transaction, and that publish revisions that are not held. It belongs inside the fenced completion of
// the tasks that made them; if two transactions use the same number, they collide on the key, and one of them is
// repeated. The Replaced update and the insert are two statements: in one they would both be checked against the index
// of published revisions.
func Commit(b *pg.Batch, revisions []NewRevision) error {
	if len(revisions) == 0 {
		return nil
	}
	var replaced []Ref
	var shown []NewRevision
	for _, n := range revisions {
		if n.Held || n.Split {
			continue
		}
		shown = append(shown, n)
		if n.Revision > 1 {
			replaced = append(replaced, Ref{n.Version, n.Key})
		}
	}

	endPublished(b, replaced)
	if err := insertRevisions(b, revisions); err != nil {
		return err
	}
	insertPins(b, revisions)
	dropSplits(b, revisions)
	return keepSchema(b, shown)
}

func insertRevisions(b *pg.Batch, revisions []NewRevision) error {
	rows := make([]revisionRow, len(revisions))
	for i, n := range revisions {
		list, err := json.Marshal(n.Manifest.Files)
		if err != nil {
			return err
		}
		schema, err := json.Marshal(n.Manifest.Schema)
		if err != nil {
			return err
		}
		state := "Published"
		switch {
		case n.Held:
			state = "Held"
		case n.Split:
			state = "Split"
		}
		start, end, err := n.bounds()
		if err != nil {
			return err
		}
		rows[i] = revisionRow{n.OrgID, n.Dataset, n.Version, n.Key, n.Revision, state, n.Now,
			n.Manifest.Location, string(list), n.Manifest.Rows, n.Manifest.Bytes, string(schema), n.Manifest.SchemaHash,
			n.SourceVersion, n.TaskID, n.Attempt, start, end}
	}

	first := revisions[0]
	doing := fmt.Sprintf("commit %d revisions, the first of partition %q of %s", len(revisions),
		first.Key, first.Version)
	b.Count(doing, func(inserted int) error {
		if inserted < len(revisions) {
			return fault.New(fault.Conflict, "a generation was purged, %s or one of %d", first.Version, len(revisions))
		}
		return nil
	}, `
		INSERT INTO partition_versions (org_id, dataset_uuid, dataset_version, partition_key, revision, state, materialized_at,
			location, files, row_count, bytes, schema, schema_hash, source_version, task_id, attempt, range_start, range_end)
		SELECT w.org, w.dataset, w.version, w.key, w.revision, w.state, w.at, w.location, w.files::jsonb, w.row_count, w.bytes,
			w.schema::jsonb, w.schema_hash, NULLIF(w.source_version, ''), w.task, w.attempt, w.range_start, w.range_end
		FROM unnest($1::uuid[], $2::uuid[], $3::uuid[], $4::text[], $5::bigint[], $6::text[], $7::timestamptz[], $8::text[],
			$9::text[], $10::bigint[], $11::bigint[], $12::text[], $13::text[], $14::text[], $15::uuid[], $16::int[], $17::bigint[], $18::bigint[])
			AS w(org, dataset, version, key, revision, state, at, location, files, row_count, bytes, schema, schema_hash,
			     source_version, task, attempt, range_start, range_end)
		WHERE EXISTS (SELECT FROM dataset_versions g WHERE g.id = w.version AND g.purged_at IS NULL)`, pg.Columns(rows)...)
	return nil
}

// revisionRow is a row of w in the statement of insertRevisions.
type revisionRow struct {
	Org, Dataset, Version             uuid.UUID
	Key                               string
	Revision                          int64
	State                             string
	At                                time.Time
	Location, Files                   string
	Rows, Bytes                       int64
	Schema, SchemaHash, SourceVersion string
	Task                              uuid.UUID
	Attempt                           int
	Start, End                        *int64
}

// endPublished ends the published revisions of partitions, which are about to be replaced.
func endPublished(b *pg.Batch, refs []Ref) {
	if len(refs) == 0 {
		return
	}
	versions, keys := splitRefs(refs)
	b.Exec(fmt.Sprintf("replace %d partitions, the first %q of %s", len(refs), refs[0].Key, refs[0].Version), `
		UPDATE partition_versions p SET state = 'Replaced', ended_at = now()
		FROM unnest($1::uuid[], $2::text[]) AS w(version, key)
		WHERE p.dataset_version = w.version AND p.partition_key = w.key AND p.state = 'Published'`, versions, keys)
}

// dropSplits deletes the markers of splits that newer ones follow.
func dropSplits(b *pg.Batch, revisions []NewRevision) {
	for _, n := range revisions {
		if n.Split && n.Revision > 1 {
			b.Exec(fmt.Sprintf("drop the markers before that of %s", n.Version), `
				DELETE FROM partition_versions
				WHERE dataset_version = $1 AND partition_key = $2 AND state = 'Split' AND revision < $3`,
				n.Version, n.Key, n.Revision)
		}
	}
}

func insertPins(b *pg.Batch, revisions []NewRevision) {
	var rows []pinRow
	for _, n := range revisions {
		for _, p := range n.Pins {
			rows = append(rows, pinRow{n.OrgID, n.Version, n.Key, n.Revision, p.Input,
				p.Dataset, p.Version, p.Key, p.Revision, p.Compared})
		}
	}
	if len(rows) == 0 {
		return
	}

	b.Exec(fmt.Sprintf("record inputs of %d revisions", len(revisions)), `
		INSERT INTO partition_inputs (org_id, output_version, output_key, output_revision, input_index, input_dataset,
			input_version, input_key, input_revision, compared)
		SELECT * FROM unnest($1::uuid[], $2::uuid[], $3::text[], $4::bigint[], $5::int[], $6::uuid[], $7::uuid[], $8::text[],
			$9::bigint[], $10::boolean[])`, pg.Columns(rows)...)
}

// pinRow is a row of partition_inputs, in the order of the statement of insertPins.
type pinRow struct {
	Org, Version  uuid.UUID
	Key           string
	Revision      int64
	Input         int
	InputDataset  uuid.UUID
	InputVersion  uuid.UUID
	InputKey      string
	InputRevision int64
	Compared      bool
}

// keepSchema keeps each generation's schema at that of its newest published revision. Among those that come at once
// that is the one of the highest key with rows: where there are none, types may be guesses.
func keepSchema(b *pg.Batch, shown []NewRevision) error {
	newest := map[uuid.UUID]NewRevision{}
	for _, n := range shown {
		last, ok := newest[n.Version]
		rows, before := n.Manifest.Rows > 0, last.Manifest.Rows > 0
		if !ok || rows && !before || rows == before && n.Key > last.Key {
			newest[n.Version] = n
		}
	}

	var (
		versions        []uuid.UUID
		schemas, hashes []string
	)
	byBytes := func(a, b uuid.UUID) int { return bytes.Compare(a[:], b[:]) }
	for _, version := range slices.SortedFunc(maps.Keys(newest), byBytes) {
		n := newest[version]
		schema, err := json.Marshal(n.Manifest.Schema)
		if err != nil {
			return err
		}
		versions, schemas = append(versions, version), append(schemas, string(schema))
		hashes = append(hashes, n.Manifest.SchemaHash)
	}

	if len(versions) > 0 {
		b.Exec("keep the schema of what is published", `
			UPDATE dataset_versions g SET schema = w.schema::jsonb, schema_hash = w.hash
			FROM unnest($1::uuid[], $2::text[], $3::text[]) AS w(version, schema, hash)
			WHERE g.id = w.version AND g.schema_hash IS DISTINCT FROM w.hash`, versions, schemas, hashes)
	}
	return nil
}

// LockHeld locks a held revision for the transaction that decides over it; false where it is held no longer.
func LockHeld(ctx context.Context, tx pgx.Tx, ref Ref, revision int64) (held bool, err error) {
	tag, err := tx.Exec(ctx, `SELECT FROM partition_versions
		WHERE dataset_version = $1 AND partition_key = $2 AND revision = $3 AND state = 'Held' FOR UPDATE`,
		ref.Version, ref.Key, revision)
	if err != nil {
		return false, fmt.Errorf("lock held revision %d of partition %q: %w", revision, ref.Key, err)
	}
	return tag.RowsAffected() > 0, nil
}

// PublishHeld lets readers see a held revision. Held revisions are published in their order: older ones that still wait
// are rejected, and one that is older than what is published is rejected itself: then PublishHeld returns false.
func PublishHeld(ctx context.Context, tx pgx.Tx, ref Ref, revision int64) (bool, error) {
	var newer bool
	err := tx.QueryRow(ctx, `SELECT EXISTS (SELECT FROM partition_versions WHERE dataset_version = $1 AND partition_key = $2
		AND state = 'Published' AND revision > $3)`, ref.Version, ref.Key, revision).Scan(&newer)
	if err != nil {
		return false, err
	}
	if newer {
		return false, RejectHeld(ctx, tx, ref, revision)
	}

	var b pg.Batch
	endPublished(&b, []Ref{ref})
	b.Exec(fmt.Sprintf("publish revision %d of partition %q", revision, ref.Key), `
		UPDATE partition_versions SET state = CASE WHEN revision = $3 THEN 'Published' ELSE 'Rejected' END,
			ended_at = CASE WHEN revision < $3 THEN now() END
		WHERE dataset_version = $1 AND partition_key = $2 AND state = 'Held' AND revision <= $3`,
		ref.Version, ref.Key, revision)
	b.Exec("keep the schema of what is published", `
		UPDATE dataset_versions g SET schema = p.schema, schema_hash = p.schema_hash
		FROM partition_versions p
		WHERE g.id = $1 AND p.dataset_version = $1 AND p.partition_key = $2 AND p.revision = $3 AND p.state = 'Published'
		  AND g.schema_hash IS DISTINCT FROM p.schema_hash`, ref.Version, ref.Key, revision)
	return true, b.Send(ctx, tx)
}

// RejectHeld keeps a held revision from ever being seen.
func RejectHeld(ctx context.Context, tx pgx.Tx, ref Ref, revision int64) error {
	_, err := tx.Exec(ctx, `UPDATE partition_versions SET state = 'Rejected', ended_at = now()
		WHERE dataset_version = $1 AND partition_key = $2 AND revision = $3 AND state = 'Held'`,
		ref.Version, ref.Key, revision)
	if err != nil {
		return fmt.Errorf("reject revision %d of partition %q: %w", revision, ref.Key, err)
	}
	return forgetReading(ctx, tx, ref, revision)
}

// RecordChecks stores the results of a revision's checks.
func RecordChecks(
	ctx context.Context, tx pgx.Tx, org uuid.UUID, ref Ref, revision int64, task uuid.UUID, results []CheckResult,
) error {
	hashes := make([]string, len(results))
	for i, r := range results {
		hashes[i] = r.Hash
	}
	var b pg.Batch
	b.Exec(fmt.Sprintf("record checks of partition %q", ref.Key), `
		INSERT INTO check_results (org_id, dataset_version, partition_key, revision, name, severity, outcome, failures, sample, error,
			check_hash, task_id)
		SELECT $1, $2, $3, $4, w.name, w.severity, w.outcome, w.failures, NULLIF(w.sample, 'null'), NULLIF(w.error, ''),
			w.hash, $5
		FROM ROWS FROM (jsonb_to_recordset($6)
			AS (name text, severity text, outcome text, failures bigint, sample jsonb, error text), unnest($7::text[]))
			AS w(name, severity, outcome, failures, sample, error, hash)
		ON CONFLICT (dataset_version, partition_key, revision, name) DO UPDATE
		SET outcome = EXCLUDED.outcome, failures = EXCLUDED.failures, sample = EXCLUDED.sample, error = EXCLUDED.error,
		    check_hash = EXCLUDED.check_hash, task_id = EXCLUDED.task_id, at = now()`,
		org, ref.Version, ref.Key, revision, task, results, hashes)

	var passed []string
	for _, r := range results {
		if r.Outcome == "pass" {
			passed = append(passed, r.Hash)
		}
	}
	RecordPassed(&b, ref, revision, passed)
	return b.Send(ctx, tx)
}

// RecordPassed adds checks, by hash, to those that a revision has passed.
func RecordPassed(b *pg.Batch, ref Ref, revision int64, hashes []string) {
	if len(hashes) == 0 {
		return
	}
	b.Exec(fmt.Sprintf("record passed checks of partition %q", ref.Key), `
		UPDATE partition_versions SET passed_checks = ARRAY(SELECT unnest(passed_checks) UNION SELECT unnest($4::text[]))
		WHERE dataset_version = $1 AND partition_key = $2 AND revision = $3 AND NOT passed_checks @> $4`,
		ref.Version, ref.Key, revision, hashes)
}

// HeldOrPublished reports whether a revision is one that readers see, or may see yet.
func HeldOrPublished(ctx context.Context, tx pgx.Tx, ref Ref, revision int64) (is bool, err error) {
	err = tx.QueryRow(ctx, `
		SELECT EXISTS (SELECT FROM partition_versions WHERE dataset_version = $1 AND partition_key = $2 AND revision = $3
			AND state IN ('Held', 'Published'))`, ref.Version, ref.Key, revision).Scan(&is)
	if err != nil {
		return false, fmt.Errorf("state of revision %d of partition %q: %w", revision, ref.Key, err)
	}
	return is, nil
}
