package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/internal/testbrowser"
	"github.com/dagctl/dagctl/internal/testoidc"
)

// salesDAG publishes the highest reading of each day. Each day waits for the file open in GATES, so that a test sees
// it being built. Mail fails until there is a file fixed, and then waits for open as well.
const salesDAG = `name: readings
jobs:
` + landingJob + `  - name: measured
    operator: command
    inputs: [{ from: { job: landing } }]
    execution_strategy: PerPartition
    partition_by: { time: day }
    code_version: "1"
    config:
      argv:
        - /bin/sh
        - -c
        - |
          out=$(sed 's/.*"dir": *"\([^"]*\)".*/\1/')
          until test -e GATES/open; do sleep 0.1; done
          printf 'station,celsius\nharbour,5.25\nsummit,-8\n' >"$out/x.csv"
  - name: daily
    operator: sql
    inputs: [{ from: { job: measured } }]
    execution_strategy: PerPartition
    config: { query: "SELECT station, max(celsius) AS highest FROM measured GROUP BY station ORDER BY station" }
  - name: mail
    operator: command
    source: { kind: manual }
    outputs: 0
    max_attempts: 1
    heartbeat_timeout_seconds: 5
    config:
      argv: [/bin/sh, -c, "cat >/dev/null; test -e GATES/fixed || exit 1; until test -e GATES/never; do sleep 0.1; done"]
publish:
  daily_highest: { from: { job: daily }, description: Highest of each day. }
`

// people are those who sign in at the provider of a story.
func people() []testoidc.User {
	var all []testoidc.User
	for _, name := range []string{"ada", "ben", "eva"} {
		all = append(all, testoidc.User{Subject: name, Email: name + "@example.com", EmailVerified: true, Name: name})
	}
	return all
}

// A writer changes a DAG on pages, as somebody does who has nothing but a browser and an account at the company's
// provider: plans, deploys, watches the build, promotes, goes back, and brings a task to its end. A reader then finds
// the data, and only a reader with the right role what is closed.
func TestTheStoryOfAChange(t *testing.T) {
	t.Parallel()
	gates := t.TempDir()
	b := newSalesServer(t, gates)
	ada := b.comes(t, "ada", "/dags/readings")
	b.changes(t, ada, gates)
	b.decidesOnATask(t, ada, gates)

	must(t, b.env(t, admin), "datasets", "visibility", "station_peaks", "--role", "role:finance")
	b.readsWithoutTheRole(t, b.comes(t, "ben", "/datasets"))
	b.readsWithTheRole(t, b.comes(t, "eva", "/datasets"))
}

// newSalesServer starts a built server with people and two DAGs.
func newSalesServer(t *testing.T, gates string) *built {
	t.Helper()
	p := testoidc.Start(t, testoidc.Options{Users: people()})
	secret := filepath.Join(t.TempDir(), "secret")
	require.NoError(t, os.WriteFile(secret, []byte("s3cret"), 0o600))
	b := newBuilt(t, fmt.Sprintf(`
operators: { allow_command: [acme], command_shared: [%s], allowed_addresses: [127.0.0.0/8] }
identity:
  providers: [{ name: corp, title: Corp, issuer: "%s", client_id: dagctl, client_secret_file: %s }]
`, gates, p.Issuer, secret))
	p.SetClient(testoidc.Client{ID: "dagctl", Secret: "s3cret",
		RedirectURIs: []string{b.url + "/signin/callback/corp"}})

	admins := b.env(t, admin)
	must(t, admins, "roles", "create", "finance")
	must(t, admins, "users", "invite", "ada@example.com", "--role", "writer")
	must(t, admins, "users", "invite", "ben@example.com", "--role", "reader")
	must(t, admins, "users", "invite", "eva@example.com", "--role", "reader")
	must(t, admins, "users", "set", "eva@example.com", "--org-role", "role:finance")

	open(t, gates, "open")
	b.land(t, "2026-01-01")
	b.land(t, "2026-01-02")
	must(t, admins, "deploy", writeDAG(t, t.TempDir(), "readings", strings.ReplaceAll(salesDAG, "GATES", gates)))
	must(t, admins, "deploy", writeDAG(t, t.TempDir(), "peaks", peaksDAG))
	require.NoError(t, os.Remove(filepath.Join(gates, "open")))
	return b
}

// open lets through those who wait for a gate.
func open(t *testing.T, gates, name string) {
	t.Helper()
	require.NoError(t, os.WriteFile(filepath.Join(gates, name), nil, 0o600))
}

// comes starts a browser in which somebody signs in at the provider, on the way to a page.
func (b *built) comes(t *testing.T, name, path string) *testbrowser.Browser {
	t.Helper()
	browser := testbrowser.Start(t)
	browser.Open(b.url + path)
	require.Equal(t, "Sign in", browser.Text("h1"))
	signIn(browser, name)
	require.Equal(t, b.url+path, browser.URL(), "the page that was asked for")
	require.Equal(t, name+"@example.com · acme", browser.Text(".caller a"))
	return browser
}

// stays marks the page, so that requireSameDocument tells whether it was loaded again.
func stays(page *testbrowser.Browser) {
	var ok bool
	page.WaitText("#live", "Live")
	page.Run("mark", chromedp.Evaluate(mark, &ok))
}

// typed answers a page that asks for a name.
func typed(page *testbrowser.Browser, name string) {
	page.Fill("input[name=typed]", name)
	page.Follow("form.confirm button")
}

// changes plans, deploys and promotes a change of readings, and goes back.
func (b *built) changes(t *testing.T, page *testbrowser.Browser, gates string) {
	t.Helper()
	changed := strings.NewReplacer("GATES", gates, `code_version: "1"`, `code_version: "2"`, "harbour,5.25",
		"harbour,7.5").Replace(salesDAG)
	page.Follow(`a[href="/dags/readings/plan"]`)
	page.Run("write the change", chromedp.SetValue("textarea[name=yaml]", changed, chromedp.ByQuery))
	page.Follow(".document button")
	require.Contains(t, page.Text("#changes + .scroll"), "rebuild")
	page.Click("input[value=promoted]")
	page.Follow("#deployform button")
	require.Equal(t, b.url+"/dags/readings/versions/2", page.URL())

	// The build is watched, on a page that is loaded once.
	stays(page)
	page.WaitText(".badges", "Building")
	page.WaitText("#build ~ .scroll", "daily_highest")
	open(t, gates, "open")
	page.WaitText(".badges", "Ready")
	requireSameDocument(t, page)

	page.Follow(`a[href="/dags/readings/versions/2/promote"]`)
	require.Contains(t, page.Text("main table"), "daily_highest")
	typed(page, "readings")
	page.WaitText(".facts", "v2")
	require.Contains(t, must(t, b.env(t, admin), "query", "SELECT max(highest) AS m FROM daily_highest"), "7.5")

	page.Open(b.url + "/dags/readings/versions/1")
	page.Follow(`a[href="/dags/readings/versions/1/rollback"]`)
	typed(page, "readings")
	require.Equal(t, b.url+"/dags/readings", page.URL())
	page.WaitText(".facts", "v1")
	require.Contains(t, must(t, b.env(t, admin), "query", "SELECT max(highest) AS m FROM daily_highest"), "5.25")
}

// decidesOnATask runs a task that fails, retries it, and cancels it while it runs. Its page follows without being
// loaded again, but by the answers to what is asked.
func (b *built) decidesOnATask(t *testing.T, page *testbrowser.Browser, gates string) {
	t.Helper()
	page.Open(b.url + "/dags/readings/jobs/mail")
	page.Follow(`a[href="/dags/readings/jobs/mail/run"]`)
	page.Follow("form.confirm button")
	task := page.URL()
	require.Contains(t, task, b.url+"/tasks/")
	stays(page)
	page.WaitText(".badges .badge", "Failed")
	page.WaitText("main .actions", "Retry…")
	requireSameDocument(t, page)

	path := strings.TrimPrefix(task, b.url)
	open(t, gates, "fixed")
	page.Follow(`a[href="` + path + `/retry"]`)
	page.Follow("form.confirm button")
	require.Equal(t, task, page.URL())
	stays(page)
	page.WaitText(".badges .badge", "Running")
	page.WaitText("main .actions", "Cancel…")
	requireSameDocument(t, page)

	page.Follow(`a[href="` + path + `/cancel"]`)
	require.Contains(t, page.Text(".effects"), "It runs on")
	page.Follow("form.confirm button")
	require.Equal(t, task, page.URL())
	stays(page)
	page.WaitText(".badges .badge", "Canceled")
	requireSameDocument(t, page)
	require.Contains(t, page.Text("#events + .scroll"), "user:")
}

// readsWithoutTheRole finds what everybody may read, and nowhere what is closed.
func (b *built) readsWithoutTheRole(t *testing.T, page *testbrowser.Browser) {
	t.Helper()
	require.Contains(t, page.Text("main"), "daily_highest")
	for _, path := range []string{"/", "/dags", "/dags/readings", "/dags/peaks", "/dags/peaks/jobs/peak",
		"/dags/peaks/versions/1", "/datasets", "/datasets?search=peak", "/datasets/daily_highest",
		"/datasets/daily_highest/lineage", "/query", "/query?find=peak", "/tasks", "/tasks?dag=peaks", "/sources",
		"/late", "/dead", "/timers", "/costs?by=dataset", "/usage"} {
		page.Open(b.url + path)
		require.NotContains(t, page.Text("body"), "station_peaks", path)
		require.False(t, exists(page, `[href*="station_peaks"]`), path)
	}
	page.Open(b.url + "/datasets/station_peaks")
	require.Contains(t, page.Text("main"), "there is no dataset")
	page.Open(b.url + "/datasets/daily_highest/lineage")
	require.Contains(t, page.Text("main"), "hidden")

	page.Open(b.url + "/query")
	asks := func(sql string) {
		page.Run("write "+sql, chromedp.SetValue("textarea[name=sql]", sql, chromedp.ByQuery))
		page.Click("button.first")
	}
	asks("FROM station_peaks")
	page.WaitText("#result", "there is no dataset")
	asks("SELECT station, max(highest) AS most FROM daily_highest GROUP BY 1 ORDER BY 1")
	page.WaitText("#result h2", "2 rows")
	require.Contains(t, page.Text("#result .grid"), "5.25")
}

// readsWithTheRole follows the lineage of a dataset to one that is closed to others, and reads it.
func (b *built) readsWithTheRole(t *testing.T, page *testbrowser.Browser) {
	t.Helper()
	page.Follow(`a[href="/datasets/daily_highest"]`)
	require.Contains(t, page.Text("#rows ~ .scroll"), "harbour")
	page.Follow(`a[href="/datasets/daily_highest/lineage"]`)
	page.Enter(`a[href="/datasets/station_peaks/lineage"]`)
	require.Equal(t, "Lineage of station_peaks", page.Text("h1"))
	require.Contains(t, page.Text("main"), "daily_highest")
	page.Follow(`main p a[href="/datasets/station_peaks"]`)

	require.Contains(t, page.Text("main"), "role:finance")
	require.Contains(t, page.Text("#rows ~ .scroll"), "10.5")
	page.Follow(`#rows + p a.button`)
	page.Click("button.first")
	page.WaitText("#result h2", "rows")
	require.Contains(t, page.Text("#result .grid"), "10.5")
	require.Contains(t, page.Text("#result"), "station_peaks")
}
