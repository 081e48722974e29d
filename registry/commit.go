package registry

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/google/uuid"

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
	Segment       bool // of a cursor: the key says its range
	Pins          []Pin
	Now           time.Time
}

// Commit adds to a batch what records revisions, each numbered one above the highest that its caller has found in this
// transaction, and publishes those that are not held. It belongs inside the fenced completion of the tasks that made them;
// two that come at once to the same number are told apart by the key, and one of them is done again. The Replaced update and
// the insert are two statements: in one they would both be checked against the index of published revisions.
func Commit(b *pg.Batch, revisions []NewRevision) error {
	if len(revisions) == 0 {
		return nil
	}
	var replaced []Ref
	var shown []NewRevision
	for _, n := range revisions {
		if n.Held {
			continue
		}
		shown = append(shown, n)
		if n.Revision > 1 {
			replaced = append(replaced, Ref{n.Version, n.Key})
		}
	}
	queueReplace(b, replaced)
	if err := insertRevisions(b, revisions); err != nil {
		return err
	}
	insertPins(b, revisions)
	return queueSchema(b, shown)
}

func insertRevisions(b *pg.Batch, revisions []NewRevision) error {
	var (
		orgs, datasets, versions, tasks                          []uuid.UUID
		keys, states, locations, files, schemas, hashes, sources []string
		numbers, rowCounts, sizes                                []int64
		attempts                                                 []int
		starts, ends                                             []*int64
		times                                                    []time.Time
	)
	for _, n := range revisions {
		list, err := json.Marshal(n.Manifest.Files)
		if err != nil {
			return err
		}
		schema, err := json.Marshal(n.Manifest.Schema)
		if err != nil {
			return err
		}
		state := "Published"
		if n.Held {
			state = "Held"
		}
		orgs, datasets, versions = append(orgs, n.OrgID), append(datasets, n.Dataset), append(versions, n.Version)
		keys, numbers, states = append(keys, n.Key), append(numbers, n.Revision), append(states, state)
		times, locations = append(times, n.Now), append(locations, n.Manifest.Location)
		files, schemas, hashes = append(files, string(list)), append(schemas, string(schema)), append(hashes, n.Manifest.SchemaHash)
		rowCounts, sizes = append(rowCounts, n.Manifest.Rows), append(sizes, n.Manifest.Bytes)
		sources, tasks, attempts = append(sources, n.SourceVersion), append(tasks, n.TaskID), append(attempts, n.Attempt)
		start, end, err := n.bounds()
		if err != nil {
			return err
		}
		starts, ends = append(starts, start), append(ends, end)
	}
	first := revisions[0]
	doing := fmt.Sprintf("commit %d revisions, the first of partition %q of %s", len(revisions), first.Key, first.Version)
	b.Count(doing, func(rows int) error {
		if rows < len(revisions) {
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
		WHERE EXISTS (SELECT FROM dataset_versions g WHERE g.id = w.version AND g.purged_at IS NULL)`,
		orgs, datasets, versions, keys, numbers, states, times, locations, files, rowCounts, sizes, schemas, hashes, sources, tasks, attempts, starts, ends)
	return nil
}

// queueReplace ends the published revisions of partitions.
func queueReplace(b *pg.Batch, refs []Ref) {
	if len(refs) == 0 {
		return
	}
	versions, keys := splitRefs(refs)
	b.Exec(fmt.Sprintf("replace %d partitions, the first %q of %s", len(refs), refs[0].Key, refs[0].Version), `
		UPDATE partition_versions p SET state = 'Replaced', ended_at = now()
		FROM unnest($1::uuid[], $2::text[]) AS w(version, key)
		WHERE p.dataset_version = w.version AND p.partition_key = w.key AND p.state = 'Published'`, versions, keys)
}

func insertPins(b *pg.Batch, revisions []NewRevision) {
	var (
		orgs, versions, datasets, inputs []uuid.UUID
		keys, inputKeys                  []string
		numbers, inputNumbers            []int64
		indices                          []int
		compared                         []bool
	)
	for _, n := range revisions {
		for _, p := range n.Pins {
			orgs, versions, keys, numbers = append(orgs, n.OrgID), append(versions, n.Version), append(keys, n.Key), append(numbers, n.Revision)
			indices, datasets, inputs = append(indices, p.Input), append(datasets, p.Dataset), append(inputs, p.Version)
			inputKeys, inputNumbers, compared = append(inputKeys, p.Key), append(inputNumbers, p.Revision), append(compared, p.Compared)
		}
	}
	if len(orgs) == 0 {
		return
	}
	b.Exec(fmt.Sprintf("record inputs of %d revisions", len(revisions)), `
		INSERT INTO partition_inputs (org_id, output_version, output_key, output_revision, input_index, input_dataset,
			input_version, input_key, input_revision, compared)
		SELECT * FROM unnest($1::uuid[], $2::uuid[], $3::text[], $4::bigint[], $5::int[], $6::uuid[], $7::uuid[], $8::text[],
			$9::bigint[], $10::boolean[])`,
		orgs, versions, keys, numbers, indices, datasets, inputs, inputKeys, inputNumbers, compared)
}

// queueSchema keeps each generation's schema at that of its newest published revision, which is the one of the highest key
// among those that come at once.
func queueSchema(b *pg.Batch, shown []NewRevision) error {
	newest := map[uuid.UUID]NewRevision{}
	for _, n := range shown {
		if last, ok := newest[n.Version]; !ok || n.Key > last.Key {
			newest[n.Version] = n
		}
	}
	var (
		versions        []uuid.UUID
		schemas, hashes []string
	)
	for _, version := range slices.SortedFunc(maps.Keys(newest), func(a, b uuid.UUID) int { return bytes.Compare(a[:], b[:]) }) {
		n := newest[version]
		schema, err := json.Marshal(n.Manifest.Schema)
		if err != nil {
			return err
		}
		versions, schemas, hashes = append(versions, version), append(schemas, string(schema)), append(hashes, n.Manifest.SchemaHash)
	}
	if len(versions) > 0 {
		b.Exec("keep the schema of what is published", `
			UPDATE dataset_versions g SET schema = w.schema::jsonb, schema_hash = w.hash
			FROM unnest($1::uuid[], $2::text[], $3::text[]) AS w(version, schema, hash)
			WHERE g.id = w.version AND g.schema_hash IS DISTINCT FROM w.hash`, versions, schemas, hashes)
	}
	return nil
}
