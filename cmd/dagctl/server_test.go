package main

import (
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/cmd/dagctl/cli"
	"github.com/dagctl/dagctl/cmd/dagctl/server"
	"github.com/dagctl/dagctl/dispatcher"
	"github.com/dagctl/dagctl/dispatcher/views"
	"github.com/dagctl/dagctl/query"
	"github.com/dagctl/dagctl/registry"
)

func TestDeployRunsAndIsIdempotent(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.deployReadings(t, "2026-01-01", "2026-01-02")
	require.Equal(t, []string{"2026-01-01", "2026-01-02"}, w.partitions(t, "daily_highest"))
	env := w.env(t, writer)

	rows := decode[query.Rows](t, env, "datasets", "preview", "daily_highest", "--partition", "2026-01-02")
	require.Equal(t, [][]any{{"harbour", 5.25}, {"summit", -8.0}}, rows.Rows)
	require.Contains(t, must(t, env, "datasets", "preview", "daily_highest"), "harbour     5.25\n")

	before := len(w.tasks(t))
	file := filepath.Join(t.TempDir(), "dag.yaml")
	require.NoError(t, os.WriteFile(file, []byte("# a comment\n"+readingsDAG), 0o600))
	again := decode[registry.Deployment](t, env, "deploy", file)
	require.False(t, again.Created)
	require.Equal(t, 1, again.Version.Number)
	require.Equal(t, registry.Active, again.Version.Status)
	require.Len(t, w.tasks(t), before, "the same document runs nothing")

	w.land(t, "2026-01-03")
	eventually(t, "the new day", func() (bool, error) { return len(w.partitions(t, "daily_highest")) == 3, nil })

	status := must(t, env, "status", "readings")
	require.Contains(t, status, "active v1")
	require.Contains(t, status, "landing")
	require.Contains(t, must(t, env, "history", "readings"), "Active")
	require.Contains(t, must(t, env, "sources"), "readings/landing  poll")
	require.Contains(t, must(t, env, "whoami"), "token:writer, writer of acme\n")
}

func TestDatasetsOverTheCommandLine(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.deployReadings(t, "2026-01-01")
	env := w.env(t, writer)

	list := decode[[]registry.Dataset](t, env, "datasets", "list")
	require.Len(t, list, 1)
	require.Equal(t, "daily_highest", list[0].Name)
	require.EqualValues(t, 2, list[0].Rows)
	require.Len(t, decode[[]registry.Dataset](t, env, "datasets", "list", "--all"), 2)
	require.Empty(t, decode[[]registry.Dataset](t, env, "datasets", "list", "--search", "no such"))
	require.Len(t, decode[[]registry.Dataset](t, env, "datasets", "list", "--search", "HIGHEST of", "--tag", "weather"),
		1)

	d := decode[registry.Dataset](t, env, "datasets", "get", "daily_highest")
	require.Equal(t, []registry.ColumnInfo{{Name: "station", Type: "VARCHAR"}, {Name: "highest", Type: "DOUBLE"}},
		d.Columns)
	require.Len(t, d.Checks, 1)
	require.Equal(t, "pass", d.Checks[0].Outcome)

	hidden := decode[registry.Dataset](t, env, "datasets", "get", list[0].DAG+"/landing/0")
	require.False(t, hidden.Published)
	require.Equal(t, hidden.ID, decode[registry.Dataset](t, env, "datasets", "get", hidden.ID.String()).ID)
	require.EqualValues(t, 3, decode[registry.Dataset](t, env, "datasets", "get", hidden.Name).Rows)

	generations := decode[[]registry.Generation](t, env, "datasets", "versions", "daily_highest")
	require.Len(t, generations, 1)
	require.True(t, generations[0].Served)
	require.Equal(t, *d.Version, generations[0].ID)

	missing := dagctl(t, env, "datasets", "get", "nothing")
	require.Equal(t, cli.ExitFailed, missing.code)
	require.Contains(t, missing.err, `there is no dataset "nothing"`)
	early := dagctl(t, env, "query", "FROM daily_highest", "--at", "2001-01-01T00:00:00Z")
	require.Contains(t, early.err, `there is no dataset "daily_highest" at that moment`)
	require.Contains(t, early.err, "dagctl history")
	require.Contains(t, dagctl(t, env, "query", "SHOW TABLES").err, "dagctl datasets list")
}

func TestWhatAReaderMayNotSeeIsNotThere(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.deployReadings(t, "2026-01-01")
	_, err := w.pool.Exec(t.Context(), `UPDATE datasets SET read_roles = '{role:finance}' WHERE name = 'daily_highest'`)
	require.NoError(t, err)

	env := w.env(t, reader)
	require.Empty(t, decode[[]registry.Dataset](t, env, "datasets", "list", "--all"))
	for _, name := range []string{"daily_highest", "readings/landing/0"} {
		for _, command := range []string{"get", "preview", "partitions", "versions"} {
			r := dagctl(t, env, "datasets", command, name)
			require.Equal(t, cli.ExitFailed, r.code)
			require.Contains(t, r.err, "there is no dataset", "%s %s", command, name)
		}
	}
	for _, task := range decode[[]views.Task](t, env, "tasks", "list") {
		require.Empty(t, task.Partition)
		detail := decode[views.TaskDetail](t, env, "tasks", "get", task.ID.String())
		require.Empty(t, string(detail.Payload)+string(detail.Outputs)+string(detail.InputVersions)+
			string(detail.Result)+detail.Error)
		for _, e := range detail.Events {
			require.Empty(t, e.Detail)
		}
	}
	var dag views.DAGDetail
	require.NoError(t, w.as(reader).Get(t.Context(), "/v1/dags/readings", nil, &dag))
	require.Len(t, dag.Jobs, 3)
	for _, j := range dag.Jobs {
		for _, out := range j.Outputs {
			require.Empty(t, out.Dataset)
		}
	}
}

func TestManualTasks(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.deployReadings(t, "2026-01-01")
	env := w.env(t, writer)

	first := decode[[]dispatcher.Enqueued](t, env, "run", "readings/note", "--payload", `{"text": "hello"}`,
		"--idempotency-key", "one")
	again := decode[[]dispatcher.Enqueued](t, env, "run", "readings/note", "--payload", `{"text": "hello"}`,
		"--idempotency-key", "one")
	require.True(t, first[0].Created)
	require.Equal(t, dispatcher.Enqueued{ID: first[0].ID}, again[0])

	batch := filepath.Join(t.TempDir(), "batch.ndjson")
	require.NoError(t, os.WriteFile(batch, []byte(strings.Repeat(`{"payload": {"text": "x"}}`+"\n\n", 25)), 0o600))
	require.Len(t, decode[[]dispatcher.Enqueued](t, env, "run", "readings/note", "--batch", batch), 25)

	wrong := dagctl(t, env, "run", "readings/note", "--payload", `{"text": 7}`)
	require.Equal(t, cli.ExitFailed, wrong.code)
	require.Contains(t, wrong.err, "text")
	unknown := dagctl(t, env, "run", "readings/nothing", "--payload", `{}`)
	require.Equal(t, cli.ExitFailed, unknown.code)

	eventually(t, "all notes done", func() (bool, error) {
		done := decode[[]views.Task](t, env, "tasks", "list", "--dag", "readings", "--job", "note",
			"--status", "Completed")
		return len(done) == 26, nil
	})
	detail := decode[views.TaskDetail](t, env, "tasks", "get", first[0].ID.String())
	require.JSONEq(t, `{"text": "hello"}`, string(detail.Payload))
	require.NotEmpty(t, decode[[]views.TaskEvent](t, env, "tasks", "events", first[0].ID.String()))
	retry := dagctl(t, env, "tasks", "retry", first[0].ID.String())
	require.Equal(t, cli.ExitConflict, retry.code, retry.err)
	require.Contains(t, must(t, env, "tasks", "get", first[0].ID.String()), "Status         Completed")
}

func TestListsGoOnWhereTheyStopped(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.deployReadings(t, "2026-01-01", "2026-01-02", "2026-01-03", "2026-01-04", "2026-01-05")
	api := w.as(writer)
	for _, path := range []string{"/v1/tasks", "/v1/datasets?unpublished=true",
		"/v1/datasets/daily_highest/partitions"} {
		seen := map[string]bool{}
		cursor, pages := "", 0
		for {
			separator := "?"
			if strings.Contains(path, "?") {
				separator = "&"
			}
			var page struct {
				Items []struct {
					ID  string `json:"id"`
					Key string `json:"key"`
				} `json:"items"`
				Next string `json:"next_cursor"`
			}
			require.NoError(t, api.Get(t.Context(), path+separator+url.Values{"limit": {"1"},
				"cursor": {cursor}}.Encode(), nil, &page))
			for _, item := range page.Items {
				require.False(t, seen[item.ID+item.Key], "twice on %s", path)
				seen[item.ID+item.Key] = true
			}
			pages++
			if cursor = page.Next; cursor == "" {
				break
			}
		}
		require.Len(t, seen, pages)
		require.Greater(t, pages, 1)
	}
}

func TestTokens(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	env := w.env(t, admin)
	made := decode[authz.CreatedToken](t, env, "tokens", "create", "ci", "--role", "writer", "--ttl", "24h")
	other := map[string]string{"DAGCTL_URL": w.url, "DAGCTL_TOKEN": made.Secret}
	require.Contains(t, must(t, other, "whoami"), "token:ci, writer of acme\n")
	require.Contains(t, must(t, env, "tokens", "list"), "ci")

	asks := dagctl(t, env, "tokens", "revoke", "ci")
	require.Equal(t, cli.ExitFailed, asks.code)
	require.Contains(t, asks.err, "pass --yes")
	must(t, env, "tokens", "revoke", "ci", "--yes")
	gone := dagctl(t, other, "whoami")
	require.Equal(t, cli.ExitFailed, gone.code)
	require.Contains(t, gone.err, "the token is not valid")

	forbidden := dagctl(t, w.env(t, writer), "tokens", "list")
	require.Equal(t, cli.ExitFailed, forbidden.code)
	require.Contains(t, forbidden.err, "needs the role admin")
}

func TestWorkerTokens(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	env := w.env(t, admin)
	made := decode[authz.CreatedToken](t, env, "tokens", "create", "fleet", "--kind", "worker", "--runtime", "lambda",
		"--runtime", "python", "--operator", "sql", "--org", "acme")
	require.Regexp(t, "^dagctl_worker_", made.Secret)
	require.Equal(t, []string{"lambda", "python"}, made.Runtimes)
	require.Regexp(t, `fleet +worker +lambda,python +sql +token:admin`, must(t, env, "tokens", "list"))
	who := dagctl(t, map[string]string{"DAGCTL_URL": w.url, "DAGCTL_TOKEN": made.Secret}, "whoami")
	require.Equal(t, cli.ExitFailed, who.code)
	require.Contains(t, who.err, "a worker token does not act for a user")

	several := dagctl(t, env, "tokens", "create", "both", "--kind", "worker", "--runtime", "lambda", "--org",
		"acme", "--org", "umbrella")
	require.Equal(t, cli.ExitFailed, several.code)
	require.Contains(t, several.err, "dagctl admin create-worker-token")

	database := map[string]string{"DAGCTL_DATABASE_URL": w.pool.Config().ConnString()}
	made = decode[authz.CreatedToken](t, database, "admin", "create-worker-token", "both", "--runtime", "lambda",
		"--org", "acme", "--org", "umbrella", "--ttl", "1h")
	require.Equal(t, 2, made.Orgs)
	refused := dagctl(t, env, "tokens", "revoke", "both", "--yes")
	require.Equal(t, cli.ExitFailed, refused.code)
	require.Contains(t, refused.err, "dagctl admin revoke-token both --org acme")
	must(t, database, "admin", "revoke-token", "both", "--org", "acme", "--yes")
	require.NotNil(t, decode[[]authz.Token](t, env, "tokens", "list", "--limit", "100")[1].RevokedAt)
}

// Tokens that end soon say so with each command, and an org whose last admin token has ended gets another one.
func TestTokensThatEnd(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	env := w.env(t, admin)
	soon := decode[authz.CreatedToken](t, env, "tokens", "create", "soon", "--role", "admin", "--ttl", "30h")
	require.NotContains(t, dagctl(t, env, "whoami").err, "ends in")
	ending := map[string]string{"DAGCTL_URL": w.url, "DAGCTL_TOKEN": soon.Secret}
	who := dagctl(t, ending, "whoami")
	require.Contains(t, who.err, "This token ends in 29h")
	require.Equal(t, 1, strings.Count(dagctl(t, ending, "status").err, "This token ends"))
	require.Contains(t, who.out, "until "+soon.ExpiresAt.Format(time.RFC3339))

	database := map[string]string{"DAGCTL_DATABASE_URL": w.pool.Config().ConnString()}
	made := decode[authz.CreatedToken](t, database, "admin", "create-token", "rescue", "--org", "acme")
	require.Equal(t, authz.RoleAdmin, made.Role)
	require.Contains(t, must(t, map[string]string{"DAGCTL_URL": w.url, "DAGCTL_TOKEN": made.Secret}, "whoami"),
		"token:rescue, admin of acme")
}

func TestDeployShowsProblemsOfTheServersOwnCatalog(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	file := filepath.Join(t.TempDir(), "dag.yaml")
	text := strings.Replace(readingsDAG, "operator: file_source", "operator: file_source\n    runtime: moon", 1)
	require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
	r := dagctl(t, w.env(t, writer), "deploy", file)
	require.Equal(t, cli.ExitFailed, r.code)
	require.Contains(t, r.err, file+":5:")
	require.Contains(t, r.err, "dispatcher", "the mapped runtimes are listed")
	require.Empty(t, decode[[]views.DAGStatus](t, w.env(t, writer), "status"))
}

func TestDoctor(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	require.Contains(t, must(t, w.env(t, admin), "doctor"), "is ready; you are token:admin, admin of acme")
}

// An org to which the server gives no folders cannot have file sources: plan and deploy say so, with the line.
func TestFileSourcesOfAnOrgWithoutFolders(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(c *server.Config) { c.FileRoots = nil })
	file := filepath.Join(t.TempDir(), "dag.yaml")
	require.NoError(t, os.WriteFile(file, []byte(readingsDAG), 0o600))
	for _, command := range []string{"plan", "deploy"} {
		said := dagctl(t, w.env(t, writer), command, file)
		require.Equal(t, cli.ExitFailed, said.code, said.err)
		require.Contains(t, said.err, "the org's sources may not read any folder on this server")
		require.Contains(t, said.err, "`file_roots`")
		require.Regexp(t, `:\d+:\d+`, said.err)
	}
}
