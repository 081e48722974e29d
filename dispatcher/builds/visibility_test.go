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

// Random deploys, promotions, rollbacks and changes of visibility: at any time everybody sees what the model says.
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

	inputs, previous := map[string]map[int]string{}, map[string]string{} // by version's number; what served before
	for range *readSteps {
		n := random.IntN(len(g.dags))
		dag := g.dags[n]
		if inputs[dag] == nil {
			inputs[dag] = map[int]string{1: ""}
		}
		parked, waits := g.others[dag]
		step := ""
		switch kind := random.IntN(10); {
		case kind < 4: // who reads a dataset
			dataset := dag + []string{"_x", "_y"}[random.IntN(2)]
			to := registry.Visibility{Opened: random.IntN(3) == 0,
				ReadRoles: [][]string{{}, {}, {"role:f"}, {"role:h"}, {"role:f", "role:h"}}[random.IntN(5)]}
			_, err := w.D.Registry.SetVisibility(t.Context(), w.Caller, dataset, to)
			require.NoError(t, err)
			g.roles[dataset], g.opened[dataset] = to.ReadRoles, to.Opened
			step = fmt.Sprintf("%s read by %v, opened: %t", dataset, to.ReadRoles, to.Opened)
		case waits:
			if kind < 7 {
				_, err := w.D.Builds.Promote(t.Context(), w.Caller, dag, parked.Number)
				require.NoError(t, err)
				w.Settle()
				previous[dag], g.served[dag] = g.served[dag], inputs[dag][parked.Number]
			} else {
				_, err := w.D.Builds.Abandon(t.Context(), w.Caller, dag)
				require.NoError(t, err)
			}
			delete(g.others, dag)
			step = fmt.Sprintf("promote or abandon %s v%d", dag, parked.Number)
		case kind == 9 && previous[dag] != g.served[dag]:
			_, err := w.D.Builds.Rollback(t.Context(), w.Caller, dag, builds.RollbackRequest{AllowMoves: true})
			require.NoError(t, err)
			w.Settle()
			previous[dag], g.served[dag] = g.served[dag], previous[dag]
			step = "roll back " + dag
		default: // another input, of an earlier DAG
			input := ""
			if n > 0 && random.IntN(4) > 0 {
				input = g.dags[random.IntN(n)] + []string{"_x", "_y"}[random.IntN(2)]
			}
			if input == g.served[dag] {
				continue
			}
			park := random.IntN(3) == 0
			deployed := w.Deploy(g.document(dag, input), func(r *registry.DeployRequest) {
				activate := !park
				r.Activate = &activate
			})
			w.Settle()
			g.remember(dag, input)
			inputs[dag][deployed.Version.Number] = input
			if park {
				g.others[dag] = deployed.Version
			} else {
				previous[dag], g.served[dag] = g.served[dag], input
			}
			step = fmt.Sprintf("deploy %s reading %q, parked: %t", dag, input, park)
		}

		t.Log(step)
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
