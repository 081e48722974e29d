package builds_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/dispatcher/dispatchertest"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/registry"
	"github.com/dagctl/dagctl/registry/contract"
)

// seen publishes `seen`, two columns in Postgres storage.
const seen = `
name: eyes
jobs:
` + dispatchertest.Raw + `  - name: made
    operator: sql
    inputs: [{ from: { job: raw } }]
    execution_strategy: PerPartition
    storage: { postgres: {} }
    config: { query: "SELECT content, 1 AS n FROM raw" }
publish:
  seen: { from: { job: made } }
`

var (
	seenMore      = dispatchertest.Edit(seen, "1 AS n FROM", "true AS more, 1 AS n FROM")
	seenLess      = dispatchertest.Edit(seen, ", 1 AS n FROM", " FROM")
	seenRetyped   = dispatchertest.Edit(seen, "1 AS n", "'one' AS n")
	seenRenamed   = dispatchertest.Edit(seen, "  seen: {", "  beheld: {")
	seenInParquet = dispatchertest.Edit(seen, "    storage: { postgres: {} }\n", "")
	seenNowhere   = dispatchertest.Edit(seen, "publish:\n  seen: { from: { job: made } }\n", "")
)

const kinds = `SELECT string_agg(attname || ' ' || format_type(atttypid, atttypmod), ', ' ORDER BY attnum)
	FROM pg_attribute WHERE attrelid = 'data_acme.seen'::regclass AND attnum > 0`

// unread returns the error with which the view of a name answers.
func unread(w *dispatchertest.World, name string) string {
	w.T.Helper()
	_, err := w.Pool.Exec(w.T.Context(), `SELECT FROM data_acme.`+name)
	require.Error(w.T, err)
	_, narrowed := w.Pool.Exec(w.T.Context(), `SELECT FROM data_acme.`+name+` WHERE content = 'a'`)
	require.Error(w.T, narrowed)
	return err.Error()
}

func TestAViewOfADatasetThatFillsAfterTheCutover(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Serve(seen)
	require.Zero(t, w.Count(`SELECT FROM pg_views WHERE viewname = 'seen'`), "its columns are not known")
	w.Probe.Put("raw", "2024-01-01", "a")
	w.Poll()
	w.Settle()
	require.Equal(t, []string{"a"}, dispatchertest.Texts(t, w.Pool, `SELECT content FROM data_acme.seen`))

	// While the next generation has no rows, the view has the columns that are known.
	w.Probe.Put("raw", "2024-01-01", "")
	w.Serve(dispatchertest.Edit(seen, "list: raw", "list: other"), func(r *registry.DeployRequest) {
		r.AllowRemovals = true
	})
	require.Empty(t, dispatchertest.Texts(t, w.Pool, `SELECT content FROM data_acme.seen`))
	w.Probe.Put("other", "2024-01-01", "b")
	w.Poll()
	w.Settle()
	require.Equal(t, []string{"b"}, dispatchertest.Texts(t, w.Pool, `SELECT content FROM data_acme.seen`))
}

// A view that readers kept from being defined is found, and so is one that was left out after the build defined it.
func TestAViewThatWasLeftOut(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Probe.Put("raw", "2024-01-01", "a")
	w.Serve(seen)
	w.Exec(`DROP VIEW data_acme.seen`)
	_, err := w.D.Builds.CoverViews(t.Context(), time.Now())
	require.NoError(t, err)
	require.Equal(t, []string{"a"}, dispatchertest.Texts(t, w.Pool, `SELECT content FROM data_acme.seen`))

	w.Exec(`DROP VIEW data_acme.seen`)
	w.Probe.Put("raw", "2024-01-02", "b")
	w.Poll()
	w.Settle()
	require.Equal(t, []string{"a", "b"}, dispatchertest.Texts(t, w.Pool, `SELECT content FROM data_acme.seen ORDER BY 1`))
}

// A table of the reader's own does not reach what runs with the owner's rights.
func TestAViewsErrorDoesNotReadTheReadersTables(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Probe.Put("raw", "2024-01-01", "a")
	w.Serve(seen)
	w.Serve(seenNowhere)
	conn, err := pgx.Connect(t.Context(), w.URL)
	require.NoError(t, err)
	defer conn.Close(t.Context())
	_, err = conn.Exec(t.Context(), `CREATE TEMP TABLE dag_current_versions (id int)`)
	require.NoError(t, err)
	_, err = conn.Exec(t.Context(), `SELECT FROM data_acme.seen`)
	require.ErrorContains(t, err, `dataset "seen" is no longer published by DAG eyes since v2`)
}

func TestAViewKeepsItsColumnsInPlace(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Probe.Put("raw", "2024-01-01", "a")
	w.Serve(seen)
	w.Exec(`CREATE VIEW mine AS SELECT * FROM data_acme.seen`)
	w.Serve(seenMore)
	require.Equal(t, []string{"content text, n integer, more boolean"}, dispatchertest.Texts(t, w.Pool, kinds))
	require.Equal(t, []string{"a1"}, dispatchertest.Texts(t, w.Pool, `SELECT content || n FROM mine`))

	// Nobody uses the column that goes.
	require.NoError(t, goBack(w, "eyes", 0))
	require.Equal(t, []string{"content text, n integer"}, dispatchertest.Texts(t, w.Pool, kinds))
	require.Equal(t, []string{"a1"}, dispatchertest.Texts(t, w.Pool, `SELECT content || n FROM mine`))
}

// A version with other columns, some versions ago, does not keep the view from showing what served before a cutover.
func TestAnOldSnapshotOutlivesColumnsThatCameAndWent(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Probe.Put("raw", "2024-01-01", "a")
	for _, version := range []string{seen, seenMore, dispatchertest.Edit(seen, "1 AS n", "3 AS n")} {
		w.Serve(version)
	}

	before, err := w.Pool.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
	require.NoError(t, err)
	defer before.Rollback(t.Context())
	_, err = before.Exec(t.Context(), `SELECT`) // takes the snapshot
	require.NoError(t, err)

	w.Serve(dispatchertest.Edit(seen, "1 AS n", "4 AS n"))
	var n int
	require.NoError(t, before.QueryRow(t.Context(), `SELECT n FROM data_acme.seen`).Scan(&n))
	require.Equal(t, 3, n)
	require.NoError(t, w.Pool.QueryRow(t.Context(), `SELECT n FROM data_acme.seen`).Scan(&n))
	require.Equal(t, 4, n)
}

func TestAColumnThatAUserReadsDoesNotGo(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ yaml, view, says string }{
		"goes":    {seenLess, `SELECT n FROM data_acme.seen`, `column "n" (integer) goes away, and view mine uses it`},
		"retyped": {seenRetyped, `SELECT n FROM data_acme.seen`, `column "n" changes from integer to text, and view mine uses it`},
		"stored": {seenLess, `SELECT content FROM data_acme.seen`,
			`materialized view mine depends on it`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := dispatchertest.NewWorld(t)
			w.Probe.Put("raw", "2024-01-01", "a")
			w.Serve(seen)
			kind := map[bool]string{true: "MATERIALIZED VIEW", false: "VIEW"}[name == "stored"]
			w.Exec(`CREATE ` + kind + ` mine AS ` + c.view)
			requireInUse(t, w, c.yaml, c.says)
			_, err := w.TryDeploy(c.yaml)
			dispatchertest.Refused(t, err)
			require.ErrorContains(t, err, c.says)

			// One that comes after the deploy fails the build.
			w.Exec(`DROP ` + kind + ` mine`)
			deployed := w.Deploy(c.yaml)
			w.Exec(`CREATE ` + kind + ` mine AS ` + c.view)
			w.Settle()
			status, reason := w.Status(deployed.Version.ID)
			require.Equal(t, registry.Failed, status)
			require.Contains(t, reason, "data_acme.seen")
			require.Contains(t, reason, c.says)
			require.Contains(t, reason, "--resume")

			w.Exec(`DROP ` + kind + ` mine`)
			w.Deploy(c.yaml, func(r *registry.DeployRequest) { r.Resume = true })
			w.Settle()
			status, reason = w.Status(deployed.Version.ID)
			require.Equal(t, registry.Active, status, reason)
		})
	}
}

// requireInUse requires that a plan says which object keeps a view from changing, in the words of a build that fails.
func requireInUse(t *testing.T, w *dispatchertest.World, yaml, says string) {
	t.Helper()
	at := slices.IndexFunc(w.Plan(yaml).Findings, func(f contract.Finding) bool { return f.Kind == contract.ViewInUse })
	require.GreaterOrEqual(t, at, 0)
	f := w.Plan(yaml).Findings[at]
	require.Equal(t, contract.Refuses, f.Level)
	require.Equal(t, "seen", f.Dataset)
	require.Contains(t, f.Text, "view data_acme.seen: ")
	require.Contains(t, f.Text, says)
}

// A plan says which views it makes anew, and what is carried over to them.
func TestAPlanSaysWhichViewsItMakesAnew(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Probe.Put("raw", "2024-01-01", "a")
	w.Serve(seen)
	w.Exec(`CREATE VIEW mine AS SELECT content FROM data_acme.seen`)
	texts := func(yaml string) (texts []string) {
		for _, f := range w.Plan(yaml).Findings {
			if f.Kind == contract.ViewRemade {
				texts = append(texts, string(f.Level)+" "+f.Text)
			}
		}
		return texts
	}
	require.Equal(t, []string{`says view data_acme.seen would be made anew, with its grants: column "n" (integer) ` +
		`goes away; defined over it again would be view mine`}, texts(seenLess))
	require.Equal(t, []string{`says view data_acme.seen would be made anew, with its grants: column "n" changes from ` +
		`integer to text; defined over it again would be view mine`}, texts(seenRetyped))
	require.Empty(t, texts(seenMore))
}

func TestABuildLearnsEarlyThatAViewCannotChange(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Probe.Put("raw", "2024-01-01", "a")
	w.Probe.Put("raw", "2024-01-02", "b")
	w.Serve(seen)
	deployed := w.Deploy(seenLess)
	w.Exec(`CREATE VIEW mine AS SELECT n FROM data_acme.seen`)
	w.Advance()
	claimed := w.Claim(w.D)
	require.Len(t, claimed, 2)
	dispatchertest.Execute(t.Context(), w.D, claimed[0])
	_, err := w.D.Builds.AdvanceBuilds(t.Context(), time.Now().Add(time.Minute))
	require.NoError(t, err)
	status, reason := w.Status(deployed.Version.ID)
	require.Equal(t, registry.Failed, status)
	require.Contains(t, reason, "view mine uses it")
}

func TestGrantsOnAViewStay(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Probe.Put("raw", "2024-01-01", "a")
	w.Serve(seen)
	role := "r_" + time.Now().Format("150405000000")
	w.Exec(`CREATE ROLE ` + role)
	t.Cleanup(func() { // roles belong to the server, not to the test's database
		_, err := w.Pool.Exec(context.WithoutCancel(t.Context()), `DROP OWNED BY `+role+`; DROP ROLE `+role)
		require.NoError(t, err)
	})
	w.Exec(`GRANT SELECT ON data_acme.seen TO ` + role + ` WITH GRANT OPTION`)
	w.Exec(`GRANT UPDATE (content), UPDATE (n) ON data_acme.seen TO PUBLIC`)
	w.Exec(`COMMENT ON COLUMN data_acme.seen.content IS 'what it says'`)
	w.Exec(`COMMENT ON VIEW data_acme.seen IS 'what was seen'`)
	w.Exec(`ALTER DEFAULT PRIVILEGES GRANT DELETE ON TABLES TO PUBLIC`)
	w.Exec(`CREATE VIEW mine AS SELECT content FROM data_acme.seen`)
	w.Exec(`GRANT SELECT ON mine TO ` + role)
	state := func() []string {
		return dispatchertest.Texts(t, w.Pool, `SELECT coalesce(x, '-') FROM (SELECT replace(relacl::text, $1, 'role') AS x
			FROM pg_class WHERE oid IN ('data_acme.seen'::regclass, 'mine'::regclass)
			UNION ALL SELECT attacl::text FROM pg_attribute WHERE attrelid = 'data_acme.seen'::regclass AND attname = 'content'
			UNION ALL SELECT col_description('data_acme.seen'::regclass, 1)
			UNION ALL SELECT split_part(obj_description('data_acme.seen'::regclass), E'\n', 1)) AS all_of_it ORDER BY 1`, role)
	}
	before := state()
	require.Contains(t, before, "what was seen")
	w.Serve(seenLess)
	require.Equal(t, []string{"content text"}, dispatchertest.Texts(t, w.Pool, kinds))
	require.Equal(t, before, state())
}

func TestANameThatIsServedNoMoreAnswersWithAnError(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ yaml, says string }{
		"unpublished": {seenNowhere, `dataset "seen" is no longer published by DAG eyes since v2`},
		"renamed":     {seenRenamed, `dataset "seen" is no longer published by DAG eyes since v2: it is called "beheld" now`},
		"moved":       {seenInParquet, `dataset "seen" of DAG eyes is not in PostgreSQL storage since v2`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := dispatchertest.NewWorld(t)
			w.Probe.Put("raw", "2024-01-01", "a")
			w.Serve(seen)
			w.Exec(`CREATE VIEW mine AS SELECT n FROM data_acme.seen`)
			w.Serve(c.yaml)
			require.Contains(t, unread(w, "seen"), c.says)
			require.NoError(t, goBack(w, "eyes", 0))
			require.Equal(t, []string{"a"}, dispatchertest.Texts(t, w.Pool, `SELECT content FROM data_acme.seen`))

			// When the rows go, so does the view, except where somebody's objects depend on it.
			w.Serve(dispatchertest.Edit(c.yaml, "1 AS n", "2 AS n"))
			w.GC(time.Now().Add(2 * dispatchertest.PastWindow))
			require.Contains(t, unread(w, "seen"), `dataset "seen" `)
			if name == "renamed" {
				require.Equal(t, []string{"a"}, dispatchertest.Texts(t, w.Pool, `SELECT content FROM data_acme.beheld`))
			}
			w.Serve(seen)
			require.Equal(t, []string{"a"}, dispatchertest.Texts(t, w.Pool, `SELECT content FROM data_acme.seen`))
			w.Exec(`DROP VIEW mine`)
			w.Serve(dispatchertest.Edit(c.yaml, "1 AS n", "3 AS n"))
			w.GC(time.Now().Add(4 * dispatchertest.PastWindow))
			require.Zero(t, w.Count(`SELECT FROM pg_views WHERE viewname = 'seen'`))
		})
	}
}

func TestAViewThatMovesBetweenDAGs(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Probe.Put("raw", "2024-01-01", "a")
	w.Serve(seen)
	w.Exec(`CREATE VIEW mine AS SELECT * FROM data_acme.seen`)
	w.Exec(`GRANT SELECT ON data_acme.seen TO PUBLIC`)
	other := dispatchertest.Edit(seenMore, "name: eyes", "name: heir", "{ job: made } }",
		"{ job: made }, takes_over: eyes }")
	first := w.Serve(dispatchertest.Edit(other, ", takes_over: eyes", "", "seen:", "other:"))
	w.Serve(other)
	require.Equal(t, []string{"content text, n integer, more boolean"}, dispatchertest.Texts(t, w.Pool, kinds))
	require.Equal(t, []string{"a"}, dispatchertest.Texts(t, w.Pool, `SELECT content FROM mine`))
	require.NoError(t, goBack(w, "heir", first.Version.Number, allowMoves))
	require.Equal(t, []string{"content text, n integer"}, dispatchertest.Texts(t, w.Pool, kinds))
	require.Equal(t, []string{"a"}, dispatchertest.Texts(t, w.Pool, `SELECT content FROM mine`))
	require.Equal(t, 1, w.Count(`SELECT FROM information_schema.role_table_grants
		WHERE table_schema = 'data_acme' AND table_name = 'seen' AND grantee = 'PUBLIC'`))

	// In Parquet, the view says who publishes the dataset.
	w.Serve(dispatchertest.Edit(other, "    storage: { postgres: {} }\n", ""))
	require.Contains(t, unread(w, "seen"), `is published by DAG heir`)
	require.NoError(t, goBack(w, "heir", first.Version.Number, allowMoves))
	require.Equal(t, []string{"a"}, dispatchertest.Texts(t, w.Pool, `SELECT content FROM mine`))
}

func TestASwapWaitsForAReaderOfAView(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Probe.Put("raw", "2024-01-01", "a")
	w.Serve(seen)
	w.Serve(seenMore)
	w.D.Builds.Patience = time.Second
	conn, err := pgx.Connect(t.Context(), w.URL+"&application_name=slow%20report")
	require.NoError(t, err)
	defer conn.Close(t.Context())
	reader, err := conn.Begin(t.Context())
	require.NoError(t, err)
	_, err = reader.Exec(t.Context(), `SELECT FROM data_acme.seen`)
	require.NoError(t, err)

	err = goBack(w, "eyes", 0)
	require.True(t, fault.Is(err, fault.Unavailable), "%v", err)
	require.ErrorContains(t, err, `application "slow report"`)
	require.ErrorContains(t, err, "data_acme.seen")

	// A deploy waits longer, and says what for.
	deployed := w.Deploy(seenLess)
	for range 3 {
		_, _ = w.D.Builds.AdvanceBuilds(t.Context(), time.Now())
		w.Route()
		w.Work()
	}
	_, err = w.D.Builds.AdvanceBuilds(t.Context(), time.Now().Add(time.Minute))
	require.True(t, fault.Is(err, fault.Unavailable), "%v", err)
	status, reason := w.Status(deployed.Version.ID)
	require.Equal(t, registry.Building, status)
	require.Contains(t, reason, "slow report")
	require.NoError(t, reader.Rollback(t.Context()))
	_, err = w.D.Builds.AdvanceBuilds(t.Context(), time.Now().Add(time.Hour))
	require.NoError(t, err)
	status, reason = w.Status(deployed.Version.ID)
	require.Equal(t, registry.Active, status)
	require.Empty(t, reason)

	// A rollback waits for a reader that ends in time.
	reader, err = conn.Begin(t.Context())
	require.NoError(t, err)
	_, err = reader.Exec(t.Context(), `SELECT FROM data_acme.seen`)
	require.NoError(t, err)
	w.D.Builds.Patience = 30 * time.Second
	released := make(chan error, 1)
	time.AfterFunc(time.Second, func() { released <- reader.Rollback(context.Background()) })
	require.NoError(t, goBack(w, "eyes", 0))
	require.NoError(t, <-released)
}

func TestASwapThatFailsForGoodFailsTheVersion(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Probe.Put("raw", "2024-01-01", "a")
	w.Serve(seen)
	w.Exec(`CREATE TABLE data_acme.beheld ()`)
	deployed := w.Deploy(seenRenamed)
	w.Settle()
	status, reason := w.Status(deployed.Version.ID)
	require.Equal(t, registry.Failed, status)
	require.Contains(t, reason, `data_acme.beheld`)

	w.Exec(`DROP TABLE data_acme.beheld`)
	w.Exec(`ALTER TABLE dag_activations ADD CONSTRAINT odd CHECK (reason <> 'deploy') NOT VALID`)
	w.Deploy(seenRenamed, func(r *registry.DeployRequest) { r.Resume = true })
	w.Settle()
	status, reason = w.Status(deployed.Version.ID)
	require.Equal(t, registry.Failed, status)
	require.Contains(t, reason, `odd`)
}

// The deletion of a DAG gives a name back with its view, or is refused like a rollback.
func TestADeletionDefinesTheViewsOfNamesThatGoBack(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Probe.Put("raw", "2024-01-01", "a")
	w.Serve(seen)
	heir := dispatchertest.Edit(seenMore, "name: eyes", "name: heir", "{ job: made } }",
		"{ job: made }, takes_over: eyes }")
	w.Serve(heir)
	w.Serve(dispatchertest.Edit(heir, "name: heir", "name: third", "takes_over: eyes", "takes_over: heir"))
	remove := func(dag string) error {
		_, err := w.D.Upkeep.DeleteDAG(t.Context(), w.Caller, dag, []registry.Consent{contract.AllowMoves}, time.Now())
		return err
	}

	// The name goes back past a DAG that is gone already.
	require.NoError(t, remove("heir"))
	w.Exec(`CREATE VIEW mine AS SELECT more FROM data_acme.seen`)
	err := remove("third")
	require.True(t, fault.Is(err, fault.Conflict), "%v", err)
	require.ErrorContains(t, err, `column "more" (boolean) goes away, and view mine uses it`)
	require.Equal(t, []string{"true"}, dispatchertest.Texts(t, w.Pool, `SELECT more::text FROM mine`))

	w.Exec(`DROP VIEW mine`)
	require.NoError(t, remove("third"))
	require.Equal(t, []string{"a"}, dispatchertest.Texts(t, w.Pool, `SELECT content FROM data_acme.seen`))
	require.Equal(t, []string{"content text, n integer"}, dispatchertest.Texts(t, w.Pool, kinds))
}

// What users built on a view keeps it from being defined. It keeps no task from ending.
func TestATaskEndsWhoseViewCannotBeDefined(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Probe.Put("raw", "2024-01-01", "a")
	w.Serve(seen)
	w.Exec(`CREATE OR REPLACE VIEW data_acme.seen AS SELECT 'a' AS content, 1 AS n, true AS extra`)
	w.Exec(`COMMENT ON VIEW data_acme.seen IS NULL`)
	w.Exec(`CREATE VIEW mine AS SELECT extra FROM data_acme.seen`)

	w.Probe.Put("raw", "2024-01-02", "b")
	w.Poll()
	w.Settle()
	require.Equal(t, map[string][]string{"2024-01-01": {"a,1"}, "2024-01-02": {"b,1"}}, w.Read("seen"))
	_, err := w.D.Builds.CoverViews(t.Context(), time.Now())
	require.NoError(t, err)
	w.Exec(`DROP VIEW mine`)
	_, err = w.D.Builds.CoverViews(t.Context(), time.Now())
	require.NoError(t, err)
	require.Equal(t, []string{"content text, n integer"}, dispatchertest.Texts(t, w.Pool, kinds))
	require.Equal(t, []string{"a", "b"}, dispatchertest.Texts(t, w.Pool, `SELECT content FROM data_acme.seen ORDER BY 1`))
}
