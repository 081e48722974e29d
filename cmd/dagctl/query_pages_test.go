package main

import (
	"bytes"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	downloads "github.com/chromedp/cdproto/browser"
	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/internal/testbrowser"
)

// ask sends the form of the query page.
func (w *world) ask(t *testing.T, caller string, form url.Values) (int, string) {
	t.Helper()
	return w.send(t, caller, http.MethodPost, "/query", "application/x-www-form-urlencoded",
		strings.NewReader(form.Encode()))
}

// The address that a command prints opens the page with the statement, which it does not run.
func TestTheAddressOfAStatement(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.deployReadings(t, "2026-01-01")
	env := w.env(t, reader)
	const sql = "SELECT station, highest FROM daily_highest"
	address := strings.TrimSpace(must(t, env, "query", sql, "--page"))
	require.Equal(t, w.url+"/query?"+url.Values{"sql": {sql}}.Encode(), address)
	page := w.page(t, reader, strings.TrimPrefix(address, w.url))
	require.Equal(t, sql, text(all(page, "textarea")[0]))
	require.Empty(t, all(page, "svg"))
	require.Contains(t, must(t, env, "query", sql, "--page", "--at", "v1", "--dag", "readings"),
		"at=v1&dag=readings&sql=")

	require.Contains(t, dagctl(t, env, "query", sql, "--page", "--limit", "3").err, "--page prints an address")
	long := dagctl(t, env, "query", "SELECT '"+strings.Repeat("x", 5000)+"'", "--page").err
	require.Contains(t, long, "the statement is too long for an address")
	require.Contains(t, long, "paste it into "+w.url+"/query")
}

func TestQueryPageShowsTypesAndCharts(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.deployReadings(t, "2026-01-01")
	const odd = "SELECT station, highest, NULL::INTEGER AS nothing FROM daily_highest ORDER BY 1"
	status, body := w.ask(t, reader, url.Values{"sql": {odd}})
	require.Equal(t, http.StatusOK, status, body)
	page := parse(t, body)
	requireAccessible(t, page, "/query")
	require.Equal(t, [][]string{{"harbour", "5.25", "NULL"}, {"summit", "-8", "NULL"}}, rows(page, 0))
	require.Contains(t, body, `<th scope="col" class="number">highest<small>DOUBLE</small></th>`)
	require.Contains(t, body, `<td class="null number">NULL</td>`)
	require.Contains(t, text(page), "2 rows")
	require.Contains(t, text(all(page, "svg")[0]),
		"Bar chart of highest over station, 2 rows; highest is between -8 and 5.25")
	require.Contains(t, text(page), "At most 10 000 rows (this page shows 500), 30 s, 512.0 MB of memory")

	for _, test := range []struct {
		form url.Values
		want string
	}{
		{url.Values{"chart": {"scatter"}, "x": {"highest"}, "y": {"highest"}}, "Scatter plot of highest over highest"},
		{url.Values{"chart": {"multiples"}, "x": {"highest"}, "y": {"highest"}, "by": {"station"}},
			"Small multiples of"},
		{url.Values{"chart": {"line"}, "x": {"station"}}, "has no times and no numbers"},
		{url.Values{"chart": {"pie"}}, "is no kind of chart"},
		{url.Values{"chart": {"none"}}, "Run and draw"},
		{url.Values{"x": {"<b>"}}, "no column"},
	} {
		test.form.Set("sql", odd)
		status, body := w.ask(t, reader, test.form)
		require.Equal(t, http.StatusOK, status, body)
		require.Contains(t, text(parse(t, body)), test.want)
		requireAccessible(t, parse(t, body), "/query")
	}

	// Nothing of it is a surprise to a reader without rights on versions, and the list has what they may read.
	page = w.page(t, reader, "/query?find=higest")
	require.Contains(t, text(all(page, "summary")[1]), "daily_highest")
	require.Contains(t, text(page), "station VARCHAR")
	require.Empty(t, field(page, "at"))
	require.NotContains(t, text(w.page(t, reader, "/query")), "landing")
	require.Contains(t, text(w.page(t, writer, "/query")), "readings/landing/0")
	require.NotContains(t, text(w.page(t, foreign, "/query")), "daily_highest")
}

func TestQueryPagePlansAndFiles(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.deployReadings(t, "2026-01-01")
	const sql = "SELECT station, sum(highest) AS total FROM daily_highest GROUP BY 1 ORDER BY 1"
	status, body := w.ask(t, reader, url.Values{"sql": {sql}, "do": {"explain"}})
	require.Equal(t, http.StatusOK, status)
	require.Contains(t, body, "HASH_GROUP_BY")
	require.Contains(t, body, "SCAN")
	plan := must(t, w.env(t, reader), "query", sql, "--explain")
	for _, text := range []string{body, plan} {
		for _, leak := range []string{w.files, w.roots, ".parquet", "READ_PARQUET", os.TempDir()} {
			require.NotContains(t, text, leak)
		}
	}
	require.Contains(t, plan, "Groups: ")
	require.Contains(t, dagctl(t, w.env(t, reader), "query", sql, "--explain", "-o", "csv").err,
		"a plan has no form in csv")

	for format, begins := range map[string]string{"csv": "station,total\nharbour,5.25\nsummit,-8\n",
		"parquet": "PAR1", "arrow": "\xff\xff\xff\xff"} {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, w.url+"/query",
			strings.NewReader(url.Values{"sql": {sql}, "do": {format}}.Encode()))
		require.NoError(t, err)
		request.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		request.Header.Set("Authorization", "Bearer "+w.tokens[reader])
		response, err := http.DefaultClient.Do(request)
		require.NoError(t, err)
		var content bytes.Buffer
		_, err = content.ReadFrom(response.Body)
		require.NoError(t, err)
		require.NoError(t, response.Body.Close())
		require.Regexp(t, `^attachment; filename=query-\d{4}-\d\d-\d\dT\d{6}Z\.(csv|parquet|arrows)$`,
			response.Header.Get("Content-Disposition"))
		require.EqualValues(t, content.Len(), response.ContentLength, "a file that is cut short is seen to be")
		require.Equal(t, "false", response.Header.Get("Dagctl-Truncated"))
		require.True(t, strings.HasPrefix(content.String(), begins), "%s: %.40q", format, content.String())
	}
	const late = "SELECT if(range = 9000, error('late'), range) AS n FROM range(9500)"
	status, body = w.ask(t, reader, url.Values{"sql": {late}, "do": {"csv"}})
	require.Equal(t, http.StatusUnprocessableEntity, status, "what fails late has no answer")
	require.Contains(t, body, "late")
	status, _ = w.ask(t, reader, url.Values{"sql": {sql}, "do": {"exe"}})
	require.Equal(t, http.StatusUnprocessableEntity, status)

	parquet := filepath.Join(t.TempDir(), "x.parquet")
	must(t, w.env(t, reader), "query", sql, "-o", "parquet", "--file", parquet)
	stored, err := os.ReadFile(parquet)
	require.NoError(t, err)
	require.True(t, bytes.HasSuffix(stored, []byte("PAR1")))
}

// A dataset is read as it was served, from the page, the API and the command line.
func TestQueryAtAnInstant(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.deployReadings(t, "2026-01-01")
	var then time.Time
	require.NoError(t, w.pool.QueryRow(t.Context(), "SELECT clock_timestamp()").Scan(&then))
	w.land(t, "2026-01-02")
	eventually(t, "the second day", func() (bool, error) { return len(w.partitions(t, "daily_highest")) == 2, nil })

	const count = "SELECT count(*) AS n FROM daily_highest"
	at := then.UTC().Format(time.RFC3339Nano)
	require.Equal(t, "n\n4\n", must(t, w.env(t, writer), "query", count, "-o", "csv"))
	require.Equal(t, "n\n2\n", must(t, w.env(t, writer), "query", count, "-o", "csv", "--at", at))
	require.Equal(t, "n\n2\n", must(t, w.env(t, writer), "query", count, "-o", "csv", "--at", at, "--dag", "readings"))
	_, body := w.ask(t, writer, url.Values{"sql": {count}, "at": {at}})
	require.Equal(t, [][]string{{"2"}}, rows(parse(t, body), 0))
	require.Contains(t, body, "--at "+at)
	for _, test := range []struct {
		caller, at, want string
		status           int
	}{
		{writer, "2001-01-01T00:00:00Z", "there is no dataset", http.StatusNotFound},
		{writer, "2999-01-01T00:00:00Z", "is yet to come", http.StatusUnprocessableEntity},
		{writer, "last week", "is not a moment", http.StatusUnprocessableEntity},
		{reader, at, "only writers", http.StatusForbidden},
	} {
		status, body := w.ask(t, test.caller, url.Values{"sql": {count}, "at": {test.at}})
		require.Equal(t, test.status, status, body)
		require.Contains(t, body, test.want)
	}
}

// slow runs for hours, and keeps no rows: one that ran out of memory would end by itself, the sooner the less there is
// to do beside it.
const slow = "SELECT count(*) FROM range(10000000000000) a, daily_highest d WHERE hash(a.range, d.station) = 1"

// Somebody writes a statement by keyboard alone, runs it, keeps its rows, and gives up on another.
func TestQueryPageInABrowser(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.deployReadings(t, "2026-01-01")
	b := testbrowser.Start(t)
	files := t.TempDir()
	b.Run("sign in", network.Enable(),
		network.SetExtraHTTPHeaders(network.Headers{"Authorization": "Bearer " + w.tokens[writer]}),
		downloads.SetDownloadBehavior(downloads.SetDownloadBehaviorBehaviorAllow).WithDownloadPath(files))
	b.Open(w.url + "/query")
	key := func(keys string, modifiers ...input.Modifier) {
		b.Run("press "+keys, chromedp.KeyEvent(keys, chromedp.KeyModifiers(modifiers...)))
	}
	enter := func(modifiers input.Modifier) {
		down := input.DispatchKeyEvent(input.KeyDown).WithKey("Enter").WithCode("Enter").
			WithWindowsVirtualKeyCode(13).WithText("\r").WithModifiers(modifiers)
		b.Run("press Enter", down, input.DispatchKeyEvent(input.KeyUp).WithKey("Enter").WithCode("Enter"))
	}
	value := func() (text string) {
		b.Run("read the statement", chromedp.Value("textarea", &text, chromedp.ByQuery))
		return text
	}

	b.Run("focus", chromedp.Focus("textarea", chromedp.ByQuery))
	key("SELECT station, highest FROM daily_")
	b.WaitText("#completions", "daily_highest dataset")
	enter(0)
	require.Equal(t, "SELECT station, highest FROM daily_highest", value())
	key(" WHERE hi")
	b.WaitText("#completions [aria-selected=true]", "highest DOUBLE of daily_highest")
	key(kb.Tab)
	key(" IS NOT NULL ORDER BY 1 LIM")
	b.WaitText("#completions", "LIMIT keyword")
	key(kb.Escape)
	key("IT 10")
	require.Equal(t, "SELECT station, highest FROM daily_highest WHERE highest IS NOT NULL ORDER BY 1 LIMIT 10",
		value())
	enter(input.ModifierCtrl)
	b.WaitText("#result h2", "2 rows")
	require.Contains(t, b.Text("#result .grid tbody"), "harbour")
	require.Contains(t, b.Text(".chart figcaption"), "highest by station")
	require.Equal(t, w.url+"/query", b.URL())
	b.WaitText(".history summary", "History")

	b.Click("#result button[value=csv]")
	eventually(t, "the file", func() (bool, error) {
		found, err := filepath.Glob(filepath.Join(files, "query-*.csv"))
		if err != nil || len(found) == 0 {
			return false, err
		}
		content, err := os.ReadFile(found[0])
		return string(content) == "station,highest\nharbour,5.25\nsummit,-8\n", err
	})

	// Tab leaves the field, also after the list was open.
	b.Run("focus", chromedp.Focus("textarea", chromedp.ByQuery))
	key(" ", input.ModifierCtrl)
	key(kb.Escape)
	key(kb.Tab)
	var focused string
	b.Run("read the focus", chromedp.Evaluate("document.activeElement.name", &focused))
	require.Equal(t, "at", focused)

	// What was canceled runs no longer: it holds nothing.
	b.Run("write another", chromedp.SetValue("textarea", slow, chromedp.ByQuery),
		chromedp.Focus("textarea", chromedp.ByQuery))
	enter(input.ModifierCtrl)
	b.WaitText(".busy", "Running")
	running := func(want int) func() (bool, error) {
		return func() (bool, error) {
			var held int
			err := w.pool.QueryRow(t.Context(), "SELECT count(*) FROM reader_leases").Scan(&held)
			return held == want, err
		}
	}
	eventually(t, "it runs", running(1))
	b.Click(".actions button[type=button]")
	begun := time.Now()
	eventually(t, "it has ended", running(0))
	require.Less(t, time.Since(begun), 2*time.Second)
	b.WaitText(".busy", "Canceled after")
}
