package main

import (
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/registry"
)

// No route tells anything of what is hidden from a reader, from somebody who works on all DAGs, or from another org.
// Built with -tags noscope, which switches the conditions of the code off, row-level security alone sees to that.
func TestTheSecondWallStandsAlone(t *testing.T) {
	t.Parallel()
	w := hide(t)
	fill := w.hiddenPaths(t)
	told := map[string]bool{}
	for _, r := range reads(t, w.app.API.Routes(), fill) {
		for _, caller := range []string{"finance", reader, writer, foreign} {
			status, body := w.send(t, caller, http.MethodGet, r.path, "", nil)
			require.Less(t, status, 500, "%s as %s: %s", r.path, caller, body)
			body = withoutRequest(body, r.path)
			for _, mark := range hiddenMarks {
				if caller == "finance" {
					told[mark] = told[mark] || strings.Contains(body, mark)
				} else if r.rule.Action() != authz.Plan || caller != writer { // a plan tells names
					require.NotContains(t, body, mark, "%s as %s", r.path, caller)
				}
			}
		}
	}
	for _, mark := range hiddenMarks {
		require.True(t, told[mark], "no route tells %s to those who may know", mark)
	}

	for _, caller := range []string{reader, writer, foreign} {
		for _, name := range []string{"payroll_mark", "bonus_mark", `"wages/intake/0"`} {
			status, body := w.send(t, caller, http.MethodPost, "/v1/query", "application/json",
				strings.NewReader(`{"sql": "FROM `+strings.ReplaceAll(name, `"`, `\"`)+`"}`))
			require.Equal(t, http.StatusNotFound, status, body)
			require.NotContains(t, body, "row_mark")
		}
	}
	status, body := w.send(t, "finance", http.MethodPost, "/v1/query", "application/json",
		strings.NewReader(`{"sql": "FROM payroll_mark"}`))
	require.Equal(t, http.StatusOK, status, body)
	require.Contains(t, body, "row_mark")
}

// hiddenPaths returns what is in the org, and hidden from some of it, for each placeholder of paths.
func (w *world) hiddenPaths(t *testing.T) map[string][]string {
	t.Helper()
	var tasks, datasets []string
	for _, task := range w.tasks(t) {
		tasks = append(tasks, task.ID.String())
	}
	for _, d := range decode[[]registry.Dataset](t, w.env(t, "finance"), "datasets", "list", "--all") {
		datasets = append(datasets, d.ID.String(), d.Name)
	}
	require.GreaterOrEqual(t, len(datasets), 10)
	datasetPages := slices.Clone(datasets)
	for _, name := range datasets {
		datasetPages = append(datasetPages, name+"/lineage", name+"/lineage?column=station")
	}
	return map[string][]string{"{dag}": {"wages", "bonuses", "losses"}, "{job}": {"sums", "bonus", "lost", "intake"},
		"{version}": {"1"}, "{name}": datasets, "{name...}": datasetPages, "{id}": tasks, "{key}": {"2031-07-09"},
		"{index}": {"0"}, "{org}": {"acme"}, "{file}": {"style.css"}, "{$}": {""}, "{slug}": {"finance"},
		"{path...}": {"x"}, "{user}": {"nobody@example.com"}, "{rule}": {"x"}, "{provider}": {"x"}, "{token}": {"x"},
		"{verb}": {"retry", "skip"}}
}

// read is one request of the walk.
type read struct {
	rule authz.Rule
	path string
}

// reads lists what the walk asks of the routes that people read by.
func reads(t *testing.T, routes []authz.Route, fill map[string][]string) (all []read) {
	t.Helper()
	for _, route := range routes {
		if route.Method != http.MethodGet || route.Rule.Principal() != authz.User {
			continue
		}
		for _, path := range paths(t, route.Path, fill) {
			for _, query := range queriesOf(route.Path) {
				all = append(all, read{route.Rule, path + query})
			}
		}
	}
	require.NotEmpty(t, all)
	return all
}

// paths fills the placeholders of a route's path in every way.
func paths(t *testing.T, path string, fill map[string][]string) []string {
	t.Helper()
	at := placeholder.FindString(path)
	if at == "" {
		return []string{path}
	}
	require.NotEmpty(t, fill[at], "%s: give the walk values for %s", path, at)
	var all []string
	for _, value := range fill[at] {
		if !strings.HasSuffix(at, "...}") {
			value = url.PathEscape(value)
		}
		all = append(all, paths(t, strings.Replace(path, at, value, 1), fill)...)
	}
	return all
}

// queriesOf returns the query strings with which the walk asks a route.
func queriesOf(path string) []string {
	switch path {
	case "/v1/dags/{dag}/diff":
		return []string{"?from=1&to=1"}
	case "/v1/datasets":
		return []string{"", "?unpublished=true", "?search=mark", "?late=true", "?dag=wages"}
	case "/v1/datasets/{name}/lineage":
		return []string{"", "?columns=true", "?column=station", "?column=salary_mark", "?partition=2031-07-09",
			"?partition=2026-01-01", "?at=v1", "?at=2100-01-01T00:00:00Z", "?direction=down&columns=true"}
	case "/bulk/{verb}":
		return []string{"?dag=losses", "?dag=wages", "?dead=1&dag=losses"}
	case "/tasks":
		return []string{"", "?dag=losses", "?dead=1", "?partition=2031-07-09", "?error=person_mark"}
	case "/v1/tasks":
		return []string{"", "?dag=losses", "?dead=true", "?partition=2031-07-09", "?error=person_mark",
			"?status=Failed"}
	}
	return []string{""}
}

// withoutRequest removes from an answer what the request named itself.
func withoutRequest(body, path string) string {
	for _, part := range strings.FieldsFunc(path, func(r rune) bool { return strings.ContainsRune("/?&=", r) }) {
		if plain, err := url.PathUnescape(part); err == nil && strings.ContainsAny(plain, "_-/") {
			body = strings.ReplaceAll(body, plain, "")
		}
	}
	return body
}
