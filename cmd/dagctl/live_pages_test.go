package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/internal/testbrowser"
)

// open returns a browser that is signed in as one of the callers and shows a page.
func (w *world) open(t *testing.T, caller, path string) *testbrowser.Browser {
	t.Helper()
	b := testbrowser.Start(t)
	b.Run("sign in", network.Enable(), network.SetExtraHTTPHeaders(network.Headers{
		"Authorization": "Bearer " + w.tokens[caller]}))
	b.Open(w.url + path)
	return b
}

// mark lets a test see that a page was not loaded again.
const mark = `window.sameDocument = true; true`

func requireSameDocument(t *testing.T, b *testbrowser.Browser) {
	t.Helper()
	var same bool
	b.Run("look for the mark", chromedp.Evaluate(`window.sameDocument === true`, &same))
	require.True(t, same, "the page was loaded again")
}

// waitGraph returns when the graph of a page has a text in it.
func waitGraph(b *testbrowser.Browser, text string) {
	b.Run("wait for "+text, chromedp.PollFunction(
		`text => document.querySelector("svg.graph").textContent.includes(text)`, nil, chromedp.WithPollingArgs(text)))
}

// The page of a task, and that of its DAG, follow it without being loaded again.
func TestPagesFollowATask(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	gate := filepath.Join(t.TempDir(), "gate")
	script, err := json.Marshal(fmt.Sprintf("until test -e %s; do sleep 0.1; done", gate))
	require.NoError(t, err)
	must(t, w.env(t, writer), "deploy", writeDAG(t, t.TempDir(), "talkative",
		fmt.Sprintf(talkativeDAG, script)))
	id := strings.TrimSpace(must(t, w.env(t, writer), "run", "talkative/say"))

	task, dag := w.open(t, writer, "/tasks/"+id), w.open(t, writer, "/dags/talkative")
	var ok bool
	for _, b := range []*testbrowser.Browser{task, dag} {
		b.WaitText("#live", "Live")
		b.Run("mark", chromedp.Evaluate(mark, &ok))
	}
	task.WaitText(".badges .badge", "Running")
	waitGraph(dag, "running")

	require.NoError(t, os.WriteFile(gate, nil, 0o600))
	task.WaitText(".badges .badge", "Completed")
	waitGraph(dag, "idle")
	requireSameDocument(t, task)
	requireSameDocument(t, dag)
}

// The palette leads to a page by the keyboard alone.
func TestThePaletteByKeyboard(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.deployReadings(t, "2026-01-01")

	b := w.open(t, writer, "/tasks")
	b.WaitText("#find", "Find")
	b.Run("open", chromedp.KeyEvent("/"))
	b.WaitText(".palette[open] [aria-selected=true]", "Home")
	b.Run("search", chromedp.KeyEvent("daily_hi"))
	b.WaitText("#palette-0", "daily_highest")
	b.Run("close", chromedp.KeyEvent(kb.Escape))
	var open bool
	b.Run("look", chromedp.Evaluate(`document.querySelector(".palette").open`, &open))
	require.False(t, open)

	b.Run("open again", chromedp.KeyEvent("/"))
	b.WaitText(".palette[open] [aria-selected=true]", "Home")
	b.Run("search", chromedp.KeyEvent("dail"))
	b.WaitText("#palette-0", "readings/daily")
	b.WaitText("#palette-1", "daily_highest")
	b.Run("choose", chromedp.KeyEvent(kb.ArrowUp), chromedp.KeyEvent(kb.ArrowUp), chromedp.KeyEvent(kb.ArrowDown))
	b.WaitText(".palette [aria-selected=true]", "daily_highest")
	b.Press(kb.Enter)
	require.Equal(t, w.url+"/datasets/daily_highest", b.URL())

	b.Run("list the keys", chromedp.KeyEvent("?"))
	b.WaitText(".palette[open]", "g d")
	b.Run("close", chromedp.KeyEvent(kb.Escape))
	b.Press("gd")
	require.Equal(t, w.url+"/dags", b.URL())

	// It finds no more than pages show.
	status, body := w.send(t, reader, http.MethodGet, "/palette?search=landing", "", nil)
	require.Equal(t, http.StatusOK, status)
	require.JSONEq(t, "[]", body)
	_, body = w.send(t, foreign, http.MethodGet, "/palette?search=daily", "", nil)
	require.JSONEq(t, "[]", body)
	_, body = w.send(t, writer, http.MethodGet, "/palette?search=readings", "", nil)
	require.Contains(t, body, `{"kind":"DAG","name":"readings","path":"/dags/readings"}`)
}

// A graph zooms by keys and folds, and stays so when the page is refreshed.
func TestAGraphByKeyboard(t *testing.T) {
	t.Parallel()
	w, _ := peaks(t)
	b := w.open(t, writer, "/dags/readings")
	b.WaitText("#live", "Live")
	width := func() (width float64) {
		b.Run("measure", chromedp.Evaluate(`document.querySelector("svg.graph").getBoundingClientRect().width`, &width))
		return width
	}

	natural := width()
	b.Run("zoom in", chromedp.Focus(".graph-box", chromedp.ByQuery), chromedp.KeyEvent("+"), chromedp.KeyEvent("+"))
	require.InDelta(t, natural*1.25*1.25, width(), 2)
	b.Run("back", chromedp.KeyEvent("-"), chromedp.KeyEvent("-"), chromedp.KeyEvent("-"))
	require.InDelta(t, natural/1.25, width(), 2)

	var shown, ok bool
	b.Run("fold what is upstream", chromedp.Focus(`a[href="/datasets/daily_highest"]`, chromedp.ByQuery),
		chromedp.KeyEvent("["))
	b.WaitText(".graph-tools [role=status]", "2 folded away")
	b.Run("mark", chromedp.Evaluate(mark, &ok))
	must(t, w.env(t, writer), "pause", "readings/daily")
	waitGraph(b, "paused")
	requireSameDocument(t, b)
	require.InDelta(t, natural/1.25, width(), 2, "it keeps its zoom")
	b.Run("look", chromedp.Evaluate(`getComputedStyle(document.querySelector(
		'.nodes a[href="/dags/readings/jobs/daily"]')).display !== "none"`, &shown))
	require.False(t, shown, "what is folded away stays so")

	b.Run("unfold", chromedp.Click(".graph-tools [data-do=all]", chromedp.ByQuery))
	b.Fill(".graph-tools input", "peaks")
	b.WaitText(".graph-tools [role=status]", "1 found")
}
