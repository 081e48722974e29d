package main

import (
	"fmt"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/cmd/dagctl/server"
)

// misled lets a test put the wall around another org than the one whose rows all statements ask for: a pair of orgs in
// the table misled says which. To the code all is as before, so nothing but row-level security keeps rows in. Names are
// looked up in the schema public before PostgreSQL's own, and so transactions call public.set_config.
const misled = `
CREATE TABLE misled (asked TEXT PRIMARY KEY, walled TEXT NOT NULL);
CREATE FUNCTION set_config(name TEXT, value TEXT, local BOOLEAN) RETURNS TEXT LANGUAGE sql SECURITY DEFINER AS $$
	SELECT pg_catalog.set_config(name, coalesce((SELECT m.walled FROM public.misled m
		WHERE name = 'dagctl.org' AND m.asked = value), value), local)
$$;
DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET search_path = public, pg_catalog', current_database()); END $$`

func withMisled(t *testing.T) func(*server.Config) {
	return func(cfg *server.Config) {
		conn, err := pgx.Connect(t.Context(), cfg.DatabaseURL)
		require.NoError(t, err)
		defer conn.Close(t.Context())
		_, err = conn.Exec(t.Context(), misled)
		require.NoError(t, err)
	}
}

// change is a request of an admin that changes something.
type change struct{ method, path, body string }

// makes and ends are changes to each kind of thing that an org has, in an order in which they succeed.
var (
	makes = []change{
		{"POST", "/v1/roles", `{"slug": "role_mark"}`},
		{"POST", "/v1/users", `{"email": "user_mark@example.com", "role": "reader", "issuer": "local"}`},
		{"POST", "/v1/tokens", `{"name": "token_mark", "role": "reader"}`},
		{"POST", "/v1/trust", `{"name": "trust_mark", "kind": "workload", "issuer": "https://ci.example.com",
			"claims": {"job": ["x"]}, "role": "reader"}`},
		{"PUT", "/v1/secrets/secret_mark", `{"value": "hunter22hunter22"}`},
		{"PATCH", "/v1/secrets/secret_mark", `{"add_jobs": ["readings/note"]}`},
		{"PUT", "/v1/visibility", `{"pattern": "pattern_mark*", "read_roles": ["role:finance"]}`},
		{"PUT", "/v1/datasets/daily_highest/visibility", `{"read_roles": ["role:finance"], "opened": false}`},
		{"POST", "/v1/dags/wages/pause", `{"reason": "pause_mark"}`},
		{"POST", "/v1/jobs/readings/note/tasks", `{"items": [{"payload": {"text": "payload_mark"}}]}`},
		{"POST", "/v1/dags/readings/backfills", `{"job": "daily", "from": "2026-01-01", "to": "2026-01-01"}`},
		{"POST", "/v1/scheduled-events", `{"dag": "readings-timed", "job": "note", "target_timezone": "UTC",
			"target_timestamp_local": "2100-01-01T00:00:00", "group": "group_mark"}`},
		{"POST", "/v1/tasks:skip", `{"filter": {"dag": "losses", "dead": true}, "reason": "bulk_mark"}`},
		{"POST", "/v1/dags/fresh_mark/versions", fmt.Sprintf(`{"yaml": %q}`,
			strings.Replace(timedDAG, "readings-timed", "fresh_mark", 1))},
		{"PATCH", "/v1/org", `{"default_read_roles": ["role:finance"]}`},
		{"POST", "/v1/dags/readings/versions", fmt.Sprintf(`{"activate": false, "yaml": %q}`,
			strings.Replace(readingsDAG, "max(celsius)", "min(celsius)", 1))},
	}
	ends = []change{
		{"PUT", "/v1/dags/readings/active", `{"version": 2}`},
		{"POST", "/v1/dags/readings/rollback", `{}`},
		{"PATCH", "/v1/org", `{"default_read_roles": []}`},
		{"DELETE", "/v1/dags/wages/pause", ``},
		{"POST", "/v1/datasets/daily_highest/invalidate", `{"reason": "manual"}`},
		{"DELETE", "/v1/scheduled-events?group=group_mark", ``},
		{"DELETE", "/v1/visibility?pattern=pattern_mark*", ``},
		{"PATCH", "/v1/secrets/secret_mark", `{"remove_jobs": ["readings/note"]}`},
		{"DELETE", "/v1/secrets/secret_mark", ``},
		{"DELETE", "/v1/trust/trust_mark", ``},
		{"DELETE", "/v1/tokens/token_mark", ``},
		{"PATCH", "/v1/users/user_mark@example.com", `{"role": "admin"}`},
		{"DELETE", "/v1/users/user_mark@example.com", ``},
		{"DELETE", "/v1/roles/role_mark", ``},
		{"DELETE", "/v1/dags/bonuses", ``},
	}
)

// TestTheSecondWallKeepsOrgsApart has all code ask for the rows of one org, as its admin, while the wall stands around
// another: row-level security alone lets no route tell any of them, nor change one, nor put one there.
func TestTheSecondWallKeepsOrgsApart(t *testing.T) {
	t.Parallel()
	w := hide(t, withPages, withMisled(t))
	w.timer(t)
	mislead := func(on bool) { w.misleadAcme(t, on) }
	do := func(c change) (int, string) {
		return w.send(t, admin, c.method, c.path, "application/json", strings.NewReader(c.body))
	}

	all := append(slices.Clone(makes), ends...)
	for _, route := range w.app.API.Routes() {
		if route.Method == http.MethodGet || route.Rule.Principal() != authz.User ||
			strings.HasSuffix(route.Path, "sign-out") || route.Path == "/signout" {
			continue
		}
		for _, path := range paths(t, route.Path, w.hiddenPaths(t)) {
			all = append(all, change{route.Method, path, `{}`})
		}
	}
	changesNothing := func() {
		t.Helper()
		w.unchangedBy(t, func() map[string][]string { return w.settled(t) }, func() {
			for _, c := range all {
				do(c)
			}
		})
	}
	succeed := func(changes []change) {
		t.Helper()
		for _, c := range changes {
			status, body := do(c)
			require.Less(t, status, 300, "%s %s: %s", c.method, c.path, body)
		}
	}

	changesNothing()
	succeed(makes)
	changesNothing()

	marks := append([]string{"harbour", "landing", "daily_highest", "losses", "bonuses", "role_mark", "user_mark",
		"token_mark", "trust_mark", "secret_mark", "pattern_mark", "pause_mark", "payload_mark", "group_mark",
		"bulk_mark", "fresh_mark"}, hiddenMarks...)
	fill := w.hiddenPaths(t)
	tells := func(seen func(path, mark, body string)) {
		for _, r := range reads(t, w.app.API.Routes(), fill) {
			status, body := w.send(t, admin, http.MethodGet, r.path, "", nil)
			require.Less(t, status, 500, "%s: %s", r.path, body)
			for _, mark := range marks {
				if !strings.Contains(r.path, mark) && strings.Contains(body, mark) {
					seen(r.path, mark, body)
				}
			}
		}
	}
	mislead(true)
	tells(func(path, mark, body string) { t.Errorf("%s tells %s: %.300s", path, mark, body) })
	mislead(false)
	told := map[string]bool{}
	tells(func(_, mark, _ string) { told[mark] = true })
	for _, mark := range marks {
		assert.True(t, told[mark], "no route tells %s to those who may know", mark)
	}
	succeed(ends)
}

// settled waits until nothing of org acme changes any more, and returns its rows by table, as texts, but for what the
// server's loops write down all the time.
func (w *world) settled(t *testing.T) (rows map[string][]string) {
	t.Helper()
	eventually(t, "nothing changes", func() (bool, error) {
		var open int
		err := w.pool.QueryRow(t.Context(), `
			SELECT (SELECT count(*) FROM tasks WHERE status IN ('Queued', 'Running'))
				+ (SELECT count(*) FROM backfills WHERE ended_at IS NULL)
				+ (SELECT count(*) FROM dag_versions WHERE status = 'Building')`).Scan(&open)
		before := rows
		rows = w.rowsOfAcme(t)
		return open == 0 && reflect.DeepEqual(before, rows), err
	})
	return rows
}

func (w *world) rowsOfAcme(t *testing.T) map[string][]string {
	t.Helper()
	found, err := w.pool.Query(t.Context(), `
		SELECT c.relname FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attname = 'org_id'
		WHERE c.relnamespace = 'public'::regnamespace AND c.relkind IN ('r', 'p')
		  AND c.relname NOT IN ('sources', 'enumerations', 'audit_heads', 'org_usage', 'usage_hours', 'usage_days',
			'usage_dag_days', 'usage_stored')`)
	require.NoError(t, err)
	tables, err := pgx.CollectRows(found, pgx.RowTo[string])
	require.NoError(t, err)

	all := map[string][]string{}
	for _, table := range append(tables, "orgs") {
		org := "org_id"
		if table == "orgs" {
			org = "id"
		}
		rows, err := w.pool.Query(t.Context(), `
			SELECT (to_jsonb(t) - '{last_used_at,seq,hash}'::text[])::text AS row FROM `+
			pgx.Identifier{table}.Sanitize()+` AS t WHERE t.`+org+` = $1 ORDER BY 1`, w.org(t))
		require.NoError(t, err)
		all[table], err = pgx.CollectRows(rows, pgx.RowTo[string])
		require.NoError(t, err)
	}
	return all
}

// differences returns the rows that only one of two sorted lists has.
func differences(before, after []string) (removed, added []string) {
	only := func(some, others []string) (list []string) {
		for _, row := range some {
			if !slices.Contains(others, row) {
				list = append(list, row)
			}
		}
		return list
	}
	return only(before, after), only(after, before)
}
