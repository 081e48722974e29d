package main

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/cmd/dagctl/cli"
	"github.com/dagctl/dagctl/cmd/dagctl/server"
	"github.com/dagctl/dagctl/dispatcher/views"
	"github.com/dagctl/dagctl/internal/pg"
)

// What is hidden is marked: its names, columns, rows, keys, descriptions and queries, and what errors quote of them.
// Names of DAGs and jobs, which everybody in an org may see, are not.
var hiddenMarks = []string{"payroll_mark", "bonus_mark", "person_mark", "salary_mark", "row_mark", "text_mark",
	"check_mark", "query_mark", "2031-07-09"}

// wagesDAG has a job whose check fails for its only row, and a manual one with a payload.
const wagesDAG = `name: wages
jobs:
  - name: intake
    operator: file_source
    source: { kind: poll, every: 1s }
    partition_by: { time: day }
    config: { path: pay, pattern: "{date}.csv", format: csv }
  - name: sums
    operator: sql
    inputs: [{ from: { job: intake } }]
    execution_strategy: PerPartition
    update_strategy: replace
    config: { query: "SELECT person_mark, salary_mark, 'query_mark' AS note FROM intake" }
    checks:
      - { name: check_mark, sql: "SELECT * FROM output WHERE salary_mark > 1", severity: warn }
publish:
  payroll_mark: { from: { job: sums }, description: The text_mark of it., columns: { salary_mark: text_mark } }
`

// bonusesDAG publishes what it computes from payroll_mark.
const bonusesDAG = `name: bonuses
jobs:
  - name: bonus
    operator: sql
    description: It shares out.
    inputs: [{ from: { dataset: payroll_mark } }]
    execution_strategy: PerPartition
    partition_by: { time: day }
    config: { query: "SELECT person_mark, 2 * salary_mark AS bonus, 'query_mark' AS note FROM payroll_mark" }
publish:
  bonus_mark: { from: { job: bonus } }
`

// lossesDAG fails, with an error that names a column.
const lossesDAG = `name: losses
jobs:
  - name: lost
    operator: sql
    inputs: [{ from: { dataset: payroll_mark } }]
    execution_strategy: PerPartition
    partition_by: { time: day }
    max_attempts: 1
    config: { query: "SELECT CAST(person_mark AS INTEGER) AS n FROM payroll_mark" }
publish:
  lost: { from: { job: lost } }
`

// hide makes a world in which all that is marked, and more, is closed to everybody who is not in role:finance, and adds
// the token finance, which is.
func hide(t *testing.T, change ...func(*server.Config)) *world {
	t.Helper()
	w := newWorld(t, change...)
	w.deployReadings(t, "2026-01-01")
	folder, dir := filepath.Join(w.roots, "pay"), t.TempDir()
	require.NoError(t, os.MkdirAll(folder, 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(folder, "2031-07-09.csv"),
		[]byte("person_mark,salary_mark\nrow_mark,71\n"), 0o600))
	writers := w.env(t, writer)
	must(t, writers, "deploy", writeDAG(t, dir, "wages", wagesDAG))
	must(t, writers, "deploy", writeDAG(t, dir, "bonuses", bonusesDAG))
	require.NotZero(t, dagctl(t, writers, "deploy", writeDAG(t, dir, "losses", lossesDAG)).code)

	w.tokens["finance"] = w.withOrgRole(t, "finance", "writer", "role:finance")["DAGCTL_TOKEN"]
	must(t, w.env(t, admin), "datasets", "visibility", "wages/intake/0", "--role", "role:finance")
	return w
}

// org returns the id of org acme.
func (w *world) org(t *testing.T) (id uuid.UUID) {
	t.Helper()
	require.NoError(t, w.pool.QueryRow(t.Context(), `SELECT id FROM orgs WHERE slug = 'acme'`).Scan(&id))
	return id
}

// read returns the rows of a table as texts, as a transaction of requests in a context sees them.
func (w *world) read(t *testing.T, ctx context.Context, table string) (rows []string) {
	t.Helper()
	require.NoError(t, pg.InOrgTx(ctx, w.requests, w.org(t), func(ctx context.Context, tx pgx.Tx) error {
		found, err := tx.Query(ctx, `SELECT to_jsonb(t)::text FROM `+pgx.Identifier{table}.Sanitize()+` AS t`)
		if err != nil {
			return err
		}
		rows, err = pgx.CollectRows(found, pgx.RowTo[string])
		return err
	}), table)
	return rows
}

// As the login of requests, a statement without any condition finds nothing of what is hidden from its reader, in any
// table with a policy for readers.
func TestRowLevelSecurityHidesWhatAReaderMayNotRead(t *testing.T) {
	t.Parallel()
	w := hide(t)
	found, err := w.pool.Query(t.Context(), `SELECT relname FROM reader_policies()`)
	require.NoError(t, err)
	tables, err := pgx.CollectRows(found, pgx.RowTo[string])
	require.NoError(t, err)
	require.Greater(t, len(tables), 15)
	tables = append(tables, "shown_tasks", "dataset_pointers", "dataset_name_owners", "event_outcomes", "task_inputs")
	var hidden []uuid.UUID // the generations, datasets and jobs that only role:finance may read
	require.NoError(t, w.pool.QueryRow(t.Context(), `
		SELECT array_agg(id) FROM (
			SELECT dataset_version AS id FROM hidden_generations($1, '{}') UNION SELECT hidden_datasets($1, '{}')
			UNION SELECT hidden_jobs($1, '{}')
			UNION SELECT id FROM tasks WHERE job_id IN (SELECT hidden_jobs($1, '{}'))) AS h`,
		w.org(t)).Scan(&hidden))
	require.Greater(t, len(hidden), 12)
	tells := func(row string) bool {
		for _, id := range hidden {
			if strings.Contains(row, id.String()) {
				return true
			}
		}
		return false
	}

	everything := pg.Reader{Inspects: []string{"%"}}
	seen, holds := "", map[string]bool{}
	for _, table := range tables {
		whole := w.read(t, t.Context(), table)
		for _, row := range whole {
			holds[table] = holds[table] || tells(row)
		}
		seen += strings.Join(whole, "\n")
		everything.OrgRoles = []string{"role:finance", "role:other"}
		require.ElementsMatch(t, whole, w.read(t, pg.WithReader(t.Context(), everything), table), table)

		for _, roles := range [][]string{nil, {}, {"role:other"}} {
			everything.OrgRoles = roles
			for _, row := range w.read(t, pg.WithReader(t.Context(), everything), table) {
				require.True(t, table == "shown_tasks" || !tells(row), "%s: %s", table, row)
				for _, mark := range hiddenMarks {
					require.NotContains(t, row, mark, table)
				}
			}
		}
	}
	for _, mark := range hiddenMarks {
		if mark != "query_mark" { // documents and definitions are in other tables
			require.Contains(t, seen, mark, "without a reader, everything of the org is seen")
		}
	}
	for _, table := range []string{"datasets", "dataset_versions", "dag_version_datasets", "dataset_names",
		"partition_versions", "partition_inputs", "check_results", "events", "tasks", "task_events",
		"dataset_pointers", "column_lineage"} {
		require.True(t, holds[table], "%s holds nothing that is hidden", table)
	}

	// Unpublished datasets are for those who work on their DAG.
	for inspects, want := range map[string]int{"readings": 1, "read%": 1, "wages": 0, "": 0} {
		ctx := pg.WithReader(t.Context(), pg.Reader{Inspects: []string{inspects}})
		names := strings.Join(w.read(t, ctx, "datasets"), "")
		require.Equal(t, want, strings.Count(names, `"readings/landing/0"`), inspects)
		require.Contains(t, names, "daily_highest")
	}

	// A transaction sees at once what others close and open meanwhile.
	ctx := pg.WithReader(t.Context(), pg.Reader{Inspects: []string{"%"}})
	require.NoError(t, pg.InOrgTx(ctx, w.requests, w.org(t), func(ctx context.Context, tx pgx.Tx) error {
		sees := func() (n int) {
			require.NoError(t, tx.QueryRow(ctx, `SELECT count(*) FROM datasets WHERE name LIKE '%\_mark'`).Scan(&n))
			return n
		}
		require.Zero(t, sees())
		must(t, w.env(t, admin), "datasets", "visibility", "wages/intake/0", "--everyone")
		require.Equal(t, 2, sees())
		must(t, w.env(t, admin), "datasets", "visibility", "bonus_mark", "--role", "role:finance")
		require.Equal(t, 1, sees())
		return nil
	}))
}

// What is wrong with a source of a hidden dataset is told to nobody else: it may quote paths and rows.
func TestErrorsOfHiddenSourcesAreHidden(t *testing.T) {
	t.Parallel()
	w := hide(t)
	wrong := func(caller string) string {
		detail := decode[views.DAGDetail](t, w.env(t, caller), "status", "wages")
		require.Len(t, detail.Sources, 1)
		return detail.Sources[0].Error
	}
	require.NoError(t, os.RemoveAll(filepath.Join(w.roots, "pay")))
	eventually(t, "the folder is missed", func() (bool, error) { return wrong("finance") != "", nil })
	require.Empty(t, wrong(writer))
	require.NotEmpty(t, wrong(admin))
}

// Everybody may see that a task of a hidden job exists, and nothing of what went in or came out.
func TestTasksOfHiddenJobsAreOutlines(t *testing.T) {
	t.Parallel()
	w := hide(t)
	tasksOf := func(caller string, args ...string) []views.Task {
		return decode[[]views.Task](t, w.env(t, caller), append([]string{"tasks", "list"}, args...)...)
	}
	all, shown := tasksOf("finance", "--dag", "losses"), tasksOf(writer, "--dag", "losses")
	require.NotEmpty(t, all)
	require.Len(t, shown, len(all))
	for i := range all {
		require.NotEmpty(t, all[i].Partition)
		require.Empty(t, shown[i].Partition)
		require.Empty(t, shown[i].Error)
		require.Equal(t, all[i].ID, shown[i].ID)
		require.Equal(t, all[i].Status, shown[i].Status)
		require.Equal(t, all[i].CreatedAt, shown[i].CreatedAt)
	}

	require.Contains(t, must(t, w.env(t, "finance"), "status", "bonuses", "--output", "json"), `"as": "payroll_mark"`)
	require.NotContains(t, must(t, w.env(t, writer), "status", "bonuses", "--output", "json"), "payroll_mark")

	// Nobody finds a task by contents that it may not read.
	require.NotEmpty(t, tasksOf("finance", "--partition", "2031-07-09"))
	hidden := dagctl(t, w.env(t, writer), "tasks", "list", "--partition", "2031-07-09")
	absent := dagctl(t, w.env(t, writer), "tasks", "list", "--partition", "2031-07-10")
	require.Equal(t, cli.ExitFailed, hidden.code)
	require.Equal(t, absent.err, strings.ReplaceAll(hidden.err, "2031-07-09", "2031-07-10"))
	require.NotEmpty(t, tasksOf("finance", "--error", "person_mark"))
	require.Empty(t, tasksOf(writer, "--error", "person_mark"))
	require.NotEmpty(t, tasksOf(writer, "--partition", "2026-01-01"))
}
