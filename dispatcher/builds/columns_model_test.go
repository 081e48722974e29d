package builds_test

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/dispatcher/builds"
	"github.com/dagctl/dagctl/dispatcher/dispatchertest"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/registry"
	"github.com/dagctl/dagctl/registry/deploy"
	"github.com/dagctl/dagctl/storage"
)

var reuseEdits = flag.Int("reuse-edits", 4, "random edits of SQL pipelines that are compared with a full rebuild")

// A random edit of a random pipeline of sql jobs is deployed, and what it serves is compared with a DAG of the same
// document in an org that has nothing to reuse. Data arrives in between, versions are rolled back, and some wait to be
// promoted. Jobs name their columns alike, qualified or not, so that edits change what names mean.

// queryJob is a job of a random pipeline. Every job has the column k.
type queryJob struct {
	name    string
	shape   string
	inputs  []int // jobs by place; -1: the source
	whole   bool  // it is not partitioned
	columns []queryColumn
	where   string
}

type queryColumn struct{ name, expr string }

// pipeline is a random document and its history.
type pipeline struct {
	t      *testing.T
	w      *dispatchertest.World
	rng    *rand.Rand
	jobs   []queryJob
	served [][]queryJob // by version number, from 1; nil for those that never served
	orgs   int
	steps  []string
	reused int // jobs that were reused because of their columns
	edits  int
	tries  int
}

var (
	columnPool = []string{"p", "q", "r", "s", "x", "y"}
	shapePool  = []string{"plain", "plain", "plain", "group", "group", "group", "join", "join", "using", "distinct",
		"with", "with", "window", "lateral", "total", "buckets", "having", "star", "limit", "union", "subquery"}
)

func newPipeline(t *testing.T, seed uint64) *pipeline {
	p := &pipeline{t: t, w: dispatchertest.NewWorld(t), rng: rand.New(rand.NewPCG(seed, 77))}
	p.served = append(p.served, nil)
	for day := range 2 {
		p.data(day)
	}
	for i := range 4 + p.rng.IntN(3) {
		p.jobs = append(p.jobs, p.job(fmt.Sprintf("j%d", i)))
	}
	return p
}

func one[T any](p *pipeline, from ...T) T { return from[p.rng.IntN(len(from))] }

// data writes a day of the source anew.
func (p *pipeline) data(day int) {
	text := "k,x,y\n"
	for range 4 + p.rng.IntN(4) {
		text += fmt.Sprintf("%s,%d,%d\n", one(p, "a", "b", "c"), p.rng.IntN(9), p.rng.IntN(9))
	}
	name := fmt.Sprintf("2024-01-0%d.csv", day+1)
	p.w.Drop(name, text)
	p.note("data %s", name)
}

func (p *pipeline) note(format string, args ...any) {
	p.steps = append(p.steps, fmt.Sprintf(format, args...))
}

// job returns a random job that reads the last few jobs.
func (p *pipeline) job(name string) queryJob {
	j := queryJob{name: name, shape: one(p, shapePool...), whole: p.rng.IntN(4) == 0}
	reads := 1
	if slices.Contains([]string{"join", "using", "union", "subquery"}, j.shape) {
		reads = 2
	}
	from := -1
	if len(p.jobs) >= 2 {
		from = max(-1, len(p.jobs)-4)
	}
	for len(j.inputs) < reads {
		in := from + p.rng.IntN(len(p.jobs)-from)
		if len(p.jobs) == 0 {
			in = -1
		}
		if slices.Contains(j.inputs, in) {
			reads = 1
			if j.shape != "union" {
				j.shape = "plain"
			}
			continue
		}
		j.inputs = append(j.inputs, in)
	}
	if len(j.inputs) == 1 && slices.Contains([]string{"join", "using", "union", "subquery"}, j.shape) {
		j.shape = "plain"
	}
	for range 1 + p.rng.IntN(3) {
		p.addColumn(&j)
	}
	if p.rng.IntN(3) == 0 {
		j.where = p.condition(j)
	}
	return j
}

// named returns the columns of a job besides k.
func (p *pipeline) named(job int) []string {
	if job < 0 {
		return []string{"x", "y"}
	}
	if p.jobs[job].shape == "star" {
		return p.named(p.jobs[job].inputs[0])
	}
	var names []string
	for _, c := range p.jobs[job].columns {
		names = append(names, c.name)
	}
	return names
}

// ref names a column of an input, in one of the ways to write it.
func (p *pipeline) ref(j queryJob) string {
	in := p.rng.IntN(len(j.inputs))
	if j.shape == "union" || j.shape == "subquery" {
		in = 0
	}
	names := p.named(j.inputs[in])
	if len(names) == 0 {
		return "1"
	}
	name := one(p, names...)
	if p.rng.IntN(8) == 0 {
		name = strings.ToUpper(name)
	}
	if p.rng.IntN(10) == 0 {
		name = `"` + name + `"`
	}
	bare := 2
	if len(j.inputs) == 1 {
		bare = 8
	}
	if p.rng.IntN(10) < bare {
		return name
	}
	return p.alias(j, in) + "." + name
}

func (p *pipeline) alias(j queryJob, in int) string { return p.inputName(j.inputs[in]) }

func (p *pipeline) inputName(job int) string {
	if job < 0 {
		return "raw"
	}
	return p.jobs[job].name
}

func (p *pipeline) expr(j queryJob) string {
	a, b, n := p.ref(j), p.ref(j), p.rng.IntN(5)
	return one(p, a, a, fmt.Sprintf("%s + %d", a, n), fmt.Sprintf("%s * %d", a, n), a+" - "+b,
		fmt.Sprintf("CASE WHEN %s > %d THEN %s ELSE %d END", a, n, b, n), fmt.Sprintf("coalesce(%s, %d)", a, n),
		"abs("+a+")", a+"::BIGINT", a+"::VARCHAR::DOUBLE::BIGINT", "greatest("+a+", "+b+")", fmt.Sprint(n))
}

func (p *pipeline) condition(j queryJob) string {
	return one(p, fmt.Sprintf("%s > %d", p.ref(j), p.rng.IntN(4)), fmt.Sprintf("%s %% 2 = 0", p.ref(j)),
		p.ref(j)+" IS NOT NULL", fmt.Sprintf("%s BETWEEN 1 AND %d", p.ref(j), 2+p.rng.IntN(5)))
}

func (p *pipeline) addColumn(j *queryJob) {
	c := queryColumn{one(p, columnPool...), p.columnExpr(*j)}
	if !slices.ContainsFunc(j.columns, func(have queryColumn) bool { return have.name == c.name }) {
		j.columns = slices.Insert(slices.Clone(j.columns), p.rng.IntN(len(j.columns)+1), c)
	}
}

func (p *pipeline) columnExpr(j queryJob) string {
	switch e := p.expr(j); j.shape {
	case "group", "total", "buckets", "having":
		return one(p, "sum("+e+")::BIGINT", "max("+e+")", "min("+e+")", "count("+e+")", "count(*)",
			"count(DISTINCT "+e+")", "sum("+e+") FILTER (WHERE "+p.condition(j)+")::BIGINT")
	case "window":
		return one(p, e, "sum("+e+") OVER (PARTITION BY k)::BIGINT", "rank() OVER (ORDER BY "+e+")",
			"max("+e+") OVER ()")
	case "lateral":
		if len(j.columns) > 0 && p.rng.IntN(2) == 0 {
			return one(p, j.columns...).name + " + 1"
		}
		return e
	default:
		return e
	}
}

// query writes the query of a job.
func (p *pipeline) query(j queryJob) string {
	from, where := p.inputName(j.inputs[0]), ""
	if j.where != "" {
		where = " WHERE " + j.where
	}
	var list []string
	for _, c := range j.columns {
		list = append(list, c.expr+" AS "+c.name)
	}
	columns := strings.Join(append([]string{"k"}, list...), ", ")
	switch j.shape {
	case "group":
		return "SELECT " + columns + " FROM " + from + where + " GROUP BY " + []string{"k", "1"}[len(j.columns)%2]
	case "having":
		return "SELECT " + columns + " FROM " + from + where + " GROUP BY k HAVING count(*) > 1"
	case "distinct":
		return "SELECT DISTINCT " + columns + " FROM " + from + where
	case "with":
		names := []string{"k"}
		for _, c := range j.columns {
			names = append(names, c.name)
		}
		return fmt.Sprintf("WITH c AS (SELECT %s FROM %s%s) SELECT %s FROM c", columns, from, where,
			strings.Join(names, ", "))
	case "total":
		return "SELECT 'all' AS k, " + strings.Join(list, ", ") + " FROM " + from + where
	case "buckets":
		return fmt.Sprintf("SELECT lower(k) || 'x' AS k, %s FROM %s%s GROUP BY ALL", strings.Join(list, ", "), from,
			where)
	case "star":
		return "SELECT * FROM " + from + where
	case "limit":
		return "SELECT " + columns + " FROM " + from + where + " ORDER BY ALL LIMIT 3"
	case "join", "using", "union", "subquery":
		return p.queryOfTwo(j, from, where, list)
	}
	return "SELECT " + columns + " FROM " + from + where
}

// queryOfTwo writes a query over two inputs.
func (p *pipeline) queryOfTwo(j queryJob, from, where string, list []string) string {
	columns := strings.Join(append([]string{"k"}, list...), ", ")
	switch j.shape {
	case "join":
		kind := []string{"JOIN", "LEFT JOIN"}[len(j.columns)%2]
		qualified := strings.Join(append([]string{from + ".k"}, list...), ", ")
		return fmt.Sprintf("SELECT %s FROM %s %s %s ON %s.k = %s.k%s", qualified, from, kind,
			p.inputName(j.inputs[1]), from, p.inputName(j.inputs[1]), where)
	case "using":
		return fmt.Sprintf("SELECT %s FROM %s JOIN %s USING (k)%s", columns, from, p.inputName(j.inputs[1]), where)
	case "union":
		var nulls []string
		for range j.columns {
			nulls = append(nulls, "NULL")
		}
		return fmt.Sprintf("SELECT %s FROM %s%s UNION ALL SELECT k, %s FROM %s", columns, from, where,
			strings.Join(nulls, ", "), p.inputName(j.inputs[1]))
	case "subquery":
		return fmt.Sprintf("SELECT %s FROM %s WHERE k IN (SELECT k FROM %s)", columns, from, p.inputName(j.inputs[1]))
	}
	return ""
}

// document writes the file.
func (p *pipeline) document() string {
	var b strings.Builder
	b.WriteString(`name: model
jobs:
  - name: raw
    operator: file_source
    source: { kind: poll, every: 1h }
    partition_by: { time: day }
    config: { path: ".", pattern: "{date}.csv", format: csv, types: { k: VARCHAR, x: INTEGER, y: INTEGER } }
`)
	for _, j := range p.jobs {
		fmt.Fprintf(&b, "  - name: %s\n    operator: sql\n    max_attempts: 1\n    inputs:\n", j.name)
		whole := p.unpartitioned(j)
		for i, in := range j.inputs {
			fmt.Fprintf(&b, "      - { from: { job: %s }", p.inputName(in))
			if !whole && i > 0 && in >= 0 && p.unpartitioned(p.jobs[in]) {
				b.WriteString(", map: latest, refresh: true")
			}
			b.WriteString(" }\n")
		}
		if whole {
			b.WriteString("    partition_by: none\n")
		} else {
			b.WriteString("    partition_by: { time: day }\n    execution_strategy: PerPartition\n")
		}
		fmt.Fprintf(&b, "    config: { query: '%s' }\n", strings.ReplaceAll(p.query(j), "'", "''"))
	}
	b.WriteString("publish:\n")
	for _, j := range p.jobs {
		fmt.Fprintf(&b, "  out_%s: { from: { job: %s } }\n", j.name, j.name)
	}
	return b.String()
}

// unpartitioned reports whether a job makes one partition: because it says so, or because its first input does.
func (p *pipeline) unpartitioned(j queryJob) bool {
	return j.whole || j.inputs[0] >= 0 && p.unpartitioned(p.jobs[j.inputs[0]])
}

// edit changes one or two things.
func (p *pipeline) edit() {
	p.jobs = slices.Clone(p.jobs)
	for range 1 + p.rng.IntN(2) {
		i := p.rng.IntN(min(len(p.jobs), 4)) // those that others read
		j := p.jobs[i]
		j.columns = slices.Clone(j.columns)
		switch n := p.rng.IntN(12); {
		case n < 5:
			p.addColumn(&j)
		case n < 7 && len(j.columns) > 1:
			c := p.rng.IntN(len(j.columns))
			j.columns = slices.Delete(j.columns, c, c+1)
		case n < 9 && len(j.columns) > 0:
			j.columns[p.rng.IntN(len(j.columns))].expr = p.columnExpr(j)
		case n < 10 && len(j.columns) > 1:
			slices.Reverse(j.columns)
		case n < 11 && len(j.columns) > 0:
			j.columns[p.rng.IntN(len(j.columns))].name = one(p, columnPool...)
		default:
			j.where = one(p, "", p.condition(j))
		}
		p.jobs[i] = j
	}
}

// consents are given: columns come and go.
func consents(r *registry.DeployRequest) {
	r.AllowBreaking, r.AllowRemovals, r.AllowMoves = true, true, true
}

// deploy deploys the document, and reports whether it serves. Data may arrive while it is built or waits.
func (p *pipeline) deploy() bool {
	yaml := p.document()
	parked := p.rng.IntN(4) == 0
	deployed, err := p.w.TryDeploy(yaml, consents, func(r *registry.DeployRequest) {
		activate := !parked
		r.Activate = &activate
	})
	p.note("deploy: %v\n%s", err, yaml)
	if err != nil {
		return false
	}
	if p.rng.IntN(4) == 0 {
		p.w.Advance()
		p.data(p.rng.IntN(3))
		p.w.Poll()
	}
	p.w.Settle()
	if status, _ := p.w.Status(deployed.Version.ID); parked && status == registry.Ready {
		if p.rng.IntN(2) == 0 {
			p.data(p.rng.IntN(3))
			p.w.Poll()
			p.w.Settle()
		}
		_, err = p.w.D.Builds.Promote(p.t.Context(), p.w.Caller, "model", deployed.Version.Number,
			registry.AllowBreaking, registry.AllowRemovals)
		require.NoError(p.t, err, p.story())
		p.w.Settle()
	}
	status, reason := p.w.Status(deployed.Version.ID)
	p.note("v%d is %s %s", deployed.Version.Number, status, reason)
	if status != registry.Active {
		_, _ = p.w.D.Builds.Abandon(p.t.Context(), p.w.Caller, "model")
		p.w.Settle()
		return false
	}

	for len(p.served) <= deployed.Version.Number {
		p.served = append(p.served, nil)
	}
	p.served[deployed.Version.Number] = p.jobs
	for _, c := range deployed.Changes {
		if c.Action == deploy.Reuse && strings.HasPrefix(c.Reason, "reads ") {
			p.note("%s: %s", c.Job, c.Reason)
			p.reused++
		}
	}
	return true
}

// back rolls back to a random version that served.
func (p *pipeline) back() {
	var numbers []int
	for number, jobs := range p.served {
		if jobs != nil {
			numbers = append(numbers, number)
		}
	}
	to := one(p, numbers...)
	_, err := p.w.D.Builds.Rollback(p.t.Context(), p.w.Caller, "model", builds.RollbackRequest{To: &to,
		AllowBreaking: true})
	p.note("rollback to v%d: %v", to, err)
	if err == nil {
		p.jobs = p.served[to]
	}
	p.w.Settle()
}

// compare requires that every dataset is what a DAG makes that has nothing to reuse.
func (p *pipeline) compare() {
	p.w.Poll() // a file may have come before the first version served, whose source fires from then on
	p.w.Settle()
	p.w.Promote(dispatchertest.Later(time.Minute)) // what a build held back
	sweep(p.w)

	p.orgs++
	fresh := p.w.Org(fmt.Sprintf("fresh%d", p.orgs))
	p.w.Roots.Store(fresh.Caller.OrgSlug, p.w.Landing)
	deployed, err := fresh.TryDeploy(p.document())
	require.NoError(p.t, err, p.story())
	p.w.Settle()
	status, reason := fresh.Status(deployed.Version.ID)
	require.Equal(p.t, registry.Active, status, "a full rebuild fails: %s\n%s", reason, p.story())

	for _, j := range p.jobs {
		name := "out_" + j.name
		require.Equal(p.t, table(fresh, name), table(p.w.Tenant, name), "%s\n%s", name, p.story())
	}
	_, err = p.w.D.Upkeep.DeleteDAG(p.t.Context(), fresh.Caller, "model", nil, time.Now())
	require.NoError(p.t, err)
}

// table returns the rows of each partition with the names of their columns, in any order.
func table(tn *dispatchertest.Tenant, name string) map[string][]string {
	tn.W.T.Helper()
	var generation storage.Generation
	var partitions []storage.Partition
	require.NoError(tn.W.T, pg.InOrgTx(tn.W.T.Context(), tn.W.Requests, tn.Caller.OrgID,
		func(ctx context.Context, tx pgx.Tx) (err error) {
			generation, partitions, _, err = tn.W.D.Registry.ResolveForRead(ctx, tx, tn.Caller, name)
			return err
		}))
	found := map[string][]string{}
	for _, part := range partitions {
		columns, rows, err := tn.W.Storage.Preview(tn.W.T.Context(), generation, []storage.Partition{part}, 10_000, 0)
		require.NoError(tn.W.T, err)
		list := []string{fmt.Sprint(columns)}
		for _, row := range rows {
			list = append(list, fmt.Sprint(row))
		}
		slices.Sort(list[1:])
		found[part.Key] = list
	}
	return found
}

func (p *pipeline) story() string { return strings.Join(p.steps[max(0, len(p.steps)-12):], "\n") }

// run makes edits until so many have been served and compared.
func (p *pipeline) run(edits int) {
	for ; p.edits < edits; p.tries++ {
		require.Less(p.t, p.tries, 20*edits+100, "hardly any edit can be deployed")
		before := p.jobs
		if len(p.served) > 1 {
			p.edit()
		} else if p.tries > 0 { // not even the first document can be deployed: take another
			for i := range p.jobs {
				p.jobs = slices.Clone(p.jobs[:i])
				p.jobs = append(p.jobs, p.job(fmt.Sprintf("j%d", i)))
			}
		}
		if !p.deploy() {
			p.jobs = before
			continue
		}
		p.edits++
		p.compare()

		switch n := p.rng.IntN(6); {
		case n == 0:
			p.back()
			p.compare()
		case n == 1:
			p.data(p.rng.IntN(3))
			p.w.Poll()
			p.w.Settle()
		case n == 2 && p.rng.IntN(3) == 0:
			p.w.GC(time.Now().Add(dispatchertest.PastGrace))
		}
	}
}

func TestReuseByColumnEqualsAFullRebuild(t *testing.T) {
	t.Parallel()
	const eachWorld = 15
	for seed, left := uint64(1), *reuseEdits; left > 0; seed, left = seed+1, left-eachWorld {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			p := newPipeline(t, seed)
			p.run(min(eachWorld, left))
			t.Logf("%d edits of %d served, %d jobs were reused by their columns", p.edits, p.tries, p.reused)
		})
	}
}
