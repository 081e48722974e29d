package usage

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/registry/footprint"
)

// Next is something that is to happen: a source fires, or a dataset is due.
type Next struct {
	Kind       string     `json:"kind" enum:"fires,due"`
	At         time.Time  `json:"at" doc:"When the source fires, or the data is due"`
	DAG        string     `json:"dag"`
	Job        string     `json:"job"`
	Dataset    string     `json:"dataset,omitempty"`
	Partition  string     `json:"partition,omitempty" doc:"Of a dataset with partitions in time: the one that is due next"`
	Owner      string     `json:"owner,omitempty"`
	Schedule   string     `json:"schedule,omitempty" doc:"Of a source: its cron expression, or how often it polls"`
	Timezone   string     `json:"timezone,omitempty" doc:"Of the schedule or of the partitions"`
	Local      string     `json:"local,omitempty" doc:"The time in that zone"`
	Estimate   *time.Time `json:"estimate,omitempty" doc:"When the data is expected, as late as it mostly was lately"`
	LikelyLate bool       `json:"likely_late,omitempty" doc:"The estimate is later than the data is due"`
}

// What names what it is about.
func (n Next) What() string {
	switch {
	case n.Dataset != "" && n.Partition != "":
		return n.Dataset + "@" + n.Partition
	case n.Dataset != "":
		return n.Dataset
	}
	return n.DAG + "/" + n.Job
}

// Forecast is what is to happen next.
type Forecast struct {
	Items []Next `json:"items" nullable:"false"`
	More  bool   `json:"more" doc:"There is more later"`
}

// mostNext bounds a forecast. Sources that poll more often than once in calm would fill it.
const (
	mostNext = 20
	calm     = time.Hour
)

// Forecast returns what is to happen next in the caller's org, the next first.
func (u *Usage) Forecast(ctx context.Context, caller authz.Caller, now time.Time) (f Forecast, err error) {
	err = pg.InOrgTx(ctx, u.requests, caller.OrgID, func(ctx context.Context, tx pgx.Tx) error {
		clocks, err := footprint.Clocks(ctx, tx, caller, calm)
		if err != nil {
			return err
		}
		fires, err := nextFires(ctx, tx, caller, clocks)
		if err != nil {
			return err
		}

		dues, err := footprint.Dues(ctx, tx, caller)
		if err != nil {
			return err
		}
		soon := soonest(dues, now)
		made, err := footprint.Lately(ctx, tx, caller.OrgID, soon)
		if err != nil {
			return err
		}
		list := fires
		for _, d := range soon {
			if n, ok := dueNext(d, made[d.Generation], now); ok {
				list = append(list, n)
			}
		}
		f = first(list)
		return nil
	})
	if err != nil {
		return f, fmt.Errorf("forecast: %w", err)
	}
	return f, nil
}

// nextFires returns when sources fire next, as the dispatcher has noted it.
func nextFires(ctx context.Context, tx pgx.Tx, caller authz.Caller, clocks []footprint.Clock) ([]Next, error) {
	rows, err := tx.Query(ctx, `
		SELECT s.dag_name, s.job_name, s.next_fire_at FROM sources s
		WHERE s.org_id = $1 AND s.next_fire_at IS NOT NULL AND NOT EXISTS (
			SELECT FROM pauses p WHERE p.org_id = s.org_id AND p.dag_name IN ('', s.dag_name)
			AND p.job_name IN ('', s.job_name))`, caller.OrgID)
	if err != nil {
		return nil, err
	}
	due := map[[2]string]time.Time{}
	var (
		name [2]string
		at   time.Time
	)
	if _, err := pgx.ForEachRow(rows, []any{&name[0], &name[1], &at}, func() error {
		due[name] = at
		return nil
	}); err != nil {
		return nil, err
	}

	var list []Next
	for _, c := range clocks {
		if at, ok := due[[2]string{c.DAG, c.Job}]; ok {
			list = append(list, fires(c, at))
		}
	}
	return list, nil
}

// fires says when a source fires next.
func fires(c footprint.Clock, at time.Time) Next {
	n := Next{Kind: "fires", At: at.UTC(), DAG: c.DAG, Job: c.Job, Schedule: c.Source.Schedule,
		Timezone: c.Source.Timezone}
	if c.Source.Every == 0 && c.Source.Schedule == "" {
		return n // it is hidden
	}
	if c.Source.Kind == "poll" {
		n.Schedule = "every " + c.Source.Every.String()
		return n
	}
	n.Local = localTime(at, n.Timezone)
	return n
}

// localTime is a time as clocks in a zone show it, with the name that the zone has then.
func localTime(at time.Time, zone string) string {
	in, err := time.LoadLocation(zone)
	if err != nil {
		return ""
	}
	return at.In(in).Format("2006-01-02 15:04 MST")
}

// soonest returns the datasets that are due first, twice as many as a forecast has: some may be there already.
func soonest(dues []footprint.Due, now time.Time) []footprint.Due {
	at := make(map[string]time.Time, len(dues)) // by dataset
	for _, d := range dues {
		_, at[d.Name] = dueAt(d, now)
	}
	slices.SortStableFunc(dues, func(a, b footprint.Due) int { return at[a.Name].Compare(at[b.Name]) })
	return dues[:min(len(dues), 2*mostNext)]
}

// dueAt returns what is due next of a dataset, and when: the partition after the last one that was due; or, without
// partitions in time, the whole dataset, so long after it was updated last.
func dueAt(d footprint.Due, now time.Time) (partition string, at time.Time) {
	if d.By.Kind != dag.ByTime {
		since := d.Created
		if d.Updated != nil {
			since = *d.Updated
		}
		return "", since.Add(d.Within)
	}
	return nextDue(d, d.By.LastComplete(now.Add(-d.Within)))
}

// nextDue returns the partition after another one, and when it is due.
func nextDue(d footprint.Due, after string) (partition string, at time.Time) {
	_, end, err := d.By.Bounds(after)
	if err != nil {
		return "", time.Time{}
	}
	partition = d.By.KeyAt(end)
	if _, end, err = d.By.Bounds(partition); err != nil {
		return "", time.Time{}
	}
	return partition, end.Add(d.Within)
}

// dueNext says when a dataset is due next, and when it is expected: partitions in time as long after their end, and
// other data as long after the last time, as was the median lately. What was due before now is no forecast. It is pure.
func dueNext(d footprint.Due, made []footprint.Made, now time.Time) (n Next, ok bool) {
	partition, at := dueAt(d, now)
	for range made { // what is there already is not due any more
		there := func(m footprint.Made) bool { return m.Partition == partition }
		if partition == "" || !slices.ContainsFunc(made, there) {
			break
		}
		partition, at = nextDue(d, partition)
	}
	if !at.After(now) {
		return n, false
	}
	n = Next{Kind: "due", At: at.UTC(), DAG: d.DAG, Job: d.Job, Dataset: d.Name, Partition: partition, Owner: d.Owner}

	var from time.Time
	var spans []time.Duration
	if partition != "" {
		n.Timezone = cmp.Or(d.By.Timezone, "UTC")
		n.Local = localTime(at, n.Timezone)
		from = at.Add(-d.Within)
		for _, m := range made {
			if _, end, err := d.By.Bounds(m.Partition); err == nil {
				spans = append(spans, m.At.Sub(end))
			}
		}
	} else if len(made) > 1 {
		from = made[0].At
		for i, m := range made[1:] {
			spans = append(spans, made[i].At.Sub(m.At))
		}
	}

	if len(spans) > 0 {
		slices.Sort(spans)
		expected := from.Add(spans[len(spans)/2]).UTC()
		if expected.Before(now) { // it was expected by now
			expected = now.UTC()
		}
		n.Estimate, n.LikelyLate = &expected, expected.After(at)
	}
	return n, true
}

// first returns what comes first.
func first(list []Next) Forecast {
	slices.SortStableFunc(list, func(a, b Next) int {
		return cmp.Or(a.At.Compare(b.At), cmp.Compare(a.What(), b.What()))
	})
	return Forecast{append([]Next{}, list[:min(len(list), mostNext)]...), len(list) > mostNext}
}
