package main

import (
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"
	"golang.org/x/net/html"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/dispatcher/control"
	"github.com/dagctl/dagctl/dispatcher/views"
	"github.com/dagctl/dagctl/internal/testbrowser"
	"github.com/dagctl/dagctl/registry/deploy"
)

// warmer is readingsDAG with another query, which makes one row fewer of each day.
var warmer = strings.Replace(readingsDAG, "FROM landing GROUP BY", "FROM landing WHERE celsius > 0 GROUP BY", 1)

// twoVersions deploys readingsDAG, and another version of it that is ready and waits.
func twoVersions(t *testing.T, change ...string) *world {
	t.Helper()
	w := newWorld(t, withBaseURL)
	w.deployReadings(t, "2026-01-01", "2026-01-02")
	next := warmer
	if len(change) > 0 {
		next = change[0]
	}
	must(t, w.env(t, writer), "deploy", writeDAG(t, t.TempDir(), "x", next), "--no-activate", "--source-ref", "3f2a91c")
	w.newToken(t, authz.NewToken{Name: proposer, Role: authz.RoleProposer})
	return w
}

// postAs sends a form as one of the callers, and returns the status and the page.
func (w *world) postAs(t *testing.T, caller, path string, form url.Values) (int, *html.Node) {
	t.Helper()
	status, body := w.send(t, caller, http.MethodPost, path, "application/x-www-form-urlencoded",
		strings.NewReader(form.Encode()))
	return status, parse(t, body)
}

// buttons returns the texts of the links that look like buttons.
func buttons(root *html.Node) (texts []string) {
	for _, a := range withClass(root, "a", "button") {
		texts = append(texts, text(a))
	}
	return texts
}

func TestThePagesOfVersions(t *testing.T) {
	t.Parallel()
	w := twoVersions(t)

	page := w.page(t, writer, "/dags/readings")
	requireAccessible(t, page, "/dags/readings")
	require.Subset(t, buttons(page), []string{"Promote v2", "Abandon v2", "Plan a change", "Backfill", "Pause",
		"Delete"})
	require.NotContains(t, text(page), "Roll back", "nothing served before")

	version := w.page(t, writer, "/dags/readings/versions/2")
	requireAccessible(t, version, "/dags/readings/versions/2")
	for _, says := range []string{"readings v2", "Ready", "3f2a91c", "token:writer", "WHERE celsius > 0",
		"What it waits for", "definition changed", "is the plan to share"} {
		require.Contains(t, text(version), says)
	}
	require.Equal(t, []string{"Promote v2", "Abandon", "Pin", "Compare with v1", "Change and plan"}, buttons(version))

	// A proposer sees it all, and does nothing; a reader sees that it is there.
	proposed := w.page(t, proposer, "/dags/readings/versions/2")
	require.Equal(t, []string{"Compare with v1", "Change and plan"}, buttons(proposed))
	require.Contains(t, text(proposed), "WHERE celsius > 0")
	require.Equal(t, []string{"Plan a change"}, buttons(w.page(t, proposer, "/dags/readings")))
	read := w.page(t, reader, "/dags/readings/versions/2")
	require.Empty(t, buttons(read))
	require.Contains(t, text(read), "for those who may inspect")
	for _, secret := range []string{"celsius", "landing"} {
		require.NotContains(t, text(read), secret)
	}
	require.Empty(t, buttons(w.page(t, reader, "/dags/readings")))

	// Who lacks a read role does not get the document, nor the difference.
	must(t, w.env(t, admin), "roles", "create", "weather", "--name", "Weather")
	must(t, w.env(t, admin), "datasets", "visibility", "daily_highest", "--role", "role:weather")
	closed := w.page(t, writer, "/dags/readings/versions/2")
	require.Contains(t, text(closed), "Its document is left out")
	require.NotContains(t, text(closed), "celsius")
	require.NotContains(t, text(w.page(t, writer, "/dags/readings/plan")), "celsius")
	for _, path := range []string{"/diff?with=1", "/promote"} {
		status, body := w.send(t, writer, http.MethodGet, "/dags/readings/versions/2"+path, "", nil)
		require.Equal(t, http.StatusForbidden, status, path)
		require.NotContains(t, body, "daily_highest", path)
	}

	for path, status := range map[string]int{"/dags/readings/versions/9": 404, "/dags/readings/versions/x": 404,
		"/dags/nope/versions/1": 404, "/dags/readings/versions/2/diff": 422,
		"/dags/readings/versions/2/diff?with=9": 404, "/dags/readings?before=x": 422,
		"/dags/readings/backfills?before=x": 422, "/dags/readings/plan?version=0": 422} {
		got, _ := w.send(t, admin, http.MethodGet, path, "", nil)
		require.Equal(t, status, got, path)
	}
}

func TestThePageOfADifference(t *testing.T) {
	t.Parallel()
	w := twoVersions(t, strings.Replace(warmer, "AS highest", "AS highest, count(*) AS n", 1))
	page := w.page(t, writer, "/dags/readings/versions/2/diff?with=1")
	requireAccessible(t, page, "diff")
	require.Equal(t, []string{"daily_highest", "daily", "swap-only", "definition changed", "compare"},
		rows(page, 0)[len(rows(page, 0))-1][:5])
	require.Len(t, withClass(page, "span", "add"), 1)
	require.Contains(t, text(withClass(page, "span", "del")[0]), "FROM landing GROUP BY")
	require.Contains(t, text(page), "Jobs changed 1 daily")
	require.NotContains(t, text(page), "Rows before", "rows only where somebody asks")

	compared := w.page(t, writer, "/dags/readings/versions/2/diff?with=1&rows=daily_highest")
	requireAccessible(t, compared, "diff with rows")
	require.Contains(t, text(compared), "4 → 2")
	require.Contains(t, rows(compared, 1), []string{"n", "none", "BIGINT"})
	require.Contains(t, rows(compared, 2), []string{"2026-01-01", "2", "1"})
	got, _ := w.send(t, reader, http.MethodGet, "/dags/readings/versions/2/diff?with=1", "", nil)
	require.Equal(t, http.StatusForbidden, got)
}

// Every action asks first, and is refused without the name.
func TestVersionsArePromotedAndRolledBackByForms(t *testing.T) {
	t.Parallel()
	w := twoVersions(t)
	asked := w.page(t, writer, "/dags/readings/versions/2/promote")
	requireAccessible(t, asked, "promote")
	require.Equal(t, []string{"daily_highest", "is swapped", "4", "2", "2", "2"}, rows(asked, 0)[0])
	require.Contains(t, text(asked), "in place of v1")
	require.Contains(t, text(asked), "dagctl promote readings v2")

	form := url.Values{"from": {"1"}, "typed": {"reading"}}
	status, page := w.postAs(t, writer, "/dags/readings/versions/2/promote", form)
	require.Equal(t, http.StatusUnprocessableEntity, status)
	require.Contains(t, text(page), "the text typed is not")
	require.Contains(t, text(w.page(t, writer, "/dags/readings")), "Active v1")
	for _, caller := range []string{reader, proposer} {
		status, _ := w.postAs(t, caller, "/dags/readings/versions/2/promote", url.Values{"typed": {"readings"}})
		require.Equal(t, http.StatusForbidden, status, caller)
	}
	stale := url.Values{"from": {"7"}, "typed": {"readings"}}
	status, page = w.postAs(t, writer, "/dags/readings/versions/2/promote", stale)
	require.Equal(t, http.StatusConflict, status)
	require.Contains(t, text(page), "v7 served when this page was made, and v1 serves by now")

	form.Set("typed", "readings")
	status, _ = w.postAs(t, writer, "/dags/readings/versions/2/promote", form)
	require.Equal(t, http.StatusSeeOther, status)
	eventually(t, "v2 serves", func() (bool, error) {
		return strings.Contains(text(w.page(t, writer, "/dags/readings")), "Active v2"), nil
	})
	require.Contains(t, buttons(w.page(t, writer, "/dags/readings")), "Roll back to v1")

	back := w.page(t, writer, "/dags/readings/versions/1/rollback")
	requireAccessible(t, back, "rollback")
	require.Equal(t, []string{"daily_highest", "is swapped", "2", "4", "2", "2"}, rows(back, 0)[0])
	status, _ = w.postAs(t, writer, "/dags/readings/versions/1/rollback", url.Values{"from": {"2"}})
	require.Equal(t, http.StatusUnprocessableEntity, status)
	status, _ = w.postAs(t, writer, "/dags/readings/versions/1/rollback", url.Values{"from": {"2"},
		"typed": {"readings"}})
	require.Equal(t, http.StatusSeeOther, status)
	require.Contains(t, text(w.page(t, writer, "/dags/readings")), "Active v1")

	// What is over cannot be promoted, and what serves cannot be gone back to.
	for _, path := range []string{"/dags/readings/versions/1/rollback", "/dags/readings/abandon",
		"/dags/readings/resume", "/dags/readings/versions/1/unpin"} {
		status, body := w.send(t, writer, http.MethodGet, path, "", nil)
		require.Equal(t, http.StatusConflict, status, body)
	}
}

func TestADAGIsActedOnByForms(t *testing.T) {
	t.Parallel()
	w := twoVersions(t)
	do := func(path string, form url.Values) {
		t.Helper()
		requireAccessible(t, w.page(t, writer, path), path)
		status, page := w.postAs(t, writer, path, form)
		require.Equal(t, http.StatusSeeOther, status, text(page))
	}
	do("/dags/readings/pause", url.Values{"reason": {"maintenance"}})
	paused := w.page(t, writer, "/dags/readings")
	require.Contains(t, text(paused), "maintenance")
	require.Contains(t, buttons(paused), "Resume")
	do("/dags/readings/resume", url.Values{})
	require.NotContains(t, text(w.page(t, writer, "/dags/readings")), "maintenance")

	do("/dags/readings/versions/2/pin", url.Values{"reason": {"the good one"}})
	require.Contains(t, text(w.page(t, writer, "/dags/readings/versions/2")), "the good one")
	do("/dags/readings/versions/2/unpin", url.Values{})
	require.NotContains(t, text(w.page(t, writer, "/dags/readings/versions/2")), "the good one")

	status, page := w.postAs(t, writer, "/dags/readings/abandon", url.Values{"version": {"7"}, "typed": {"readings"}})
	require.Equal(t, http.StatusConflict, status)
	require.Contains(t, text(page), "v2 is being built by now, not v7")
	status, _ = w.postAs(t, writer, "/dags/readings/abandon", url.Values{"version": {"2"}})
	require.Equal(t, http.StatusUnprocessableEntity, status)
	do("/dags/readings/abandon", url.Values{"version": {"2"}, "typed": {"readings"}})
	require.Contains(t, text(w.page(t, writer, "/dags/readings/versions/2")), "Abandoned")

	again := w.page(t, writer, "/dags/readings/rematerialize?dataset=daily_highest")
	require.Contains(t, text(again), "Rematerialize daily_highest")
	require.Equal(t, []string{"daily_highest", "rebuild", "forced", "2"}, rows(again, 0)[1][:4])
	w.refuses(t, writer, "/dags/readings/rematerialize?dataset=daily_highest", url.Values{
		"dataset": {"daily_highest"}, "base": {"7"}}, http.StatusConflict, "the plan is stale")
	do("/dags/readings/rematerialize?dataset=daily_highest", url.Values{"dataset": {"daily_highest"},
		"base": {fieldValue(again, "base")}})
	eventually(t, "v3 serves", func() (bool, error) {
		return strings.Contains(text(w.page(t, writer, "/dags/readings")), "Active v3"), nil
	})
	do("/dags/readings/invalidate?dataset=daily_highest", url.Values{"dataset": {"daily_highest"},
		"from": {"2026-01-02"}})
	for _, name := range []string{"nope", ""} {
		status, _ := w.send(t, writer, http.MethodGet, "/dags/readings/invalidate?dataset="+name, "", nil)
		require.Equal(t, http.StatusNotFound, status)
	}

	asked := w.page(t, writer, "/dags/readings/delete")
	require.Contains(t, text(asked), "Datasets that go out of service: 2.")
	status, _ = w.postAs(t, writer, "/dags/readings/delete", url.Values{"typed": {"reading"}})
	require.Equal(t, http.StatusUnprocessableEntity, status)
	status, _ = w.postAs(t, writer, "/dags/readings/delete", url.Values{"typed": {"readings"}, "datasets": {"1"}})
	require.Equal(t, http.StatusConflict, status, "the page named fewer datasets")
	do("/dags/readings/delete", url.Values{"typed": {"readings"}, "datasets": {"2"}})
	got, _ := w.send(t, writer, http.MethodGet, "/dags/readings", "", nil)
	require.Equal(t, http.StatusSeeOther, got, "it leads to the last version")
	require.Contains(t, buttons(w.page(t, writer, "/dags/readings/versions/3")), "Roll back to v3",
		"the page of a version outlives its DAG")
}

func TestThePageOfAPlan(t *testing.T) {
	t.Parallel()
	w := newWorld(t, withBaseURL)
	w.newToken(t, authz.NewToken{Name: proposer, Role: authz.RoleProposer})
	requireAccessible(t, w.page(t, writer, "/plan"), "/plan")
	w.land(t, "2026-01-01")

	status, page := w.postAs(t, writer, "/plan", url.Values{"yaml": {strings.ReplaceAll(readingsDAG, "\n", "\r\n")}})
	require.Equal(t, http.StatusOK, status, text(page))
	requireAccessible(t, page, "a plan")
	require.Equal(t, "create", rows(page, 0)[0][1])
	require.Contains(t, text(page), "Deploy v1")
	require.Equal(t, "0", field(page, "base"))

	// What was planned is deployed as it is, with the same hash as by command.
	form := url.Values{"yaml": {field(page, "yaml")}, "base": {"0"}, "source_ref": {"a ticket"}}
	status, page = w.postAs(t, writer, "/dags/readings/deploy", form)
	require.Equal(t, http.StatusSeeOther, status, text(page))
	eventually(t, "v1 serves", func() (bool, error) {
		return strings.Contains(text(w.page(t, writer, "/dags/readings/versions/1")), "serves readers"), nil
	})
	require.Contains(t, text(w.page(t, writer, "/dags/readings/versions/1")), "a ticket")
	w.deployReadings(t)
	require.Len(t, rows(w.page(t, writer, "/dags/readings"), 2), 1, "the same document is the same version")

	// A plan is refused once another version serves; the page says so, and plans anew.
	form.Set("yaml", warmer)
	status, page = w.postAs(t, writer, "/dags/readings/deploy", form)
	require.Equal(t, http.StatusConflict, status)
	require.Contains(t, text(page), "Deploy v2")
	status, _ = w.postAs(t, proposer, "/dags/readings/deploy", form)
	require.Equal(t, http.StatusForbidden, status)
	status, page = w.postAs(t, proposer, "/dags/readings/plan", form)
	require.Equal(t, http.StatusOK, status)
	require.Contains(t, text(page), "You may plan, and not deploy")
	status, _ = w.postAs(t, reader, "/plan", form)
	require.Equal(t, http.StatusForbidden, status)

	// Files that the document names have fields of their own. One that was chosen in a browser has no folder.
	before, after, _ := strings.Cut(readingsDAG, `query: "SELECT`)
	_, after, _ = strings.Cut(after, `"`)
	named := before + "query_file: sql/daily.sql" + after
	status, page = w.postAs(t, writer, "/dags/readings/plan", url.Values{"yaml": {named}})
	require.Equal(t, http.StatusUnprocessableEntity, status)
	require.Contains(t, text(page), "sql/daily.sql")
	status, page = w.postAs(t, writer, "/dags/readings/plan", url.Values{"yaml": {named},
		"file:daily.sql": {"SELECT station, 1.5 AS highest FROM landing"}})
	require.Equal(t, http.StatusOK, status, text(page))
	require.Contains(t, field(page, "file:sql/daily.sql"), "SELECT station, 1.5")

	for name, form := range map[string]url.Values{"empty": {}, "no name": {"yaml": {"jobs: []"}},
		"vars": {"yaml": {readingsDAG}, "vars": {"x"}}, "broken": {"yaml": {"name: x\njobs: {"}}} {
		status, page := w.postAs(t, writer, "/plan", form)
		require.Equal(t, http.StatusUnprocessableEntity, status, name)
		requireAccessible(t, page, name)
	}
}

func TestThePageOfBackfills(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.deployReadings(t, "2026-01-01", "2026-01-02")
	page := w.page(t, writer, "/dags/readings/backfills")
	requireAccessible(t, page, "backfills")
	require.Contains(t, text(page), "Nobody has backfilled")
	require.Empty(t, all(w.page(t, reader, "/dags/readings/backfills"), "select"))

	q := url.Values{"job": {"daily"}, "from": {"2026-01-01"}, "to": {"2026-01-02"}, "existing": {"all"},
		"propagate": {"none"}, "concurrency": {"2"}}
	status, leads := w.send(t, writer, http.MethodGet, "/dags/readings/backfills?count=1&"+q.Encode(), "", nil)
	require.Equal(t, http.StatusSeeOther, status)
	require.Contains(t, leads, "/dags/readings/backfill?")
	asked := w.page(t, writer, "/dags/readings/backfill?"+q.Encode())
	requireAccessible(t, asked, "backfill")
	require.Contains(t, text(asked), "2 partitions from 2026-01-01 to 2026-01-02 would be computed, 2 at once")
	var dry control.Backfill
	require.NoError(t, w.as(writer).Post(t.Context(), "/v1/dags/readings/backfills", control.BackfillRequest{
		Job: "daily", From: "2026-01-01", To: "2026-01-02", Existing: "all", DryRun: true}, &dry))
	require.Equal(t, 2, dry.Pending)
	require.Empty(t, rowsOf(w.page(t, writer, "/dags/readings/backfills")), "a dry run starts nothing")
	require.Contains(t, must(t, w.env(t, writer), "backfill", "readings/daily", "--from", "2026-01-01", "--to",
		"2026-01-02", "--dry-run"), "0 partitions would be computed")

	status, _ = w.postAs(t, writer, "/dags/readings/backfill", q)
	require.Equal(t, http.StatusSeeOther, status)
	eventually(t, "it is done", func() (bool, error) {
		list := rowsOf(w.page(t, writer, "/dags/readings/backfills"))
		return len(list) == 1 && list[0][3] == "Completed", nil
	})
	status, _ = w.postAs(t, reader, "/dags/readings/backfill", q)
	require.Equal(t, http.StatusForbidden, status)
	for _, wrong := range []string{"concurrency", "existing", "from"} {
		bad := url.Values{}
		for name, values := range q {
			bad[name] = values
		}
		bad.Set(wrong, "x")
		status, _ := w.send(t, writer, http.MethodGet, "/dags/readings/backfill?"+bad.Encode(), "", nil)
		require.Equal(t, http.StatusUnprocessableEntity, status, wrong)

		// The form keeps what was typed, and says what is wrong with it.
		bad.Set("count", "1")
		status, body := w.send(t, writer, http.MethodGet, "/dags/readings/backfills?"+bad.Encode(), "", nil)
		require.Equal(t, http.StatusUnprocessableEntity, status, wrong)
		again := parse(t, body)
		requireAccessible(t, again, "backfills")
		require.Len(t, withClass(again, "div", "problem"), 1)
		typed := map[string]string{}
		for _, input := range all(again, "input") {
			typed[attribute(input, "name")] = attribute(input, "value")
		}
		for _, name := range []string{"from", "to", "concurrency"} {
			require.Equal(t, bad.Get(name), typed[name])
		}
	}

	must(t, w.env(t, writer), "pause", "readings")
	status, _ = w.postAs(t, writer, "/dags/readings/backfill", q)
	require.Equal(t, http.StatusSeeOther, status)
	var cancel string
	for _, a := range withClass(w.page(t, writer, "/dags/readings/backfills"), "a", "danger") {
		cancel = attribute(a, "href")
	}
	requireAccessible(t, w.page(t, writer, cancel), "cancel")
	status, _ = w.postAs(t, writer, cancel, url.Values{})
	require.Equal(t, http.StatusSeeOther, status)
	require.Equal(t, "Canceled by token:writer", rowsOf(w.page(t, writer, "/dags/readings/backfills"))[0][3])
}

// rowsOf returns the rows of the page's first table; none if it has no table.
func rowsOf(root *html.Node) [][]string {
	if len(all(root, "table")) == 0 {
		return nil
	}
	return rows(root, 0)
}

func TestWhatPagesShowIsInTheAPI(t *testing.T) {
	t.Parallel()
	w := twoVersions(t)
	var preview deploy.SwapPreview
	require.NoError(t, w.as(proposer).Get(t.Context(), "/v1/dags/readings/versions/2/swap", nil, &preview))
	require.Equal(t, 2, preview.To)
	require.Equal(t, deploy.Swapped{Dataset: "daily_highest", Published: true, Action: deploy.SwapOnly,
		Before: &deploy.Holdings{Partitions: 2, Rows: 4, Bytes: preview.Datasets[0].Before.Bytes},
		After:  &deploy.Holdings{Partitions: 2, Rows: 2, Bytes: preview.Datasets[0].After.Bytes}}, preview.Datasets[0])
	var definition deploy.Definition
	require.NoError(t, w.as(writer).Get(t.Context(), "/v1/dags/readings/versions/2/definition", nil, &definition))
	require.Len(t, definition.Jobs, 3)
	var detail views.DAGDetail
	require.NoError(t, w.as(writer).Get(t.Context(), "/v1/dags/readings", nil, &detail))
	require.Equal(t, 2, detail.Building.Number)
	_, body := w.send(t, reader, http.MethodGet, "/v1/dags/readings/versions/2/why", "", nil)
	require.Contains(t, body, "awaiting_promotion")
	status, _ := w.send(t, reader, http.MethodGet, "/v1/dags/readings/versions/9/why", "", nil)
	require.Equal(t, http.StatusNotFound, status)
}

// A change goes live and back by the keyboard alone, of somebody who has signed in by a link.
func TestAChangeIsDeployedByKeyboard(t *testing.T) {
	t.Parallel()
	w := newWorld(t, withPages)
	w.deployReadings(t, "2026-01-01", "2026-01-02")
	b := w.openAs(t, "ada@example.com", authz.RoleWriter)
	b.Open(w.url + "/dags/readings")

	b.Enter(`a[href="/dags/readings/plan"]`)
	require.Equal(t, "Plan readings", b.Text("h1"))
	b.Run("write the change", chromedp.Focus("textarea[name=yaml]", chromedp.ByQuery),
		chromedp.SetValue("textarea[name=yaml]", warmer, chromedp.ByQuery))
	b.Enter(".document button")
	require.Contains(t, b.Text("#changes + .scroll"), "rebuild")
	b.Run("have it wait", chromedp.Focus("input[value=promoted]", chromedp.ByQuery), chromedp.KeyEvent(" "))
	b.Enter("#deployform button")
	require.Equal(t, w.url+"/dags/readings/versions/2", b.URL())

	eventually(t, "v2 is ready", func() (bool, error) {
		b.Open(w.url + "/dags/readings/versions/2")
		return strings.Contains(b.Text(".badges"), "Ready"), nil
	})
	b.Enter(`a[href="/dags/readings/versions/2/promote"]`)
	require.Equal(t, "Promote readings to v2?", b.Text("h1"))
	require.Contains(t, b.Text("main table"), "daily_highest")
	b.Run("type the name", chromedp.Focus("input[name=typed]", chromedp.ByQuery), chromedp.KeyEvent("readings"))
	b.Enter("form.confirm button")
	eventually(t, "v2 serves", func() (bool, error) {
		b.Open(w.url + "/dags/readings")
		return strings.Contains(b.Text(".facts"), "v2"), nil
	})

	b.Enter(`a[href="/dags/readings/versions/1/rollback"]`)
	b.Run("type the name", chromedp.Focus("input[name=typed]", chromedp.ByQuery), chromedp.KeyEvent("readings"))
	b.Enter("form.confirm button")
	require.Equal(t, w.url+"/dags/readings", b.URL())
	require.Contains(t, b.Text(".facts"), "v1")
}

// Files that somebody chooses fill the fields that they belong to.
func TestADocumentIsChosenInABrowser(t *testing.T) {
	t.Parallel()
	w := newWorld(t, withBaseURL)
	dir := t.TempDir()
	before, after, _ := strings.Cut(readingsDAG, `query: "SELECT`)
	_, after, _ = strings.Cut(after, `"`)
	file := writeDAG(t, dir, "x", before+"query_file: sql/daily.sql"+after)
	query := filepath.Join(dir, "daily.sql")
	require.NoError(t, os.WriteFile(query, []byte("SELECT station, 1.5 AS highest FROM landing"), 0o600))

	b := w.openAs(t, "ada@example.com", authz.RoleWriter)
	b.Open(w.url + "/plan")
	b.Run("choose files", chromedp.SetUploadFiles("input[type=file]", []string{file, query}, chromedp.ByQuery))
	b.Run("wait for the file's field", chromedp.WaitVisible(`textarea[name="file:daily.sql"]`, chromedp.ByQuery))
	b.Enter(".document button")
	require.Equal(t, "Plan readings", b.Text("h1"))
	require.True(t, exists(b, `textarea[name="file:sql/daily.sql"]`))
	require.Contains(t, b.Text("#changes + .scroll"), "create")
}

// openAs starts a browser and signs a new user in by a link.
func (w *world) openAs(t *testing.T, email string, role authz.Role) *testbrowser.Browser {
	t.Helper()
	b := testbrowser.Start(t)
	b.Open(w.linkOf(t, email, role))
	b.Enter("main form button")
	require.Equal(t, w.url+"/", b.URL())
	return b
}

func TestADifferenceShowsWhichJobsWereRenamed(t *testing.T) {
	t.Parallel()
	w := twoVersions(t, strings.NewReplacer("name: daily\n", "name: highest\n    renamed_from: daily\n",
		"not_null: [station]", "not_null: [station, highest]", "job: daily", "job: highest").Replace(readingsDAG))
	page := text(w.page(t, writer, "/dags/readings/versions/2/diff?with=1"))
	for _, says := range []string{"Jobs added 0", "Jobs removed 0", "Jobs renamed 1 daily → highest (checks)"} {
		require.Contains(t, page, says)
	}
	require.Contains(t, must(t, w.env(t, writer), "diff", "readings", "v1", "v2"),
		"Job daily is renamed to highest, and differs in checks.\n")
}
