package registry

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/pg"
)

// A purge deletes data because somebody has to, not because nobody needs it. It leaves a tombstone: the revision's row
// without files, figures and check results. The tombstone prevents a revision number from being used twice, and says
// which inputs the partition was made from, so that it is made again only after those have changed.

// PurgeScope says what to purge: the partitions from From to To of one dataset, in all of its generations. Both ends
// are included, in the order of dag.CompareKeys; if both are empty, all partitions are meant. With Downstream, every
// partition that was made from one of those is purged as well.
type PurgeScope struct {
	Dataset    uuid.UUID
	From, To   string
	Downstream bool
}

// PurgedPartition is a partition of one generation that a purge removes.
type PurgedPartition struct {
	Dataset string    `json:"dataset"`
	DAG     string    `json:"dag"`
	Version uuid.UUID `json:"dataset_version"`
	Key     string    `json:"partition"`
	Live    bool      `json:"live" doc:"Readers see this dataset version now; others are removed as a whole"`
	Bytes   int64     `json:"bytes"`

	Origin uuid.UUID `json:"-"`
}

// RefuseReversed refuses a range of partitions that ends before it begins. An end that is "" is open.
func RefuseReversed(from, to string) error {
	if from == "" || to == "" || dag.CompareKeys(from, to) <= 0 {
		return nil
	}
	return fault.New(fault.Invalid, "the first partition, %s, comes after the last one, %s", from, to).
		WithHint("swap the two ends; ranges are compared by number here, and other partitions as text")
}

// KeyBetween reports whether a partition lies between two others, both included. An end that is "" is open.
func KeyBetween(key, from, to string) bool { return dag.KeyBetween(key, from, to) }

// PurgedPartitions lists what a purge removes.
func PurgedPartitions(ctx context.Context, tx pgx.Tx, org uuid.UUID, s PurgeScope) ([]PurgedPartition, error) {
	keys, err := s.keys(ctx, tx, org)
	if err != nil {
		return nil, fmt.Errorf("find what to purge: %w", err)
	}
	rows, err := tx.Query(ctx, `
		WITH RECURSIVE gone AS (
			SELECT DISTINCT r.dataset_version AS version, r.partition_key AS key FROM partition_versions r
			WHERE r.org_id = $1 AND r.dataset_uuid = $2 AND ($3 OR r.partition_key = ANY($4))
			UNION
			SELECT i.output_version, i.output_key FROM gone g
			JOIN partition_inputs i ON i.org_id = $1 AND i.input_version = g.version AND i.input_key = g.key
			WHERE $5)
		SELECT d.name, d.producer_dag_name, g.version, g.key,
		       EXISTS (SELECT FROM dataset_pointers p WHERE p.org_id = $1 AND p.dataset_version = g.version),
		       coalesce((SELECT sum(r.bytes) FROM partition_versions r
		           WHERE r.dataset_version = g.version AND r.partition_key = g.key), 0)::bigint,
		       v.origin_job_id
		FROM gone g
		JOIN dataset_versions v ON v.id = g.version
		JOIN datasets d ON d.org_id = $1 AND d.id = v.dataset_uuid
		WHERE EXISTS (SELECT FROM partition_versions r
		    WHERE r.dataset_version = g.version AND r.partition_key = g.key AND r.state NOT IN ('Purged', 'Split'))
		ORDER BY d.producer_dag_name, d.name, g.version, g.key`, org, s.Dataset, s.whole(), keys,
		s.Downstream)
	if err != nil {
		return nil, fmt.Errorf("find what to purge: %w", err)
	}
	found, err := pgx.CollectRows(rows, pgx.RowToStructByPos[PurgedPartition])
	if err != nil {
		return nil, fmt.Errorf("find what to purge: %w", err)
	}
	return found, nil
}

// LeftOfPurges counts the partitions of a scope's dataset that were purged before and whose bytes gc has still to
// remove: the server was killed meanwhile, or could not remove them. It relies on idx_partition_versions_ended.
func LeftOfPurges(ctx context.Context, tx pgx.Tx, org uuid.UUID, s PurgeScope) (n int, err error) {
	rows, err := tx.Query(ctx, `
		SELECT DISTINCT partition_key FROM partition_versions
		WHERE org_id = $1 AND dataset_uuid = $2 AND state = 'Purged' AND location <> ''`, org, s.Dataset)
	if err != nil {
		return 0, fmt.Errorf("what purges have left: %w", err)
	}

	keys, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return 0, fmt.Errorf("what purges have left: %w", err)
	}
	for _, key := range keys {
		if s.whole() || dag.KeyBetween(key, s.From, s.To) {
			n++
		}
	}
	return n, nil
}

// whole reports whether the scope has all partitions.
func (s PurgeScope) whole() bool { return s.From == "" && s.To == "" }

// keys lists the partitions of a scope that is not whole.
func (s PurgeScope) keys(ctx context.Context, tx pgx.Tx, org uuid.UUID) ([]string, error) {
	if s.whole() {
		return nil, nil
	}
	rows, err := tx.Query(ctx, `
		SELECT DISTINCT partition_key FROM partition_versions WHERE org_id = $1 AND dataset_uuid = $2`, org, s.Dataset)
	if err != nil {
		return nil, err
	}

	keys, err := pgx.CollectRows(rows, pgx.RowTo[string])
	return slices.DeleteFunc(keys, func(key string) bool { return !dag.KeyBetween(key, s.From, s.To) }), err
}

// PurgedReader is a job of another DAG that reads what a purge removes.
type PurgedReader struct {
	Dataset string `json:"dataset"`
	Job     string `json:"job" doc:"DAG/JOB"`
}

// PurgedReaders lists the jobs of other DAGs, in versions that are active or on their way, that read what a purge takes
// from readers. It names all of them: a purge is for admins.
func PurgedReaders(ctx context.Context, tx pgx.Tx, org uuid.UUID, gone []PurgedPartition) ([]PurgedReader, error) {
	rows, err := tx.Query(ctx, `
		SELECT DISTINCT d.name, j.dag_name || '/' || j.name
		FROM dataset_versions g
		JOIN datasets d ON d.id = g.dataset_uuid
		JOIN job_inputs i ON i.org_id = $1 AND i.dataset_uuid = g.dataset_uuid AND NOT i.in_dag
		JOIN jobs j ON j.id = i.job_id AND j.dag_name <> d.producer_dag_name
		JOIN dag_versions v ON v.id = i.dag_version_id AND v.status IN ('Active', 'Building', 'Ready')
		WHERE g.org_id = $1 AND g.id = ANY($2)
		ORDER BY 1, 2`, org, purgedVersions(gone, func(p PurgedPartition) bool { return p.Live }))
	if err != nil {
		return nil, fmt.Errorf("find who reads what is purged: %w", err)
	}
	found, err := pgx.CollectRows(rows, pgx.RowToStructByPos[PurgedReader])
	if err != nil {
		return nil, fmt.Errorf("find who reads what is purged: %w", err)
	}
	return found, nil
}

// RefusePurge returns an error if a purge is not allowed: while one of its DAGs is being built, or, unless breakWindow
// is set, if it would take data from a rollback that is possible now.
func RefusePurge(ctx context.Context, tx pgx.Tx, org uuid.UUID, gone []PurgedPartition, breakWindow bool,
	now time.Time) error {
	versions := purgedVersions(gone, func(PurgedPartition) bool { return true })
	rows, err := tx.Query(ctx, `
		SELECT DISTINCT v.dag_name || ' v' || v.number, v.status IN ('Building', 'Ready')
		FROM dag_version_datasets p
		JOIN dag_versions v ON v.id = p.dag_version_id
		LEFT JOIN dag_current_versions c ON c.org_id = v.org_id AND c.dag_name = v.dag_name
		WHERE p.org_id = $1 AND p.dataset_version = ANY($2) AND v.status <> 'Active' AND (
			v.status IN ('Building', 'Ready') OR v.activated_at IS NOT NULL AND (
				v.id = c.previous_version_id AND c.rollback_until > $3
				OR EXISTS (SELECT FROM pins k WHERE k.dag_version_id = v.id AND (k.until IS NULL OR k.until > $3))))
		ORDER BY 2 DESC, 1`, org, versions, now)
	if err != nil {
		return fmt.Errorf("find versions that a purge breaks: %w", err)
	}
	var (
		broken   []string
		name     string
		building bool
	)
	if _, err := pgx.ForEachRow(rows, []any{&name, &building}, func() error {
		if building {
			return fault.New(fault.Conflict, "%s is being built", name).
				WithHint("wait for the build or abandon it, then purge")
		}
		broken = append(broken, name)
		return nil
	}); err != nil {
		return err
	}

	if len(broken) > 0 && !breakWindow {
		return fault.New(fault.Conflict, "a rollback to %s needs the data that would be purged",
			strings.Join(broken, ", ")).
			WithHint("pass --break-window to purge nevertheless")
	}
	return nil
}

// Purge removes partitions in the caller's transaction, which holds the locks of their DAGs; once it is committed,
// readers no longer see them. It returns the tasks that made the partitions.
//
// The generations stay, with a tombstone for each partition, so that a deploy or a rollback that returns to one brings
// back the others and does not make the purged ones again.
//
// Who reads one of the partitions now may go on: see Erase.
func Purge(ctx context.Context, tx pgx.Tx, org uuid.UUID, gone []PurgedPartition,
	now time.Time) (tasks []uuid.UUID, err error) {
	return purge(ctx, tx, org, gone, false, now)
}

// Erase is Purge for a person who wants the data gone: what reads it now ends, see Erased.
func Erase(ctx context.Context, tx pgx.Tx, org uuid.UUID, gone []PurgedPartition,
	now time.Time) (tasks []uuid.UUID, err error) {
	return purge(ctx, tx, org, gone, true, now)
}

func purge(ctx context.Context, tx pgx.Tx, org uuid.UUID, gone []PurgedPartition, erase bool,
	now time.Time) (tasks []uuid.UUID, err error) {
	versions, keys := make([]uuid.UUID, len(gone)), make([]string, len(gone))
	for i, p := range gone {
		versions[i], keys[i] = p.Version, p.Key
	}

	rows, err := tx.Query(ctx, `
		UPDATE partition_versions r SET state = 'Purged', ended_at = $4, purged_at = $4, row_count = 0, bytes = 0,
		       erased_at = CASE WHEN $5 THEN $4::timestamptz END
		FROM unnest($2::uuid[], $3::text[]) AS w(version, key)
		WHERE r.org_id = $1 AND r.dataset_version = w.version AND r.partition_key = w.key AND r.state <> 'Purged'
		RETURNING r.task_id`, org, versions, keys, now, erase)
	if err != nil {
		return nil, fmt.Errorf("purge %d partitions: %w", len(gone), err)
	}
	if tasks, err = pgx.CollectRows(rows, pgx.RowTo[uuid.UUID]); err != nil {
		return nil, fmt.Errorf("purge %d partitions: %w", len(gone), err)
	}

	if _, err := tx.Exec(ctx, `
		DELETE FROM check_results k USING unnest($2::uuid[], $3::text[]) AS w(version, key)
		WHERE k.org_id = $1 AND k.dataset_version = w.version
		  AND k.partition_key = w.key`, org, versions, keys); err != nil {
		return nil, fmt.Errorf("purge check results: %w", err)
	}
	return tasks, nil
}

// MarkEmptied marks those generations of purged partitions that do not serve and of which nothing is left, as a purge
// without bounds does: the dataset itself has to go.
func MarkEmptied(ctx context.Context, tx pgx.Tx, org uuid.UUID, gone []PurgedPartition, now time.Time) error {
	rows, err := tx.Query(ctx, `
		SELECT v.id FROM unnest($2::uuid[]) AS v(id)
		WHERE NOT EXISTS (SELECT FROM partition_versions r
			WHERE r.org_id = $1 AND r.dataset_version = v.id AND r.state NOT IN ('Purged', 'Split'))`,
		org, purgedVersions(gone, func(p PurgedPartition) bool { return !p.Live }))
	if err != nil {
		return fmt.Errorf("find what a purge has emptied: %w", err)
	}
	emptied, err := pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
	if err != nil {
		return fmt.Errorf("find what a purge has emptied: %w", err)
	}
	return MarkPurged(ctx, tx, org, emptied, now)
}

// PurgedOf returns those dataset versions of which a partition was purged and has not been published since.
func PurgedOf(ctx context.Context, tx pgx.Tx, versions []uuid.UUID, key string) (map[uuid.UUID]bool, error) {
	// By the primary key: of each version, the newest revision.
	rows, err := tx.Query(ctx, `
		SELECT v.id FROM unnest($1::uuid[]) AS v(id)
		WHERE (SELECT r.state FROM partition_versions r WHERE r.dataset_version = v.id AND r.partition_key = $2
			ORDER BY r.revision DESC LIMIT 1) = 'Purged'`, versions, key)
	if err != nil {
		return nil, fmt.Errorf("find purged outputs: %w", err)
	}
	found, err := pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
	if err != nil {
		return nil, fmt.Errorf("find purged outputs: %w", err)
	}

	purged := make(map[uuid.UUID]bool, len(found))
	for _, id := range found {
		purged[id] = true
	}
	return purged, nil
}

func purgedVersions(gone []PurgedPartition, want func(PurgedPartition) bool) []uuid.UUID {
	versions := []uuid.UUID{}
	for _, p := range gone {
		if want(p) && !slices.Contains(versions, p.Version) {
			versions = append(versions, p.Version)
		}
	}
	return versions
}

// LockDAGs takes the exclusive locks of several DAGs of one org, in an order that cannot deadlock.
func LockDAGs(ctx context.Context, tx pgx.Tx, org uuid.UUID, dags []string) error {
	keys := make([]string, len(dags))
	for i, name := range dags {
		keys[i] = DagKey(org, name)
	}
	_, err := tx.Exec(ctx, `
		SELECT pg_advisory_xact_lock(h)
		FROM (SELECT DISTINCT hashtextextended(k, 0) AS h FROM unnest($1::text[]) AS k ORDER BY h) AS keys`, keys)
	if err != nil {
		return fmt.Errorf("lock %d DAGs: %w", len(dags), pg.Busy(err, "one of these DAGs is being changed"))
	}
	return nil
}

// Erased returns an error if somebody has purged a partition of datasets that are being read, whose files the reader
// may have open: it says what was purged, and the reader has to stop. It asks for tombstones, which are few, and not
// for what is read.
func Erased(ctx context.Context, tx pgx.Tx, org uuid.UUID, reading []Readable) error {
	type revision struct {
		version uuid.UUID
		key     string
		number  int64
	}
	versions, names, read := make([]uuid.UUID, len(reading)), map[uuid.UUID]string{}, map[revision]bool{}
	for i, d := range reading {
		id := d.Generation.Version
		versions[i], names[id] = id, d.Name
		for _, p := range d.Partitions {
			read[revision{id, p.Key, p.Revision}] = true
		}
	}

	rows, err := tx.Query(ctx, `
		SELECT dataset_version, partition_key, revision FROM partition_versions
		WHERE org_id = $1 AND dataset_version = ANY($2) AND state = 'Purged' AND erased_at IS NOT NULL`, org, versions)
	if err != nil {
		return fmt.Errorf("find what was purged: %w", err)
	}
	var r revision
	_, err = pgx.ForEachRow(rows, []any{&r.version, &r.key, &r.number}, func() error {
		if read[r] {
			return erased(fmt.Sprintf("partition %s of dataset %s", r.key, names[r.version]))
		}
		return nil
	})
	if err != nil {
		return err
	}

	// Of a generation that does not serve, a purge leaves no tombstones. Gc waits for its readers.
	var gone uuid.UUID
	err = tx.QueryRow(ctx, `SELECT id FROM dataset_versions
		WHERE org_id = $1 AND id = ANY($2) AND purged_at IS NOT NULL LIMIT 1`, org, versions).Scan(&gone)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return nil
	case err != nil:
		return fmt.Errorf("find what was purged: %w", err)
	}
	return erased("dataset " + names[gone])
}

func erased(what string) error {
	return fault.New(fault.Conflict, "%s was purged while this read it", what).
		WithHint("begin again with what there is now: `dagctl datasets partitions` lists it")
}
