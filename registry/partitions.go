package registry

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/storage"
)

// Ref names one partition of one generation.
type Ref struct {
	Version uuid.UUID `json:"version"`
	Key     string    `json:"key"`
}

// Pin is one revision that an output was, or is to be, made from, seen from the job: through which input.
type Pin struct {
	Input    int       `json:"input"`
	Dataset  uuid.UUID `json:"dataset"`
	Version  uuid.UUID `json:"version"`
	Key      string    `json:"key"`
	Revision int64     `json:"revision"`
	Compared bool      `json:"compared"`                 // a newer revision makes the output stale
	Refused  bool      `json:"refused,omitempty" db:"-"` // of an appended partition: a rejected revision read it
	Epoch    int64     `json:"epoch,omitempty" db:"-"`   // of a cursor that the job follows: the one in which it was pinned
	At       time.Time `json:"at,omitzero" db:"-"`       // when the revision was made; known of what a task was given to read
}

// Made is what an output partition was last made from.
type Made struct {
	Revision int64
	State    string // Held, Published, Rejected or Purged
	// Inherited says that it was taken over from another generation: Pins are what it was made from there.
	Inherited bool
	Pins      []Pin
	// Refused is what those revisions of an appended partition read that its checks rejected: its rows are in no other.
	Refused []Pin
	// Purged is what the revisions of an appended partition read that its last purge removed, if nothing followed it.
	Purged []Pin
}

// Published returns the published revision numbers of whole generations, by partition key.
func Published(b *pg.Batch, generations []uuid.UUID) *pg.Later[map[uuid.UUID]map[string]int64] {
	found := map[uuid.UUID]map[string]int64{}
	if len(generations) == 0 {
		return pg.Known(found)
	}

	var (
		ref      Ref
		revision int64
	)
	b.Query("published partitions", []any{&ref.Version, &ref.Key, &revision}, func() error {
		if found[ref.Version] == nil {
			found[ref.Version] = map[string]int64{}
		}
		found[ref.Version][ref.Key] = revision
		return nil
	}, `
		SELECT dataset_version, partition_key, revision FROM partition_versions
		WHERE dataset_version = ANY($1) AND state = 'Published'`, generations)
	return pg.Answer(b, &found)
}

// AtMostPublished reports whether generations have at most some published partitions, and counts no further.
func AtMostPublished(ctx context.Context, tx pgx.Tx, generations []uuid.UUID, most int) (few bool, err error) {
	err = tx.QueryRow(ctx, `
		SELECT count(*) <= $2 FROM (
			SELECT FROM partition_versions WHERE dataset_version = ANY($1) AND state = 'Published' LIMIT $2 + 1) AS counted`,
		generations, most).Scan(&few)
	if err != nil {
		return false, fmt.Errorf("count published partitions: %w", err)
	}
	return few, nil
}

// PublishedAt returns the published revision numbers of given partitions; absent ones have none. It relies on
// idx_partition_versions_published. Each partition is looked up by itself (LATERAL with LIMIT), here and in the
// statements below: a join is planned for the size that the table had once, and reads all of it ever after.
func PublishedAt(b *pg.Batch, refs []Ref) *pg.Later[map[Ref]int64] {
	found := make(map[Ref]int64, len(refs))
	if len(refs) == 0 {
		return pg.Known(found)
	}

	var (
		ref      Ref
		revision int64
	)
	versions, keys := splitRefs(refs)
	b.Query("published partitions", []any{&ref.Version, &ref.Key, &revision}, func() error {
		found[ref] = revision
		return nil
	}, `
		SELECT w.version, w.key, p.revision
		FROM unnest($1::uuid[], $2::text[]) AS w(version, key)
		CROSS JOIN LATERAL (SELECT p.revision FROM partition_versions p
			WHERE p.dataset_version = w.version AND p.partition_key = w.key AND p.state = 'Published' LIMIT 1) AS p`, versions, keys)
	return pg.Answer(b, &found)
}

// LastMade returns the newest revision of each output partition that has one, and what that was made from. A replaced
// partition is made from the inputs of its newest revision; an appended one from those of every revision that was not
// rejected, as it has them all inside it, and of its newest one. A partition is in one of the two lists.
func LastMade(b *pg.Batch, replaced, appended []Ref) *pg.Later[map[Ref]Made] {
	found := make(map[Ref]Made, len(replaced)+len(appended))
	if len(replaced)+len(appended) == 0 {
		return pg.Known(found)
	}
	findLastMade(b, replaced, false, found)
	findLastMade(b, appended, true, found)
	return pg.Answer(b, &found)
}

// findLastMade fills in found when b is sent. With all, the inputs of all revisions count.
func findLastMade(b *pg.Batch, refs []Ref, all bool, found map[Ref]Made) {
	if len(refs) == 0 {
		return
	}

	var (
		ref  Ref
		made Made
		pins []byte
	)
	versions, keys := splitRefs(refs)
	b.Query("last revisions", []any{&ref.Version, &ref.Key, &made.Revision, &made.State, &made.Inherited,
		&pins}, func() error {
		var read []struct {
			Pin
			Last   bool `json:"last"`
			Purged bool `json:"purged"`
		}
		if err := json.Unmarshal(pins, &read); err != nil {
			return err
		}
		made.Pins, made.Refused, made.Purged = nil, nil, nil
		for _, p := range read {
			if !p.Refused || p.Last {
				made.Pins = append(made.Pins, p.Pin)
			}
			if p.Purged {
				made.Purged = append(made.Purged, p.Pin)
			}
			if p.Refused {
				made.Refused = append(made.Refused, p.Pin)
			}
		}
		found[ref] = made
		return nil
	}, `
		WITH newest AS (
			SELECT p.*
			FROM (SELECT DISTINCT version, key FROM unnest($1::uuid[], $2::text[]) AS w(version, key)) AS w
			CROSS JOIN LATERAL (SELECT p.dataset_version, p.partition_key, p.revision, p.state, p.inherited_from IS NOT NULL AS inherited,
					p.purged_at
				FROM partition_versions p WHERE p.dataset_version = w.version AND p.partition_key = w.key
				ORDER BY p.revision DESC LIMIT 1) AS p)
		SELECT n.dataset_version, n.partition_key, n.revision, n.state, n.inherited,
		       coalesce(jsonb_agg(jsonb_build_object('input', i.input_index, 'dataset', i.input_dataset, 'version', i.input_version,
		           'key', i.input_key, 'revision', coalesce(i.accepted, i.input_revision), 'compared', i.compared,
		           'refused', i.refused, 'last', i.output_revision = n.revision, 'purged', i.purged)) FILTER (WHERE i.input_index IS NOT NULL), '[]')
		FROM newest n
		LEFT JOIN LATERAL (
			SELECT i.*, CASE WHEN $3 THEN coalesce((SELECT p.state = 'Rejected' FROM partition_versions p
			           WHERE p.dataset_version = n.dataset_version AND p.partition_key = n.partition_key
			             AND p.revision = i.output_revision), true) ELSE false END AS refused,
				n.state = 'Purged' AND $3 AND EXISTS (SELECT FROM partition_versions p
					WHERE p.dataset_version = n.dataset_version AND p.partition_key = n.partition_key
					  AND p.revision = i.output_revision AND p.purged_at = n.purged_at) AS purged
			FROM partition_inputs i
			WHERE i.output_version = n.dataset_version AND i.output_key = n.partition_key
			  AND i.output_revision BETWEEN CASE WHEN $3 THEN 0 ELSE n.revision END AND n.revision) AS i ON true
		GROUP BY 1, 2, 3, 4, 5`, versions, keys, all)
}

// LimitRead makes what an appended, unpartitioned output was made from what all its revisions read of some partitions
// of its inputs, those of pins. It relies on idx_partition_inputs_whole.
func LimitRead(ctx context.Context, tx pgx.Tx, ref Ref, made *Made, pins []Pin) error {
	inputs, keys := make([]int, len(pins)), make([]string, len(pins))
	for i, p := range pins {
		inputs[i], keys[i] = p.Input, p.Key
	}
	rows, err := tx.Query(ctx, `
		SELECT i.input_index, i.input_dataset, i.input_version, i.input_key, coalesce(i.accepted, i.input_revision),
			i.compared, coalesce((SELECT p.state = 'Rejected' FROM partition_versions p
				WHERE p.dataset_version = $1 AND p.partition_key = '`+dag.WholeKey+`' AND p.revision = i.output_revision), true),
			i.output_revision = $4
		FROM unnest($2::int[], $3::text[]) AS w(input, key)
		CROSS JOIN LATERAL (SELECT * FROM partition_inputs i
			WHERE i.output_version = $1 AND i.output_key = '`+dag.WholeKey+`' AND i.input_index = w.input AND i.input_key = w.key
			OFFSET 0) AS i`, ref.Version, inputs, keys, made.Revision)
	if err != nil {
		return fmt.Errorf("what %s was made from: %w", ref.Key, err)
	}

	var (
		p    Pin
		last bool
	)
	made.Pins, made.Refused = nil, nil
	into := []any{&p.Input, &p.Dataset, &p.Version, &p.Key, &p.Revision, &p.Compared, &p.Refused, &last}
	_, err = pgx.ForEachRow(rows, into, func() error {
		if p.Refused {
			made.Refused = append(made.Refused, p)
		}
		if !p.Refused || last {
			made.Pins = append(made.Pins, p)
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("what %s was made from: %w", ref.Key, err)
	}
	return nil
}

// AcceptRevisions declares that the present revisions of some partitions make no difference to what was made from the
// ones before: consumers are not stale by them. What those were made from stays on record.
func AcceptRevisions(ctx context.Context, tx pgx.Tx, org, generation uuid.UUID, keys []string) error {
	_, err := tx.Exec(ctx, `
		UPDATE partition_inputs i SET accepted = r.revision
		FROM partition_versions r
		WHERE i.org_id = $1 AND i.input_version = $2 AND i.input_key = ANY($3)
		  AND r.dataset_version = $2 AND r.partition_key = i.input_key AND r.state = 'Published' AND r.revision > i.input_revision`,
		org, generation, keys)
	if err != nil {
		return fmt.Errorf("accept revisions of %d partitions: %w", len(keys), err)
	}
	return nil
}

func splitRefs(refs []Ref) (versions []uuid.UUID, keys []string) {
	versions, keys = make([]uuid.UUID, len(refs)), make([]string, len(refs))
	for i, r := range refs {
		versions[i], keys[i] = r.Version, r.Key
	}
	return versions, keys
}

// SourceVersion is what the newest revision of a source's partition, in any state, was made from.
type SourceVersion struct {
	Version  string // of its unit; empty: units have none
	Revision int64
	Purged   bool
	Rejected bool // by checks
}

// SourceVersions returns what each partition of a source's generation was last made from: what the next enumeration
// compares with. Rejected revisions count, so that bad data is not read again until it changes.
func SourceVersions(ctx context.Context, tx pgx.Tx, generation uuid.UUID) (map[string]SourceVersion, error) {
	rows, err := tx.Query(ctx, `
		SELECT DISTINCT ON (partition_key) partition_key, coalesce(source_version, ''), revision, state = 'Purged',
		       state = 'Rejected'
		FROM partition_versions WHERE dataset_version = $1
		ORDER BY partition_key, revision DESC`, generation)
	if err != nil {
		return nil, fmt.Errorf("source versions: %w", err)
	}

	found := map[string]SourceVersion{}
	var (
		key string
		v   SourceVersion
	)
	_, err = pgx.ForEachRow(rows, []any{&key, &v.Version, &v.Revision, &v.Purged, &v.Rejected}, func() error {
		found[key] = v
		return nil
	})
	return found, err
}

// RowsHash returns the hash of the rows of a partition's newest revision, which is its source version; empty: there is
// none, or its rows are purged.
func RowsHash(ctx context.Context, tx pgx.Tx, generation uuid.UUID, key string) (hash string, err error) {
	err = tx.QueryRow(ctx, `
		SELECT CASE WHEN state = 'Purged' THEN '' ELSE coalesce(source_version, '') END FROM partition_versions
		WHERE dataset_version = $1 AND partition_key = $2 ORDER BY revision DESC LIMIT 1`, generation, key).Scan(&hash)
	if errors.Is(err, pgx.ErrNoRows) {
		return "", nil
	}
	return hash, fault.Wrap(err, "hash of the rows")
}

// NewestRevision is the newest revision of a partition, in any state.
type NewestRevision struct {
	Revision      int64
	State         string
	SourceVersion string
}

// NewestRevisions returns the newest revision of each partition of a generation, without the markers of splits.
func NewestRevisions(ctx context.Context, tx pgx.Tx, generation uuid.UUID) (map[string]NewestRevision, error) {
	rows, err := tx.Query(ctx, `
		SELECT DISTINCT ON (partition_key) partition_key, revision, state, coalesce(source_version, '')
		FROM partition_versions WHERE dataset_version = $1 AND state <> 'Split'
		ORDER BY partition_key, revision DESC`, generation)
	if err != nil {
		return nil, fmt.Errorf("newest revisions: %w", err)
	}

	found := map[string]NewestRevision{}
	var (
		key string
		n   NewestRevision
	)
	_, err = pgx.ForEachRow(rows, []any{&key, &n.Revision, &n.State, &n.SourceVersion}, func() error {
		found[key] = n
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("newest revisions: %w", err)
	}
	return found, nil
}

// Content is what a revision consists of.
type Content struct {
	storage.Partition
	Schema []storage.Column
	At     time.Time // when it was made
	// Mixed says that the revision has other columns than its generation. Schema is the generation's then.
	Mixed bool
	Kept  bool // it is mixed, and was taken over from another definition
}

// Contents loads the content of pinned revisions in any state: a pinned revision stays readable after it was
// replaced. Pins are looked up by generation, key and revision; see Pin.Content.
func Contents(b *pg.Batch, pins []Pin) *pg.Later[map[Pin]Content] {
	found := make(map[Pin]Content, len(pins))
	if len(pins) == 0 {
		return pg.Known(found)
	}

	// Several pins may name one revision: load it once.
	refs, revisions := make([]Ref, 0, len(pins)), make([]int64, 0, len(pins))
	for _, p := range pins {
		if _, asked := found[p.revision()]; asked {
			continue
		}
		found[p.revision()] = Content{}
		refs, revisions = append(refs, Ref{p.Version, p.Key}), append(revisions, p.Revision)
	}

	var (
		pin           Pin
		at            time.Time
		files, schema []byte
		mixed, kept   bool

		decoded []byte           // the schema of the row before this one,
		columns []storage.Column // and its columns: those of most revisions of a call are the same
	)
	versions, keys := splitRefs(refs)
	row := []any{&pin.Version, &pin.Key, &pin.Revision, &at, &files, &schema, &mixed, &kept}
	b.Query("contents of revisions", row, func() error {
		c := Content{Partition: storage.Partition{Key: pin.Key, Revision: pin.Revision}, At: at, Mixed: mixed,
			Kept: kept}
		if err := json.Unmarshal(files, &c.Files); err != nil {
			return err
		}
		if !bytes.Equal(schema, decoded) {
			columns = nil
			if err := json.Unmarshal(schema, &columns); err != nil {
				return err
			}
			decoded = schema
		}
		c.Schema = columns
		found[pin] = c
		return nil
	}, `
		SELECT p.dataset_version, p.partition_key, p.revision, p.materialized_at, p.files, coalesce(g.schema, p.schema),
			g.schema IS NOT NULL, g.schema IS NOT NULL AND p.inherited_from IS NOT NULL
		FROM unnest($1::uuid[], $2::text[], $3::bigint[]) AS w(version, key, revision)
		CROSS JOIN LATERAL (SELECT * FROM partition_versions p
			WHERE p.dataset_version = w.version AND p.partition_key = w.key AND p.revision = w.revision LIMIT 1) AS p
		LEFT JOIN dataset_versions g ON g.id = p.dataset_version AND g.schema_hash <> p.schema_hash AND jsonb_array_length(g.schema) > 0`,
		versions, keys, revisions)
	return pg.Answer(b, &found)
}

// revision is the pin reduced to the revision it names.
func (p Pin) revision() Pin { return Pin{Version: p.Version, Key: p.Key, Revision: p.Revision} }

// Content returns the content of the pin's revision, if it was loaded.
func (p Pin) Content(loaded map[Pin]Content) Content { return loaded[p.revision()] }

// LoadRevision loads one revision with its committed files.
func LoadRevision(ctx context.Context, tx pgx.Tx, ref Ref, revision int64) (Revision, error) {
	r := Revision{Version: ref.Version, Key: ref.Key, Revision: revision}
	var files, schema []byte
	err := tx.QueryRow(ctx, `
		SELECT dataset_uuid, state, materialized_at, row_count, bytes, coalesce(source_version, ''), task_id, attempt,
		       location, files, schema, schema_hash
		FROM partition_versions WHERE dataset_version = $1 AND partition_key = $2 AND revision = $3`, ref.Version, ref.Key, revision).
		Scan(&r.Dataset, &r.State, &r.Materialized, &r.Rows, &r.Bytes, &r.SourceVersion, &r.TaskID, &r.Attempt,
			&r.Manifest.Location, &files, &schema, &r.Manifest.SchemaHash)
	if err != nil {
		return r, fmt.Errorf("load revision %d of partition %q: %w", revision, ref.Key, err)
	}

	r.Manifest.Rows, r.Manifest.Bytes = r.Rows, r.Bytes
	if err := json.Unmarshal(files, &r.Manifest.Files); err != nil {
		return r, err
	}
	return r, json.Unmarshal(schema, &r.Manifest.Schema)
}

// PinsOf returns what one revision was made from.
func PinsOf(ctx context.Context, tx pgx.Tx, ref Ref, revision int64) ([]Pin, error) {
	rows, err := tx.Query(ctx, `
		SELECT input_index, input_dataset, input_version, input_key, input_revision, compared FROM partition_inputs
		WHERE output_version = $1 AND output_key = $2 AND output_revision = $3
		ORDER BY input_index, input_key`, ref.Version, ref.Key, revision)
	if err != nil {
		return nil, fmt.Errorf("inputs of revision %d of partition %q: %w", revision, ref.Key, err)
	}
	return pgx.CollectRows(rows, pgx.RowToStructByPos[Pin])
}
