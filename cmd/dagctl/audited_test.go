package main

import (
	"context"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/authz"
)

// silent are the routes of people that also answer where nothing changes, and so leave no entry in the audit log: what
// they do change, other tests find there.
var silent = map[string]string{
	"PATCH /v1/org":                          "a request may change no setting",
	"POST /v1/dags/{dag}/plan":               "a plan changes nothing",
	"POST /v1/dags/{dag}/versions":           "the version may be there already",
	"POST /v1/dags/{dag}/backfills":          "with dry_run",
	"POST /v1/datasets/{name}/purge":         "with dry_run",
	"POST /v1/datasets/{name}/rematerialize": "with dry_run",
	"POST /v1/datasets/{name}/invalidate":    "with dry_run",
	"DELETE /v1/secrets/{name}":              "with dry_run",
	"POST /v1/datasets/{name}/events":        "the event may be there already",
	"POST /v1/sources/{dag}/{job}/read":      "the source may be due already",
	"POST /v1/gc":                            "with dry_run",
	"POST /v1/udf-bundles":                   "the code may be there already",
	"POST /v1/tasks:purge":                   "with dry_run",
	"POST /v1/tasks:retry":                   "with dry_run",
	"POST /v1/tasks:cancel":                  "with dry_run",
	"POST /v1/tasks:skip":                    "with dry_run",
	"POST /v1/users/{user}/sign-out":         "the user may have no session",
}

// mutation is one request that changed something, as the server's log has it.
type mutation struct{ route, request string }

// mutations is a log that notes which requests of a server changed something, and passes on what is not for debugging.
type mutations struct {
	slog.Handler
	*noted
}

type noted struct {
	mu  sync.Mutex
	all []mutation
}

func (m mutations) Enabled(context.Context, slog.Level) bool { return true }

func (m mutations) WithAttrs(attrs []slog.Attr) slog.Handler {
	return mutations{m.Handler.WithAttrs(attrs), m.noted}
}

func (m mutations) WithGroup(name string) slog.Handler {
	return mutations{m.Handler.WithGroup(name), m.noted}
}

func (m mutations) Handle(ctx context.Context, r slog.Record) error {
	if r.Level > slog.LevelDebug {
		return m.Handler.Handle(ctx, r)
	}
	if r.Message != "request" {
		return nil
	}

	of := map[string]slog.Value{}
	r.Attrs(func(a slog.Attr) bool { of[a.Key] = a.Value; return true })
	method, route, status := of["method"].String(), of["route"].String(), of["status"].Int64()
	done := status >= 200 && status < 300
	if _, path, _ := strings.Cut(route, " "); !strings.HasPrefix(path, "/v1/") {
		done = status == http.StatusSeeOther // a page that shows a form again did nothing
	}
	if done && !slices.Contains([]string{http.MethodGet, http.MethodHead, http.MethodOptions}, method) {
		m.mu.Lock()
		m.all = append(m.all, mutation{route, of["request_id"].String()})
		m.mu.Unlock()
	}
	return nil
}

// audited checks that the audit log has what people changed by requests.
func (w *world) audited(t *testing.T, n *noted) {
	t.Helper()
	ofPeople := map[string]bool{}
	for _, r := range w.app.API.Routes() {
		if p := r.Rule.Principal(); p == authz.User || p == authz.AProvisioner {
			pattern := r.Method + " " + r.Path
			if thing, _, found := strings.Cut(pattern, "}:"); found {
				pattern = thing + "}" // the actions on a thing share its pattern
			}
			ofPeople[pattern] = true
		}
	}
	for route := range silent {
		assert.Contains(t, ofPeople, route)
	}

	rows, err := w.pool.Query(context.Background(), `SELECT DISTINCT request_id FROM audit_log`)
	require.NoError(t, err)
	defer rows.Close()
	known := map[string]bool{}
	for rows.Next() {
		var id string
		require.NoError(t, rows.Scan(&id))
		known[id] = true
	}
	require.NoError(t, rows.Err())

	n.mu.Lock()
	defer n.mu.Unlock()
	for _, m := range n.all {
		if ofPeople[m.route] && silent[m.route] == "" {
			assert.True(t, known[m.request], "%s changed something, and the audit log does not have it", m.route)
		}
	}
}
