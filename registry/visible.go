package registry

import (
	"context"
	"fmt"
	"strings"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/pg"
)

// The SQL function hidden_generations decides who may read what; see its comment. Everything here asks it.

// VisibleTo returns the condition, on datasets d, under which the caller may see a dataset as it is served. Readers see
// published datasets that are open to them; whoever works on a DAG also sees its unpublished ones; admins see all. A
// dataset that it hides does not exist for the caller.
func VisibleTo(caller authz.Caller, args *[]any) string {
	if caller.ReadsAll() {
		return "true"
	}
	closed := HiddenDataset("d.id", HiddenFrom(caller, args))
	works := caller.MayOnDAGs(authz.Inspect, "d.producer_dag_name", args)
	return "((d.published OR " + works + ") AND NOT " + closed + ")"
}

// GenerationVisibleTo returns the condition, on generations g of datasets that the caller may see, under which it may
// read a generation whether or not it serves. A missing generation is visible.
func GenerationVisibleTo(caller authz.Caller, args *[]any) string {
	if caller.ReadsAll() {
		return "true"
	}
	return "NOT " + HiddenVersion("g.id", HiddenFrom(caller, args))
}

// HiddenVersion returns the condition under which a generation, which an expression names by its id, is hidden from a
// caller; see HiddenFrom. A missing one is not.
func HiddenVersion(id, from string) string { return hidden("version", id, from) }

// HiddenDataset is like HiddenVersion for a dataset.
func HiddenDataset(id, from string) string { return hidden("dataset", id, from) }

// hidden returns the condition that an id is among those of a kind that are hidden; see the SQL function hidden_ids.
func hidden(kind, id, from string) string {
	sorted := "(SELECT hidden_ids('" + kind + "', " + from + "))"
	return fmt.Sprintf("coalesce(%[1]s[width_bucket(%[2]s, %[1]s)] = %[2]s, false)", sorted, id)
}

// HiddenFrom returns the arguments of the functions that say what is hidden from a caller.
func HiddenFrom(caller authz.Caller, args *[]any) string {
	*args = append(*args, caller.OrgID, caller.OrgRoles)
	return fmt.Sprintf("$%d::uuid, $%d::text[]", len(*args)-1, len(*args))
}

// KeepHidden keeps what is hidden from the caller, if something has changed that decides it: every statement of the
// caller asks for it, and finding it takes long where much is closed. What is kept only saves time, so a failure does
// not fail the request.
func (r *Registry) KeepHidden(ctx context.Context, caller authz.Caller) {
	if caller.ReadsAll() {
		return
	}
	roles := append([]string{}, caller.OrgRoles...)
	_, err, _ := r.keeping.Do(caller.OrgID.String()+strings.Join(roles, " "), func() (any, error) {
		return nil, r.keepHidden(ctx, caller.OrgID, roles)
	})
	if err != nil && ctx.Err() == nil {
		r.Log.Warn("what is hidden from readers cannot be kept", "org", caller.OrgID, "error", err)
	}
}

func (r *Registry) keepHidden(ctx context.Context, org uuid.UUID, roles []string) error {
	var kept bool
	err := r.Pool.QueryRow(ctx, `SELECT hidden_is_kept($1, $2)`, org, roles).Scan(&kept)
	if err != nil || kept {
		return err
	}
	return pg.InOrgSnapshot(ctx, r.Pool, org, func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `SELECT keep_hidden($1, $2)`, org, roles)
		return err
	})
}

// hiddenInput returns the condition, on jobs j, under which a job reads what is hidden from the caller.
func hiddenInput(caller authz.Caller, args *[]any) string {
	if caller.ReadsAll() {
		return "false"
	}
	from := HiddenFrom(caller, args)
	return `EXISTS (
			SELECT FROM job_inputs i
			LEFT JOIN dag_version_datasets p ON i.in_dag AND p.dag_version_id = j.dag_version_id
			    AND p.dataset_uuid = i.dataset_uuid
			WHERE i.job_id = j.id
			  AND (` + HiddenDataset("i.dataset_uuid", from) + ` AND NOT i.in_dag
			    OR ` + HiddenVersion("p.dataset_version", from) + `))`
}

// HiddenJob returns the condition, on jobs j, under which a job is hidden from the caller: some of what it makes or
// reads is. A job that writes no dataset is only for those who work on its DAG, like an unpublished dataset. What a job
// makes is looked up for each job that is asked about: as EXISTS, what all jobs of all versions make was read at once.
func HiddenJob(caller authz.Caller, args *[]any) string {
	return HiddenMaker(caller, `(SELECT bool_and(d.published)
				FROM pointer_outlines p JOIN dataset_outlines d ON d.id = p.dataset_uuid
				WHERE p.dag_version_id = j.dag_version_id AND p.job_name = j.name) IS NOT TRUE`, args)
}

// HiddenMaker is HiddenJob for statements that know from elsewhere whether a job makes nothing that is published, or
// something that is not.
func HiddenMaker(caller authz.Caller, private string, args *[]any) string {
	if caller.ReadsAll() {
		return "false"
	}
	closed := hidden("job", "j.id", HiddenFrom(caller, args))
	return "(" + closed + " OR NOT " + caller.MayOnDAGs(authz.Inspect, "j.dag_name", args) + " AND (" + private + "))"
}

// NoneHidden returns the condition under which the caller may look into all jobs of an array of their ids.
func NoneHidden(caller authz.Caller, org, ids string, args *[]any) string {
	if caller.ReadsAll() {
		return "true"
	}
	return fmt.Sprintf("NOT EXISTS (SELECT FROM jobs j WHERE j.org_id = %s AND j.id = ANY (%s) AND (%s))", org, ids,
		HiddenJob(caller, args))
}

// NotHidden returns the condition under which the caller may look into the job of an id, which an expression names. A
// row at a time it is asked last, and the planner does not read all jobs to answer it.
func NotHidden(caller authz.Caller, id string, args *[]any) string {
	if caller.ReadsAll() {
		return "true"
	}
	return "(SELECT NOT (" + HiddenJob(caller, args) + ") FROM jobs j WHERE j.id = " + id + ")"
}

// ReadableJobs reports for each job whether the caller may look into it: into its definition, tasks, logs and errors.
func (r *Registry) ReadableJobs(ctx context.Context, tx pgx.Tx, caller authz.Caller,
	jobs []*Job) (map[uuid.UUID]bool, error) {
	ids := make([]uuid.UUID, len(jobs))
	for i, j := range jobs {
		ids[i] = j.ID
	}
	hidden, err := r.HiddenAmong(ctx, tx, caller, ids)
	if err != nil {
		return nil, err
	}

	readable := make(map[uuid.UUID]bool, len(jobs))
	for _, id := range ids {
		readable[id] = !hidden[id]
	}
	return readable, nil
}

// OpenJobs returns those of some jobs of DAGs that the caller may look into, as DAG/JOB. One that no version which
// serves has is not among them: nobody knows what it read.
func OpenJobs(ctx context.Context, tx pgx.Tx, caller authz.Caller, dags, jobs []string) ([]string, error) {
	args := []any{caller.OrgID, dags, jobs}
	rows, err := tx.Query(ctx, `
		SELECT j.dag_name || '/' || j.name FROM dag_current_versions c JOIN jobs j ON j.dag_version_id = c.dag_version_id
		WHERE c.org_id = $1 AND (j.dag_name, j.name) IN (SELECT * FROM unnest($2::text[], $3::text[]))
		  AND NOT `+HiddenJob(caller, &args), args...)
	if err != nil {
		return nil, fmt.Errorf("open jobs: %w", err)
	}
	return pgx.CollectRows(rows, pgx.RowTo[string])
}

// ShownJob reports whether the reader of the transaction may look into a job's definition. It is the second wall behind
// ReadableJobs, as row-level security is elsewhere: job rows are shared, and not read under it.
func ShownJob(ctx context.Context, tx pgx.Tx, org, id uuid.UUID) (shown bool, err error) {
	err = tx.QueryRow(ctx, `SELECT EXISTS (SELECT FROM shown_jobs WHERE org_id = $1 AND id = $2)`, org, id).Scan(&shown)
	return shown, fault.Wrap(err, "look for a hidden job")
}

// HiddenAmong returns those of some jobs, by their rows or origins, that the caller may not look into; see
// ReadableJobs.
func (r *Registry) HiddenAmong(ctx context.Context, tx pgx.Tx, caller authz.Caller,
	ids []uuid.UUID) (map[uuid.UUID]bool, error) {
	return amongJobs(ctx, tx, caller, ids, func(args *[]any) string { return HiddenJob(caller, args) })
}

// amongJobs returns those of some jobs that meet a condition on jobs j; none for callers who read all.
func amongJobs(ctx context.Context, tx pgx.Tx, caller authz.Caller, ids []uuid.UUID,
	condition func(args *[]any) string) (map[uuid.UUID]bool, error) {
	hidden := map[uuid.UUID]bool{}
	if caller.ReadsAll() || len(ids) == 0 {
		return hidden, nil
	}

	args := []any{caller.OrgID, ids}
	rows, err := tx.Query(ctx, `
		SELECT j.id FROM jobs j WHERE j.org_id = $1 AND j.id = ANY($2) AND `+condition(&args), args...)
	if err != nil {
		return nil, fmt.Errorf("hidden jobs: %w", err)
	}
	var id uuid.UUID
	_, err = pgx.ForEachRow(rows, []any{&id}, func() error { hidden[id] = true; return nil })
	return hidden, err
}

// ClosedAmong returns those of some jobs, by their rows or origins, that make or read what is closed to the caller. Of
// the others that it may not look into, which make nothing that is published, it knows that they are there, and how
// their tasks stand.
func (r *Registry) ClosedAmong(ctx context.Context, tx pgx.Tx, caller authz.Caller,
	ids []uuid.UUID) (map[uuid.UUID]bool, error) {
	return amongJobs(ctx, tx, caller, ids, func(args *[]any) string { return HiddenMaker(caller, "false", args) })
}

// HiddenNames returns those of some jobs of DAGs, as DAG/JOB, that the caller may not look into: in the version that
// serves or in one on its way or, of a job that none of these has, in the last that had it. It relies on the unique
// keys of dag_versions and jobs: it looks at each name in the versions that work, and not at all versions of all names.
func HiddenNames(ctx context.Context, tx pgx.Tx, caller authz.Caller, dags, jobs []string) (map[string]bool, error) {
	hidden := map[string]bool{}
	if caller.ReadsAll() || len(jobs) == 0 {
		return hidden, nil
	}

	args := []any{caller.OrgID, dags, jobs}
	rows, err := tx.Query(ctx, `
		WITH named AS (
			SELECT DISTINCT n.dag, n.job, EXISTS (
				SELECT FROM dag_versions v JOIN jobs j ON j.dag_version_id = v.id AND j.name = n.job
				WHERE v.org_id = $1 AND v.dag_name = n.dag AND v.status IN ('Active', 'Building', 'Ready')) AS works
			FROM unnest($2::text[], $3::text[]) AS n(dag, job)),
		found AS MATERIALIZED (
			SELECT j.* FROM named n
			JOIN dag_versions v ON v.org_id = $1 AND v.dag_name = n.dag AND v.status IN ('Active', 'Building', 'Ready')
			JOIN jobs j ON j.dag_version_id = v.id AND j.name = n.job
			WHERE n.works
			UNION ALL
			SELECT j.* FROM named n CROSS JOIN LATERAL (
				SELECT j.* FROM dag_versions v JOIN jobs j ON j.dag_version_id = v.id AND j.name = n.job
				WHERE v.org_id = $1 AND v.dag_name = n.dag ORDER BY v.number DESC LIMIT 1) AS j
			WHERE NOT n.works)
		SELECT DISTINCT j.dag_name || '/' || j.name FROM found j WHERE `+HiddenJob(caller, &args), args...)
	if err != nil {
		return nil, fmt.Errorf("hidden names of jobs: %w", err)
	}
	var name string
	_, err = pgx.ForEachRow(rows, []any{&name}, func() error { hidden[name] = true; return nil })
	return hidden, err
}

// IsHidden reports whether the caller may not look into a job, as of HiddenNames.
func IsHidden(ctx context.Context, tx pgx.Tx, caller authz.Caller, dagName, job string) (bool, error) {
	hidden, err := HiddenNames(ctx, tx, caller, []string{dagName}, []string{job})
	return len(hidden) > 0, err
}

// RequireShown refuses to act on a job that the caller may not look into, as on one that does not exist.
func RequireShown(ctx context.Context, tx pgx.Tx, caller authz.Caller, dagName, job string) error {
	hidden, err := IsHidden(ctx, tx, caller, dagName, job)
	if err == nil && hidden {
		return NoJob(dagName, job)
	}
	return err
}

// NoJob is the error about a job that does not exist, or that is hidden from whoever asks.
func NoJob(dagName, job string) error {
	return fault.New(fault.NotFound, "there is no job %s/%s", dagName, job).
		WithHint("`dagctl status %s` lists the jobs", dagName)
}

// dagOf returns the DAG that makes a dataset of a name or id, for routes that act on datasets; see authz.Finder.
func (r *Registry) dagOf(ctx context.Context, caller authz.Caller, values ...string) (dag string, err error) {
	err = pg.InOrgTx(ctx, r.Requests, caller.OrgID, func(ctx context.Context, tx pgx.Tx) error {
		d, err := r.FindDataset(ctx, tx, caller, values[0])
		dag = d.DAG
		return err
	})
	return dag, err
}

// HiddenVersions returns those of some versions that read or make what the caller may not read. Their documents and
// errors are hidden, which would quote names and SQL. Of a version of which only the record is left, nobody knows what
// it read, so it is hidden from whoever may not read everything.
func HiddenVersions(ctx context.Context, tx pgx.Tx, caller authz.Caller,
	versions []uuid.UUID) (map[uuid.UUID]bool, error) {
	if caller.ReadsAll() {
		return nil, nil
	}

	as := caller
	as.Role, as.Grants = authz.RoleWriter, nil // a document is not hidden for the datasets that it does not publish
	args := []any{versions}
	rows, err := tx.Query(ctx, `
		SELECT v.id FROM dag_versions v
		WHERE v.id = ANY($1) AND (
			EXISTS (SELECT FROM jobs j WHERE j.dag_version_id = v.id AND `+HiddenJob(as, &args)+`)
			OR v.shrunk_at IS NOT NULL AND EXISTS (SELECT hidden_datasets(`+HiddenFrom(as, &args)+`)))`, args...)
	if err != nil {
		return nil, fmt.Errorf("hidden versions: %w", err)
	}
	hidden := map[uuid.UUID]bool{}
	var id uuid.UUID
	_, err = pgx.ForEachRow(rows, []any{&id}, func() error { hidden[id] = true; return nil })
	return hidden, err
}
