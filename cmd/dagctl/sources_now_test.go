package main

import (
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/cmd/dagctl/cli"
)

// A source that is read at times is read at once by a command, and on its page.
func TestASourceIsReadAtOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	seldom := strings.Replace(readingsDAG, "every: 1s", "every: 12h", 1)
	w.land(t, "2026-01-01")
	must(t, w.env(t, writer), "deploy", writeDAG(t, t.TempDir(), "x", seldom))
	const page, read = "/sources/readings/landing", "/sources/readings/landing/read"
	has := func(days int) {
		t.Helper()
		eventually(t, "the new day", func() (bool, error) { return len(w.partitions(t, "daily_highest")) == days, nil })
	}

	w.land(t, "2026-01-02")
	require.Contains(t, must(t, w.env(t, writer), "run", "readings/landing"), "readings/landing is read now")
	has(2)
	w.land(t, "2026-01-03")
	require.True(t, decode[struct{ Asked bool }](t, w.env(t, writer), "run", "readings/landing").Asked)
	has(3)
	require.Contains(t, hrefs(w.page(t, writer, page)), read)
	const job = "/dags/readings/jobs/landing"
	require.Contains(t, hrefs(w.page(t, writer, job)), read+"?back="+job)
	asked := w.page(t, writer, read)
	requireAccessible(t, asked, read)
	require.Contains(t, text(asked), "Otherwise it would be due in")
	require.Contains(t, text(asked), "dagctl run readings/landing")
	w.land(t, "2026-01-04")
	w.submits(t, writer, read, url.Values{})
	has(4)
	require.Len(t, rows(w.page(t, admin, "/audit?action=source.read"), 0), 3)

	// Other kinds of jobs.
	whole := dagctl(t, w.env(t, writer), "run", "readings/landing", "--partition", "2026-01-01")
	require.Contains(t, whole.err, "it is read whole")
	require.Contains(t, dagctl(t, w.env(t, writer), "run", "readings/daily").err, "--partition")
	require.Contains(t, must(t, w.env(t, writer), "run", "readings/daily", "--partition", "2026-01-03"),
		"readings/daily computes 2026-01-03 anew")
	w.refuses(t, writer, "/sources/readings/note/read", url.Values{}, http.StatusUnprocessableEntity, "of kind manual")

	// It is not read where it may not be.
	w.refuses(t, reader, read, url.Values{}, http.StatusForbidden, "this needs the role writer")
	require.NotContains(t, hrefs(w.page(t, reader, page)), read)
	must(t, w.env(t, writer), "pause", "readings/landing")
	require.NotContains(t, hrefs(w.page(t, writer, page)), read)
	require.Contains(t, text(w.page(t, writer, read)), "It will be refused")
	w.refuses(t, writer, read, url.Values{}, http.StatusConflict, "is paused by token:writer")
	require.Equal(t, cli.ExitConflict, dagctl(t, w.env(t, writer), "run", "readings/landing").code)
	must(t, w.env(t, writer), "resume", "readings/landing")

	must(t, w.env(t, admin), "roles", "create", "weather")
	must(t, w.env(t, admin), "datasets", "visibility", "readings/landing/0", "--role", "role:weather")
	w.refuses(t, writer, read, url.Values{}, http.StatusNotFound, "there is no job")
	require.Equal(t, cli.ExitFailed, dagctl(t, w.env(t, writer), "run", "readings/landing").code)
	status, _ := w.send(t, foreign, http.MethodPost, "/v1/sources/readings/landing/read", "", nil)
	require.Equal(t, http.StatusNotFound, status)
}
