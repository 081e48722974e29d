package main

import (
	"io"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/html"
)

// page fetches and parses a page as one of the callers.
func (w *world) page(t *testing.T, caller, path string) *html.Node {
	t.Helper()
	status, text := w.send(t, caller, http.MethodGet, path, "", nil)
	require.Equal(t, http.StatusOK, status, "%s\n%s", path, text)
	root, err := html.Parse(strings.NewReader(text))
	require.NoError(t, err)
	return root
}

// all returns the elements with a name.
func all(root *html.Node, name string) []*html.Node {
	var found []*html.Node
	for n := range root.Descendants() {
		if n.Type == html.ElementNode && n.Data == name {
			found = append(found, n)
		}
	}
	return found
}

func attribute(n *html.Node, name string) string {
	for _, a := range n.Attr {
		if a.Key == name {
			return a.Val
		}
	}
	return ""
}

// text returns the visible text of an element.
func text(n *html.Node) string {
	var words []string
	for d := range n.Descendants() {
		if d.Type == html.TextNode {
			words = append(words, strings.Fields(d.Data)...)
		}
	}
	return strings.Join(words, " ")
}

// rows returns the rows in the body of the page's nth table, cell by cell.
func rows(root *html.Node, n int) [][]string {
	var out [][]string
	for _, tr := range all(all(all(root, "table")[n], "tbody")[0], "tr") {
		var cells []string
		for td := range tr.ChildNodes() {
			if td.Type == html.ElementNode {
				cells = append(cells, text(td))
			}
		}
		out = append(out, cells)
	}
	return out
}

func TestPagesShowWhatThereIs(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.deployReadings(t, "2026-01-01", "2026-01-02")

	dags := rows(w.page(t, writer, "/dags"), 0)
	require.Equal(t, []string{"readings", "v1"}, dags[0][:2])

	dag := w.page(t, writer, "/dags/readings")
	jobs := rows(dag, 0)
	require.Equal(t, "landing", jobs[0][0])
	require.Equal(t, []string{"daily", "sql"}, jobs[1][:2])
	require.Equal(t, "daily_highest", jobs[1][4])
	require.Len(t, all(all(dag, "svg")[0], "rect"), 4, "three jobs and what they publish")
	require.Equal(t, "v1", rows(dag, 2)[0][0], "versions come after jobs and sources")

	tasks := rows(w.page(t, writer, "/tasks?dag=readings&job=daily&status=Completed"), 0)
	require.NotEmpty(t, tasks)
	for _, row := range tasks {
		require.Equal(t, []string{"readings/daily", "Completed"}, []string{strings.Split(row[0], "@")[0],
			strings.Fields(row[1])[0]})
	}

	require.Equal(t, "daily_highest weather Highest of each day.",
		rows(w.page(t, reader, "/datasets?search=higest"), 0)[0][0])
	require.Contains(t, text(w.page(t, reader, "/datasets?search=staton")), "column station")
	dataset := w.page(t, reader, "/datasets/daily_highest")
	require.Equal(t, [][]string{{"station", "VARCHAR", ""}, {"highest", "DOUBLE", ""}}, rows(dataset, 0))
	require.Equal(t, []string{"harbour", "5.25"}, rows(dataset, 1)[0])
	require.Contains(t, text(dataset), "not_null(station)")
	require.Contains(t, text(dataset), "January 2026")
	require.NotContains(t, text(dataset), "held up", "nothing is, and it is current")
	require.NotContains(t, text(dataset), "Why")
	require.NotContains(t, text(dataset), "Who reads it")
	require.Contains(t, text(w.page(t, writer, "/datasets/daily_highest")), "Who reads it")
	only := w.page(t, reader, "/datasets/daily_highest?partition=2026-01-02")
	require.Len(t, rows(only, 1), 2)
	require.Equal(t, "readings/landing/0", text(all(w.page(t, writer, "/datasets/readings/landing/0"), "h1")[0]))
}

// sources are the attributes by which a page makes a browser load something.
var sources = regexp.MustCompile(`^(src|href|action|srcset|data|poster|formaction|xlink:href)$`)

func TestPagesAreSafeAndAccessible(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.deployReadings(t, "2026-01-01")
	task := w.tasks(t)[0].ID.String()
	for _, path := range []string{"/dags", "/dags/readings", "/dead", "/late", "/tasks", "/tasks/" + task, "/datasets",
		"/datasets/daily_highest", "/query", "/dags/readings/jobs/daily", "/dags/readings/jobs/note", "/sources",
		"/sources/readings/landing", "/timers", "/usage", "/dags/readings/jobs/note/run",
		"/dags/readings/jobs/daily/pause",
		"/tasks/" + task + "/cancel", "/bulk/retry?dag=readings&dead=1"} {
		root := w.page(t, writer, path)
		requireAccessible(t, root, path)
	}
	status, body := w.send(t, writer, http.MethodGet, "/tasks/not-an-id", "", nil)
	require.Equal(t, http.StatusNotFound, status)
	require.Contains(t, body, "<h1>")
	status, _ = w.send(t, nobody, http.MethodGet, "/dags", "", nil)
	require.Equal(t, http.StatusUnauthorized, status)
}

// requireAccessible checks that a page loads nothing from elsewhere, has no script of its own in it, and has labels for
// its fields.
func requireAccessible(t *testing.T, root *html.Node, path string) {
	t.Helper()
	require.Equal(t, "en", attribute(all(root, "html")[0], "lang"), path)
	require.Len(t, all(root, "h1"), 1, path)
	require.Len(t, all(root, "main"), 1, path)
	for _, script := range all(root, "script") {
		require.Empty(t, text(script), "%s: the policy allows no inline script", path)
	}
	require.Empty(t, all(root, "style"), "%s: the policy allows no inline style", path)
	for n := range root.Descendants() {
		for _, a := range n.Attr {
			require.NotRegexp(t, `^on`, a.Key, path)
			require.NotEqual(t, "style", a.Key, path)
			if sources.MatchString(a.Key) {
				require.Regexp(t, `^(/$|/[^/]|#)`, a.Val, "%s asks another host", path)
			}
		}
	}
	for _, input := range slices.Concat(all(root, "input"), all(root, "select"), all(root, "textarea")) {
		require.True(t, input.Parent.Data == "label" || attribute(input, "type") == "hidden",
			"%s: a field without a label", path)
	}
	for _, th := range all(root, "th") {
		require.NotEmpty(t, attribute(th, "scope"), path)
	}
}

func TestPagesCarryAStrictPolicy(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, w.url+"/dags", nil)
	require.NoError(t, err)
	request.Header.Set("Authorization", "Bearer "+w.tokens[reader])
	response, err := http.DefaultClient.Do(request)
	require.NoError(t, err)
	require.NoError(t, response.Body.Close())
	require.Contains(t, response.Header.Get("Content-Security-Policy"), "default-src 'self'")
	require.NotContains(t, response.Header.Get("Content-Security-Policy"), "unsafe")
	require.Equal(t, "nosniff", response.Header.Get("X-Content-Type-Options"))
}

// Who follows a link to a page that there is not sees a page; programs get a problem.
func TestAPageThatThereIsNot(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, test := range []struct{ accept, path, is string }{
		{"text/html,application/xhtml+xml,*/*;q=0.8", "/no<b>page", "text/html"},
		{"text/html,application/xhtml+xml,*/*;q=0.8", "/v1/nothing", "application/problem+json"},
		{"*/*", "/nopage", "application/problem+json"},
	} {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, w.url+test.path, nil)
		require.NoError(t, err)
		r.Header.Set("Accept", test.accept)
		answer, err := http.DefaultClient.Do(r)
		require.NoError(t, err)
		defer answer.Body.Close()
		body, err := io.ReadAll(answer.Body)
		require.NoError(t, err)

		require.Equal(t, http.StatusNotFound, answer.StatusCode, test)
		require.Contains(t, answer.Header.Get("Content-Type"), test.is)
		require.Contains(t, string(body), "there is no such route", test)
		require.NotContains(t, string(body), "<b>page")
	}
}
