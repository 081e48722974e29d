package registry

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/internal/fault"
)

// Withheld is a partition whose newest revision readers do not see, because its checks are pending or rejected it.
type Withheld struct {
	Partition    string    `json:"partition"`
	Revision     int64     `json:"revision"`
	State        string    `json:"state" enum:"Held,Rejected"`
	Version      uuid.UUID `json:"dataset_version"`
	Candidate    bool      `json:"candidate,omitempty" doc:"It belongs to the version on its way"`
	Materialized time.Time `json:"materialized_at"`
	Rows         int64     `json:"rows"`
	Why          string    `json:"why,omitempty" doc:"The checks that failed"`
}

// asked is the condition that a result k is of a check which a version has, where p is the version's pointer to the
// generation and j its job: a revision keeps what other versions found.
const asked = `j.definition -> 'checks' @> jsonb_build_array(jsonb_build_object('name', k.name, 'output', p.output_index))`

// withheld lists the withheld partitions of a dataset, in the live generation and in the candidate's, each with the
// failed checks of that version. Results of checks are counts here, never rows. It relies on the primary key of
// partition_versions.
func withheld(ctx context.Context, tx pgx.Tx, d Dataset) ([]Withheld, error) {
	rows, err := tx.Query(ctx, `
		WITH generations AS (
			SELECT p.dataset_version AS id, false AS candidate, p.dag_version_id FROM dag_version_datasets p
			JOIN dag_current_versions c ON c.dag_version_id = p.dag_version_id
			WHERE p.dataset_version = $2
			UNION
			SELECT p.dataset_version, true, p.dag_version_id FROM dag_version_datasets p
			JOIN dag_versions v ON v.id = p.dag_version_id AND `+CandidateVersion+`
			WHERE p.dataset_uuid = $1 AND p.dataset_version IS DISTINCT FROM $2)
		SELECT n.partition_key, n.revision, n.state, n.dataset_version, n.candidate, n.materialized_at, n.row_count,
		       coalesce((SELECT string_agg(format('%s: %s', k.name, coalesce(k.error, CASE
		           WHEN k.sample -> 'columns' = '["row_count"]' THEN format('%s rows in all', k.sample #>> '{rows,0,0}')
		           WHEN k.failures = 1 THEN '1 row' ELSE format('%s rows', k.failures) END)),
		           '; ' ORDER BY k.name)
		                 FROM check_results k
		                 JOIN dag_version_datasets p ON p.dag_version_id = n.dag_version_id
		                   AND p.dataset_version = n.dataset_version
		                 JOIN jobs j ON j.dag_version_id = p.dag_version_id AND j.name = p.job_name
		                 WHERE k.dataset_version = n.dataset_version AND k.partition_key = n.partition_key
		                   AND k.revision = n.revision AND k.severity = 'error' AND k.outcome <> 'pass'
		                   AND `+asked+`), '')
		FROM (SELECT DISTINCT ON (r.dataset_version, r.partition_key) r.*, g.candidate, g.dag_version_id
		      FROM generations g JOIN partition_versions r ON r.dataset_version = g.id
		      ORDER BY r.dataset_version, r.partition_key, r.revision DESC) AS n
		WHERE n.state IN ('Held', 'Rejected')
		ORDER BY n.candidate, n.partition_key LIMIT 200`, d.ID, d.Version)
	if err != nil {
		return nil, fmt.Errorf("list withheld partitions: %w", err)
	}

	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (w Withheld, err error) {
		return w, row.Scan(&w.Partition, &w.Revision, &w.State, &w.Version, &w.Candidate, &w.Materialized, &w.Rows,
			&w.Why)
	})
}

// WithheldOf counts the partitions whose newest revisions readers do not see, by version and job. Few are held or
// rejected, and so it begins with these: it relies on idx_partition_versions_withheld.
func WithheldOf(
	ctx context.Context, tx pgx.Tx, org uuid.UUID, versions []uuid.UUID,
) (map[uuid.UUID]map[string]int64, error) {
	rows, err := tx.Query(ctx, `
		WITH w AS MATERIALIZED (
			SELECT r.dataset_version, r.partition_key, r.revision FROM partition_versions r
			WHERE r.org_id = $1 AND r.state IN ('Held', 'Rejected'))
		SELECT p.dag_version_id, p.job_name, count(*)
		FROM w JOIN dag_version_datasets p ON p.dataset_version = w.dataset_version
		WHERE p.org_id = $1 AND p.dag_version_id = ANY($2)
		  AND NOT EXISTS (SELECT FROM partition_versions n WHERE n.dataset_version = w.dataset_version
		                  AND n.partition_key = w.partition_key AND n.revision > w.revision)
		GROUP BY 1, 2`, org, versions)
	if err != nil {
		return nil, fmt.Errorf("count withheld partitions: %w", err)
	}

	counts := map[uuid.UUID]map[string]int64{}
	var (
		version uuid.UUID
		job     string
		n       int64
	)
	_, err = pgx.ForEachRow(rows, []any{&version, &job, &n}, func() error {
		if counts[version] == nil {
			counts[version] = map[string]int64{}
		}
		counts[version][job] = n
		return nil
	})
	return counts, err
}

// Refused is the newest revision of a partition, which checks rejected.
type Refused struct {
	Ref
	Revision int64
	Failed   []string // the hashes of those checks
	Passed   []string // the hashes of the checks that it has passed
}

// RefusedIn returns the revisions of generations that checks refused, where no newer one followed and the rows are
// still there. What a person rejected is not among them. It relies on idx_partition_versions_rejected.
func RefusedIn(ctx context.Context, tx pgx.Tx, generations []uuid.UUID) ([]Refused, error) {
	rows, err := tx.Query(ctx, `
		SELECT r.dataset_version, r.partition_key, r.revision, f.hashes, r.passed_checks
		FROM partition_versions r
		CROSS JOIN LATERAL (
			SELECT array_agg(k.check_hash ORDER BY k.name) AS hashes, count(*) = count(k.check_hash) AS known
			FROM check_results k
			WHERE k.dataset_version = r.dataset_version AND k.partition_key = r.partition_key
			  AND k.revision = r.revision AND k.severity = 'error' AND k.outcome <> 'pass') AS f
		WHERE r.dataset_version = ANY($1) AND r.state = 'Rejected' AND r.purged_at IS NULL AND r.location <> ''
		  AND f.hashes IS NOT NULL AND f.known
		  AND NOT EXISTS (SELECT FROM partition_versions n WHERE n.dataset_version = r.dataset_version
		                  AND n.partition_key = r.partition_key AND n.revision > r.revision)
		ORDER BY 1, 2`, generations)
	if err != nil {
		return nil, fmt.Errorf("find what checks refused: %w", err)
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (r Refused, err error) {
		return r, row.Scan(&r.Version, &r.Key, &r.Revision, &r.Failed, &r.Passed)
	})
}

// Fate is what becomes of a refused revision in a swap.
type Fate int

const (
	StaysRefused Fate = iota
	IsShown           // it has passed every check that there is then
	IsChecked         // nobody knows yet whether it passes the checks that there are then
)

// Under decides about a revision by the checks of the output in the version that is to serve. It is pure.
func (r Refused) Under(checks []dag.Check) Fate {
	f := IsShown
	for _, c := range checks {
		switch hash := c.Hash(); {
		case slices.Contains(r.Failed, hash):
			return StaysRefused
		case !slices.Contains(r.Passed, hash):
			f = IsChecked
		}
	}
	return f
}

// ShownAgain returns the partitions of generations that checks refused, with true for those that pass the checks which
// their outputs have in the version that is to serve.
func ShownAgain(ctx context.Context, tx pgx.Tx, checks map[uuid.UUID][]dag.Check) (map[Ref]bool, error) {
	refused, err := RefusedIn(ctx, tx, slices.Collect(maps.Keys(checks)))
	shown := map[Ref]bool{}
	for _, r := range refused {
		shown[r.Ref] = r.Under(checks[r.Version]) == IsShown
	}
	return shown, err
}

// Withholding is the newest revision of a partition, with the job that made it; for one that readers see and that
// checks of a version on its way refuse, with the job of that version.
type Withholding struct {
	Dataset Dataset
	Ref     Ref
	Revision
	Job    *Job // the row that its origin runs by now, or else the origin's own
	Output int
}

// WithheldRevision finds the newest revision of a partition. It is an error if readers see that revision already and no
// version on its way reuses it: only a withheld revision can be accepted or rejected.
func (r *Registry) WithheldRevision(ctx context.Context, tx pgx.Tx, caller authz.Caller,
	name, which, key string) (Withholding, error) {
	var w Withholding
	d, generation, err := r.datasetAt(ctx, tx, caller, name, which)
	if err != nil {
		return w, err
	}
	if generation == nil {
		return w, fault.New(fault.NotFound, "nothing serves dataset %s yet", name).
			WithHint("use --version candidate for the version on its way")
	}

	w.Dataset, w.Ref = d, Ref{Version: *generation, Key: key}
	var (
		revision int64
		purged   bool
		origin   uuid.UUID
	)
	err = tx.QueryRow(ctx, `
		SELECT p.revision, p.purged_at IS NOT NULL, g.origin_job_id FROM partition_versions p
		JOIN dataset_versions g ON g.id = p.dataset_version
		WHERE p.org_id = $1 AND p.dataset_version = $2 AND p.partition_key = $3 ORDER BY p.revision DESC LIMIT 1`,
		caller.OrgID, *generation, key).Scan(&revision, &purged, &origin)
	if errors.Is(err, pgx.ErrNoRows) {
		return w, fault.New(fault.NotFound, "dataset %s has no partition %q", d.Name, key).
			WithHint("`dagctl datasets get %s` lists what is withheld", d.Name)
	}
	if err != nil {
		return w, fmt.Errorf("find partition %q: %w", key, err)
	}

	if w.Revision, err = LoadRevision(ctx, tx, w.Ref, revision); err != nil {
		return w, err
	}

	switch {
	case w.State == "Published" && which == Candidate:
		return w, r.reusedBy(ctx, tx, &w)
	case w.State != "Held" && w.State != "Rejected":
		return w, fault.New(fault.Conflict,
			"revision %d of partition %q of %s is %s: only a held or rejected revision can be accepted or rejected",
			revision, key, d.Name, w.State).
			WithHint("`dagctl datasets get %s` lists what is withheld", d.Name)
	case purged:
		return w, fault.New(fault.Conflict, "the rows of revision %d of partition %q of %s were removed",
			revision, key, d.Name).
			WithHint("run the task again")
	}
	return w, r.producerOf(ctx, tx, origin, &w)
}

// reusedBy finds the job and the output that have a generation in the version on its way.
func (r *Registry) reusedBy(ctx context.Context, tx pgx.Tx, w *Withholding) error {
	var (
		version uuid.UUID
		name    string
	)
	err := tx.QueryRow(ctx, `
		SELECT v.id, p.job_name, p.output_index FROM dag_version_datasets p
		JOIN dag_versions v ON v.id = p.dag_version_id AND `+CandidateVersion+`
		WHERE p.dataset_uuid = $1 AND p.dataset_version = $2
		ORDER BY v.status = 'Failed', v.number DESC LIMIT 1`, w.Dataset.ID, w.Ref.Version).Scan(&version, &name, &w.Output)
	if err != nil {
		return fmt.Errorf("version on its way with %s: %w", w.Dataset.Name, err)
	}

	jobs, err := r.VersionJobs(ctx, tx, version)
	for _, job := range jobs {
		if job.Name == name {
			w.Job = job
		}
	}
	return err
}

// producerOf finds the job and the output that make a generation.
func (r *Registry) producerOf(ctx context.Context, tx pgx.Tx, origin uuid.UUID, w *Withholding) error {
	acting, err := r.ActingJobs(ctx, tx, []uuid.UUID{origin})
	if err != nil {
		return err
	}
	w.Job = acting[origin].Job
	if w.Job == nil {
		jobs, err := r.Jobs(ctx, tx, []uuid.UUID{origin})
		if err != nil {
			return err
		}
		w.Job = jobs[origin]
	}

	for i, o := range w.Job.Outputs {
		if o.Generation.Version == w.Ref.Version {
			w.Output = i
			return nil
		}
	}
	return fault.New(fault.Conflict, "no active or building version makes this generation of %s", w.Dataset.Name).
		WithHint("deploy its document again")
}
