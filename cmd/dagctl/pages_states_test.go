package main

import (
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/cmd/dagctl/cli"
	"github.com/dagctl/dagctl/internal/testbrowser"
)

// faultless looks for faults in the page that a browser shows, wide or narrow, light or dark. With -pictures FOLDER it
// leaves pictures of it.
func faultless(t *testing.T, b *testbrowser.Browser, state string) {
	t.Helper()
	for _, look := range testbrowser.Looks {
		b.Show(look)
		for _, fault := range b.Violations() {
			t.Errorf("%s, %s: %s", state, look.Name, fault)
		}
		if beyond := b.Width(); beyond > 0 {
			t.Errorf("%s, %s: the page is %d pixels wider than the window", state, look.Name, beyond)
		}
		if *pictures != "" {
			name := strings.Trim(strings.NewReplacer("/", "_", "?", "_", "=", "_", " ", "_").Replace(state), "_")
			require.NoError(t, os.MkdirAll(*pictures, 0o700))
			file := filepath.Join(*pictures, name+"."+look.Name+".png")
			require.NoError(t, os.WriteFile(file, b.Picture(), 0o600))
		}
	}
}

// An org in which nothing is has pages that teach, without a fault.
func TestNoEmptyPageHasAFault(t *testing.T) {
	t.Parallel()
	w := newWorld(t, withBaseURL)
	b := w.open(t, admin, "/")
	for _, path := range []string{"/", "/dags", "/tasks", "/datasets", "/query", "/sources", "/timers", "/costs",
		"/usage", "/dead", "/late", "/secrets", "/users", "/trust", "/audit", "/plan"} {
		b.Open(w.url + path)
		faultless(t, b, "empty org, "+path)
	}
}

// What went wrong, and what waits, shows on pages without a fault.
func TestNoPageOfTroubleHasAFault(t *testing.T) {
	t.Parallel()
	w := newWorld(t, withBaseURL)
	task := w.makeTrouble(t)
	b := w.open(t, admin, "/")
	for state, path := range map[string]string{
		"home":                  "/",
		"a failed build":        "/dags/skips/versions/1",
		"its DAG":               "/dags/skips",
		"dead tasks":            "/dead",
		"a dead task":           "/tasks/" + task,
		"a paused job":          "/dags/readings/jobs/daily",
		"a paused source":       "/sources/readings/landing",
		"a withheld partition":  "/datasets/daily_highest",
		"accept":                "/accept/daily_highest?partition=2026-01-02",
		"read a paused source":  "/sources/readings/landing/read",
		"a page that is absent": "/dags/none",
		"a wrong filter":        "/costs?since=yesterday",
	} {
		b.Open(w.url + path)
		faultless(t, b, state)
	}
}

// makeTrouble makes a build that failed, with a dead task, whose id it returns, a withheld partition, and pauses.
func (w *world) makeTrouble(t *testing.T) (task string) {
	t.Helper()
	env := w.env(t, writer)
	w.deployReadings(t, "2026-01-01")
	w.landText(t, "2026-01-02", "station,celsius\n,1\n")
	require.Equal(t, cli.ExitFailed, dagctl(t, env, "deploy", writeDAG(t, t.TempDir(), "x", skipsDAG)).code)
	eventually(t, "a partition is withheld", func() (bool, error) {
		return strings.Contains(text(w.page(t, admin, "/datasets/daily_highest")), "Withheld partitions"), nil
	})
	must(t, env, "pause", "readings/daily", "--reason", "the inventory is being counted")
	must(t, env, "pause", "readings/landing")
	return w.lastTask(t, "picky").ID.String()
}

// What somebody wrote and the server refused is shown with the reason, without a fault.
func TestNoRefusalHasAFault(t *testing.T) {
	t.Parallel()
	w := twoVersions(t)
	b := w.open(t, admin, "/query")
	b.Run("write a query",
		chromedp.SetValue("textarea[name=sql]", "SELECT nothing FROM daily_highest", chromedp.ByQuery))
	b.Click("button.first")
	b.WaitText("#result .problem", "nothing")
	faultless(t, b, "a query that fails")

	for _, path := range []string{"/dags/readings/delete", "/dags/readings/versions/2/promote",
		"/dags/readings/abandon"} {
		b.Open(w.url + path)
		b.Fill("input[name=typed]", "another")
		b.Follow("form.confirm button")
		require.Contains(t, b.Text("main"), "the text typed is not")
		faultless(t, b, path+" with a wrong name")
	}
	b.Open(w.url + "/dags/readings/jobs/note/run")
	b.Run("write a payload", chromedp.SetValue("textarea[name=payload]", "{", chromedp.ByQuery))
	b.Follow("form.confirm button")
	require.Contains(t, b.Text("main"), "not valid JSON")
	faultless(t, b, "a wrong payload")
	b.Open(w.url + "/plan")
	b.Run("write a document", chromedp.SetValue("textarea[name=yaml]", "name: x\njobs: {", chromedp.ByQuery))
	b.Follow(".document button")
	faultless(t, b, "a wrong document")
	b.Open(w.url + "/datasets?search=" + url.QueryEscape("nothing like it"))
	faultless(t, b, "nothing found")
}
