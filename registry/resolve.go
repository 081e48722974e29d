package registry

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/dag"
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
