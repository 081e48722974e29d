package registry

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/google/uuid"

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
