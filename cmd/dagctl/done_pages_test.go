package main

import (
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/net/html"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/dispatcher/views"
)

// failing is readingsDAG with a query that fails on every row.
var failing = strings.Replace(readingsDAG, "SELECT station, max(celsius)", "SELECT station, error('broken')", 1)

// A DAG whose first version failed has pages, and every link of them leads somewhere; what died with the version is not
// retried, and the page says what to do instead.
func TestThePagesOfAFirstDeployThatFailed(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.land(t, "2026-01-01")
	failed := dagctl(t, w.env(t, writer), "deploy", writeDAG(t, t.TempDir(), "x", failing))
	require.NotZero(t, failed.code)

	w.requireLinksLead(t, "/", "/dags", "/dags/readings", "/dags/readings/versions/1", "/tasks", "/dead", "/sources",
		"/tasks/"+w.lastTask(t, "daily").ID.String())

	at := slices.IndexFunc(w.tasks(t), func(task views.Task) bool { return task.Status == "Failed" })
	require.GreaterOrEqual(t, at, 0)
	path := "/tasks/" + w.tasks(t)[at].ID.String()
	page := w.page(t, writer, path)
	require.Contains(t, text(page), "It cannot be retried")
	require.NotContains(t, hrefs(page), path+"/retry")
	w.refuses(t, writer, path+"/retry", url.Values{}, http.StatusConflict, "deploy that document again")
	w.refuses(t, writer, "/bulk/retry?dead=1", url.Values{"dead": {"1"}, "matched": {"0"}}, http.StatusConflict,
		"none of these tasks can be retried")
	refused := dagctl(t, w.env(t, writer), "tasks", "retry", w.tasks(t)[at].ID.String())
	require.NotZero(t, refused.code)
	require.Contains(t, refused.err, "no version runs any more")
	require.Contains(t, must(t, w.env(t, writer), "tasks", "get", w.tasks(t)[at].ID.String()), "only by deploying")
}

// What died with a first version is listed after the version is given up for another one, or its job is gone, too.
func TestTheLinksOfWhatAFirstDeployLeft(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.land(t, "2026-01-01")
	file := writeDAG(t, t.TempDir(), "x", failing)
	require.NotZero(t, dagctl(t, w.env(t, writer), "deploy", file).code)
	task := "/tasks/" + w.lastTask(t, "daily").ID.String()

	renamed := strings.NewReplacer("name: daily", "name: hourly", "job: daily", "job: hourly").Replace(failing)
	must(t, w.env(t, writer), "deploy", writeDAG(t, t.TempDir(), "y", renamed), "--wait=false", "--supersede")
	must(t, w.env(t, writer), "abandon", "readings")
	w.requireLinksLead(t, "/", "/dags", "/dags/readings/versions/1", "/dags/readings/versions/2", "/tasks", "/dead",
		"/sources", "/timers", task)
}

// requireLinksLead checks that no link of the pages leads to nothing.
func (w *world) requireLinksLead(t *testing.T, pages ...string) {
	t.Helper()
	tried := map[string]bool{}
	for _, path := range pages {
		page := w.page(t, writer, path)
		requireAccessible(t, page, path)
		for _, link := range hrefs(page) {
			link, _, _ = strings.Cut(link, "#")
			if tried[link] || !strings.HasPrefix(link, "/") {
				continue
			}
			tried[link] = true
			status, body := w.send(t, writer, http.MethodGet, link, "", nil)
			assert.NotEqual(t, http.StatusNotFound, status, "%s links to %s: %s", path, link, text(parse(t, body)))
		}
	}
}

// The page that an action leads to says what was done, once, and nobody else can have it say anything.
func TestAPageSaysWhatWasDone(t *testing.T) {
	t.Parallel()
	w := newWorld(t, withPages)
	w.deployReadings(t, "2026-01-01")
	b := w.openAs(t, "ada@example.com", authz.RoleWriter)
	b.Open(w.url + "/dags/readings/jobs/note")
	require.False(t, exists(b, ".told"))

	b.Enter(`a[href="/dags/readings/jobs/note/pause"]`)
	b.Fill("input[name=reason]", "stock-taking")
	b.Enter("form.confirm button")
	require.Equal(t, w.url+"/dags/readings/jobs/note", b.URL())
	require.Equal(t, "Done: pause readings/note.", b.Text(".told[role=status]"))
	require.Empty(t, b.Violations())
	b.Open(w.url + "/dags/readings/jobs/note")
	require.False(t, exists(b, ".told"), "it is said once")

	b.Open(w.url + "/dags/readings/jobs/note?done=Your+account+is+locked&said=x")
	require.NotContains(t, b.Text("body"), "Your account")
}

// fieldValue returns the value of a field of the page's form.
func fieldValue(page *html.Node, name string) string {
	for _, input := range all(page, "input") {
		if attribute(input, "name") == name {
			return attribute(input, "value")
		}
	}
	return ""
}
