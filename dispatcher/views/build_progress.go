package views

import (
	"context"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/dispatcher/tasks"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/registry"
	"github.com/dagctl/dagctl/registry/deploy"
)

// BuildProgress is the progress of the build of a version.
type BuildProgress struct {
	Counts
	Datasets     []DatasetProgress `json:"datasets" nullable:"false" doc:"Datasets that the build makes, in the order of the document"`
	CriticalPath []string          `json:"critical_path,omitempty" doc:"The chain of jobs that decides how long it takes, upstream first"`
	Seconds      float64           `json:"remaining_seconds,omitempty" doc:"How long the critical path is estimated to take from here, from past tasks"`
}

// DatasetProgress is the progress of a build with one dataset.
type DatasetProgress struct {
	Job     string  `json:"job"`
	Output  int     `json:"output"`
	Dataset string  `json:"dataset,omitempty" doc:"Its name, where the caller may read it"`
	Action  string  `json:"action" enum:"create,rebuild,swap-only"`
	Done    int     `json:"done" doc:"Partitions that are published"`
	Total   *int    `json:"total,omitempty" doc:"Partitions it will have; absent while only reading the source can tell"`
	Running int64   `json:"running" doc:"Tasks of its job"`
	Failed  int64   `json:"failed" doc:"Tasks of its job that are out of attempts"`
	Skipped int64   `json:"skipped,omitempty" doc:"Partitions that somebody has given up"`
	Rate    float64 `json:"rate" doc:"Partitions a second over the last minute"`
	Seconds float64 `json:"remaining_seconds,omitempty" doc:"How long the rest is estimated to take once it can run, from past tasks"`
}

// rateOver is the time over which buildProgress measures a build's rate.
const rateOver = time.Minute

// VersionDetail is a version with its document and, while it is being built, the progress of that.
type VersionDetail struct {
	registry.VersionText
	Build *BuildProgress `json:"build,omitempty" doc:"While it is being built"`
}

// VersionDetail returns one version.
func (vs *Views) VersionDetail(
	ctx context.Context, caller authz.Caller, dagName string, number int, now time.Time,
) (VersionDetail, error) {
	text, err := vs.registry.Version(ctx, caller, dagName, number)
	if err != nil {
		return VersionDetail{}, err
	}

	detail := VersionDetail{VersionText: text}
	if text.Status != registry.Building && text.Status != registry.Ready {
		return detail, nil
	}

	err = pg.InOrgTx(ctx, vs.requests, caller.OrgID, func(ctx context.Context, tx pgx.Tx) error {
		detail.Build, err = vs.buildProgress(ctx, tx, caller, text.Version, now)
		return err
	})
	if err != nil {
		return VersionDetail{}, fmt.Errorf("progress of %s v%d: %w", dagName, number, err)
	}
	return detail, nil
}

// buildProgress returns the progress of a version that is being built or is ready.
func (vs *Views) buildProgress(
	ctx context.Context, tx pgx.Tx, caller authz.Caller, v registry.Version, now time.Time,
) (*BuildProgress, error) {
	origins, err := vs.registry.OriginsOf(ctx, tx, caller, []uuid.UUID{v.ID})
	if err != nil {
		return nil, err
	}
	counts, err := countTasks(ctx, tx, caller.OrgID, origins[v.ID], v.CreatedAt, math.MaxInt64)
	if err != nil {
		return nil, err
	}
	p := &BuildProgress{Counts: sum(counts, origins, []uuid.UUID{v.ID}), Datasets: []DatasetProgress{}}

	started := v.CreatedAt
	if v.BuildingAt != nil {
		started = *v.BuildingAt
	}
	since := started
	if now.Sub(since) > rateOver {
		since = now.Add(-rateOver)
	}
	fillings, err := vs.fillings(ctx, tx, caller, v, origins[v.ID], started, since)
	if err != nil {
		return nil, err
	}

	// Past tasks of the same jobs, in any version, give the time that one task takes.
	past, err := deploy.OriginsByJob(ctx, tx, caller.OrgID, v.DAG)
	if err != nil {
		return nil, err
	}
	slots, err := vs.taskSlots(ctx, tx, now)
	if err != nil {
		return nil, err
	}
	asked := map[string][]uuid.UUID{}
	for _, f := range fillings {
		asked[f.Job.Name] = past[f.Job.Name]
	}
	mean, err := meanSeconds(ctx, tx, caller.OrgID, asked)
	if err != nil {
		return nil, err
	}

	var steps []step
	for _, f := range fillings {
		one := datasetProgress(f, counts[f.Job.Origin], now.Sub(since), mean[f.Job.Name], slots)
		p.Datasets = append(p.Datasets, one)
		steps = append(steps, step{f.Job.Name, f.Upstream, one.Seconds})
	}
	p.CriticalPath, p.Seconds = criticalPath(steps)
	return p, nil
}

// fillings lists the datasets that a build fills, with the partitions that became published since a time.
func (vs *Views) fillings(
	ctx context.Context, tx pgx.Tx, caller authz.Caller, v registry.Version,
	origins []uuid.UUID, started, since time.Time,
) ([]deploy.Filling, error) {
	enumerated, err := EnumeratedSince(ctx, tx, caller.OrgID, started)
	if err != nil {
		return nil, err
	}
	open, err := OpenPartitions(ctx, tx, caller.OrgID, origins)
	if err != nil {
		return nil, err
	}
	return vs.deployer.Fillings(ctx, tx, caller, v.ID, enumerated, open, since)
}

// datasetProgress returns the progress with one dataset: c counts the tasks of its job, passed is the time over which
// the rate is measured, and mean is the seconds that one task takes.
func datasetProgress(f deploy.Filling, c Counts, passed time.Duration, mean float64, slots int) DatasetProgress {
	p := DatasetProgress{
		Job: f.Job.Name, Output: f.Output, Dataset: f.Name, Action: f.Action, Done: f.Done, Total: f.Total,
		Running: c.Running, Failed: c.Dead, Skipped: c.Skipped,
	}
	if passed > 0 {
		p.Rate = float64(f.Recent) / passed.Seconds()
	}

	left := int(c.Open())
	if f.Total != nil {
		left = max(*f.Total-f.Done-int(c.Skipped), 0)
	}
	p.Seconds = took(left, mean, atOnce(f.Job, slots))
	return p
}

// countTasks counts the tasks of origins: open ones, completed ones (see addCompleted) and skipped ones.
func countTasks(
	ctx context.Context, tx pgx.Tx, org uuid.UUID, origins []uuid.UUID, since time.Time, most int64,
) (map[uuid.UUID]Counts, error) {
	counts, err := countOpen(ctx, tx, org, origins)
	if err != nil {
		return nil, err
	}
	if err := addCompleted(ctx, tx, org, origins, since, most, counts); err != nil {
		return nil, err
	}

	skipped, err := skippedPartitions(ctx, tx, org, origins)
	if err != nil {
		return nil, err
	}

	for origin, n := range skipped {
		c := counts[origin]
		c.Skipped = n
		counts[origin] = c
	}
	return counts, nil
}

// EnumeratedSince returns the job rows whose sources were read in full at since or later.
func EnumeratedSince(ctx context.Context, tx pgx.Tx, org uuid.UUID, since time.Time) (map[uuid.UUID]bool, error) {
	rows, err := tx.Query(ctx, `
		SELECT job_id FROM enumerations WHERE org_id = $1 AND enumerated_at >= $2 AND error IS NULL`, org, since)
	if err != nil {
		return nil, fmt.Errorf("enumerated sources: %w", err)
	}
	read := map[uuid.UUID]bool{}
	var id uuid.UUID
	_, err = pgx.ForEachRow(rows, []any{&id}, func() error { read[id] = true; return nil })
	return read, err
}

// OpenPartitions returns, by origin, the output partitions that have open tasks.
func OpenPartitions(
	ctx context.Context, tx pgx.Tx, org uuid.UUID, origins []uuid.UUID,
) (map[uuid.UUID][]string, error) {
	rows, err := tx.Query(ctx, `
		SELECT o.origin_job_id, array_agg(DISTINCT t.partitions[1])
		FROM (SELECT task_id, origin_job_id FROM ready WHERE org_id = $1 AND origin_job_id = ANY($2) UNION ALL
		      SELECT task_id, origin_job_id FROM leases WHERE org_id = $1 AND origin_job_id = ANY($2) UNION ALL
		      SELECT task_id, origin_job_id FROM waiting WHERE org_id = $1 AND origin_job_id = ANY($2)) AS o
		JOIN tasks t ON t.id = o.task_id AND t.kind <> 'check' AND t.partitions[1] IS NOT NULL
		GROUP BY o.origin_job_id`, org, origins)
	if err != nil {
		return nil, fmt.Errorf("partitions of open tasks: %w", err)
	}

	open := map[uuid.UUID][]string{}
	var (
		origin uuid.UUID
		keys   []string
	)
	_, err = pgx.ForEachRow(rows, []any{&origin, &keys}, func() error { open[origin] = keys; return nil })
	return open, err
}

// taskSlots returns how many tasks all living processes together run at once, and at least the number of this process,
// which may not be registered.
func (vs *Views) taskSlots(ctx context.Context, tx pgx.Tx, now time.Time) (int, error) {
	var n int
	err := tx.QueryRow(ctx, `
		SELECT coalesce(sum(pool_size), 0) FROM workers WHERE last_heartbeat > $1 AND drained_at IS NULL`,
		now.Add(-tasks.WorkerDeadAfter)).Scan(&n)
	if err != nil {
		return 0, fmt.Errorf("count task slots: %w", err)
	}
	return max(n, vs.poolSize), nil
}

// atOnce returns how many tasks of a job may run at the same time.
func atOnce(job *registry.Job, slots int) int {
	if n := job.Def.MaxConcurrency; n > 0 {
		return min(n, slots)
	}
	return slots
}

// took returns how many seconds n tasks take if each takes mean seconds and atOnce of them run at the same time.
func took(n int, mean float64, atOnce int) float64 {
	if n <= 0 {
		return 0
	}
	return mean * math.Max(1, float64(n)/float64(max(atOnce, 1)))
}

// step is the work on one dataset, and the jobs whose work it waits for.
type step struct {
	job      string
	upstream []string
	seconds  float64
}

// criticalPath returns the chain of jobs that takes longest, upstream first, and how long it takes. It leaves out jobs
// without work. A job works on its datasets at the same time, so the longest of them counts.
func criticalPath(steps []step) (path []string, seconds float64) {
	own, upstream := map[string]float64{}, map[string][]string{}
	for _, s := range steps {
		own[s.job], upstream[s.job] = math.Max(own[s.job], s.seconds), s.upstream
	}

	type chain struct {
		path    []string
		seconds float64
	}
	done := map[string]chain{}
	var longest func(job string) chain
	longest = func(job string) chain {
		if c, ok := done[job]; ok {
			return c
		}

		done[job] = chain{} // a document has no circles; this ends the recursion if steps have one
		var best chain
		for _, u := range upstream[job] {
			if c := longest(u); c.seconds > best.seconds {
				best = c
			}
		}

		if own[job] > 0 {
			best = chain{append(slices.Clone(best.path), job), best.seconds + own[job]}
		}
		done[job] = best
		return best
	}

	var best chain
	for _, s := range steps {
		if c := longest(s.job); c.seconds > best.seconds {
			best = c
		}
	}
	return best.path, best.seconds
}
