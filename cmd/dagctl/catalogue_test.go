package main

import (
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"
	"golang.org/x/net/html"

	"github.com/dagctl/dagctl/dispatcher/views"
	"github.com/dagctl/dagctl/internal/testbrowser"
	"github.com/dagctl/dagctl/registry"
	"github.com/dagctl/dagctl/registry/catalog"
)

// profile returns what a caller gets to know of a dataset.
func (w *world) profile(t *testing.T, caller, name string) (p catalog.Profile) {
	t.Helper()
	require.NoError(t, w.as(caller).Get(t.Context(), "/v1/datasets/"+name+"/profile", nil, &p))
	return p
}

func TestADatasetsProfile(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.deployReadings(t, "2026-01-01", "2026-01-02")
	writers, readers := w.env(t, writer), w.env(t, reader)
	dir := t.TempDir()
	must(t, writers, "deploy", writeDAG(t, dir, "doubles", doublesDAG))
	must(t, readers, "query", "FROM daily_highest")
	must(t, readers, "query", "FROM daily_highest")

	p := w.profile(t, writer, "daily_highest")
	require.Equal(t, catalog.Maker{DAG: "readings", Job: "daily",
		Inputs: []catalog.Input{{Dataset: "readings/landing/0", DAG: "readings"}}}, p.Producer)
	require.Equal(t, []catalog.Consumer{{DAG: "doubles", Job: "doubled", Makes: []string{"doubled"}}}, p.Consumers)
	require.Len(t, p.Checks, 1)
	require.Equal(t, "not_null(station)", p.Checks[0].Name)
	k := p.Checks[0]
	require.Equal(t, []any{"pass", int64(2), int64(0)}, []any{k.Outcome, k.Passed, k.Failed})
	require.Len(t, p.Checks[0].History, 2)
	require.Equal(t, []string{"2026-01-01", "2026-01-02"}, []string{p.Trend[0].Partition, p.Trend[1].Partition})
	require.NotNil(t, p.Trend[0].Delay)
	require.Equal(t, "token:reader", p.Readers[0].Actor)
	require.EqualValues(t, 2, p.Readers[0].Reads)
	require.Len(t, p.Deploys, 1)
	d := p.Deploys[0]
	require.Equal(t, []any{1, "token:writer", "deploy"}, []any{d.Version, d.Actor, d.Reason})

	// A reader learns neither who reads nor what it is made from, which is not published.
	p = w.profile(t, reader, "daily_highest")
	require.Equal(t, []catalog.Input{{Hidden: true}}, p.Producer.Inputs)
	require.False(t, p.ReadersShown)
	require.Empty(t, p.Readers)
}

// A consumer that the caller may not see is counted and not named.
func TestAProfileNamesNothingThatIsHidden(t *testing.T) {
	t.Parallel()
	w := hide(t)
	dir := t.TempDir()
	must(t, w.env(t, writer), "deploy", writeDAG(t, dir, "doubles", doublesDAG))
	w.withOrgRole(t, "audit", "reader", "role:audit")
	must(t, w.env(t, admin), "datasets", "visibility", "doubled", "--role", "role:audit")
	status, body := w.send(t, admin, http.MethodPut, "/v1/datasets/doubled/visibility", "application/json",
		strings.NewReader(`{"read_roles": ["role:audit"]}`))
	require.Equal(t, http.StatusOK, status, "closed by default: %s", body)
	require.Equal(t, []catalog.Consumer{{Hidden: true}}, w.profile(t, reader, "daily_highest").Consumers)
	require.Equal(t, "doubled", w.profile(t, admin, "daily_highest").Consumers[0].Job)

	for _, caller := range []string{reader, writer} {
		for _, path := range []string{"profile", "grid", "versions"} {
			err := w.as(caller).Get(t.Context(), "/v1/datasets/payroll_mark/"+path, nil, nil)
			require.ErrorContains(t, err, "there is no dataset", path)
		}
		for _, search := range []string{"payroll", "salary mark", "persn", "bonus_mark", "text_mark"} {
			found := decode[[]registry.Dataset](t, w.env(t, caller), "datasets", "list", "--all", "--search", search)
			for _, d := range found {
				require.NotContains(t, d.Name, "_mark", search)
				require.NotContains(t, d.Matched.Text, "_mark", search)
			}
		}
	}
	require.Len(t, decode[[]registry.Dataset](t, w.env(t, "finance"), "datasets", "list", "--search", "salry mark"), 1)
}

// Each version says what it changed of the columns, and the deploys that moved the pointer are listed.
func TestSchemaHistoryOverThreeVersions(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.deployReadings(t, "2026-01-01")
	writers, dir := w.env(t, writer), t.TempDir()
	for _, query := range []string{"station, max(celsius) AS highest, count(*) AS readings",
		"station, CAST(max(celsius) AS VARCHAR) AS highest"} {
		must(t, writers, "deploy", "--yes", "--allow-breaking", writeDAG(t, dir, "readings",
			strings.Replace(readingsDAG, "station, max(celsius) AS highest", query, 1)))
	}

	versions := decode[[]registry.Generation](t, writers, "datasets", "versions", "daily_highest")
	require.Len(t, versions, 3)
	require.Equal(t, []registry.ColumnChange{{Column: "highest", Change: "type_changed", From: "DOUBLE", To: "VARCHAR"},
		{Column: "readings", Change: "removed", From: "BIGINT"}}, versions[0].Changes)
	require.Equal(t, []registry.ColumnChange{{Column: "readings", Change: "added", To: "BIGINT"}}, versions[1].Changes)
	require.Empty(t, versions[2].Changes)
	require.Len(t, versions[2].Columns, 2)
	require.Equal(t, []bool{true, false, false}, []bool{versions[0].Served, versions[1].Served, versions[2].Served})
	require.Contains(t, must(t, writers, "datasets", "versions", "daily_highest"),
		"highest DOUBLE → VARCHAR, − readings")

	must(t, writers, "rollback", "readings", "--yes")
	deploys := w.profile(t, writer, "daily_highest").Deploys
	require.Len(t, deploys, 4)
	require.Equal(t, []any{"rollback", 2, 3}, []any{deploys[0].Reason, deploys[0].Version, *deploys[0].From})
	text := must(t, writers, "datasets", "get", "daily_highest")
	require.Contains(t, text, "rollback")
	require.Contains(t, text, "readings/landing/0")

	cells := decode[[]views.Cell](t, writers, "datasets", "partitions", "daily_highest", "--states", "--limit", "500")
	require.Equal(t, "2026-01-01", cells[len(cells)-1].Partition)
	require.Equal(t, views.CellPresent, cells[len(cells)-1].State)
	for _, c := range cells[:len(cells)-1] {
		require.Equal(t, views.CellMissing, c.State, c.Partition)
	}
}

// Pages fit a phone: nothing is cut off, and nobody has to scroll sideways but within a table.
func TestPagesFitAPhone(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.deployReadings(t, "2026-01-01", "2026-01-02")
	b := testbrowser.Start(t)
	b.Run("be a phone", network.Enable(),
		network.SetExtraHTTPHeaders(network.Headers{"Authorization": "Bearer " + w.tokens[admin]}),
		emulation.SetDeviceMetricsOverride(390, 844, 1, true), emulation.SetScriptExecutionDisabled(true))
	for _, path := range []string{"/datasets", "/datasets?search=higest", "/datasets/daily_highest", "/dags", "/tasks",
		"/dead", "/late", "/query", "/workers", "/users", "/dags/readings/jobs/daily", "/dags/readings/jobs/note",
		"/tasks/" + w.tasks(t)[0].ID.String(), "/sources", "/sources/readings/landing", "/timers", "/usage", "/secrets",
		"/tasks?dag=readings", "/dags/readings/jobs/note/run"} {
		b.Open(w.url + path)
		var width int64
		var right float64
		b.Run("measure "+path,
			chromedp.Evaluate(`document.scrollingElement.scrollWidth`, &width),
			chromedp.Evaluate(`Math.max(...[...document.querySelectorAll("header a")].map(
				a => a.getBoundingClientRect().right))`, &right))
		require.LessOrEqual(t, width, int64(390), path)
		require.LessOrEqual(t, right, 390.0, "the navigation of "+path)
	}
}

// Descriptions are Markdown, behind the strict policy of the pages.
func TestADescriptionIsMarkdown(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	description := "description: \"**Bold** <script>alert(1)</script> [bad](javascript:alert(1)) [good](/dags)\""
	w.land(t, "2026-01-01")
	must(t, w.env(t, writer), "deploy", writeDAG(t, t.TempDir(), "readings",
		strings.Replace(readingsDAG, "description: Highest of each day.", description, 1)))
	page := w.page(t, reader, "/datasets/daily_highest")
	requireAccessible(t, page, "/datasets/daily_highest")
	require.True(t, slices.ContainsFunc(all(page, "strong"), func(n *html.Node) bool { return text(n) == "Bold" }))
	links := map[string]string{}
	for _, a := range all(page, "a") {
		links[strings.TrimSpace(text(a))] = attribute(a, "href")
	}
	require.Equal(t, "/dags", links["good"])
	require.NotContains(t, links, "bad")
}
