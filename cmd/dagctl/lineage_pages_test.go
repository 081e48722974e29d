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

	"github.com/dagctl/dagctl/internal/testbrowser"
)

// withClass returns the elements that have a class.
func withClass(root *html.Node, name, class string) (found []*html.Node) {
	for _, n := range all(root, name) {
		if slices.Contains(strings.Fields(attribute(n, "class")), class) {
			found = append(found, n)
		}
	}
	return found
}

// links returns where the nodes of the page's graph lead.
func links(root *html.Node) (hrefs []string) {
	for _, a := range all(all(root, "svg")[0], "a") {
		hrefs = append(hrefs, attribute(a, "href"))
	}
	return hrefs
}

func TestThePageOfLineage(t *testing.T) {
	t.Parallel()
	w, _ := peaks(t)

	dataset := w.page(t, writer, "/datasets/daily_highest")
	require.True(t, slices.ContainsFunc(all(dataset, "a"), func(a *html.Node) bool {
		return attribute(a, "href") == "/datasets/daily_highest/lineage"
	}))

	page := w.page(t, writer, "/datasets/daily_highest/lineage")
	require.ElementsMatch(t, []string{"/datasets/daily_highest/lineage", "/datasets/readings/landing/0/lineage",
		"/dags/readings/jobs/landing", "/datasets/peaks/scaled/0/lineage", "/datasets/station_peaks/lineage",
		"/dags/peaks/jobs/tell"}, links(page))
	require.Len(t, all(withClass(page, "g", "edges")[0], "path"), 5)
	require.Len(t, withClass(page, "a", "foreign"), 3, "nodes of another DAG")
	require.Len(t, withClass(page, "a", "root"), 1)
	for _, href := range links(page) {
		w.page(t, writer, href)
	}

	// The tables say the same as the graph.
	require.Len(t, rows(page, 0), 6)
	require.Contains(t, rows(page, 1), []string{"daily_highest", "peaks/scaled/0", "peaks/scaled"})
	require.Contains(t, text(page), "dagctl lineage daily_highest shows the same")

	// A column's way is marked.
	column := w.page(t, writer, "/datasets/daily_highest/lineage?column=highest")
	require.Len(t, withClass(column, "path", "traced"), 5)
	require.Len(t, withClass(column, "path", "unsure"), 1, "nobody knows which columns a command reads")
	require.Contains(t, rows(column, 1), []string{"daily_highest", "peaks/scaled/0", "peaks/scaled",
		"highest → twice (expression)"})
	station := w.page(t, writer, "/datasets/peaks/scaled/0/lineage?column=note")
	require.NotEmpty(t, withClass(station, "path", "aside"))

	old := w.page(t, writer, "/datasets/station_peaks/lineage?at=v1&direction=up&depth=1")
	require.Contains(t, text(old), "As of version v1 of peaks")
	require.Contains(t, text(old), "The graph goes on")
	require.Contains(t, text(old), "dagctl lineage station_peaks --up --at v1")

	// Readers see that something is there, and not what.
	read := w.page(t, reader, "/datasets/daily_highest/lineage?column=highest")
	require.Len(t, withClass(read, "g", "hidden"), 3)
	require.ElementsMatch(t, []string{"/datasets/daily_highest/lineage", "/datasets/station_peaks/lineage"},
		links(read))
	for _, secret := range []string{"landing", "scaled", "celsius", "twice"} {
		require.NotContains(t, text(read), secret)
	}

	for path, status := range map[string]int{"no_such/lineage": 404, "daily_highest/lineage?depth=x": 422,
		"daily_highest/lineage?direction=x": 422, "daily_highest/lineage?column=nope": 404,
		"daily_highest/lineage?at=v9": 404, "readings/landing/lineage": 404} {
		got, _ := w.send(t, writer, http.MethodGet, "/datasets/"+path, "", nil)
		require.Equal(t, status, got, path)
	}
	got, _ := w.send(t, reader, http.MethodGet, "/datasets/readings/landing/0/lineage", "", nil)
	require.Equal(t, 404, got, "what a reader may not see has no page")
}

// With a browser: the nodes are reached by the keyboard and lead on, and on a phone the graph scrolls in its box.
func TestLineageInABrowser(t *testing.T) {
	t.Parallel()
	w, _ := peaks(t)
	b := testbrowser.Start(t)
	b.Run("sign in", network.Enable(), network.SetExtraHTTPHeaders(network.Headers{
		"Authorization": "Bearer " + w.tokens[writer]}), emulation.SetDeviceMetricsOverride(390, 844, 1, true))
	b.Open(w.url + "/datasets/daily_highest/lineage?column=highest")

	var wide, scrolls bool
	b.Run("measure", chromedp.Evaluate(`document.documentElement.scrollWidth > innerWidth`, &wide),
		chromedp.Evaluate(`(box => box.scrollWidth > box.clientWidth)(document.querySelector("svg.graph").parentElement)`,
			&scrolls))
	require.False(t, wide, "the page is no wider than the phone")
	require.True(t, scrolls)

	b.Run("go to a node", chromedp.Focus(`a[href="/datasets/station_peaks/lineage"]`, chromedp.ByQuery))
	b.Enter(`a[href="/datasets/station_peaks/lineage"]`)
	require.Equal(t, w.url+"/datasets/station_peaks/lineage", b.URL())
	require.Equal(t, "Lineage of station_peaks", b.Text("h1"))
}
