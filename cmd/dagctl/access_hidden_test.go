package main

import (
	"cmp"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/registry"
)

// pathObject is an object that a path can name: one that is hidden, and one that does not exist.
type pathObject struct {
	hidden, absent map[string]string // by placeholder
	outlined       bool              // whoever may not look into it still sees that it exists
}

// inPaths says by which beginning of a path, or part of one, an object of a kind is named. What only admins do, to
// whom nothing is hidden, has no kind.
var inPaths = []struct{ part, kind string }{
	{"/v1/datasets/{name}", "dataset"}, {"/datasets/{name...}", "dataset"}, {"/accept/{name...}", "dataset"},
	{"/reject/{name...}", "dataset"}, {"/v1/tasks/{id}", "task"}, {"/tasks/{id}", "task"},
	{"/v1/scheduled-events/{id}", "timer"}, {"/timers/{id}", "timer"}, {"/v1/bulk-actions/{id}", "bulk action"},
	{"/dags/{dag}/backfills/{id}", "backfill"}, {"/jobs/{dag}/{job}", "job"}, {"/dags/{dag}/jobs/{job}", "job"},
	{"/sources/{dag}/{job}", "job"},
}

// kindOf returns the kind of what a route's path names that may be hidden from somebody, empty if there is no such
// thing. A route that names something of a kind that nobody has thought of fails.
func kindOf(t *testing.T, route authz.Route) string {
	t.Helper()
	for _, in := range inPaths {
		if strings.Contains(route.Path, in.part) {
			return in.kind
		}
	}
	for _, p := range placeholder.FindAllString(route.Path, -1) {
		switch p {
		case "{dag}", "{version}", "{verb}", "{file}", "{$}", "{org}", "{path...}", "{provider}", "{index}":
			// Everybody in the org sees which DAGs and versions there are; the rest is no object of an org.
		default:
			unseen := route.Rule.Principal() != authz.User || route.Rule.Action() == authz.Administer
			require.True(t, unseen, "%s %s: say in inPaths what %s names", route.Method, route.Path, p)
		}
	}
	return ""
}

// vaulted returns a hidden and an absent object of each kind. An absent name is like a hidden one, so that a hint to
// similar names would tell it.
func (w *world) vaulted(t *testing.T) map[string][]pathObject {
	t.Helper()
	v := w.lockVault(t)
	var published string
	for _, d := range decode[[]registry.Dataset](t, w.env(t, admin), "datasets", "list", "--dag", "vault") {
		if d.Name == "vault_daily" {
			published = d.ID.String()
		}
	}
	id := func(hidden, dag string) []pathObject {
		return []pathObject{{hidden: map[string]string{"{id}": hidden, "{dag}": dag},
			absent: map[string]string{"{id}": uuid.Must(uuid.NewV7()).String(), "{dag}": dag}}}
	}
	dataset := func(hidden, absent string) pathObject {
		return pathObject{hidden: map[string]string{"{name}": hidden, "{name...}": hidden},
			absent: map[string]string{"{name}": absent, "{name...}": absent}}
	}
	outlined := func(n pathObject) []pathObject {
		n.outlined = true
		return []pathObject{n}
	}
	return map[string][]pathObject{
		"dataset": {dataset("vault_daily", "vault_daisy"), dataset("vault/landing/0", "vault/loading/0"),
			dataset(published, uuid.Must(uuid.NewV7()).String())},
		"task":        outlined(id(v.task, "")[0]),
		"timer":       outlined(id(v.timer, "")[0]),
		"bulk action": id(v.bulk, ""),
		"backfill":    id(v.backfill, "vault"),
		"job": outlined(pathObject{hidden: map[string]string{"{dag}": "vault", "{job}": "asked"},
			absent: map[string]string{"{dag}": "vault", "{job}": "no-such-job"}}),
	}
}

// fillIn returns a route's path, with the names of an object.
func fillIn(route authz.Route, object map[string]string) string {
	return placeholder.ReplaceAllStringFunc(route.Path, func(p string) string {
		if name, is := object[p]; is && p != "{name...}" {
			return url.PathEscape(name)
		} else if is {
			return name
		}
		return address(p, "")
	}) + neededQueries[route.Path]
}

// neededQueries and neededBodies are what routes refuse to be without, so that no request fails for want of it.
var (
	neededQueries = map[string]string{"/v1/sources/{dag}/{job}/caused": "?since=2026-01-01T00:00:00Z",
		"/v1/datasets/{name}/diff": "?to=live"}
	neededBodies = map[string]string{
		"/v1/datasets/{name}/visibility": `{"read_roles": ["role:finance"], "opened": false}`,
		"/v1/datasets/{name}/accept":     `{"partition": "2026-01-01", "reason": "x"}`,
		"/v1/datasets/{name}/reject":     `{"partition": "2026-01-01", "reason": "x"}`,
		"/v1/datasets/{name}/purge":      `{"reason": "x"}`,
		"/v1/tasks/{id}:skip":            `{"reason": "x"}`,
	}
)

// asAbsent rewrites an answer about the hidden object to one about the absent one.
func (n pathObject) asAbsent(body string) string {
	for p, hidden := range n.hidden {
		if hidden == n.absent[p] || hidden == "" {
			continue
		}
		for _, escape := range []func(string) string{url.PathEscape, url.QueryEscape, strings.Clone} {
			body = strings.ReplaceAll(body, escape(hidden), escape(n.absent[p]))
		}
	}
	return body
}

// testHidden tries every route that names something on what is hidden, as every caller, and on what does not exist.
// There is one rule: whoever may not read it gets the same answer for both, to the byte, and that is 404 unless the
// caller is refused whatever the path names. Of a job, a task and a timer everybody in the org reads the outline.
func testHidden(t *testing.T) {
	t.Parallel()
	w := newWorld(t, withPages)
	callers := w.everyCaller(t)
	vault := w.vaulted(t)
	before := w.everything(t)
	tried := map[string]bool{}
	routes := w.app.API.Routes()

	for _, route := range routes {
		kind := kindOf(t, route)
		if kind == "" {
			continue
		}
		tried[kind] = true
		for _, object := range vault[kind] {
			for caller := range w.tokens {
				if as := callers[caller]; caller == foreign || as.OrgRoles == nil && as.Role != authz.RoleAdmin {
					w.tryHidden(t, route, object, caller, callers)
				}
			}
		}
	}
	require.Len(t, tried, len(vault), "no route names a thing of some kind")
	require.Equal(t, before, w.everything(t), "nothing has changed")

	// For those who may read it, all of it is there. What they do to it comes last.
	slices.SortStableFunc(routes, func(a, b authz.Route) int { return cmp.Compare(leaves(a), leaves(b)) })
	for _, route := range routes {
		for _, object := range vault[kindOf(t, route)] {
			status, body := w.tryOn(t, route, finance, object.hidden)
			where := route.Method + " " + fillIn(route, object.hidden)
			assert.Less(t, status, 500, "%s: %s", where, body)
			assert.NotEqual(t, http.StatusUnauthorized, status, "%s: %s", where, body)
			absent := status == http.StatusNotFound && strings.Contains(body, "there is no")
			assert.False(t, absent, "%s: %s", where, body)
			may := callers[finance].MaySomewhere(route.Rule.Action())
			assert.Equal(t, may, status != http.StatusForbidden, "%s: %s", where, body)
		}
	}
}

// leaves orders routes by how much they leave of what they name.
func leaves(r authz.Route) int {
	switch {
	case r.Method == http.MethodGet:
		return 0
	case r.Method == http.MethodDelete:
		return 3
	case strings.HasSuffix(r.Path, "/delete"):
		return 2
	}
	return 1
}

// tryOn sends a route's request about an object.
func (w *world) tryOn(t *testing.T, route authz.Route, caller string, object map[string]string) (int, string) {
	t.Helper()
	return w.sendOn(t, route, caller, fillIn(route, object), cmp.Or(neededBodies[route.Path], "{}"))
}

func (w *world) sendOn(t *testing.T, route authz.Route, caller, path, sent string) (int, string) {
	t.Helper()
	status, body := w.send(t, caller, route.Method, path, "application/json", strings.NewReader(sent))
	return status, requestID.ReplaceAllString(body, "")
}

// requestID matches what differs between the answers to any two requests.
var requestID = regexp.MustCompile(`("request_id":"|Request )[0-9a-f-]{36}`)

// tryHidden tries a route on something that a caller may not read.
func (w *world) tryHidden(t *testing.T, route authz.Route, object pathObject, caller string,
	callers map[string]authz.Caller) {
	t.Helper()
	status, body := w.tryOn(t, route, caller, object.hidden)
	missing, absent := w.tryOn(t, route, caller, object.absent)
	where := route.Method + " " + fillIn(route, object.hidden) + " as " + caller
	as, known := callers[caller]
	want := http.StatusNotFound
	switch {
	case !known:
		want = http.StatusUnauthorized
	case !as.MaySomewhere(route.Rule.Action()), object.hidden["{dag}"] != "" && strings.Contains(route.Path, "{dag}") &&
		!as.May(route.Rule.Action(), authz.OnDAG(object.hidden["{dag}"])):
		want = http.StatusForbidden
	case object.outlined && caller != foreign && route.Rule.Action() == authz.Read:
		assert.True(t, status < 400 || status == http.StatusNotFound, "%s: %s", where, body)
		assert.NotRegexp(t, "_mark|2026-01-01|vault_", body, where)
		return
	}
	assert.Equal(t, want, status, "%s: %s", where, body)
	assert.Equal(t, missing, status, where)
	assert.Equal(t, absent, object.asAbsent(body), where)

	// Nothing of a request is looked at before that is decided.
	hiddenPath, absentPath := fillIn(route, object.hidden), fillIn(route, object.absent)
	for _, wrong := range []struct{ query, body string }{{"zzz=1", "{}"}, {"", "{"}, {"", `{"zzz": []}`}} {
		and := "?"
		if strings.Contains(hiddenPath, "?") {
			and = "&"
		}
		status, body := w.sendOn(t, route, caller, hiddenPath+and+wrong.query, wrong.body)
		missing, absent := w.sendOn(t, route, caller, absentPath+and+wrong.query, wrong.body)
		assert.Equal(t, missing, status, "%s with %v", where, wrong)
		assert.Equal(t, absent, object.asAbsent(body), "%s with %v", where, wrong)
	}
}
