package usage

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/internal/pg"
)

// fewParts is up to how many outputs the steps of each are looked up.
const fewParts = 1000

// fewSteps is up to how many steps of all outputs are read with their sums.
const fewSteps = 14

// trend is what an output used in each step of a question.
type trend struct {
	seconds []float64
	bytes   []int64
}

// along reports whether the steps of all outputs are read with their sums. Owners have most outputs among them, and to
// find the steps of those afterwards takes a join with all that was used.
func (q Question) along() bool {
	return q.By == ByOwner && q.Until.Sub(q.Since)/lengths[q.Step] <= fewSteps
}

// alongside returns what is read along: the columns that sum it by step, the two that have the sums as arrays, the
// number of the step that a row is of, and the arguments with its bounds. The arrays are NULL if nothing is.
func (q Question) alongside(args []any) (sums, steps, step string, _ []any) {
	if !q.along() {
		return "", "NULL::float8[], NULL::bigint[]", "", args
	}

	var bounds []time.Time
	var columns strings.Builder
	var seconds, bytes []string
	for t := q.Since; t.Before(q.Until); t = t.Add(lengths[q.Step]) {
		bounds = append(bounds, t)
		n := len(bounds)
		fmt.Fprintf(&columns, `,
				sum(seconds) FILTER (WHERE step = %[1]d) AS s%[1]d,
				sum_exact(bytes) FILTER (WHERE step = %[1]d) AS b%[1]d`, n)
		seconds = append(seconds, fmt.Sprintf("coalesce(s%d, 0)", n))
		bytes = append(bytes, fmt.Sprintf("coalesce(b%d, 0)", n))
	}
	_, unit := q.from()
	args = append(args, bounds)
	return columns.String(), "ARRAY[" + strings.Join(seconds, ", ") + "], ARRAY[" + strings.Join(bytes, ", ") + "]",
		fmt.Sprintf(", width_bucket(%s, $%d::timestamptz[]) AS step", unit, len(args)), args
}

// at is the usage of a group in a step.
type at struct {
	group int
	time  time.Time
}

// readTotals sums the usage of all by step, as that of group -1. Where all is one group, it is that of the group, too;
// and where DAGs are groups, it is read by DAG. Days are those of DAGs, less what hidden jobs wrote.
func readTotals(
	ctx context.Context, tx pgx.Tx, org uuid.UUID, q Question, g *grouping,
) (map[at]Amount, error) {
	table, unit := q.from()
	all := table
	if q.Step != Hour {
		all = "usage_dag_days"
	}
	span := func(column string) string {
		return `u.org_id = $2 AND ($3 = '' OR u.dag_name = $3) AND u.` + column + ` >= $4 AND u.` + column + ` < $5`
	}
	by, groups := `''`, map[string]int{}
	if q.By == ByDAG {
		by = `u.dag_name`
		for i, row := range g.rows[:min(len(g.rows), mostRows)] {
			groups[row.DAG] = i
		}
	}
	rows, err := tx.Query(ctx, `
		SELECT dag, date_bin($1::interval, at, '2001-01-01Z'), sum(seconds), sum_exact(attempts), sum_exact(tasks),
			sum_exact(failed), sum_exact(rows), sum_exact(bytes)
		FROM (
			SELECT `+by+` AS dag, u.`+unit+` AS at, u.seconds, u.attempts, u.tasks, u.failed, u.rows, u.bytes
			FROM `+all+` u WHERE `+span(unit)+`
			UNION ALL
			SELECT `+by+`, u.`+unit+`, 0, 0, 0, 0, -u.rows, -u.bytes
			FROM unnest($6::text[], $7::text[]) AS h(dag, job)
			JOIN `+table+` u ON u.dag_name = h.dag AND u.job_name = h.job
			WHERE `+span(unit)+`) AS u
		GROUP BY 1, 2`,
		append([]any{lengths[q.Step], org, q.DAG, q.Since, q.Until},
			pg.Columns(slices.Collect(maps.Keys(g.hidden)))...)...)
	if err != nil {
		return nil, err
	}

	steps := map[at]Amount{}
	var (
		dag string
		t   time.Time
		a   Amount
	)
	_, err = pgx.ForEachRow(rows, []any{&dag, &t, &a.Seconds, &a.Attempts, &a.Tasks, &a.Failed, &a.Rows, &a.Bytes},
		func() error {
			if q.bare {
				a.Rows, a.Bytes = 0, 0
			}
			all := steps[at{-1, t.UTC()}]
			all.add(a, 1)
			steps[at{-1, t.UTC()}] = all
			if i, ok := groups[dag]; ok || q.By == ByOrg {
				steps[at{i, t.UTC()}] = a
			}
			return nil
		})
	return steps, err
}

// readSteps adds what trends of groups weigh, seconds and bytes, by step, where it is not among that of all.
func readSteps(
	ctx context.Context, tx pgx.Tx, org uuid.UUID, q Question, g *grouping, steps map[at]Amount,
) error {
	if q.By == ByOrg || q.By == ByDAG || len(g.parts) == 0 {
		return nil
	}
	table, unit := q.from()
	used := `u.org_id = $2 AND ($3 = '' OR u.dag_name = $3) AND u.` + unit + ` >= $4 AND u.` + unit + ` < $5`
	from := `JOIN ` + table + ` u ON u.dag_name = p.dag AND u.job_name = p.job AND u.output = p.output WHERE ` + used
	if len(g.parts) > fewParts {
		// All steps are read at once, rather than those of each output.
		from = `JOIN (SELECT * FROM ` + table + ` u WHERE ` + used + ` OFFSET 0) AS u
			ON u.dag_name = p.dag AND u.job_name = p.job AND u.output = p.output`
	}
	rows, err := tx.Query(ctx, `
		SELECT p.group, date_bin($1::interval, u.`+unit+`, '2001-01-01Z'), sum(u.seconds * p.seconds),
			coalesce(sum_exact(u.bytes) FILTER (WHERE p.data), 0)
		FROM unnest($6::text[], $7::text[], $8::int[], $9::int[], $10::float8[], $11::boolean[])
			AS p(dag, job, output, "group", seconds, data)
		`+from+` GROUP BY 1, 2`,
		append([]any{lengths[q.Step], org, q.DAG, q.Since, q.Until}, pg.Columns(g.parts)...)...)
	if err != nil {
		return err
	}

	var (
		s at
		a Amount
	)
	_, err = pgx.ForEachRow(rows, []any{&s.group, &s.time, &a.Seconds, &a.Bytes}, func() error {
		s.time = s.time.UTC()
		steps[s] = a
		return nil
	})
	return err
}

// addSteps adds what trends of groups weigh from what was read along.
func (g *grouping) addSteps(q Question, along map[output]trend, steps map[at]Amount) {
	for _, p := range g.parts {
		t := along[output{p.DAG, p.Job, p.Output}]
		for i, seconds := range t.seconds {
			step := at{p.Group, q.Since.Add(time.Duration(i) * lengths[q.Step])}
			a := steps[step]
			a.Seconds += seconds * p.Seconds
			if p.Data {
				a.Bytes += t.bytes[i]
			}
			steps[step] = a
		}
	}
}
