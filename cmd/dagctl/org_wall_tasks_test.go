package main

import (
	"encoding/json"
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/registry"
	"github.com/dagctl/dagctl/worker/protocol"
)

// misleadAcme puts the wall around org umbrella while all code asks for the rows of acme, or back.
func (w *world) misleadAcme(t *testing.T, on bool) {
	t.Helper()
	w.exec(t, `DELETE FROM misled`)
	if on {
		w.exec(t, `INSERT INTO misled SELECT a.id, b.id FROM orgs a, orgs b
			WHERE a.slug = 'acme' AND b.slug = 'umbrella'`)
	}
}

// unchangedBy checks that what is done while the wall stands around another org changes no row of acme.
func (w *world) unchangedBy(t *testing.T, rows func() map[string][]string, do func()) {
	t.Helper()
	before := rows()
	w.misleadAcme(t, true)
	do()
	w.misleadAcme(t, false)
	after := rows()
	for table := range before {
		removed, added := differences(before[table], after[table])
		assert.Empty(t, removed, table)
		assert.Empty(t, added, table)
	}
}

// A running attempt gets nothing of its own task, and changes nothing, while the wall stands around another org: its
// calls are requests. The routes are those of the server's table.
func TestTheSecondWallKeepsTasksApart(t *testing.T) {
	t.Parallel()
	w := newWorld(t, withMisled(t))
	_, claim := claimAway(t, w)
	fence := claim.Fence()
	fields, err := json.Marshal(fence)
	require.NoError(t, err)
	with := func(more string) string { return strings.TrimSuffix(string(fields), "}") + more + "}" }
	bodies := map[string]string{
		"/v1/task/complete": with(`, "status": "Canceled"`), "/v1/task/query": with(`, "sql": "FROM landing"`),
		"/v1/task/logs": with(`, "lines": []`),
	}

	send := func(route authz.Route) (int, string) {
		path := address(route.Path, "")
		body := bodies[route.Path]
		if body == "" {
			body = with("")
		}
		if route.Method == http.MethodPut {
			path, body = strings.Replace(path, "style.css", "part.ndjson", 1), `{"day":"2026-01-01","score":1}`
		}
		r, err := http.NewRequestWithContext(t.Context(), route.Method, w.url+path, strings.NewReader(body))
		require.NoError(t, err)
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set(protocol.VersionHeader, strconv.Itoa(protocol.Version))
		r.Header.Set(protocol.CapabilityHeader, claim.CapabilityToken)
		r.Header.Set(protocol.TaskHeader, fence.TaskID.String())
		r.Header.Set(protocol.AttemptHeader, strconv.Itoa(fence.Attempt))
		r.Header.Set(protocol.LeaseTokenHeader, fence.LeaseToken.String())
		response, err := http.DefaultClient.Do(r)
		require.NoError(t, err)
		defer response.Body.Close()
		text, err := io.ReadAll(response.Body)
		require.NoError(t, err)
		return response.StatusCode, string(text)
	}

	var routes []authz.Route
	for _, route := range w.app.API.Routes() {
		if route.Rule == authz.ByTask {
			routes = append(routes, route)
		}
	}
	require.Greater(t, len(routes), 8)
	w.unchangedBy(t, func() map[string][]string { return w.rowsOfAcme(t) }, func() {
		for _, route := range routes {
			status, body := send(route)
			assert.GreaterOrEqual(t, status, 400, "%s %s: %s", route.Method, route.Path, body)
			assert.Less(t, status, 500, "%s %s: %s", route.Method, route.Path, body)
			assert.NotRegexp(t, "summit|landing|score:day", body, route.Path)
		}
	})
	status, body := send(authz.Route{Method: http.MethodPost, Path: "/v1/task/assignment"})
	require.Equal(t, http.StatusOK, status, body)
	require.Contains(t, body, "score:day")
}

// Nobody decides on a revision that waits while the wall stands around another org, although the owner acts.
func TestTheSecondWallKeepsDecisionsApart(t *testing.T) {
	t.Parallel()
	w := newWorld(t, withMisled(t))
	w.deployReadings(t, "2026-01-01")
	w.landText(t, "2026-01-02", "station,celsius\n,3.5\n")
	eventually(t, "a revision is withheld", func() (bool, error) {
		var d registry.Dataset
		err := w.as(admin).Get(t.Context(), "/v1/datasets/daily_highest", nil, &d)
		return len(d.Withheld) == 1, err
	})
	decide := func(verb string) (int, string) {
		return w.send(t, admin, http.MethodPost, "/v1/datasets/daily_highest/"+verb, "application/json",
			strings.NewReader(`{"partition": "2026-01-02", "reason": "x"}`))
	}
	w.unchangedBy(t, func() map[string][]string { return w.settled(t) }, func() {
		for _, verb := range []string{"accept", "reject"} {
			status, body := decide(verb)
			assert.Equal(t, http.StatusNotFound, status, "%s: %s", verb, body)
		}
	})
	status, body := decide("accept")
	require.Equal(t, http.StatusOK, status, body)
}
