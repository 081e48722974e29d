package registry

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/pg"
)

// DAG is one DAG as it stands. At least one of its versions is set.
type DAG struct {
	Name      string     `json:"name"`
	Active    *Version   `json:"active,omitempty" doc:"The version that readers see"`
	Building  *Version   `json:"building,omitempty" doc:"The version that is being built, or is ready and not cut over"`
	Failed    *Version   `json:"failed,omitempty" doc:"The latest version, if it failed"`
	UpdatedAt *time.Time `json:"updated_at,omitempty" doc:"When the newest partition that readers see was published"`
}

// Shown returns the version whose jobs represent the DAG: the active one, else the one on its way, else the failed one.
func (d DAG) Shown() *Version {
	for _, v := range []*Version{d.Active, d.Building, d.Failed} {
		if v != nil {
			return v
		}
	}
	return nil
}

// DAGs lists the org's DAGs by name, beginning after the given one.
func (r *Registry) DAGs(ctx context.Context, tx pgx.Tx, caller authz.Caller, after string, limit int) ([]DAG, error) {
	found, err := r.dags(ctx, tx, caller, `d.dag_name > $2`, after, limit)
	if err != nil {
		return nil, err
	}
	return found, updatedAt(ctx, tx, found)
}

// DAGStates is like DAGs, and leaves out when they were updated, which takes a look at each of their datasets.
func (r *Registry) DAGStates(ctx context.Context, tx pgx.Tx, caller authz.Caller, after string,
	limit int) ([]DAG, error) {
	return r.dags(ctx, tx, caller, `d.dag_name > $2`, after, limit)
}

// DAG returns one DAG, without when it was updated.
func (r *Registry) DAG(ctx context.Context, tx pgx.Tx, caller authz.Caller, name string) (DAG, error) {
	found, err := r.dags(ctx, tx, caller, `d.dag_name = $2`, name, 1)
	if err != nil {
		return DAG{}, err
	}
	if len(found) == 0 {
		return DAG{}, noDAG(name)
	}
	return found[0], nil
}

// UpdatedDAG is like DAG, and says when it was updated, which takes a look at each of its datasets.
func (r *Registry) UpdatedDAG(ctx context.Context, tx pgx.Tx, caller authz.Caller, name string) (DAG, error) {
	d, err := r.DAG(ctx, tx, caller, name)
	if err != nil {
		return DAG{}, err
	}
	one := []DAG{d}
	err = updatedAt(ctx, tx, one)
	return one[0], err
}

func noDAG(name string) error {
	return fault.New(fault.NotFound, "there is no DAG %q", name).WithHint("`dagctl status` lists the DAGs")
}

// standing is the SQL condition that the version d keeps its DAG among those there are: it is at work, or it is the
// newest and failed. A deleted DAG has none.
const standing = `(d.status IN ('Active', 'Building', 'Ready') OR d.status = 'Failed'
	AND d.number = (SELECT max(n.number) FROM dag_versions n WHERE n.org_id = $1 AND n.dag_name = d.dag_name))`

// StandingDAGs returns those of some names that DAGs have, and not only deleted ones.
func StandingDAGs(ctx context.Context, tx pgx.Tx, org uuid.UUID, names []string) (map[string]bool, error) {
	found := map[string]bool{}
	if len(names) == 0 {
		return found, nil
	}
	rows, err := tx.Query(ctx, `
		SELECT n.name FROM unnest($2::text[]) AS n(name)
		WHERE EXISTS (SELECT FROM dag_versions d WHERE d.org_id = $1 AND d.dag_name = n.name AND `+standing+`)`,
		org, names)
	if err != nil {
		return nil, fmt.Errorf("which DAGs there are: %w", err)
	}
	var name string
	_, err = pgx.ForEachRow(rows, []any{&name}, func() error { found[name] = true; return nil })
	return found, fault.Wrap(err, "which DAGs there are")
}

// dags relies on the unique key (org_id, dag_name, number) of dag_versions: names come from a scan of it that the
// limit cuts short, and each lookup per name reads one row.
func (r *Registry) dags(ctx context.Context, tx pgx.Tx, caller authz.Caller, where, name string,
	limit int) ([]DAG, error) {
	rows, err := tx.Query(ctx, `
		WITH names AS (
			SELECT DISTINCT d.dag_name FROM dag_versions d
			WHERE d.org_id = $1 AND `+where+` AND `+standing+`
			ORDER BY d.dag_name LIMIT $3)
		SELECT n.dag_name, active.id, building.id, last.id
		FROM names n
		LEFT JOIN LATERAL (SELECT c.dag_version_id AS id FROM dag_current_versions c
		                   WHERE c.org_id = $1 AND c.dag_name = n.dag_name) active ON true
		LEFT JOIN LATERAL (SELECT v.id FROM dag_versions v
		                   WHERE v.org_id = $1 AND v.dag_name = n.dag_name AND v.status IN ('Building', 'Ready')
		                   ORDER BY v.number DESC LIMIT 1) building ON true
		LEFT JOIN LATERAL (SELECT v.id FROM (SELECT id, status FROM dag_versions
		                                     WHERE org_id = $1 AND dag_name = n.dag_name ORDER BY number DESC LIMIT 1) v
		                   WHERE v.status = 'Failed') last ON true
		ORDER BY n.dag_name`, caller.OrgID, name, limit)
	if err != nil {
		return nil, fmt.Errorf("list DAGs: %w", err)
	}

	var (
		found                  []DAG
		active, building, last []*uuid.UUID
		ids                    []uuid.UUID
		d                      DAG
		a, b, l                *uuid.UUID
	)
	if _, err := pgx.ForEachRow(rows, []any{&d.Name, &a, &b, &l}, func() error {
		found = append(found, d)
		active, building, last = append(active, a), append(building, b), append(last, l)
		for _, id := range []*uuid.UUID{a, b, l} {
			if id != nil {
				ids = append(ids, *id)
			}
		}
		return nil
	}); err != nil {
		return nil, fmt.Errorf("list DAGs: %w", err)
	}

	versions, err := versionsByID(ctx, tx, caller, ids)
	if err != nil {
		return nil, err
	}

	pick := func(id *uuid.UUID) *Version {
		if id == nil {
			return nil
		}
		return versions[*id]
	}
	for i := range found {
		found[i].Active, found[i].Building, found[i].Failed = pick(active[i]), pick(building[i]), pick(last[i])
	}
	return found, nil
}

// updatedAt fills in when DAGs were last updated. It relies on idx_partition_versions_newest, and reads one row for
// each of their datasets.
func updatedAt(ctx context.Context, tx pgx.Tx, dags []DAG) error {
	var ids []uuid.UUID
	for _, d := range dags {
		if d.Active != nil {
			ids = append(ids, d.Active.ID)
		}
	}
	rows, err := tx.Query(ctx, `
		SELECT p.dag_version_id, max(newest.at)
		FROM dag_version_datasets p,
		     LATERAL (SELECT r.materialized_at AS at FROM partition_versions r
		              WHERE r.dataset_version = p.dataset_version AND r.state = 'Published'
		                AND r.materialized_at IS NOT NULL
		              ORDER BY r.materialized_at DESC LIMIT 1) newest
		WHERE p.dag_version_id = ANY($1) GROUP BY 1`, ids)
	if err != nil {
		return fmt.Errorf("when DAGs were updated: %w", err)
	}

	at := map[uuid.UUID]time.Time{}
	var (
		id     uuid.UUID
		newest time.Time
	)
	if _, err := pgx.ForEachRow(rows, []any{&id, &newest}, func() error { at[id] = newest; return nil }); err != nil {
		return fmt.Errorf("when DAGs were updated: %w", err)
	}
	for i, d := range dags {
		if d.Active == nil {
			continue
		}
		if newest, ok := at[d.Active.ID]; ok {
			dags[i].UpdatedAt = &newest
		}
	}
	return nil
}

func versionsByID(ctx context.Context, tx pgx.Tx, caller authz.Caller,
	ids []uuid.UUID) (map[uuid.UUID]*Version, error) {
	rows, err := tx.Query(ctx, `SELECT `+VersionColumns+` FROM `+shownVersions+` WHERE org_id = $1 AND id = ANY($2)`,
		caller.OrgID, ids)
	if err != nil {
		return nil, fmt.Errorf("read versions: %w", err)
	}
	found, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (Version, error) { return ScanVersion(row) })
	if err != nil {
		return nil, fmt.Errorf("read versions: %w", err)
	}
	if err := hideErrors(ctx, tx, caller, found); err != nil {
		return nil, err
	}

	versions := make(map[uuid.UUID]*Version, len(ids))
	for i := range found {
		versions[found[i].ID] = &found[i]
	}
	return versions, nil
}

// hideErrors removes the errors of versions, which may quote rows and SQL, unless the caller works on the DAG and may
// read all that the version reads and makes.
func hideErrors(ctx context.Context, tx pgx.Tx, caller authz.Caller, versions []Version) error {
	var failed []uuid.UUID
	for _, v := range versions {
		if v.Error != "" {
			failed = append(failed, v.ID)
		}
	}
	if len(failed) == 0 {
		return nil
	}

	hidden, err := HiddenVersions(ctx, tx, caller, failed)
	for i, v := range versions {
		if hidden[v.ID] || !caller.May(authz.Inspect, authz.OnDAG(v.DAG)) {
			versions[i].Error = ""
		}
	}
	return err
}

// VersionText is a version with the document it was deployed from.
type VersionText struct {
	Version
	YAML     string            `json:"yaml"`
	Vars     map[string]string `json:"vars"`
	Redacted bool              `json:"redacted,omitempty" doc:"It reads or makes datasets that the caller may not read, so its document is left out"`
}

// Versions lists a DAG's versions, the newest first, beginning before the given number (0: with the newest).
func (r *Registry) Versions(ctx context.Context, caller authz.Caller, dagName string,
	before, limit int) ([]Version, error) {
	var found []Version
	err := pg.InOrgTx(ctx, r.Requests, caller.OrgID, func(ctx context.Context, tx pgx.Tx) error {
		rows, err := tx.Query(ctx, `SELECT `+VersionColumns+` FROM `+shownVersions+`
			WHERE org_id = $1 AND dag_name = $2 AND ($3 = 0 OR number < $3)
			ORDER BY number DESC LIMIT $4`, caller.OrgID, dagName, before, limit)
		if err != nil {
			return err
		}

		found, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (Version, error) { return ScanVersion(row) })
		if err != nil {
			return err
		}
		if len(found) == 0 && before == 0 {
			return noDAG(dagName)
		}
		return hideErrors(ctx, tx, caller, found)
	})
	if err != nil {
		return nil, fmt.Errorf("list versions of %s: %w", dagName, err)
	}
	return found, nil
}

// Version returns one version with its document.
func (r *Registry) Version(ctx context.Context, caller authz.Caller, dagName string, number int) (VersionText, error) {
	var found VersionText
	err := pg.InOrgTx(ctx, r.Requests, caller.OrgID, func(ctx context.Context, tx pgx.Tx) error {
		var id uuid.UUID
		err := tx.QueryRow(ctx, `SELECT v.id, x.id IS NULL, coalesce(x.yaml, ''), coalesce(x.vars, '{}')
			FROM dag_versions v LEFT JOIN dag_version_texts x ON x.id = v.id
			WHERE v.org_id = $1 AND v.dag_name = $2 AND v.number = $3`,
			caller.OrgID, dagName, number).Scan(&id, &found.Redacted, &found.YAML, &found.Vars)
		if errors.Is(err, pgx.ErrNoRows) {
			return fault.New(fault.NotFound, "DAG %q has no version %d", dagName, number).
				WithHint("`dagctl history %s` lists its versions", dagName)
		}
		if err != nil {
			return err
		}

		versions, err := versionsByID(ctx, tx, caller, []uuid.UUID{id})
		if err != nil {
			return err
		}
		found.Version = *versions[id]

		hidden, err := HiddenVersions(ctx, tx, caller, []uuid.UUID{id})
		if hidden[id] {
			found.YAML, found.Vars, found.Redacted = "", map[string]string{}, true
		}
		return err
	})
	if err != nil {
		return VersionText{}, fmt.Errorf("version %d of %s: %w", number, dagName, err)
	}
	return found, nil
}

// Named is a DAG, or a job of it, by name.
type Named struct{ DAG, Job string }

// FindNamed lists the DAGs, and the jobs of the versions that serve, with a text in their names: those first whose
// names begin with it, and DAGs before jobs. Jobs that the caller may not look into are left out.
func (r *Registry) FindNamed(
	ctx context.Context, caller authz.Caller, text string, limit int,
) (found []Named, err error) {
	args := []any{caller.OrgID, strings.ToLower(text), limit}
	hidden := HiddenJob(caller, &args)

	err = pg.InOrgTx(ctx, r.Requests, caller.OrgID, func(ctx context.Context, tx pgx.Tx) error {
		rows, err := tx.Query(ctx, `
			SELECT dag, job FROM (
				SELECT DISTINCT d.dag_name AS dag, '' AS job, d.dag_name AS name FROM dag_versions d
				WHERE d.org_id = $1 AND d.status IN ('Building', 'Ready', 'Active')
				UNION ALL
				SELECT j.dag_name, j.name, j.name
				FROM dag_current_versions c JOIN jobs j ON j.dag_version_id = c.dag_version_id
				WHERE c.org_id = $1 AND strpos(lower(j.name), $2) > 0
				  AND NOT (`+hidden+`)) AS named
			WHERE strpos(lower(name), $2) > 0
			ORDER BY NOT starts_with(lower(name), $2), job <> '', name, dag LIMIT $3`, args...)
		if err != nil {
			return err
		}
		found, err = pgx.CollectRows(rows, pgx.RowToStructByPos[Named])
		return err
	})
	return found, fault.Wrap(err, "find names with "+text)
}

// Origins returns the origins of a DAG's jobs over all versions. An empty dagName or job matches all; one of them is
// always given. With a DAG it relies on idx_jobs_one_origin.
func (r *Registry) Origins(ctx context.Context, tx pgx.Tx, caller authz.Caller,
	dagName, job string) ([]uuid.UUID, error) {
	where, args := `org_id = $1 AND id = origin_job_id`, []any{caller.OrgID}
	for _, c := range []struct{ condition, name string }{
		{" AND dag_name = $%d", dagName},
		{" AND (known_as IS NULL AND name = $%[1]d OR known_as = $%[1]d)", job},
	} {
		if c.name != "" { // one plan for all would have to read the jobs of every DAG
			args = append(args, c.name)
			where += fmt.Sprintf(c.condition, len(args))
		}
	}

	rows, err := tx.Query(ctx, `SELECT id FROM jobs WHERE `+where, args...)
	if err != nil {
		return nil, fmt.Errorf("find jobs %s/%s: %w", dagName, job, err)
	}
	ids, err := pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
	if err != nil {
		return nil, fmt.Errorf("find jobs %s/%s: %w", dagName, job, err)
	}
	return ids, nil
}

// OriginsOf returns the origins of each given version's jobs, by version. Versions may share origins.
func (r *Registry) OriginsOf(ctx context.Context, tx pgx.Tx, caller authz.Caller,
	versions []uuid.UUID) (map[uuid.UUID][]uuid.UUID, error) {
	rows, err := tx.Query(ctx, `SELECT dag_version_id, array_agg(origin_job_id) FROM jobs
		WHERE org_id = $1 AND dag_version_id = ANY($2) GROUP BY dag_version_id`, caller.OrgID, versions)
	if err != nil {
		return nil, fmt.Errorf("find origins of %d versions: %w", len(versions), err)
	}

	origins := make(map[uuid.UUID][]uuid.UUID, len(versions))
	var (
		version uuid.UUID
		ids     []uuid.UUID
	)
	if _, err := pgx.ForEachRow(rows, []any{&version, &ids}, func() error {
		origins[version] = ids
		return nil
	}); err != nil {
		return nil, fmt.Errorf("find origins of %d versions: %w", len(versions), err)
	}
	return origins, nil
}

// SourceJobs lists the source jobs of the active versions, of all DAGs or of one, by DAG and name. It relies on
// idx_jobs_sources.
func (r *Registry) SourceJobs(
	ctx context.Context, tx pgx.Tx, caller authz.Caller, dagName string,
) ([]SourceJob, error) {
	args := []any{caller.OrgID, dagName}
	rows, err := tx.Query(ctx, `
		SELECT j.id, j.dag_name, j.name, j.source ->> 'kind', `+HiddenJob(caller, &args)+`
		FROM dag_current_versions c
		JOIN jobs j ON j.dag_version_id = c.dag_version_id AND j.activation = 'source'
		WHERE c.org_id = $1 AND ($2 = '' OR c.dag_name = $2)
		ORDER BY j.dag_name, j.name`, args...)
	if err != nil {
		return nil, fmt.Errorf("list sources: %w", err)
	}
	sources, err := pgx.CollectRows(rows, pgx.RowToStructByPos[SourceJob])
	if err != nil {
		return nil, fmt.Errorf("list sources: %w", err)
	}
	return sources, nil
}

// SourceJob is a source job of an active version.
type SourceJob struct {
	ID             uuid.UUID
	DAG, Job, Kind string
	Hidden         bool // from the caller: see ReadableJobs
}

// shownVersions stands for dag_versions where versions are read: it has the errors that the reader may read.
const shownVersions = `(
	SELECT d.id, d.org_id, d.dag_name, d.number, d.yaml_hash, d.source_hash, d.status, d.created_by, d.source_ref,
	       d.created_at, d.building_at, d.ready_at, d.activated_at, x.error, d.forward_only, d.forward_from, d.consents,
	       d.authority,
	       d.shrunk_at, d.activate, d.held_because
	FROM dag_versions d LEFT JOIN dag_version_texts x ON x.id = d.id) AS v`

const VersionColumns = `id, dag_name, number, yaml_hash, source_hash, status, created_by, coalesce(source_ref, ''),
	created_at, building_at, ready_at, activated_at, coalesce(error, ''), forward_only, coalesce(forward_from, ''), consents, shrunk_at,
	coalesce(authority, '{}'),
	CASE WHEN status IN ('Building', 'Ready') AND NOT activate THEN coalesce(held_because, '') ELSE '' END`

func ScanVersion(row pgx.Row) (Version, error) {
	var v Version
	err := row.Scan(&v.ID, &v.DAG, &v.Number, &v.Hash, &v.SourceHash, &v.Status, &v.CreatedBy, &v.SourceRef,
		&v.CreatedAt, &v.BuildingAt, &v.ReadyAt, &v.ActivatedAt, &v.Error, &v.ForwardOnly, &v.ForwardFrom,
		&v.Consents, &v.ShrunkAt, &v.Authority, &v.HeldBecause)
	return v, err
}
