package registry

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/internal/clock"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/storage"
)

// Moment says whose pointers a read over several datasets follows.
type Moment struct {
	// Which is Live, which empty and "latest" also mean; Candidate; the number of a DAG version, such as v3; or an
	// instant by RFC 3339: the pointers and revisions that readers saw then.
	Which string
	DAG   string // applies Which to this DAG only, and reads the others as they serve; a number needs it
}

// Live reports whether the moment shows what readers see.
func (m Moment) Live() bool { return m.Which == "" || m.Which == Live || m.Which == "latest" }

// Readable is a dataset at one moment: what to read, and where it comes from.
type Readable struct {
	Name       string // at that moment
	DAG        string
	DAGVersion int // the version whose pointer it is
	Generation storage.Generation
	Partitions []storage.Partition
	Columns    []storage.Column // empty if not known yet
	Mixed      bool             // some partitions have other columns, or with other types
	Bytes      int64
}

// Resolve pins the datasets of the given names at one moment, and returns them by name. It leaves out datasets that do
// not exist or that the caller may not see. The transaction must have one snapshot, or two deploys may be mixed. Unless
// the moment is live, the caller has to call StillThere after it has put a hold on the result.
func Resolve(ctx context.Context, tx pgx.Tx, caller authz.Caller, names []string,
	at Moment) (map[string]Readable, error) {
	p, err := pointersAt(ctx, tx, caller, at)
	if err != nil {
		return nil, err
	}

	args, revisions := []any{caller.OrgID, names, p.versions, p.only}, revisionsNow
	if p.at != nil {
		args, revisions = append(args, *p.at), revisionsThen(len(args)+1)
	}
	visible, readable := VisibleTo(caller, &args), GenerationVisibleTo(caller, &args)

	// Read the pointers of the versions that are meant, and the serving pointers of all other DAGs. A name may have
	// moved from DAG to DAG; then the version that is meant wins.
	rows, err := tx.Query(ctx, `
		WITH meant AS (SELECT id, dag_name, number FROM dag_versions WHERE org_id = $1 AND id = ANY($3)),
		pointed AS (
			SELECT p.name, v.dag_name, v.number, p.dataset_uuid, p.dataset_version, false AS serves
			FROM meant v JOIN dag_version_datasets p ON p.dag_version_id = v.id
			WHERE p.name = ANY($2)
			UNION ALL
			SELECT d.name, d.producer_dag_name, coalesce(v.number, 0), d.id, p.dataset_version, true
			FROM datasets d
			LEFT JOIN dag_current_versions c ON c.org_id = d.org_id AND c.dag_name = d.producer_dag_name
			LEFT JOIN dag_versions v ON v.id = c.dag_version_id
			LEFT JOIN dag_version_datasets p ON p.dag_version_id = c.dag_version_id AND p.dataset_uuid = d.id
			WHERE d.org_id = $1 AND d.name = ANY($2) AND d.deleted_at IS NULL AND NOT $4
			  AND NOT EXISTS (SELECT FROM meant m WHERE m.dag_name = d.producer_dag_name))
		SELECT DISTINCT ON (p.name) p.name, p.dag_name, p.number, d.id, g.id, org_slug(d.org_id),
		       coalesce(g.storage, d.storage), coalesce(g.schema, '[]'), g.purged_at IS NOT NULL, s.partitions, s.bytes,
		       coalesce(s.mixed, false), coalesce(s.lost, false)
		FROM pointed p
		JOIN datasets d ON d.org_id = $1 AND d.id = p.dataset_uuid AND `+visible+`
		LEFT JOIN dataset_versions g ON g.id = p.dataset_version
		LEFT JOIN LATERAL (`+revisions+`) s ON true
		WHERE `+readable+`
		ORDER BY p.name, p.serves, p.dag_name`, args...)
	if err != nil {
		return nil, fmt.Errorf("resolve datasets: %w", err)
	}
	found := map[string]Readable{}
	all, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (Readable, error) {
		return scanReadable(row, caller, p)
	})
	if err != nil {
		return nil, err
	}

	for _, r := range all {
		found[r.Name] = r
	}
	for _, name := range names {
		if _, ok := found[name]; !ok && p.records {
			return nil, p.errRecords(name)
		}
	}
	return found, nil
}

func scanReadable(row pgx.CollectableRow, caller authz.Caller, p pointers) (Readable, error) {
	var (
		r       Readable
		version *uuid.UUID
		kind    dag.Storage
		schema  []byte
		purged  bool
		lost    bool
	)
	g := &r.Generation
	err := row.Scan(&r.Name, &r.DAG, &r.DAGVersion, &g.Dataset, &version, &g.OrgSlug, &kind, &schema, &purged,
		&r.Partitions, &r.Bytes, &r.Mixed, &lost)
	switch {
	case err != nil:
		return r, err
	case version == nil:
		return r, fault.New(fault.Conflict, "dataset %s has no data yet", r.Name).
			WithHint("`dagctl status %s` shows what its DAG is doing", r.DAG)
	case purged:
		return r, purgedAt(r.Name, r.DAG, r.DAGVersion)
	case lost:
		return r, lostAt(r.Name, *p.at)
	}

	g.OrgID, g.Version, g.Kind, g.Indexes = caller.OrgID, *version, storage.Kind(kind.Kind), kind.Indexes
	return r, json.Unmarshal(schema, &r.Columns)
}

func purgedAt(name, dagName string, number int) error {
	return fault.New(fault.Conflict, "dataset %s of version v%d of DAG %s was purged: its rows are gone",
		name, number, dagName).
		WithHint("`dagctl history %s` lists the versions; what serves is read without --at", dagName)
}

// StillThere makes sure that gc removed none of the datasets before their hold took effect. It needs a transaction of
// its own, begun after the hold was committed: gc looks at holds and marks garbage under the DAG's lock. So by the time
// this function has the lock, gc has either seen the hold or set its marks.
func StillThere(ctx context.Context, tx pgx.Tx, org uuid.UUID, datasets []Readable) error {
	keys, versions, byVersion := make([]string, len(datasets)), make([]uuid.UUID, len(datasets)),
		map[uuid.UUID]Readable{}
	for i, r := range datasets {
		keys[i], versions[i], byVersion[r.Generation.Version] = DagKey(org, r.DAG), r.Generation.Version, r
	}

	var b pg.Batch
	LockDAGsShared(&b, keys)
	if err := b.Send(ctx, tx); err != nil {
		return err
	}

	var gone uuid.UUID
	err := tx.QueryRow(ctx, `SELECT id FROM dataset_versions
		WHERE org_id = $1 AND id = ANY($2) AND purged_at IS NOT NULL LIMIT 1`, org, versions).Scan(&gone)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return nil
	case err != nil:
		return fmt.Errorf("check that held datasets still exist: %w", err)
	}

	r := byVersion[gone]
	return purgedAt(r.Name, r.DAG, r.DAGVersion)
}

// pointers says which pointers a read at a moment follows.
type pointers struct {
	versions []uuid.UUID // DAG versions that are read in place of those that serve
	at       *time.Time  // reads the revisions of that instant; nil: those of now
	only     bool        // DAGs without one of the versions are not read at all
	records  bool        // of some versions that served then, only the record is left
}

// pointersAt returns the pointers of a moment. All but live ones are for writers.
func pointersAt(ctx context.Context, tx pgx.Tx, caller authz.Caller, at Moment) (pointers, error) {
	p := pointers{versions: []uuid.UUID{}}
	if at.Live() && at.DAG != "" {
		return p, fault.New(fault.Invalid, "which version of DAG %s?", at.DAG).
			WithHint("say --at candidate, or --at with the number of a version")
	}
	if at.Live() {
		return p, nil
	}
	if !caller.May(authz.Inspect, authz.OnDAG(at.DAG)) {
		return p, fault.New(fault.Forbidden, "only writers read what does not serve").
			WithHint("leave --at out to read what is served")
	}

	if instant, ok := at.instant(); ok {
		return servedAt(ctx, tx, caller, at.DAG, instant)
	}
	versions, err := versionsAt(ctx, tx, caller, at)
	p.versions = versions
	return p, err
}

// instant returns the instant that a moment names, and reports whether it names one.
func (m Moment) instant() (time.Time, bool) {
	for _, layout := range []string{time.RFC3339Nano, "2006-01-02T15:04Z07:00", "2006-01-02 15:04:05Z07:00"} {
		if t, err := time.Parse(layout, m.Which); err == nil {
			return t, true
		}
	}
	return time.Time{}, false
}

// servedAt returns the versions that served at an instant: of one DAG, or of all. It relies on
// idx_dag_activations_dag. A version that ended after its last activation, and before the instant, ended because its
// DAG was deleted.
func servedAt(ctx context.Context, tx pgx.Tx, caller authz.Caller, ofDAG string, at time.Time) (pointers, error) {
	p := pointers{versions: []uuid.UUID{}, at: &at, only: ofDAG == ""}
	if now := clock.Now(); at.After(now) {
		return p, fault.New(fault.Invalid, "%s is yet to come", at.Format(time.RFC3339)).
			WithHint("it is %s now; leave --at out to read what is served", now.UTC().Format(time.RFC3339))
	}

	rows, err := tx.Query(ctx, `
		SELECT v.id, v.shrunk_at IS NOT NULL
		FROM (SELECT DISTINCT ON (dag_name) dag_name, dag_version_id, at FROM dag_activations
		      WHERE org_id = $1 AND at <= $2 AND ($3 = '' OR dag_name = $3) ORDER BY dag_name, at DESC) AS a
		JOIN dag_versions v ON v.id = a.dag_version_id
		WHERE v.ended_at IS NULL OR v.ended_at > $2 OR v.ended_at < a.at`, caller.OrgID, at, ofDAG)
	if err != nil {
		return p, fmt.Errorf("find the versions that served at %s: %w", at, err)
	}
	var (
		id     uuid.UUID
		record bool
	)
	_, err = pgx.ForEachRow(rows, []any{&id, &record}, func() error {
		p.versions, p.records = append(p.versions, id), p.records || record
		return nil
	})
	if err != nil {
		return p, fmt.Errorf("find the versions that served at %s: %w", at, err)
	}

	if len(p.versions) == 0 && ofDAG != "" {
		return p, fault.New(fault.NotFound, "DAG %s did not serve at %s", ofDAG, at.Format(time.RFC3339)).
			WithHint("`dagctl history %s` lists when its versions served", ofDAG)
	}
	return p, nil
}

// errRecords is the error for a dataset that is not found at an instant of which only records of versions are left.
func (p pointers) errRecords(name string) error {
	return fault.New(fault.Conflict, "dataset %q cannot be read at %s: of some versions that served then, only the "+
		"record is left", name, p.at.Format(time.RFC3339)).WithHint("they are past the version retention")
}

// revisionsNow are the revisions of generation g that readers see. It relies on idx_partition_versions_published.
const revisionsNow = `
	SELECT coalesce(jsonb_agg(
	           jsonb_build_object('key', r.partition_key, 'revision', r.revision, 'files', r.files)
	           ORDER BY r.partition_key), '[]') AS partitions,
	       coalesce(sum(r.bytes), 0)::bigint AS bytes, bool_or(r.schema_hash <> g.schema_hash) AS mixed, false AS lost
	FROM partition_versions r WHERE r.dataset_version = g.id AND r.state = 'Published'`

// revisionsThen are the revisions of generation g that readers saw at the instant of a parameter, and whether some are
// lost: their files may be gone, or the rows between the one before and the one after. It relies on the primary key of
// partition_versions.
func revisionsThen(param int) string {
	return fmt.Sprintf(`
	SELECT coalesce(jsonb_agg(
	           jsonb_build_object('key', r.partition_key, 'revision', r.revision, 'files', r.files)
	           ORDER BY r.partition_key) FILTER (WHERE r.seen), '[]') AS partitions,
	       coalesce(sum(r.bytes) FILTER (WHERE r.seen), 0)::bigint AS bytes,
	       bool_or(r.schema_hash <> g.schema_hash) FILTER (WHERE r.seen) AS mixed,
	       coalesce(bool_or(CASE WHEN r.seen THEN r.gone ELSE r.next > coalesce(r.revision, 0) + 1 END), false) AS lost
	FROM (
		SELECT k.partition_key, p.revision, p.files, p.bytes, p.schema_hash, n.next,
		       p.revision IS NOT NULL AND (p.ended_at IS NULL OR p.ended_at > $%[1]d) AS seen,
		       p.purged_at IS NOT NULL OR p.location = ''
		           OR p.state = 'Replaced' AND g.storage ->> 'kind' = 'postgres' AS gone
		FROM (SELECT DISTINCT partition_key FROM partition_versions WHERE dataset_version = g.id) AS k
		LEFT JOIN LATERAL (
			SELECT * FROM partition_versions v
			WHERE v.dataset_version = g.id AND v.partition_key = k.partition_key
			  AND v.state IN ('Published', 'Replaced', 'Purged') AND coalesce(v.published_at, v.materialized_at) <= $%[1]d
			ORDER BY coalesce(v.published_at, v.materialized_at) DESC, v.revision DESC LIMIT 1) AS p ON true
		LEFT JOIN LATERAL (
			SELECT min(v.revision) AS next FROM partition_versions v
			WHERE v.dataset_version = g.id AND v.partition_key = k.partition_key AND v.inherited_from IS NULL
			  AND v.state <> 'Split' AND v.revision > coalesce(p.revision, 0)) AS n ON true) AS r`, param)
}

// lostAt is the error for a dataset whose rows of an instant are gone.
func lostAt(name string, at time.Time) error {
	return fault.New(fault.Conflict, "dataset %s as it was served at %s is not kept: some of its partitions were "+
		"replaced since, and gc removed what they had", name, at.Format(time.RFC3339)).
		WithHint("ask for a later moment; `dagctl datasets partitions %s` says when each partition was made", name)
}

// versionsAt returns the DAG versions that a candidate or a number means.
func versionsAt(ctx context.Context, tx pgx.Tx, caller authz.Caller, at Moment) ([]uuid.UUID, error) {
	where, args, missing := "", []any{caller.OrgID, at.DAG}, ""
	number, isNumber := VersionNumber(at.Which)
	switch {
	case at.Which == Candidate:
		where = `($2 = '' OR v.dag_name = $2) AND ` + CandidateVersion
		missing = "no DAG has a candidate version"
		if at.DAG != "" {
			missing = fmt.Sprintf("DAG %s has no candidate version", at.DAG)
		}
	case !isNumber:
		return nil, fault.New(fault.Invalid, "%q is not a moment to read at", at.Which).
			WithHint("use live, candidate, the number of a DAG version such as v3, or an instant such as " +
				"2026-01-31T12:00:00Z")
	case at.DAG == "":
		return nil, fault.New(fault.Invalid, "version %s of which DAG?", at.Which).WithHint("name it: --dag")
	default:
		where, args = `v.dag_name = $2 AND v.number = $3`, append(args, number)
		missing = fmt.Sprintf("DAG %s has no version v%s", at.DAG, strings.TrimPrefix(at.Which, "v"))
	}

	rows, err := tx.Query(ctx, `
		SELECT DISTINCT ON (v.dag_name) v.id FROM dag_versions v WHERE v.org_id = $1 AND `+where+`
		ORDER BY v.dag_name, v.status = 'Failed', v.number DESC`, args...)
	if err != nil {
		return nil, fmt.Errorf("find versions: %w", err)
	}
	versions, err := pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
	if err != nil {
		return nil, fmt.Errorf("find versions: %w", err)
	}
	if len(versions) == 0 {
		return nil, fault.New(fault.NotFound, "%s", missing).
			WithHint("`dagctl status` lists the DAGs, `dagctl history DAG` their versions")
	}
	return versions, nil
}
