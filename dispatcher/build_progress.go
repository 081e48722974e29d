package dispatcher

import (
	"context"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/registry"
)

// BuildProgress is how far the build of a version has come.
type BuildProgress struct {
	Counts
	Datasets     []DatasetProgress `json:"datasets" nullable:"false" doc:"Those that the build makes, in the order of the document"`
	CriticalPath []string          `json:"critical_path,omitempty" doc:"The chain of jobs that decides how long it takes, upstream first"`
	Seconds      float64           `json:"remaining_seconds,omitempty" doc:"How long the critical path is estimated to take from here, from past tasks"`
}

// DatasetProgress is how far a build has come with one dataset.
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

// rateOver is the time over which a build's rate is measured.
const rateOver = time.Minute

// VersionDetail is a version with its document and, while it is being built, how far that is.
type VersionDetail struct {
	registry.VersionText
	Build *BuildProgress `json:"build,omitempty" doc:"While it is being built"`
}

// VersionDetail returns one version.
func (d *Dispatcher) VersionDetail(ctx context.Context, caller authz.Caller, dagName string, number int, now time.Time) (VersionDetail, error) {
	text, err := d.Registry.Version(ctx, caller, dagName, number)
	if err != nil {
		return VersionDetail{}, err
	}
	detail := VersionDetail{VersionText: text}
	if text.Status != registry.Building && text.Status != registry.Ready {
		return detail, nil
	}
	err = pg.InOrgTx(ctx, d.Requests, caller.OrgID, func(ctx context.Context, tx pgx.Tx) error {
		detail.Build, err = d.buildProgress(ctx, tx, caller, text.Version, now)
		return err
	})
	if err != nil {
		return VersionDetail{}, fmt.Errorf("progress of %s v%d: %w", dagName, number, err)
	}
	return detail, nil
}

// buildProgress looks at a version that is being built, or is ready.
func (d *Dispatcher) buildProgress(ctx context.Context, tx pgx.Tx, caller authz.Caller, v registry.Version, now time.Time) (*BuildProgress, error) {
	origins, err := d.Registry.OriginsOf(ctx, tx, caller, []uuid.UUID{v.ID})
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
	enumerated, err := enumeratedSince(ctx, tx, caller.OrgID, started)
	if err != nil {
		return nil, err
	}
	open, err := openPartitions(ctx, tx, caller.OrgID, origins[v.ID])
	if err != nil {
		return nil, err
	}
	fillings, err := d.Registry.Fillings(ctx, tx, caller, v.ID, enumerated, open, since)
	if err != nil {
		return nil, err
	}
	past, err := registry.OriginsByJob(ctx, tx, caller.OrgID, v.DAG)
	if err != nil {
		return nil, err
	}
	slots, err := d.taskSlots(ctx, tx, now)
	if err != nil {
		return nil, err
	}
	var steps []step
	for _, f := range fillings {
		c := counts[f.Job.Origin]
		one := DatasetProgress{Job: f.Job.Name, Output: f.Output, Dataset: f.Name, Action: f.Action, Done: f.Done, Total: f.Total,
			Running: c.Running, Failed: c.Dead, Skipped: c.Skipped}
		if passed := now.Sub(since).Seconds(); passed > 0 {
			one.Rate = float64(f.Recent) / passed
		}
		left := int(c.Open())
		if f.Total != nil {
			left = max(*f.Total-f.Done-int(c.Skipped), 0)
		}
		mean, err := meanSeconds(ctx, tx, caller.OrgID, past[f.Job.Name])
		if err != nil {
			return nil, err
		}
		one.Seconds = took(left, mean, atOnce(f.Job, slots))
		p.Datasets = append(p.Datasets, one)
		steps = append(steps, step{f.Job.Name, f.Upstream, one.Seconds})
	}
	p.CriticalPath, p.Seconds = criticalPath(steps)
	return p, nil
}

// countTasks counts everything about origins: what is open, what is completed (see addCompleted) and what was given up.
func countTasks(ctx context.Context, tx pgx.Tx, org uuid.UUID, origins []uuid.UUID, since time.Time, most int64) (map[uuid.UUID]Counts, error) {
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

// enumeratedSince lists the job rows whose sources were read in full since then.
func enumeratedSince(ctx context.Context, tx pgx.Tx, org uuid.UUID, since time.Time) (map[uuid.UUID]bool, error) {
	rows, err := tx.Query(ctx, `SELECT job_id FROM enumerations WHERE org_id = $1 AND enumerated_at >= $2 AND error IS NULL`, org, since)
	if err != nil {
		return nil, fmt.Errorf("enumerated sources: %w", err)
	}
	read := map[uuid.UUID]bool{}
	var id uuid.UUID
	_, err = pgx.ForEachRow(rows, []any{&id}, func() error { read[id] = true; return nil })
	return read, err
}

// openPartitions lists the output partitions that tasks are open for, by origin.
func openPartitions(ctx context.Context, tx pgx.Tx, org uuid.UUID, origins []uuid.UUID) (map[uuid.UUID][]string, error) {
	rows, err := tx.Query(ctx, `
		SELECT o.job_id, array_agg(DISTINCT t.partitions[1])
		FROM (SELECT task_id, job_id FROM ready WHERE org_id = $1 AND job_id = ANY($2) UNION ALL
		      SELECT task_id, job_id FROM leases WHERE org_id = $1 AND job_id = ANY($2) UNION ALL
		      SELECT task_id, job_id FROM waiting WHERE org_id = $1 AND job_id = ANY($2)) AS o
		JOIN tasks t ON t.id = o.task_id AND t.kind <> 'check' AND t.partitions[1] IS NOT NULL
		GROUP BY o.job_id`, org, origins)
	if err != nil {
		return nil, fmt.Errorf("partitions of open tasks: %w", err)
	}
	open := map[uuid.UUID][]string{}
	var (
		id   uuid.UUID
		keys []string
	)
	_, err = pgx.ForEachRow(rows, []any{&id, &keys}, func() error { open[id] = keys; return nil })
	return open, err
}

// taskSlots is how many tasks all living processes together run at once; that of this one where none is registered.
func (d *Dispatcher) taskSlots(ctx context.Context, tx pgx.Tx, now time.Time) (int, error) {
	var n int
	err := tx.QueryRow(ctx, `SELECT coalesce(sum(pool_size), 0) FROM workers WHERE last_heartbeat > $1 AND drained_at IS NULL`,
		now.Add(-workerDeadAfter)).Scan(&n)
	if err != nil {
		return 0, fmt.Errorf("count task slots: %w", err)
	}
	return max(n, d.PoolSize), nil
}

// atOnce is how many tasks of a job may run at the same time.
func atOnce(job *registry.Job, slots int) int {
	if n := job.Def.MaxConcurrency; n > 0 {
		return min(n, slots)
	}
	return slots
}

// took is how many seconds n tasks take of which one takes mean and as many run at once. It is pure.
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

// criticalPath is the chain of jobs that takes longest, upstream first, and how long that is; jobs without work are not
// named. Work on several datasets of a job is one job's, so the longest counts. It is pure.
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
		done[job] = chain{} // a document has no circles; one made up ends here
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
