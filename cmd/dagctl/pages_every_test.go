package main

import (
	"flag"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/network"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/internal/testbrowser"
)

var pictures = flag.String("pictures", "", "folder for pictures of all pages")

// inTrouble has a job whose tasks are dead, and one that is paused.
const inTrouble = `name: orders
jobs:
  - name: mail
    operator: command
    source: { kind: manual }
    outputs: 0
    max_attempts: 1
    config: { argv: [/bin/sh, -c, "echo the mail server said no >&2; exit 1"] }
  - name: tidy
    operator: command
    source: { kind: cron, schedule: "0 7 * * *", timezone: Europe/Berlin }
    outputs: 0
    config: { argv: [/bin/sh, -c, "cat > /dev/null"] }
`

// everyPage returns the addresses of all pages of a server, with those of their states that look otherwise, and makes
// what they show.
func (w *world) everyPage(t *testing.T) (paths []string) {
	t.Helper()
	env := w.env(t, writer)
	must(t, env, "deploy", writeDAG(t, t.TempDir(), "orders", inTrouble))
	must(t, env, "run", "orders/mail")
	must(t, env, "pause", "orders/tidy", "--reason", "the inventory is being counted")
	w.signedIn(t, "ada@example.com", authz.RoleReader)
	task := w.tasks(t)[0].ID.String()

	for _, route := range w.app.API.Routes() {
		program := strings.HasPrefix(route.Path, "/v1/") || strings.HasPrefix(route.Path, "/internal/") ||
			strings.HasPrefix(route.Path, "/static/") || strings.HasPrefix(route.Path, "/scim/") ||
			strings.HasPrefix(route.Path, "/.well-known/") ||
			slices.Contains([]string{"/openapi.json", "/healthz", "/readyz", "/metrics", "/palette"}, route.Path)
		if route.Method == http.MethodGet && !program {
			paths = append(paths, address(route.Path, task))
		}
	}
	return append(paths, "/tasks?dead=1", "/tasks?dag=none", "/datasets?search=nothing-like-it", "/dags/orders",
		"/datasets/daily_highest?partition=2026-01-02", "/datasets/daily_highest/lineage",
		"/datasets/daily_highest/lineage?column=highest", "/datasets/no-such-dataset", "/audit?object=none")
}

// A browser with the rules of axe-core finds no fault in any page, wide or narrow, light or dark, and none scrolls
// sideways. With -pictures FOLDER the test leaves pictures of all of them.
func TestNoPageHasAFault(t *testing.T) {
	t.Parallel()
	w, _ := peaks(t, withBaseURL)
	paths := w.everyPage(t)
	b := testbrowser.Start(t)
	b.Run("sign in", network.Enable(), network.SetExtraHTTPHeaders(network.Headers{
		"Authorization": "Bearer " + w.tokens[admin]}))
	for _, path := range paths {
		b.Open(w.url + path)
		faultless(t, b, path)
	}
}

func TestHomeShowsWhatNeedsSomebody(t *testing.T) {
	t.Parallel()
	w := newWorld(t, withBaseURL)
	require.Contains(t, text(w.page(t, reader, "/")), "There is no DAG yet")
	w.deployReadings(t, "2026-01-01")
	require.Contains(t, text(w.page(t, reader, "/")), "All is well")
	w.everyPage(t)
	require.Eventually(t, func() bool {
		return strings.Contains(text(w.page(t, writer, "/dead")), "orders/mail")
	}, 30*time.Second, 50*time.Millisecond)

	home := w.page(t, writer, "/")
	requireAccessible(t, home, "/")
	needs := rows(home, 0)
	require.Len(t, needs, 2)
	require.Equal(t, []string{"Out of attempts", "orders/mail"}, needs[0][:2])
	require.Contains(t, needs[0][2], "1 task is out of attempts")
	require.Equal(t, []string{"Paused", "orders/tidy", "paused by token:writer: the inventory is being counted"},
		needs[1][:3])
	out := must(t, w.env(t, reader), "attention")
	require.Regexp(t, `orders/tidy +paused .*dagctl resume orders/tidy`, out)

	// Nobody else's.
	require.Contains(t, text(w.page(t, foreign, "/")), "There is no DAG yet")
}
