package builds_test

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/dispatcher/builds"
	"github.com/dagctl/dagctl/dispatcher/dispatchertest"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/registry"
)

var readSteps = flag.Int("read-steps", 60, "random steps of a history of who may read what")

// readGraph is a plain model of who may read what: some DAGs, each with a job x that reads either its own source or
// what an earlier DAG publishes, and a job y that reads x. A generation is known by what x reads.
type readGraph struct {
	dags   []string
	made   map[string][]string         // by DAG: what x has read in any version, each once
	served map[string]string           // by DAG: what x reads now
	roles  map[string][]string         // by dataset, such as a_x
	opened map[string]bool             // by dataset
	others map[string]registry.Version // by DAG: a version that waits to be promoted
}

// closed reports whether somebody with some roles may not read a dataset's generation of a DAG whose x reads input.
func (g *readGraph) closed(dataset, input string, have []string) bool {
	dag, job, _ := strings.Cut(dataset, "_")
	own := g.roles[dataset]
	if len(own) > 0 && !slices.ContainsFunc(own, func(r string) bool { return slices.Contains(have, r) }) {
		return true
	}
	if g.opened[dataset] {
		return false
	}
	if job == "y" {
		return g.closed(dag+"_x", input, have)
	}
	if input == "" {
		return false
	}
	of, _, _ := strings.Cut(input, "_")
	return slices.ContainsFunc(g.made[of], func(made string) bool { return g.closed(input, made, have) })
}

// visible returns the published datasets that somebody with some roles sees.
func (g *readGraph) visible(have []string) []string {
	names := []string{}
	for _, dag := range g.dags {
		for _, job := range []string{"_x", "_y"} {
			if !g.closed(dag+job, g.served[dag], have) {
				names = append(names, dag+job)
			}
		}
	}
	return names
}

// document returns a DAG whose x reads an input.
func (g *readGraph) document(dag, input string) string {
	from, query := "{ job: raw }", "raw"
	if input != "" {
		from, query = "{ dataset: "+input+" }", input
	}
	return dispatchertest.Edit(`
name: DAG
jobs:
`+dispatchertest.Raw+`  - name: x
    operator: sql
    inputs: [{ from: INPUT, as: it }]
    execution_strategy: PerPartition
    partition_by: { time: day }
    config: { query: "SELECT content FROM it -- MARK" }
  - name: y
    operator: sql
    inputs: [{ from: { job: x } }]
    execution_strategy: PerPartition
    config: { query: "SELECT content FROM x" }
publish:
  DAG_x: { from: { job: x } }
  DAG_y: { from: { job: y } }
`, "DAG", dag, "INPUT", from, "MARK", query)
}

func (g *readGraph) remember(dag, input string) {
	if !slices.Contains(g.made[dag], input) {
		g.made[dag] = append(g.made[dag], input)
	}
}

// who is a caller of a history. The model knows of each which DAGs they may deploy, and their org roles.
type who struct {
	authz.Caller
	deploys string // the names of DAGs, each one letter
}

// may reports whether a caller may make a version of a DAG serve, of which x reads input: they may deploy the DAG, and
// read what its jobs read, which is what serves now. To go back to a version, they must also be able to read what it
// makes.
func (g *readGraph) may(c who, dag, input string, back bool) bool {
	if !strings.Contains(c.deploys, dag) {
		return false
	}
	if c.Role == authz.RoleAdmin {
		return true
	}
	of, _, _ := strings.Cut(input, "_")
	if input != "" && g.closed(input, g.served[of], c.OrgRoles) {
		return false
	}
	return !g.closed(dag+"_x", input, c.OrgRoles) && (!back || !g.closed(dag+"_y", input, c.OrgRoles))
}

// callersOf returns everybody who takes steps: admins, people with each role on all DAGs or some, and another org's.
func callersOf(w *dispatchertest.World, stranger authz.Caller) (all []who) {
	add := func(name, deploys string, role authz.Role, grants []authz.Grant, roles ...string) {
		all = append(all, who{authz.Caller{OrgID: w.Caller.OrgID, OrgSlug: w.Caller.OrgSlug, Actor: "token:" + name,
			Role: role, Grants: grants, OrgRoles: roles}, deploys})
	}
	writes := func(dags string) []authz.Grant { return []authz.Grant{{Role: authz.RoleWriter, DAGs: dags}} }
	add("admin", "abcd", authz.RoleAdmin, nil)
	add("reader", "", authz.RoleReader, nil, "role:f", "role:h")
	add("proposer", "", authz.RoleProposer, nil, "role:f", "role:h")
	add("writer", "abcd", authz.RoleWriter, nil)
	add("writer-f", "abcd", authz.RoleWriter, nil, "role:f")
	add("writer-fh", "abcd", authz.RoleWriter, nil, "role:f", "role:h")
	add("of-c", "c", authz.RoleReader, writes("c*"), "role:h")
	add("of-d", "d", authz.RoleProposer, writes("d"))
	return append(all, who{Caller: stranger})
}

// wholeOrg returns the rows of an org that steps change, as texts.
func wholeOrg(t *testing.T, w *dispatchertest.World) (rows []string) {
	t.Helper()
	for _, table := range []string{"dag_versions", "datasets", "dataset_versions", "dag_current_versions", "tasks",
		"jobs", "dataset_names", "audit_log"} {
		rows = append(rows, dispatchertest.Texts(t, w.Pool, `SELECT to_jsonb(t)::text FROM `+table+` t
			WHERE org_id = $1 ORDER BY 1`, w.Caller.OrgID)...)
	}
	return rows
}

// Random deploys, promotions, rollbacks and changes of visibility by callers of every kind: whoever may not do
// something is refused and changes nothing, and at any time everybody sees what the model says.
func TestReadRolesInRandomHistories(t *testing.T) {
	t.Parallel()
	seed := uint64(time.Now().UnixNano())
	t.Log("seed", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	w := dispatchertest.NewWorld(t)
	g := &readGraph{dags: []string{"a", "b", "c", "d"}, made: map[string][]string{}, served: map[string]string{},
		roles: map[string][]string{}, opened: map[string]bool{}, others: map[string]registry.Version{}}
	for _, role := range []string{"f", "h"} {
		_, err := authz.CreateOrgRole(t.Context(), w.Requests, w.Caller, role, "")
		require.NoError(t, err)
	}
	for _, dag := range g.dags {
		w.Serve(g.document(dag, ""))
		g.remember(dag, "")
	}
	callers := callersOf(w, w.Org("other").Caller)

	inputs, previous := map[string]map[int]string{}, map[string]string{} // by version's number; what served before
	refused, done := 0, 0
	for done+refused < *readSteps {
		n := random.IntN(len(g.dags))
		dag := g.dags[n]
		if inputs[dag] == nil {
			inputs[dag] = map[int]string{1: ""}
		}
		c := callers[random.IntN(len(callers))]
		if random.IntN(3) == 0 {
			c = callers[0]
		}
		parked, waits := g.others[dag]

		// A step does something as the caller, whom a route authorizes before, and notes in the model what it did.
		var (
			step string
			do   = authz.Deploy
			may  bool
			act  func() error
			note func()
		)
		switch kind := random.IntN(10); {
		case kind < 4: // who reads a dataset
			dataset := dag + []string{"_x", "_y"}[random.IntN(2)]
			to := registry.Visibility{Opened: random.IntN(3) == 0,
				ReadRoles: [][]string{{}, {}, {"role:f"}, {"role:h"}, {"role:f", "role:h"}}[random.IntN(5)]}
			step = fmt.Sprintf("%s read by %v, opened: %t", dataset, to.ReadRoles, to.Opened)
			do, may = authz.Administer, c.Role == authz.RoleAdmin && c.deploys != ""
			act = func() error {
				_, err := w.D.Registry.SetVisibility(t.Context(), c.Caller, dataset, to)
				return err
			}
			note = func() { g.roles[dataset], g.opened[dataset] = to.ReadRoles, to.Opened }
		case waits && kind < 7:
			input := inputs[dag][parked.Number]
			step, may = fmt.Sprintf("promote %s v%d", dag, parked.Number), g.may(c, dag, input, false)
			act = func() error {
				_, err := w.D.Builds.Promote(t.Context(), c.Caller, dag, parked.Number)
				return err
			}
			note = func() {
				previous[dag], g.served[dag] = g.served[dag], input
				delete(g.others, dag)
			}
		case waits:
			step, may = fmt.Sprintf("abandon %s v%d", dag, parked.Number), strings.Contains(c.deploys, dag)
			act = func() error {
				_, err := w.D.Builds.Abandon(t.Context(), c.Caller, dag)
				return err
			}
			note = func() { delete(g.others, dag) }
		case kind == 9 && previous[dag] != g.served[dag]:
			step, may = "roll back "+dag, g.may(c, dag, previous[dag], true)
			act = func() error {
				_, err := w.D.Builds.Rollback(t.Context(), c.Caller, dag, builds.RollbackRequest{AllowMoves: true})
				return err
			}
			note = func() { previous[dag], g.served[dag] = g.served[dag], previous[dag] }
		default: // another input, of an earlier DAG
			input := ""
			if n > 0 && random.IntN(4) > 0 {
				input = g.dags[random.IntN(n)] + []string{"_x", "_y"}[random.IntN(2)]
			}
			another := c.OrgID != w.Caller.OrgID // it may have DAGs of such names
			if input == g.served[dag] || another {
				continue
			}
			park := random.IntN(3) == 0
			step = fmt.Sprintf("deploy %s reading %q, parked: %t", dag, input, park)
			may = g.may(c, dag, input, false)
			var deployed registry.Deployment
			act = func() (err error) {
				as := *w.Tenant
				as.Caller = c.Caller
				deployed, err = as.TryDeploy(g.document(dag, input), func(r *registry.DeployRequest) {
					activate := !park
					r.Activate = &activate
				})
				return err
			}
			note = func() {
				g.remember(dag, input)
				inputs[dag][deployed.Version.Number] = input
				if park {
					g.others[dag] = deployed.Version
				} else {
					previous[dag], g.served[dag] = g.served[dag], input
				}
			}
		}

		step += " by " + c.Actor
		t.Log(step)
		before := wholeOrg(t, w)
		err := authz.Authorize(c.Caller, do, authz.OnDAG(dag))
		if err == nil {
			err = act()
		}
		if may {
			require.NoError(t, err, "%s: %+v", step, g)
			w.Settle()
			note()
			done++
		} else {
			absent := fault.Is(err, fault.NotFound) || fault.Is(err, fault.Invalid) &&
				strings.Contains(err.Error(), "which no DAG publishes")
			require.Error(t, err, step)
			known := c.OrgID == w.Caller.OrgID // to another org, there is nothing
			require.True(t, !known || fault.Is(err, fault.Forbidden) || absent, "%s: %v: %+v", step, err, g)
			w.Settle()
			require.Equal(t, before, wholeOrg(t, w), "%s changed something", step)
			refused++
		}
		requireSeen(t, w, g, random, step)
	}
	t.Logf("%d steps done, %d refused", done, refused)
}

// requireSeen checks that callers with each choice of org roles see what the model says.
func requireSeen(t *testing.T, w *dispatchertest.World, g *readGraph, random *rand.Rand, step string) {
	t.Helper()
	for _, have := range [][]string{nil, {"role:f"}, {"role:h"}, {"role:f", "role:h"}} {
		for _, role := range []authz.Role{authz.RoleReader, authz.RoleWriter} {
			as := authz.Caller{OrgID: w.Caller.OrgID, OrgSlug: w.Caller.OrgSlug, Role: role, OrgRoles: have}
			found, err := w.D.Registry.Datasets(t.Context(), as, registry.DatasetFilter{Limit: 100})
			require.NoError(t, err)
			names := []string{}
			for _, d := range found {
				names = append(names, d.Name)
			}
			require.Equal(t, g.visible(have), names, "after %s, as %s with %v: %+v", step, role, have, g)
			if random.IntN(2) == 0 { // otherwise what an earlier step kept is out of date
				w.D.Registry.KeepHidden(t.Context(), as)
				requireKept(t, w, have)
			}
		}
	}
}

// requireKept checks that what is hidden from some roles is kept, and is what is found without it.
func requireKept(t *testing.T, w *dispatchertest.World, have []string) {
	t.Helper()
	var kept bool
	require.NoError(t, w.Pool.QueryRow(t.Context(), `SELECT hidden_is_kept($1, $2)`, w.Caller.OrgID, have).Scan(&kept))
	require.True(t, kept)
	found := func(tx pgx.Tx) (all []string) {
		rows, err := tx.Query(t.Context(), `
			SELECT 'generation ' || dataset_version || dataset_uuid FROM hidden_generations($1, $2)
			UNION ALL SELECT 'dataset ' || hidden_datasets($1, $2) UNION ALL SELECT 'job ' || hidden_jobs($1, $2) ORDER BY 1`,
			w.Caller.OrgID, have)
		require.NoError(t, err)
		all, err = pgx.CollectRows(rows, pgx.RowTo[string])
		require.NoError(t, err)
		return all
	}

	tx, err := w.Pool.Begin(t.Context())
	require.NoError(t, err)
	defer tx.Rollback(t.Context())
	as := found(tx)
	_, err = tx.Exec(t.Context(), `DELETE FROM kept_hidden`)
	require.NoError(t, err)
	require.Equal(t, found(tx), as)
}

// TestWhatIsKeptOfWhatIsHidden changes who may read a dataset while what is hidden is kept.
func TestWhatIsKeptOfWhatIsHidden(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	g := &readGraph{dags: []string{"a"}}
	w.Serve(g.document("a", ""))
	reader := authz.Caller{OrgID: w.Caller.OrgID, OrgSlug: w.Caller.OrgSlug, Role: authz.RoleReader}
	hidden := func() (n int) {
		require.NoError(t, w.Pool.QueryRow(t.Context(), `SELECT count(*) FROM hidden_datasets($1, '{}')`,
			w.Caller.OrgID).Scan(&n))
		return n
	}
	isKept := func() (kept bool) {
		require.NoError(t, w.Pool.QueryRow(t.Context(), `SELECT hidden_is_kept($1, '{}')`, w.Caller.OrgID).Scan(&kept))
		return kept
	}
	set := func(tx pgx.Tx, dataset, roles string) {
		_, err := tx.Exec(t.Context(), `UPDATE datasets SET read_roles = $3 WHERE org_id = $1 AND name = $2`,
			w.Caller.OrgID, dataset, roles)
		require.NoError(t, err)
	}

	tx, err := w.Pool.Begin(t.Context())
	require.NoError(t, err)
	set(tx, "a_y", "{role:f}")
	require.NoError(t, tx.Commit(t.Context()))
	w.D.Registry.KeepHidden(t.Context(), reader)
	require.True(t, isKept())
	require.Equal(t, 1, hidden())

	// Two that change something at once do not wait for each other, whatever is kept before the second one commits.
	one, err := w.Pool.Begin(t.Context())
	require.NoError(t, err)
	defer one.Rollback(t.Context())
	other, err := w.Pool.Begin(t.Context())
	require.NoError(t, err)
	defer other.Rollback(t.Context())
	set(one, "a_x", "{role:f}")
	set(other, "a_y", "{role:h}")
	require.NoError(t, other.Commit(t.Context()))
	require.False(t, isKept())
	require.Equal(t, 1, hidden(), "found anew")
	w.D.Registry.KeepHidden(t.Context(), reader)
	require.NoError(t, one.Commit(t.Context()))
	require.False(t, isKept())
	require.Equal(t, 2, hidden(), "a_x, and a_y that is made from it")

	// Changes are counted up to a thousand, and then from zero.
	_, err = w.Pool.Exec(t.Context(), `INSERT INTO reading_changes (org_id) SELECT $1 FROM generate_series(1, 1000)`,
		w.Caller.OrgID)
	require.NoError(t, err)
	w.D.Registry.KeepHidden(t.Context(), reader)
	require.True(t, isKept())
	requireKept(t, w, []string{})
	var changes int
	require.NoError(t, w.Pool.QueryRow(t.Context(), `SELECT count(*) FROM reading_changes`).Scan(&changes))
	require.Equal(t, 0, changes)
}
