package usage

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/internal/atonce"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/pg"
)

// By is what usage is grouped by.
type By string

// What usage can be grouped by.
const (
	ByJob     By = "job"
	ByDataset By = "dataset"
	ByOwner   By = "owner"
	ByDAG     By = "dag"
	ByOrg     By = "org"
)

// Step is the span of time of one point of a trend, in UTC. Weeks begin on Monday.
type Step string

// The steps.
const (
	Hour Step = "hour"
	Day  Step = "day"
	Week Step = "week"
)

var lengths = map[Step]time.Duration{Hour: time.Hour, Day: 24 * time.Hour, Week: 7 * 24 * time.Hour}

// mostSteps bounds the points of a trend, and mostRows the rows of an answer.
const mostSteps, mostRows = 400, 100

// Question asks for usage. Zero fields mean: by job, the last seven days, by the day, all DAGs.
type Question struct {
	By    By        `query:"by" enum:"job,dataset,owner,dag,org" default:"job" doc:"What the rows are about"`
	Since time.Time `query:"since" doc:"Taken down to the beginning of its step; a week before until if it is left out"`
	Until time.Time `query:"until" doc:"Taken up to the end of its step; now if it is left out"`
	Step  Step      `query:"step" enum:"hour,day,week" default:"day" doc:"Of trends; hours, days and weeks are those of UTC"`
	DAG   string    `query:"dag" doc:"Only this DAG"`

	bare bool // rows and bytes, written and stored, are of no interest
}

// complete fills in what was left out, and checks the rest.
func (q Question) complete(now time.Time) (Question, error) {
	q.By, q.Step = cmp.Or(q.By, ByJob), cmp.Or(q.Step, Day)
	length, known := lengths[q.Step]
	if !known {
		return q, fault.New(fault.Invalid, "step %q is none of hour, day and week", q.Step)
	}
	if !slices.Contains([]By{ByJob, ByDataset, ByOwner, ByDAG, ByOrg}, q.By) {
		return q, fault.New(fault.Invalid, "by %q is none of job, dataset, owner, dag and org", q.By)
	}

	if q.Until.IsZero() {
		q.Until = now
	}
	if q.Since.IsZero() {
		q.Since = q.Until.Add(-6 * 24 * time.Hour)
	}
	q.Since = q.Since.UTC().Truncate(length)
	q.Until = q.Until.UTC().Add(length - 1).Truncate(length)
	switch n := q.Until.Sub(q.Since) / length; {
	case n <= 0:
		return q, fault.New(fault.Invalid, "until is not after since")
	case n > mostSteps:
		return q, fault.New(fault.Invalid, "from since to until are %d steps; %d are the most", n, mostSteps).
			WithHint("ask for longer steps, or for less time")
	}
	return q, nil
}

// Row is the usage of one job, dataset, owner, DAG or org.
type Row struct {
	DAG     string `json:"dag,omitempty"`
	Job     string `json:"job,omitempty"`
	Dataset string `json:"dataset,omitempty"`
	Owner   string `json:"owner,omitempty"`
	Org     string `json:"org,omitempty"`
	Amount
	Money    *float64  `json:"money,omitempty" doc:"Where the server has prices"`
	Share    float64   `json:"share" doc:"Of the total: of the money or, without prices, of the seconds"`
	Trend    []float64 `json:"trend" nullable:"false" doc:"Money or, without prices, seconds, by step"`
	Redacted bool      `json:"redacted,omitempty" doc:"The caller may not look into it: rows and bytes are left out"`
}

// Name names what the row is about; empty for what has no dataset or owner that the caller may see.
func (r Row) Name() string {
	if r.Job != "" && r.Dataset == "" {
		return r.DAG + "/" + r.Job
	}
	return cmp.Or(r.Dataset, r.Owner, r.DAG, r.Org)
}

// Total is the usage of all, in one step or in all of them.
type Total struct {
	At time.Time `json:"at"`
	Amount
	Money *float64 `json:"money,omitempty"`
}

// Costs is what was used in a span of time.
type Costs struct {
	By       By        `json:"by"`
	Step     Step      `json:"step"`
	Since    time.Time `json:"since"`
	Until    time.Time `json:"until"`
	Counted  time.Time `json:"counted_until" doc:"Attempts that ended later are not in it yet"`
	Currency string    `json:"currency,omitempty" doc:"Of the money; absent where the server has no prices"`
	Total    Total     `json:"total"`
	Points   []Total   `json:"points" nullable:"false" doc:"Of all, by step"`
	Rows     []Row     `json:"rows" nullable:"false" doc:"The most expensive first, at most 100"`
	Others   *Row      `json:"others,omitempty" doc:"The sum of what is beyond 100 rows"`
}

// Costs returns what the caller's org used. Whoever may not look into a job sees its tasks and seconds, as in the list
// of tasks, and neither its rows and bytes nor the names of its datasets.
func (u *Usage) Costs(ctx context.Context, caller authz.Caller, q Question, now time.Time) (c Costs, err error) {
	if q, err = q.complete(now); err != nil {
		return c, err
	}
	c = Costs{By: q.By, Step: q.Step, Since: q.Since, Until: q.Until, Currency: u.Prices.Currency, Rows: []Row{}}
	used, along, n, err := u.read(ctx, caller, q)
	if err != nil {
		return c, fmt.Errorf("read usage: %w", err)
	}

	err = pg.InOrgTx(ctx, u.requests, caller.OrgID, func(ctx context.Context, tx pgx.Tx) error {
		if err := n.rename(ctx, tx, used); err != nil {
			return err
		}
		groups := group(n, q, used)
		u.rank(q, groups, now)

		steps, err := readTotals(ctx, tx, caller.OrgID, q, groups)
		if err != nil {
			return err
		}
		if q.By == ByOrg && q.undivided(caller) {
			groups.sum(steps)
		}
		if q.along() {
			groups.addSteps(q, along, steps)
		} else if err := readSteps(ctx, tx, caller.OrgID, q, groups, steps); err != nil {
			return err
		}
		u.fill(&c, q, groups, steps, now)
		return nil
	})
	if err == nil {
		c.Counted, err = u.counted(ctx)
	}
	if err != nil {
		return c, fmt.Errorf("read usage: %w", err)
	}
	return c, nil
}

// read reads what was used, and at once what has to be known of jobs and datasets.
func (u *Usage) read(
	ctx context.Context, caller authz.Caller, q Question,
) (used map[output]Amount, along map[output]trend, n names, err error) {
	err = atonce.Do(ctx, 2, pg.OrgTx(u.requests, caller.OrgID, func(ctx context.Context, tx pgx.Tx) (err error) {
		if q.DAG != "" {
			if _, err := u.registry.DAG(ctx, tx, caller, q.DAG); err != nil {
				return err
			}
		}
		used, along, err = readUsed(ctx, tx, caller, q)
		return err
	}), pg.OrgTx(u.requests, caller.OrgID, func(ctx context.Context, tx pgx.Tx) (err error) {
		n, err = readNames(ctx, tx, caller, q)
		return err
	}))
	return used, along, n, err
}

// Lately returns what the caller's org did in the last 24 hours, by the hour, and in the last 14 days, by the day. Of
// what was written it knows no more than prices need.
func (u *Usage) Lately(ctx context.Context, caller authz.Caller, now time.Time) (hours, days Costs, err error) {
	hourly := Question{By: ByOrg, Step: Hour, Since: now.Add(-23 * time.Hour), bare: true}
	if hours, err = u.Costs(ctx, caller, hourly, now); err != nil {
		return hours, days, err
	}
	daily := Question{By: ByOrg, Since: now.Add(-13 * 24 * time.Hour)}
	daily.bare = u.Prices.Written == 0 && u.Prices.StoredMonths == 0
	days, err = u.Costs(ctx, caller, daily, now)
	return hours, days, err
}

// output is an output of a job.
type output struct {
	dag, job string
	index    int
}

// from returns the table that has the steps of a question, and its column of time.
func (q Question) from() (table, unit string) {
	if q.Step == Hour {
		return "usage_hours", "hour"
	}
	return "usage_days", "day"
}

// undivided reports whether nobody has to know which job something belongs to: DAGs and steps of the org add up to it.
func (q Question) undivided(caller authz.Caller) bool {
	return (q.By == ByOrg || q.By == ByDAG && q.Step != Hour) && (caller.ReadsAll() || q.bare)
}

// readUsed sums the usage of each output, with what is stored of it, and with its trend where that is read along.
// Undivided, it is that of each DAG, or only what is stored.
func readUsed(
	ctx context.Context, tx pgx.Tx, caller authz.Caller, q Question,
) (map[output]Amount, map[output]trend, error) {
	table, unit := q.from()
	outputs := "dag_name, job_name, output"
	if q.undivided(caller) {
		table, outputs = "usage_dag_days", "dag_name, '' AS job_name, 0 AS output"
	}
	sums, steps, step, args := q.alongside([]any{caller.OrgID, q.DAG, q.Since, q.Until})
	sql := `
		SELECT dag_name, job_name, output, coalesce(u.seconds, 0), coalesce(u.attempts, 0), coalesce(u.tasks, 0),
			coalesce(u.failed, 0), coalesce(u.rows, 0), coalesce(u.bytes, 0), coalesce(s.bytes, 0), ` + steps + `
		FROM (
			SELECT ` + outputs + `, sum(seconds) AS seconds, sum_exact(attempts) AS attempts, sum_exact(tasks) AS tasks,
				sum_exact(failed) AS failed, sum_exact(rows) AS rows, sum_exact(bytes) AS bytes` + sums + `
			FROM (SELECT *` + step + ` FROM ` + table + `
				WHERE org_id = $1 AND ($2 = '' OR dag_name = $2) AND ` + unit + ` >= $3 AND ` + unit + ` < $4
				OFFSET 0) AS u
			GROUP BY 1, 2, 3) AS u
		FULL JOIN (
			SELECT ` + outputs + `, sum_exact(bytes) AS bytes FROM usage_stored
			WHERE org_id = $1 AND ($2 = '' OR dag_name = $2)
			GROUP BY 1, 2, 3) AS s USING (dag_name, job_name, output)`
	switch {
	case q.bare && q.By == ByOrg:
		return map[output]Amount{{}: {}}, nil, nil
	case q.By == ByOrg && q.undivided(caller):
		sql, args = `SELECT '', '', 0, 0, 0, 0, 0, 0, 0, coalesce(sum(bytes), 0)::bigint, `+steps+`
			FROM usage_stored
			WHERE org_id = $1 AND ($2 = '' OR dag_name = $2)`, args[:2]
	}
	rows, err := tx.Query(ctx, sql, args...)
	if err != nil {
		return nil, nil, err
	}

	used, along := map[output]Amount{}, map[output]trend{}
	var (
		o output
		a Amount
		t trend
	)
	_, err = pgx.ForEachRow(rows, []any{&o.dag, &o.job, &o.index, &a.Seconds, &a.Attempts, &a.Tasks, &a.Failed, &a.Rows,
		&a.Bytes, &a.Stored, &t.seconds, &t.bytes}, func() error {
		used[o] = a
		if t.seconds != nil {
			along[o] = t
		}
		t = trend{}
		return nil
	})
	return used, along, err
}

// weigh returns what rows and trends compare: money or, without prices, seconds. The money is nil without prices.
func (u *Usage) weigh(a Amount, over time.Duration) (float64, *float64) {
	if u.Prices.Currency == "" {
		return a.Seconds, nil
	}
	money := u.Prices.of(a, over)
	return money, &money
}

// over returns for how long what is stored now has been stored, of the span of a question.
func (q Question) over(now time.Time) time.Duration {
	return min(q.Until.Sub(q.Since), max(now.Sub(q.Since), 0))
}

// rank sorts the groups of an answer, the most expensive first, and leaves the parts of those that have rows of their
// own.
func (u *Usage) rank(q Question, g *grouping, now time.Time) {
	weights, order := make([]float64, len(g.rows)), make([]int, len(g.rows))
	for i, row := range g.rows {
		order[i] = i
		weights[i], _ = u.weigh(row.Amount, q.over(now))
	}
	slices.SortStableFunc(order, func(a, b int) int {
		return cmp.Or(cmp.Compare(weights[b], weights[a]), cmp.Compare(g.rows[b].Seconds, g.rows[a].Seconds),
			cmp.Compare(g.rows[a].Name(), g.rows[b].Name()))
	})

	place, sorted := make([]int, len(order)), make([]Row, len(order))
	for at, i := range order {
		place[i], sorted[at] = at, g.rows[i]
	}
	g.rows = sorted
	for i := range g.parts {
		g.parts[i].Group = place[g.parts[i].Group]
	}
	g.parts = slices.DeleteFunc(g.parts, func(p part) bool { return p.Group >= mostRows })
}

// fill writes the answer: points of all, and a row for each group.
func (u *Usage) fill(c *Costs, q Question, g *grouping, steps map[at]Amount, now time.Time) {
	length, over := lengths[q.Step], q.over(now)
	c.Total.At, c.Total.Amount = q.Since, g.total
	all, money := u.weigh(g.total, over)
	c.Total.Money = money
	var rest []float64 // of the trend, what no row has
	for t := q.Since; t.Before(q.Until); t = t.Add(length) {
		p := Total{At: t, Amount: steps[at{-1, t}]}
		p.Stored = g.total.Stored
		weight, money := u.weigh(p.Amount, min(length, max(now.Sub(t), 0)))
		p.Money, rest = money, append(rest, weight)
		c.Points = append(c.Points, p)
	}

	for i, row := range g.rows[:min(len(g.rows), mostRows)] {
		weight, money := u.weigh(row.Amount, over)
		row.Money, row.Trend = money, []float64{}
		if all > 0 {
			row.Share = weight / all
		}
		for n, p := range c.Points {
			a := steps[at{i, p.At}]
			a.Stored = row.Stored
			value, _ := u.weigh(a, min(length, max(now.Sub(p.At), 0)))
			row.Trend = append(row.Trend, value)
			rest[n] = max(rest[n]-value, 0)
		}
		c.Rows = append(c.Rows, row)
	}
	if len(g.rows) <= mostRows {
		return
	}

	others := Row{Trend: rest}
	for _, row := range g.rows[mostRows:] {
		others.add(row.Amount, 1)
	}
	weight, money := u.weigh(others.Amount, over)
	others.Money = money
	if all > 0 {
		others.Share = weight / all
	}
	c.Others = &others
}

// ParseTime reads a date, which is the beginning of that day of UTC, or an RFC 3339 time. An empty text is no time.
func ParseTime(text string) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	for _, layout := range []string{time.DateOnly, time.RFC3339} {
		if t, err := time.Parse(layout, text); err == nil {
			return t, nil
		}
	}
	return time.Time{}, fault.New(fault.Invalid, "%q is neither like 2026-01-31 nor like 2026-01-31T12:00:00Z", text)
}
