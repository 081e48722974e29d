package postgresload_test

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/engine/enginetest"
	"github.com/dagctl/dagctl/internal/duck"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/secret"
	"github.com/dagctl/dagctl/internal/testdb"
	"github.com/dagctl/dagctl/operators"
	"github.com/dagctl/dagctl/operators/operatortest"
	"github.com/dagctl/dagctl/operators/postgresload"
	"github.com/dagctl/dagctl/storage"
)

func operator(t *testing.T) operators.Operator {
	t.Helper()
	op, err := postgresload.New(operators.Options{Engines: enginetest.Engines(),
		AllowedAddresses: []string{"127.0.0.0/8"}})
	require.NoError(t, err)
	return op
}

func with(f testdb.Front, table, mode string, more map[string]any) map[string]any {
	config := f.Config("table="+table, "mode="+mode)
	for key, value := range more {
		config[key] = value
	}
	return config
}

// target is a database with a table to load.
type target struct {
	testdb.Front
	conn, watch *pgx.Conn
	op          operators.Operator
}

func newTarget(t *testing.T, statements string) *target {
	t.Helper()
	url := testdb.Empty(t)
	connect := func() *pgx.Conn {
		conn, err := pgx.Connect(t.Context(), url)
		require.NoError(t, err)
		t.Cleanup(func() { _ = conn.Close(context.WithoutCancel(t.Context())) })
		return conn
	}
	w := &target{testdb.Behind(t, url, nil), connect(), connect(), operator(t)}
	w.exec(t, statements)
	return w
}

// loading returns how many connections of the operator are in a state.
func (w *target) loading(t *testing.T, state string) (n int) {
	t.Helper()
	require.NoError(t, w.watch.QueryRow(t.Context(), `SELECT count(*) FROM pg_stat_activity
		WHERE datname = current_database() AND application_name = 'dagctl d/j' AND `+state).Scan(&n))
	return n
}

func (w *target) exec(t *testing.T, statements string) {
	t.Helper()
	_, err := w.conn.PgConn().Exec(t.Context(), statements).ReadAll()
	require.NoError(t, err)
}

// rows returns the rows of a query, each as text.
func (w *target) rows(t *testing.T, query string) []string {
	t.Helper()
	found, err := w.conn.Query(t.Context(), "SELECT q::text FROM ("+query+") AS q")
	require.NoError(t, err)
	rows, err := pgx.CollectRows(found, pgx.RowTo[string])
	require.NoError(t, err)
	return rows
}

var version = uuid.New()

// task returns a task whose input is the rows of a query, as one revision of a partition.
func (w *target) task(t *testing.T, key string, revision int64, query string, config map[string]any) *operators.Task {
	t.Helper()
	session, err := duck.Open(t.Context(), duck.Config{AnyPath: true, Threads: 1, TimeZone: "UTC"})
	require.NoError(t, err)
	defer session.Close()
	file := filepath.Join(t.TempDir(), "part.parquet")
	_, err = session.CopyToParquet(t.Context(), query, file)
	require.NoError(t, err)

	input := operators.AssignedInput{As: "rows", Generation: storage.Generation{Version: version},
		Partitions: []storage.Partition{{Key: key, Revision: revision}}}
	task := &operators.Task{
		Assignment: operators.Assignment{TaskID: uuid.Must(uuid.NewV7()), Attempt: 1, OrgSlug: "acme", DAG: "d",
			Job: "j", Config: config,
			Secrets:   map[string]secret.Value{"PG": secret.New("PG", w.Password, []string{"http://*"})},
			Partition: &operators.PartitionRange{Key: key}, Inputs: []operators.AssignedInput{input}},
		InputFiles: [][]string{{file}}, Scratch: t.TempDir(), Progress: func(int, string) {},
		Log: slog.New(slog.DiscardHandler)}
	t.Cleanup(task.Use(enginetest.Engines()))
	return task
}

func (w *target) load(t *testing.T, task *operators.Task) string {
	t.Helper()
	result, err := w.op.Run(t.Context(), task)
	require.NoError(t, err)
	return string(result.Result)
}

func (w *target) fails(t *testing.T, task *operators.Task, message string) {
	t.Helper()
	_, err := w.op.Run(t.Context(), task)
	require.ErrorContains(t, err, message)
	require.True(t, operators.IsPermanent(err), "%v", err)
	require.NotContains(t, err.Error(), w.Password)
}

func TestPostgresLoadConforms(t *testing.T) {
	t.Parallel()
	w := newTarget(t, "CREATE TABLE t (id bigint PRIMARY KEY, v text)")
	numbers := operatortest.Input{As: "numbers", Query: "SELECT range AS id, 'n' || range AS v FROM range(3)"}
	none := numbers
	none.Empty = true
	filtered := numbers
	filtered.Where = []dag.Condition{{Column: "id", Values: []any{int64(1)}}}
	key := map[string]any{"key": []any{"id"}}
	loads := func(name string, in operatortest.Input, table, mode string, more map[string]any) operatortest.Case {
		return operatortest.Case{Name: name, Config: with(w.Front, table, mode, more), Inputs: []operatortest.Input{in},
			Outputs: []string{},
			Secrets: map[string]secret.Value{"PG": secret.New("PG", w.Password, []string{"http://*"})}}
	}
	fails := func(c operatortest.Case, message string) operatortest.Case {
		c.Name, c.Fails, c.Permanent = message, message, true
		return c
	}
	refused := func(message, table, mode string, more map[string]any) operatortest.Case {
		return operatortest.Case{Name: message, Config: with(w.Front, table, mode, more), Refused: message}
	}

	operatortest.Run(t, w.op,
		loads("upsert", numbers, "t", "upsert", key),
		loads("rows that where selects", filtered, "public.t", "upsert", key),
		loads("no rows", none, "u", "append", map[string]any{"create": true}),
		fails(loads("", numbers, "nothing", "append", nil), "there is no table nothing"),
		fails(loads("", numbers, "t", "upsert", map[string]any{"key": []any{"none"}}), `no column "none"`),
		refused("need each other", "t", "upsert", nil),
		refused("need each other", "t", "append", key),
		refused("need each other", "t", "replace_partition", nil),
		refused("NAME or SCHEMA.NAME", `t"; DROP`, "append", nil),
		refused("NAME or SCHEMA.NAME", "a.b.c", "append", nil),
		refused("_dagctl_loads has the loads", "_dagctl_loads", "append", nil),
		refused("mode", "t", "merge", nil),
	)
}

func TestJobsThatWouldUndoTheirLoads(t *testing.T) {
	t.Parallel()
	spec := operator(t).Spec()
	same := []dag.Input{{Map: dag.Mapping{Kind: dag.MapSame}}}
	latest := []dag.Input{{Map: dag.Mapping{Kind: dag.MapLatest}}}
	day := dag.Partitioning{Kind: dag.ByTime, Unit: dag.Day}
	config := func(mode string, more ...string) map[string]any {
		c := map[string]any{"host": "db", "database": "d", "user": "u", "table": "t", "mode": mode}
		if len(more) > 0 {
			c[more[0]] = more[1]
		}
		return c
	}
	for _, c := range []struct {
		job  dag.Job
		want string
	}{
		{dag.Job{Config: config("append"), Inputs: same, PartitionBy: day}, ""},
		{dag.Job{Config: config("append"), Inputs: latest}, "append needs an input"},
		{dag.Job{Config: config("append"), Inputs: append(same, latest...)}, "loads one input"},
		{dag.Job{Config: config("append"), Inputs: same, Outputs: []string{"o"}}, "outputs: 0"},
		{dag.Job{Config: config("replace"), Inputs: latest}, ""},
		{dag.Job{Config: config("replace"), Inputs: same, PartitionBy: day}, "without partitions"},
		{dag.Job{Config: config("replace_partition", "partition_column", "c"), Inputs: same, PartitionBy: day}, ""},
		{dag.Job{Config: config("replace_partition", "partition_column", "c"), Inputs: same}, "needs partitions"},
	} {
		fault := spec.CheckJob(&c.job)
		if fault == nil {
			fault = spec.CheckPartitions(&c.job)
		}
		if c.want == "" {
			require.Nil(t, fault, "%v", c.job.Config)
			continue
		}
		require.NotNil(t, fault, c.want)
		require.Contains(t, fault.Message, c.want)
	}
}

// A job that states no partitioning has that of its input.
func TestLoadsOfInheritedPartitions(t *testing.T) {
	t.Parallel()
	catalog := dag.Catalog{Operators: map[string]dag.OperatorSpec{"postgres_load": operator(t).Spec(),
		"command": {Name: "command", Source: true, Reactive: true}}}
	for _, c := range []struct{ from, mode, want string }{
		{"days", "replace", "replace needs a job without partitions"},
		{"days", "replace_partition, partition_column: day", ""},
		{"whole", "replace", ""},
		{"whole", "replace_partition, partition_column: day", "replace_partition needs partitions"},
		{"days", "append", ""},
		{"whole", "append", ""},
		{"segments", "append", "and that is none of a cursor"},
		{"segments", "upsert, key: [id]", ""},
	} {
		_, problems := dag.Parse(dag.File{Name: "dag.yaml", Text: []byte(`
name: loading
jobs:
  - { name: days, operator: command, source: { kind: manual }, partition_by: { time: day } }
  - { name: whole, operator: command, source: { kind: manual } }
  - { name: segments, operator: command, source: { kind: manual }, partition_by: { cursor: id } }
  - { name: load, operator: postgres_load, outputs: 0, inputs: [{ from: { job: ` + c.from + ` }}],
      config: { host: db, database: d, user: u, table: t, mode: ` + c.mode + ` } }
`)}, catalog)
		if c.want == "" {
			require.Empty(t, problems, "%v", c)
			continue
		}
		require.Len(t, problems, 1, "%v", c)
		require.Contains(t, problems[0].Message, c.want)
	}
}

func TestUpsert(t *testing.T) {
	t.Parallel()
	w := newTarget(t, `CREATE TABLE t (id int PRIMARY KEY, v varchar(3), seen date DEFAULT '2024-01-01');
		INSERT INTO t VALUES (1, 'old', '2020-02-02'), (9, 'own', DEFAULT)`)
	config := with(w.Front, "t", "upsert", map[string]any{"key": []any{"id"}})
	w.load(t, w.task(t, "a", 1, "FROM (VALUES (1, 'new'), (2, 'x'), (2, 'y')) AS v(id, v)", config))
	require.Equal(t, []string{"(1,new,2020-02-02)", "(2,y,2024-01-01)", "(9,own,2024-01-01)"},
		w.rows(t, "SELECT * FROM t ORDER BY id"))

	w.fails(t, w.task(t, "a", 2, "SELECT NULL::INTEGER AS id, 'x' AS v", config), "row 1 has no id")
	w.fails(t, w.task(t, "a", 2, "SELECT 3 AS id, 'long' AS v", config),
		`row 1, column "v" has a value that does not fit character varying(3)`)
	w.fails(t, w.task(t, "a", 2, "SELECT 3.5 AS id, 'x' AS v", config), "does not fit integer")
	w.fails(t, w.task(t, "a", 2, "SELECT 3 AS id, 1 AS more", config), `no column "more"`)
	w.fails(t, w.task(t, "a", 2, "SELECT 3 AS id, 'x' AS v", with(w.Front, "t", "upsert", map[string]any{
		"key": []any{"v"}})), "no unique or exclusion constraint")
	require.Equal(t, []string{"(a,1)"}, w.rows(t, "SELECT partition, pins->>(SELECT jsonb_object_keys(pins)) "+
		"FROM _dagctl_loads"), "a failed load is none")
}

// Each revision is appended once, whatever attempts there are.
func TestAppendOncePerRevision(t *testing.T) {
	t.Parallel()
	w := newTarget(t, "")
	config := with(w.Front, "s.t", "append", map[string]any{"create": true})
	w.exec(t, "CREATE SCHEMA s")
	row := func(revision int) string { return fmt.Sprintf("SELECT %d AS r, [1, NULL] AS l, 0.10 AS d", revision) }

	first := w.task(t, "a", 1, row(1), config)
	require.JSONEq(t, `{"table": "s.t", "rows": 1}`, w.load(t, first))
	first.Attempt = 2
	require.JSONEq(t, `{"table": "s.t", "rows": 1, "already_loaded": true}`, w.load(t, first))
	require.Equal(t, []string{`(1,"[1, null]",0.10)`}, w.rows(t, "SELECT * FROM s.t"))

	w.load(t, w.task(t, "a", 2, row(2), config))
	w.load(t, w.task(t, "b", 1, row(3), config))
	w.fails(t, first, "a newer revision of partition a is in s.t already")
	require.Equal(t, []string{"(1)", "(2)", "(3)"}, w.rows(t, "SELECT r FROM s.t ORDER BY r"))

	// A new revision with the rows of the last one, as an invalidation makes, and one of another version that serves.
	repeated := `{"table": "s.t", "rows": 1, "already_loaded": true}`
	require.JSONEq(t, repeated, w.load(t, w.task(t, "a", 3, row(2), config)))
	other := w.task(t, "a", 1, row(2), config)
	other.Inputs[0].Generation.Version = uuid.New()
	require.JSONEq(t, repeated, w.load(t, other))
	require.Equal(t, []string{"(1)", "(2)", "(3)"}, w.rows(t, "SELECT r FROM s.t ORDER BY r"))
	w.load(t, w.task(t, "a", 4, row(1), config))
	require.Equal(t, []string{"(1)", "(1)", "(2)", "(3)"}, w.rows(t, "SELECT r FROM s.t ORDER BY r"), "changed back")

	// Of several partitions, nobody could tell which rows are there already.
	several := w.task(t, "a", 5, row(3), config)
	several.Inputs[0].Partitions = append(several.Inputs[0].Partitions, storage.Partition{Key: "b", Revision: 1})
	w.fails(t, several, "append needs an input")
	segment := w.task(t, "0-10", 1, row(3), config)
	segment.Inputs[0].PartitionBy.Kind = dag.ByCursor
	w.fails(t, segment, "append needs an input")

	// Many attempts at once: one of them appends.
	var all sync.WaitGroup
	results := make([]string, 6)
	errs := make([]error, len(results))
	for i := range results {
		task := w.task(t, "c", 1, row(4), config)
		task.TaskID, task.Attempt = first.TaskID, i+1
		all.Go(func() {
			result, err := w.op.Run(t.Context(), task)
			results[i], errs[i] = string(result.Result), err
		})
	}
	all.Wait()
	for _, err := range errs {
		require.NoError(t, err)
	}
	require.Equal(t, []string{"(1)"}, w.rows(t, "SELECT count(*) FROM s.t WHERE r = 4"))
}

// An attempt that was taken for dead does not overwrite what came after it.
func TestOlderLoadsAreRefused(t *testing.T) {
	t.Parallel()
	w := newTarget(t, "CREATE TABLE t (id int PRIMARY KEY, v text)")
	config := with(w.Front, "t", "upsert", map[string]any{"key": []any{"id"}})
	zombie := w.task(t, "a", 1, "SELECT 1 AS id, 'one' AS v", config)
	again := w.task(t, "a", 1, "SELECT 1 AS id, 'one' AS v", config)
	w.load(t, w.task(t, "a", 2, "SELECT 1 AS id, 'two' AS v", config))
	w.fails(t, zombie, "a newer revision")
	w.fails(t, again, "a newer revision")
	require.Equal(t, []string{"(1,two)"}, w.rows(t, "SELECT * FROM t"))

	// The table is as it was after a load of the same revision: that mends it.
	w.exec(t, "DELETE FROM t")
	w.load(t, w.task(t, "a", 2, "SELECT 1 AS id, 'two' AS v", config))
	require.Equal(t, []string{"(1,two)"}, w.rows(t, "SELECT * FROM t"))

	// Of another version of the dataset, the later task is the newer one.
	earlier := w.task(t, "a", 1, "SELECT 1 AS id, 'earlier' AS v", config)
	later := w.task(t, "a", 1, "SELECT 1 AS id, 'later' AS v", config)
	later.Inputs[0].Generation.Version = uuid.New()
	w.load(t, later)
	w.fails(t, earlier, "a newer revision")
	require.Equal(t, []string{"(1,later)"}, w.rows(t, "SELECT * FROM t"))
	later.Inputs[0].Generation.Version = uuid.New()
	later.Attempt = 0
	w.fails(t, later, "a newer revision")
}

// A load that waits for another one of its partition looks again once that has ended.
func TestLoadsOfAPartitionWaitForEachOther(t *testing.T) {
	t.Parallel()
	w := newTarget(t, "CREATE TABLE t (id int PRIMARY KEY, v text)")
	config := with(w.Front, "t", "upsert", map[string]any{"key": []any{"id"}})
	zombie := w.task(t, "a", 2, "SELECT 1 AS id, 'two' AS v", config)
	w.load(t, w.task(t, "a", 1, "SELECT 1 AS id, 'one' AS v", config))

	// Revision 3 is about to commit.
	tx, err := w.conn.Begin(t.Context())
	require.NoError(t, err)
	_, err = tx.Exec(t.Context(), "UPDATE _dagctl_loads SET pins = replace(pins::text, ': 1', ': 3')::jsonb")
	require.NoError(t, err)
	failed := make(chan error, 1)
	go func() {
		_, err := w.op.Run(t.Context(), zombie)
		failed <- err
	}()
	require.Eventually(t, func() bool { return w.loading(t, "wait_event_type = 'Lock'") == 1 }, 20*time.Second,
		5*time.Millisecond)
	require.NoError(t, tx.Commit(t.Context()))
	require.True(t, fault.Is(<-failed, fault.Conflict))
	require.Equal(t, []string{"(1,one)"}, w.rows(t, "SELECT * FROM t"))
}

func TestReplacePartition(t *testing.T) {
	t.Parallel()
	w := newTarget(t, `CREATE TABLE t (at timestamptz, v int);
		INSERT INTO t VALUES ('2024-03-30 22:59:59.999999Z', 1), ('2024-03-30 23:00Z', 2),
			('2024-03-31 21:59:59.999999Z', 3), ('2024-03-31 22:00Z', 4);
		CREATE TABLE k (who text, v int); INSERT INTO k VALUES ('a', 1), ('b', 2), (NULL, 3)`)
	day := func(query string) *operators.Task {
		task := w.task(t, "2024-03-31", 1, query, with(w.Front, "t", "replace_partition", map[string]any{
			"partition_column": "at"}))
		task.PartitionBy = dag.Partitioning{Kind: dag.ByTime, Unit: dag.Day, Timezone: "Europe/Berlin"}
		start, end, err := task.PartitionBy.Bounds("2024-03-31")
		require.NoError(t, err)
		task.Partition.Start, task.Partition.End = &start, &end
		return task
	}
	w.load(t, day("SELECT TIMESTAMPTZ '2024-03-30 23:00:00Z' AS at, 5 AS v"))
	require.Equal(t, []string{"(1)", "(5)", "(4)"}, w.rows(t, "SELECT v FROM t ORDER BY at"))
	w.fails(t, day("SELECT TIMESTAMPTZ '2024-03-31 22:00:00Z' AS at, 6 AS v"),
		"column at of row 1 is not of partition 2024-03-31")
	w.load(t, day("SELECT TIMESTAMPTZ '2024-03-30 23:00:00Z' AS at, 5 AS v WHERE false"))
	require.Equal(t, []string{"(1)", "(4)"}, w.rows(t, "SELECT v FROM t ORDER BY at"))

	keyed := w.task(t, "a", 1, "SELECT 'a' AS who, 7 AS v", with(w.Front, "k", "replace_partition", map[string]any{
		"partition_column": "who"}))
	keyed.PartitionBy = dag.Partitioning{Kind: dag.ByKey}
	w.load(t, keyed)
	require.Equal(t, []string{"(b,2)", "(,3)", "(a,7)"}, w.rows(t, "SELECT * FROM k ORDER BY v"))
}

// A swapped table has the indexes, defaults, privileges and comment of the one before.
func TestReplaceSwapsTheTable(t *testing.T) {
	t.Parallel()
	w := newTarget(t, `CREATE TABLE t (id int CONSTRAINT the_key PRIMARY KEY, v text NOT NULL DEFAULT 'd',
			n int GENERATED ALWAYS AS (id * 2) STORED);
		CREATE INDEX by_v ON t (v); CREATE INDEX by_v_too ON t (v);
		INSERT INTO t VALUES (1, 'old'), (2, 'old');
		COMMENT ON TABLE t IS 'what it''s for'; GRANT SELECT ON t TO PUBLIC`)
	config := with(w.Front, "t", "replace", nil)

	for revision := int64(1); revision <= 2; revision++ {
		w.load(t, w.task(t, "all", revision, fmt.Sprintf("SELECT 3 AS id, 'new%d' AS v", revision), config))
		require.Equal(t, []string{fmt.Sprintf("(3,new%d,6)", revision)}, w.rows(t, "SELECT * FROM t"))
		require.Equal(t, []string{"(by_v)", "(by_v_too)", "(the_key)"},
			w.rows(t, "SELECT indexname FROM pg_indexes WHERE tablename = 't' ORDER BY 1"))
		require.Equal(t, []string{`("what it's for")`}, w.rows(t, "SELECT obj_description('t'::regclass, 'pg_class')"))
		require.Equal(t, []string{"(t)"}, w.rows(t, "SELECT count(*) > 0 FROM pg_class, aclexplode(relacl) a "+
			"WHERE oid = 't'::regclass AND a.grantee = 0 AND a.privilege_type = 'SELECT'"))
	}
	w.fails(t, w.task(t, "all", 3, "SELECT 1 AS id, NULL::VARCHAR AS v", config), "null value")
	require.Equal(t, []string{"(3,new2,6)"}, w.rows(t, "SELECT * FROM t"))

	w.exec(t, "CREATE VIEW seen AS SELECT id FROM t")
	w.fails(t, w.task(t, "all", 3, "SELECT 1 AS id, 'x' AS v", config), "views or others depend on it")
	w.exec(t, "DROP VIEW seen; CREATE TABLE child (id int REFERENCES t (id))")
	w.fails(t, w.task(t, "all", 3, "SELECT 1 AS id, 'x' AS v", config), "foreign key child_id_fkey would be lost")
	w.exec(t, "DROP TABLE child; ALTER TABLE t ENABLE ROW LEVEL SECURITY")
	w.fails(t, w.task(t, "all", 3, "SELECT 1 AS id, 'x' AS v", config), "row level security would be lost")
	require.Equal(t, []string{"(0)"}, w.rows(t, "SELECT count(*) FROM pg_class WHERE relname LIKE '\\_dagctl\\_0%'"))
}

// A canceled load leaves nothing, and its connection does not stay.
func TestCancelLeavesNothing(t *testing.T) {
	t.Parallel()
	w := newTarget(t, "CREATE TABLE t (id int PRIMARY KEY, v text); INSERT INTO t VALUES (1, 'was')")
	config := with(w.Front, "t", "upsert", map[string]any{"key": []any{"id"}})
	lock, err := w.conn.Begin(t.Context())
	require.NoError(t, err)
	_, err = lock.Exec(t.Context(), "LOCK TABLE t IN ACCESS EXCLUSIVE MODE")
	require.NoError(t, err)

	ctx, cancel := context.WithCancel(t.Context())
	task := w.task(t, "a", 1, "SELECT 1 AS id, 'new' AS v", config)
	failed := make(chan error, 1)
	go func() {
		_, err := w.op.Run(ctx, task)
		failed <- err
	}()
	require.Eventually(t, func() bool { return w.loading(t, "wait_event_type = 'Lock'") == 1 }, 20*time.Second,
		5*time.Millisecond)
	begun := time.Now()
	cancel()
	require.ErrorIs(t, <-failed, context.Canceled)
	require.Less(t, time.Since(begun), time.Second)
	require.Eventually(t, func() bool { return w.loading(t, "true") == 0 }, 2*time.Second, 5*time.Millisecond)

	require.NoError(t, lock.Commit(t.Context()))
	require.Equal(t, []string{"(1,was)"}, w.rows(t, "SELECT * FROM t"))
	require.Equal(t, []string{"(t)"}, w.rows(t, "SELECT to_regclass('_dagctl_loads') IS NULL"))
}
