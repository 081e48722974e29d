package usage

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/registry"
	"github.com/dagctl/dagctl/registry/catalog"
	"github.com/dagctl/dagctl/registry/footprint"
)

// DayOf is what a job did on one day of UTC.
type DayOf struct {
	Day time.Time `json:"day"`
	Amount
	P50   float64  `json:"p50_seconds" doc:"Half of the attempts that completed took no longer, to within a tenth"`
	P95   float64  `json:"p95_seconds"`
	Money *float64 `json:"money,omitempty"`
}

// Trend is how a job did lately.
type Trend struct {
	DAG       string          `json:"dag"`
	Job       string          `json:"job"`
	Currency  string          `json:"currency,omitempty"`
	Days      []DayOf         `json:"days" nullable:"false" doc:"Those with attempts that ended, the last one last"`
	Freshness []catalog.Point `json:"freshness" nullable:"false" doc:"The last revisions of its first dataset, and how long after its end each partition was made"`
	Redacted  bool            `json:"redacted,omitempty" doc:"The caller may not look into the job: rows, bytes and freshness are left out"`
}

// Trend returns how a job did over some days.
func (u *Usage) Trend(
	ctx context.Context, caller authz.Caller, dagName, job string, days int, now time.Time,
) (t Trend, err error) {
	t = Trend{DAG: dagName, Job: job, Currency: u.Prices.Currency, Days: []DayOf{}, Freshness: []catalog.Point{}}
	var dataset string
	err = pg.InOrgTx(ctx, u.requests, caller.OrgID, func(ctx context.Context, tx pgx.Tx) error {
		jobs, err := footprint.JobOutlines(ctx, tx, caller, dagName)
		if err != nil {
			return err
		}
		known := false
		for _, j := range jobs {
			if j.Job == job {
				known, t.Redacted = true, j.Hidden
			}
		}
		if !known {
			return fault.New(fault.NotFound, "the active version of DAG %q has no job %q", dagName, job).
				WithHint("`dagctl status %s` lists its jobs", dagName)
		}

		since := now.UTC().Truncate(lengths[Day]).Add(-time.Duration(days-1) * lengths[Day])
		if err := u.readDays(ctx, tx, caller, &t, since); err != nil || t.Redacted {
			return err
		}
		datasets, err := footprint.DatasetNames(ctx, tx, caller, dagName)
		for _, d := range datasets {
			if d.Job == job && d.Output == 0 && dataset == "" {
				dataset = d.Name
			}
		}
		return err
	})
	if err == nil && dataset != "" {
		t.Freshness, err = catalog.New(u.registry).Trend(ctx, caller, dataset)
	}
	if err != nil {
		return t, fmt.Errorf("trend of %s/%s: %w", dagName, job, err)
	}
	return t, nil
}

// readDays reads the days of a job.
func (u *Usage) readDays(ctx context.Context, tx pgx.Tx, caller authz.Caller, t *Trend, since time.Time) error {
	names, err := countedAs(ctx, tx, caller.OrgID, t)
	if err != nil {
		return err
	}
	rows, err := tx.Query(ctx, `
		SELECT day, sum(seconds), sum_exact(attempts), sum_exact(tasks), sum_exact(failed), sum_exact(rows),
			sum_exact(bytes), (array_agg(durations::text ORDER BY output))[1]::bigint[]
		FROM usage_days WHERE org_id = $1 AND dag_name = $2 AND job_name = ANY($3) AND day >= $4
		GROUP BY day ORDER BY day`, caller.OrgID, t.DAG, names, since)
	if err != nil {
		return err
	}

	var (
		d     DayOf
		spans []int64
	)
	into := []any{&d.Day, &d.Seconds, &d.Attempts, &d.Tasks, &d.Failed, &d.Rows, &d.Bytes, &spans}
	_, err = pgx.ForEachRow(rows, into,
		func() error {
			day := d
			day.Day = d.Day.UTC()
			day.P50, day.P95 = histogram(spans).quantile(0.5), histogram(spans).quantile(0.95)
			if t.Redacted {
				day.Rows, day.Bytes = 0, 0
			}
			if u.Prices.Currency != "" {
				money := u.Prices.of(day.Amount, 0)
				day.Money = &money
			}
			t.Days = append(t.Days, day)
			return nil
		})
	return err
}

// countedAs returns the names under which the usage of a job was counted: its own, and those that it alone had.
func countedAs(ctx context.Context, tx pgx.Tx, org uuid.UUID, t *Trend) ([]string, error) {
	names := []string{t.Job}
	old, err := registry.OldNames(ctx, tx, org, registry.NameOfJob{DAG: t.DAG, Job: t.Job})
	if err != nil {
		return nil, err
	}
	now, err := registry.NewNames(ctx, tx, org, old)
	for _, of := range old {
		if now[of] == t.Job {
			names = append(names, of.Job)
		}
	}
	return names, err
}

// Now is what there is at this moment in an org.
type Now struct {
	DAGs            int64
	Running, Queued int64 // tasks, counted up to MostCounted
}

// MostCounted is up to where open tasks are counted.
const MostCounted = 10_000

// Now counts the DAGs and open tasks of the caller's org.
func (u *Usage) Now(ctx context.Context, caller authz.Caller) (n Now, err error) {
	err = pg.InOrgTx(ctx, u.requests, caller.OrgID, func(ctx context.Context, tx pgx.Tx) error {
		if n.DAGs, err = footprint.DAGs(ctx, tx, caller.OrgID); err != nil {
			return err
		}
		return tx.QueryRow(ctx, `
			SELECT (SELECT count(*) FROM (SELECT FROM leases WHERE org_id = $1 LIMIT $2) AS l),
				(SELECT count(*) FROM (SELECT FROM ready WHERE org_id = $1
					UNION ALL SELECT FROM waiting WHERE org_id = $1 AND reason <> 'dead' LIMIT $2) AS q)`,
			caller.OrgID, MostCounted).Scan(&n.Running, &n.Queued)
	})
	if err != nil {
		return n, fmt.Errorf("count what there is: %w", err)
	}
	return n, nil
}
