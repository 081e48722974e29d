package registry

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/storage"
)

// Garbage is what nothing can reach any more. It is marked first, in the transaction that finds it unreachable. Its
// bytes are removed after that, and its rows last, so that after a crash in between the next run still finds the marks.
//
// Reachable are: every generation of a version that is active, on its way, pinned, inside its guaranteed window, or
// ended less than a window ago; what tasks that may still commit have pinned; what a query holds.

// readerGrace is how long a replaced revision is kept for readers that resolved it before it was replaced. A read that
// may take longer holds its generations with HoldForRead.
const readerGrace = 15 * time.Minute

// InUse is what tasks hold at this moment.
type InUse struct {
	Origins []uuid.UUID // of tasks that run, or may still commit: they write to the origins' generations
	Pins    []Pin       // of those tasks
	Checks  []Checked   // the revisions that open check tasks look at
}

// Checked is a revision of one of the origin's outputs that a check task looks at.
type Checked struct {
	Origin   uuid.UUID
	Key      string
	Revision int64
}

// GarbageGeneration is a generation that nothing can reach.
type GarbageGeneration struct {
	Version    uuid.UUID `json:"dataset_version"`
	Dataset    string    `json:"dataset"`
	DAG        string    `json:"dag"`
	Partitions int64     `json:"partitions"`
	Bytes      int64     `json:"bytes"`
}

// GarbageRevision is a revision that was replaced or rejected, and that nobody reads.
type GarbageRevision struct {
	Version  uuid.UUID `json:"dataset_version"`
	Key      string    `json:"partition"`
	Revision int64     `json:"revision"`
	Bytes    int64     `json:"bytes"`
}

// UnreachableGenerations lists the generations of one org that nothing reaches, of one DAG unless dagName is empty.
func UnreachableGenerations(ctx context.Context, tx pgx.Tx, org uuid.UUID, dagName string, use InUse,
	now time.Time) ([]GarbageGeneration, error) {
	generations := make([]uuid.UUID, len(use.Pins))
	for i, p := range use.Pins {
		generations[i] = p.Version
	}

	rows, err := tx.Query(ctx, `
		WITH kept AS MATERIALIZED (
			SELECT v.id FROM dag_versions v
			LEFT JOIN dag_current_versions c ON c.org_id = v.org_id AND c.dag_name = v.dag_name
			WHERE v.org_id = $1 AND (
				v.status IN ('Staged', 'Building', 'Ready', 'Active')
				OR v.ended_at > $4
				OR v.id = c.previous_version_id AND c.rollback_until > $3
				OR EXISTS (SELECT FROM pins k WHERE k.dag_version_id = v.id AND (k.until IS NULL OR k.until > $3)))),
		reached AS MATERIALIZED (
			SELECT p.dataset_version FROM kept k JOIN dag_version_datasets p ON p.dag_version_id = k.id),
		-- What another DAG has as an input was let go by a rollback past it: its last data stays until that DAG is changed.
		foreign_inputs AS MATERIALIZED (
			SELECT DISTINCT i.dataset_uuid FROM job_inputs i
			JOIN dag_versions v ON v.id = i.dag_version_id AND v.status IN ('Active', 'Building', 'Ready')
			WHERE i.org_id = $1 AND NOT i.in_dag),
		last AS MATERIALIZED (
			SELECT DISTINCT ON (p.dataset_uuid) p.dataset_version
			FROM foreign_inputs f JOIN dag_version_datasets p ON p.dataset_uuid = f.dataset_uuid
			JOIN dag_versions v ON v.id = p.dag_version_id AND v.activated_at IS NOT NULL
			WHERE p.org_id = $1 ORDER BY p.dataset_uuid, v.activated_at DESC)
		SELECT g.id, d.name, d.producer_dag_name, coalesce(held.partitions, 0), coalesce(held.bytes, 0)
		FROM dataset_versions g
		JOIN datasets d ON d.org_id = g.org_id AND d.id = g.dataset_uuid
		LEFT JOIN LATERAL (SELECT count(DISTINCT partition_key) FILTER (WHERE state <> 'Split') AS partitions,
			sum(bytes)::bigint AS bytes
		                   FROM partition_versions r
		                   WHERE r.dataset_version = g.id AND r.purged_at IS NULL) held ON true
		WHERE g.org_id = $1 AND g.purged_at IS NULL AND ($2 = '' OR d.producer_dag_name = $2)
		  AND NOT EXISTS (SELECT FROM reached k WHERE k.dataset_version = g.id)
		  AND NOT EXISTS (SELECT FROM last k WHERE k.dataset_version = g.id)
		  AND g.id <> ALL($5) AND g.origin_job_id <> ALL(coalesce($6::uuid[], '{}'))
		  AND NOT EXISTS (SELECT FROM reader_leases l WHERE l.dataset_version = g.id AND l.expires_at > $3)
		ORDER BY d.producer_dag_name, d.name, g.id`,
		org, dagName, now, now.Add(-RollbackWindow), generations, use.Origins)
	if err != nil {
		return nil, fmt.Errorf("find unreachable generations: %w", err)
	}
	found, err := pgx.CollectRows(rows, pgx.RowToStructByPos[GarbageGeneration])
	if err != nil {
		return nil, fmt.Errorf("find unreachable generations: %w", err)
	}
	return found, nil
}

// MarkPurged marks generations, so that they are never found again. The caller holds the lock of their DAG, so no
// deploy, rollback or completion begins to rely on them at the same time.
func MarkPurged(ctx context.Context, tx pgx.Tx, org uuid.UUID, generations []uuid.UUID, now time.Time) error {
	_, err := tx.Exec(ctx, `UPDATE dataset_versions SET purged_at = $3
		WHERE org_id = $1 AND id = ANY($2) AND purged_at IS NULL`, org, generations, now)
	if err != nil {
		return fmt.Errorf("mark %d generations as purged: %w", len(generations), err)
	}
	return nil
}

// garbageCandidates and garbageAmongThem find the revisions that were replaced or rejected before the grace and that no
// task or check reads. They spare the newest revision of a partition, which decides on staleness and on the number of
// the next. A revision also stays while one that stays names a file of it: an appended revision has the files of those
// before it. Nothing is held by generations that go: those that are marked, and those of the last argument. A statement
// says in between which of the candidates it is about, as chosen, in whole partitions.
// They rely on idx_partition_versions_ended.
const garbageCandidates = `
	WITH gone AS (
		SELECT id FROM dataset_versions WHERE org_id = $1 AND purged_at IS NOT NULL AND cleared_at IS NULL
		UNION SELECT unnest($10::uuid[])),
	wanted AS (
		SELECT * FROM unnest($4::uuid[], $5::text[], $6::bigint[]) AS w(version, key, revision)
		UNION ALL
		SELECT r.dataset_version, c.key, c.revision
		FROM unnest($7::uuid[], $8::text[], $9::bigint[]) AS c(origin, key, revision)
		JOIN dataset_versions g ON g.origin_job_id = c.origin
		JOIN partition_versions r ON r.dataset_version = g.id AND r.partition_key = c.key AND r.revision = c.revision),
	undecided AS (
		SELECT dataset_version, partition_key, revision FROM partition_versions
		WHERE org_id = $1 AND state = 'Held' AND dataset_version NOT IN (SELECT id FROM gone)
		UNION ALL
		SELECT r.dataset_version, r.partition_key, r.revision FROM partition_versions r
		WHERE r.org_id = $1 AND r.state = 'Rejected' AND r.location <> ''
		  AND r.dataset_version NOT IN (SELECT id FROM gone) AND NOT EXISTS (
			SELECT FROM partition_versions n WHERE n.dataset_version = r.dataset_version
			  AND n.partition_key = r.partition_key AND n.revision > r.revision)
		UNION ALL
		SELECT * FROM wanted),
	read AS MATERIALIZED (
		SELECT version AS dataset_version, key AS partition_key, revision FROM wanted
		UNION
		SELECT i.input_version, i.input_key, i.input_revision
		FROM undecided u
		JOIN partition_inputs i ON i.output_version = u.dataset_version AND i.output_key = u.partition_key
		  AND i.output_revision = u.revision),
	candidates AS MATERIALIZED (
		SELECT r.dataset_version, r.partition_key, r.revision, r.location, r.bytes, r.state
		FROM partition_versions r
		WHERE r.org_id = $1 AND r.state IN ('Replaced', 'Rejected') AND r.location <> '' AND r.purged_at IS NULL
		  AND r.ended_at < $2 AND r.dataset_version NOT IN (SELECT id FROM gone)
		  AND EXISTS (SELECT FROM partition_versions n WHERE n.dataset_version = r.dataset_version
		              AND n.partition_key = r.partition_key AND n.revision > r.revision)
		  AND NOT EXISTS (SELECT FROM reader_leases l WHERE l.dataset_version = r.dataset_version AND l.expires_at > $3)
		  AND (r.dataset_version, r.partition_key, r.revision) NOT IN (SELECT * FROM read)),`

const garbageAmongThem = `,
	garbage AS (
		SELECT c.dataset_version, c.partition_key, u.revision, u.bytes
		FROM (
			SELECT dataset_version, partition_key, array_agg(revision) AS revisions, array_agg(location) AS locations,
			    array_agg(bytes) AS bytes
			FROM chosen GROUP BY dataset_version, partition_key) AS c
		CROSS JOIN LATERAL (
			SELECT coalesce(array_agg(f ->> 'path'), '{}') AS paths FROM partition_versions k,
			    jsonb_array_elements(CASE jsonb_typeof(k.files) WHEN 'array' THEN k.files ELSE '[]' END) AS f
			WHERE k.dataset_version = c.dataset_version AND k.partition_key = c.partition_key
			  AND k.revision <> ALL (c.revisions) AND k.purged_at IS NULL) AS kept
		CROSS JOIN unnest(c.revisions, c.locations, c.bytes) AS u(revision, location, bytes)
		WHERE NOT EXISTS (SELECT FROM unnest(kept.paths) AS path WHERE starts_with(path, u.location)))`

func garbageArgs(org uuid.UUID, use InUse, gone []uuid.UUID, now time.Time) []any {
	var (
		versions, origins    []uuid.UUID
		keys, checkedKeys    []string
		revisions, checkedAt []int64
	)

	for _, p := range use.Pins {
		versions, keys, revisions = append(versions, p.Version), append(keys, p.Key), append(revisions, p.Revision)
	}
	for _, c := range use.Checks {
		origins, checkedKeys, checkedAt = append(origins, c.Origin), append(checkedKeys, c.Key),
			append(checkedAt, c.Revision)
	}

	return []any{org, now.Add(-readerGrace), now, versions, keys, revisions, origins, checkedKeys, checkedAt, gone}
}

// GarbageRevisions lists the revisions of one org that were replaced or rejected and that nobody reads any more, once
// the generations in gone are gone with all that they have.
func GarbageRevisions(ctx context.Context, tx pgx.Tx, org uuid.UUID, use InUse, gone []uuid.UUID,
	now time.Time) ([]GarbageRevision, error) {
	rows, err := tx.Query(ctx, garbageCandidates+`
		chosen AS (SELECT * FROM candidates)`+garbageAmongThem+` SELECT * FROM garbage ORDER BY 1, 2, 3`,
		garbageArgs(org, use, gone, now)...)
	if err != nil {
		return nil, fmt.Errorf("find garbage revisions: %w", err)
	}
	found, err := pgx.CollectRows(rows, pgx.RowToStructByPos[GarbageRevision])
	if err != nil {
		return nil, fmt.Errorf("find garbage revisions: %w", err)
	}
	return found, nil
}

// MarkedGarbage says what MarkGarbageRevisions has marked.
type MarkedGarbage struct {
	Revisions int
	Bytes     int64
	Last      Ref  // the last partition that it looked at
	More      bool // others follow
}

// MarkGarbageRevisions marks what GarbageRevisions lists in some of the partitions that follow one. The generations
// that are gone are marked already. Revisions of a partition share files, so those of one are marked together.
func MarkGarbageRevisions(ctx context.Context, tx pgx.Tx, org uuid.UUID, use InUse, now time.Time,
	after Ref) (m MarkedGarbage, err error) {
	const most = 1000 // partitions
	if err := dropExpiredHolds(ctx, tx, org, now); err != nil {
		return m, fmt.Errorf("drop expired holds: %w", err)
	}

	var looked int
	err = tx.QueryRow(ctx, garbageCandidates+`
		few AS MATERIALIZED (
			SELECT DISTINCT dataset_version, partition_key FROM candidates
			WHERE (dataset_version, partition_key) > ($11, $12) ORDER BY 1, 2 LIMIT $13),
		last AS (SELECT * FROM few ORDER BY 1 DESC, 2 DESC LIMIT 1),
		chosen AS (
			SELECT * FROM candidates WHERE (dataset_version, partition_key) > ($11, $12)
			  AND (dataset_version, partition_key) <= (SELECT * FROM last))`+garbageAmongThem+`,
		marked AS (
			UPDATE partition_versions r SET purged_at = $3 FROM garbage g
			WHERE r.dataset_version = g.dataset_version AND r.partition_key = g.partition_key AND r.revision = g.revision
			RETURNING r.bytes)
		SELECT (SELECT count(*) FROM few), (SELECT count(*) FROM marked), (SELECT coalesce(sum(bytes), 0) FROM marked),
			coalesce((SELECT dataset_version FROM last), $11), coalesce((SELECT partition_key FROM last), $12)`,
		append(garbageArgs(org, use, nil, now), after.Version, after.Key, most)...).
		Scan(&looked, &m.Revisions, &m.Bytes, &m.Last.Version, &m.Last.Key)
	if err != nil {
		return m, fmt.Errorf("mark garbage revisions: %w", err)
	}
	m.More = looked == most
	return m, nil
}

// MarkedRevision is a revision whose bytes have to be removed.
type MarkedRevision struct {
	Ref
	Revision   int64
	Generation storage.Generation
	Location   string
	Whole      bool // remove the rows that readers saw, too, not only files
}

// MarkedRevisions lists marked revisions of generations that stay, up to limit.
func MarkedRevisions(ctx context.Context, tx pgx.Tx, org uuid.UUID, limit int) ([]MarkedRevision, error) {
	rows, err := tx.Query(ctx, `
		SELECT r.dataset_version, r.partition_key, r.revision, r.location, r.state = 'Purged', org_slug(r.org_id),
		    r.dataset_uuid, g.storage
		FROM partition_versions r
		JOIN dataset_versions g ON g.id = r.dataset_version AND g.purged_at IS NULL
		WHERE r.org_id = $1 AND r.state IN ('Replaced', 'Rejected', 'Purged') AND r.location <> ''
		  AND r.purged_at IS NOT NULL
		ORDER BY 1, 2, 3 LIMIT $2`, org, limit)
	if err != nil {
		return nil, fmt.Errorf("marked revisions: %w", err)
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (MarkedRevision, error) {
		m := MarkedRevision{Generation: storage.Generation{OrgID: org}}
		var store []byte
		if err := row.Scan(&m.Version, &m.Key, &m.Revision, &m.Location, &m.Whole, &m.Generation.OrgSlug,
			&m.Generation.Dataset, &store); err != nil {
			return m, err
		}
		return m, SetGeneration(&m.Generation, m.Version, store)
	})
}

// ClearRevision deletes the row of a marked revision whose bytes are gone. Two kinds of revision keep their row,
// without the files: a revision of an appending job, because its row says which inputs were read; and one that a person
// purged, because its row says that the partition must not be made again from the same inputs.
func ClearRevision(ctx context.Context, tx pgx.Tx, m MarkedRevision) error {
	_, err := tx.Exec(ctx, `
		WITH kept AS (
			UPDATE partition_versions r SET location = '', files = '[]'
			FROM dataset_versions g JOIN jobs o ON o.id = g.origin_job_id
			WHERE g.id = r.dataset_version AND r.dataset_version = $1 AND r.partition_key = $2 AND r.revision = $3
			  AND r.purged_at IS NOT NULL
			  AND (r.state = 'Purged' OR r.state = 'Replaced' AND o.update_strategy = 'append')
			RETURNING r.revision)
		DELETE FROM partition_versions
		WHERE dataset_version = $1 AND partition_key = $2 AND revision = $3 AND purged_at IS NOT NULL
		  AND NOT EXISTS (SELECT FROM kept)`,
		m.Version, m.Key, m.Revision)
	if err != nil {
		return fmt.Errorf("clear revision %d of partition %q: %w", m.Revision, m.Key, err)
	}
	return nil
}

// MarkedGeneration is a generation whose bytes have to be removed.
type MarkedGeneration struct {
	storage.Generation
	DAG       string
	Locations []string // where its revisions were written
}

// MarkedGenerations lists the purged generations of one org that still have bytes or rows, up to limit.
func MarkedGenerations(ctx context.Context, tx pgx.Tx, org uuid.UUID, limit int) ([]MarkedGeneration, error) {
	rows, err := tx.Query(ctx, `
		SELECT g.id, org_slug(g.org_id), g.dataset_uuid, g.storage, d.producer_dag_name,
		       (SELECT coalesce(array_agg(DISTINCT r.location) FILTER (WHERE r.location <> ''), '{}')
		           FROM partition_versions r WHERE r.dataset_version = g.id)
		FROM dataset_versions g JOIN datasets d ON d.org_id = g.org_id AND d.id = g.dataset_uuid
		WHERE g.org_id = $1 AND g.purged_at IS NOT NULL AND g.cleared_at IS NULL
		ORDER BY g.purged_at, g.id LIMIT $2`, org, limit)
	if err != nil {
		return nil, fmt.Errorf("marked generations: %w", err)
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (MarkedGeneration, error) {
		m := MarkedGeneration{Generation: storage.Generation{OrgID: org}}
		var (
			id    uuid.UUID
			store []byte
		)
		if err := row.Scan(&id, &m.OrgSlug, &m.Dataset, &store, &m.DAG, &m.Locations); err != nil {
			return m, err
		}
		return m, SetGeneration(&m.Generation, id, store)
	})
}

// ViewsWithout returns the stable views that may show a purged generation, each over the generations that are left: the
// serving one first, then all that were ever published under the name, the newest first. A name that another DAG
// publishes by now has that DAG's view. The caller holds the DAG's lock, so that no swap comes in between.
func ViewsWithout(ctx context.Context, tx pgx.Tx, m MarkedGeneration) ([]storage.View, error) {
	rows, err := tx.Query(ctx, `
		WITH names AS (
			SELECT DISTINCT coalesce(p.published_name, p.publication ->> 'name') AS name
			FROM dag_version_datasets p
			WHERE p.dataset_version = $3 AND coalesce(p.published_name, p.publication ->> 'name') IS NOT NULL),
		views AS (
			SELECT n.name, coalesce(s.dag_name, $2) AS dag, s.dataset_version AS live FROM names n
			LEFT JOIN dataset_pointers s ON s.org_id = $1 AND s.published_name = n.name)
		SELECT w.dag, w.name, ARRAY(
			SELECT g.id FROM dag_versions v
			JOIN dag_version_datasets p ON p.dag_version_id = v.id
			  AND coalesce(p.published_name, p.publication ->> 'name') = w.name
			JOIN dataset_versions g ON g.id = p.dataset_version AND g.purged_at IS NULL
			  AND g.storage ->> 'kind' = 'postgres'
			WHERE v.org_id = $1 AND v.dag_name = w.dag
			GROUP BY g.id ORDER BY g.id = w.live DESC NULLS LAST, g.created_at DESC)
		FROM views w ORDER BY 2`, m.OrgID, m.DAG, m.Version)
	if err != nil {
		return nil, fmt.Errorf("views of generation %s: %w", m.Version, err)
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (storage.View, error) {
		v := storage.View{OrgID: m.OrgID, OrgSlug: m.OrgSlug}
		return v, row.Scan(&v.DAG, &v.Name, &v.Generations)
	})
}

// ClearGeneration deletes the partitions of a marked generation whose bytes are gone. The generation's own row stays,
// because lineage and older versions name it.
func ClearGeneration(ctx context.Context, tx pgx.Tx, org, generation uuid.UUID, now time.Time) error {
	for _, sql := range []string{
		`DELETE FROM partition_versions WHERE dataset_version = $2 AND $3::timestamptz IS NOT NULL
		 AND EXISTS (SELECT FROM dataset_versions g WHERE g.org_id = $1 AND g.id = $2 AND g.purged_at IS NOT NULL)`,
		`UPDATE dataset_versions SET cleared_at = $3 WHERE org_id = $1 AND id = $2 AND purged_at IS NOT NULL`,
	} {
		if _, err := tx.Exec(ctx, sql, org, generation, now); err != nil {
			return fmt.Errorf("clear generation %s: %w", generation, err)
		}
	}
	return nil
}

// Committed returns which locations that the tasks wrote belong to revisions.
func Committed(ctx context.Context, tx pgx.Tx, org uuid.UUID, tasks []uuid.UUID) (map[string]bool, error) {
	rows, err := tx.Query(ctx, `SELECT location FROM partition_versions
		WHERE org_id = $1 AND task_id = ANY($2) AND location <> ''`, org, tasks)
	if err != nil {
		return nil, fmt.Errorf("locations of %d tasks: %w", len(tasks), err)
	}
	locations, err := pgx.CollectRows(rows, pgx.RowTo[string])
	found := make(map[string]bool, len(locations))
	for _, location := range locations {
		found[location] = true
	}
	return found, err
}

// OrgsWithData lists the orgs that have generations.
func OrgsWithData(ctx context.Context, tx pgx.Tx) ([]uuid.UUID, error) {
	rows, err := tx.Query(ctx, `SELECT DISTINCT org_id FROM datasets ORDER BY 1`)
	if err != nil {
		return nil, fmt.Errorf("list orgs with data: %w", err)
	}
	return pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
}

// HoldForRead keeps generations from gc until now+d, or until ReleaseRead is called with the hold it returns. A query
// that may outlast the reader grace calls it in the transaction that resolves its datasets.
func HoldForRead(ctx context.Context, tx pgx.Tx, org uuid.UUID, generations []uuid.UUID, reader string, now time.Time,
	d time.Duration) (hold uuid.UUID, err error) {
	hold = uuid.Must(uuid.NewV7())
	_, err = tx.Exec(ctx, `
		INSERT INTO reader_leases (id, org_id, dataset_version, reader, expires_at)
		SELECT DISTINCT $1::uuid, $2::uuid, version, $4, $5::timestamptz
		FROM unnest($3::uuid[]) AS version`, hold, org, generations, reader, now.Add(d))
	if err != nil {
		return uuid.Nil, fmt.Errorf("hold %d generations: %w", len(generations), err)
	}
	return hold, nil
}

// ReleaseRead ends a hold.
func ReleaseRead(ctx context.Context, tx pgx.Tx, org, hold uuid.UUID) error {
	if _, err := tx.Exec(ctx, `DELETE FROM reader_leases WHERE org_id = $1 AND id = $2`, org, hold); err != nil {
		return fmt.Errorf("release generations: %w", err)
	}
	return nil
}

// dropExpiredHolds removes the holds of queries that ended without releasing them.
func dropExpiredHolds(ctx context.Context, tx pgx.Tx, org uuid.UUID, now time.Time) error {
	_, err := tx.Exec(ctx, `DELETE FROM reader_leases WHERE org_id = $1 AND expires_at <= $2`, org, now)
	return err
}

// RollbackWindow is how long the replaced version is promised to stay instantly available.
const RollbackWindow = 7 * 24 * time.Hour
