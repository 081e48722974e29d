package main

import (
	"context"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/cmd/dagctl/cli"
)

// restarting is a proxy before a world that refuses to say how builds and backfills are, as often as told.
func (w *world) restarting(t *testing.T) (address string, refusals *atomic.Int64) {
	t.Helper()
	target, err := url.Parse(w.url)
	require.NoError(t, err)
	proxy, refusals := httputil.NewSingleHostReverseProxy(target), new(atomic.Int64)
	front := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		follows := strings.Contains(r.URL.Path, "/versions/") || strings.Contains(r.URL.Path, "/backfills/")
		if r.Method == http.MethodGet && follows && refusals.Add(-1) >= 0 {
			rw.Header().Set("Content-Type", "application/problem+json")
			rw.WriteHeader(http.StatusServiceUnavailable)
			_, _ = rw.Write([]byte(`{"detail": "the database does not respond", "hint": "send an idempotency key"}`))
			return
		}
		proxy.ServeHTTP(rw, r)
	}))
	t.Cleanup(front.Close)
	return front.URL, refusals
}

// A server that is away for a moment does not end the waiting for a build or a backfill; one that stays away does, and
// the command says that the work goes on.
func TestWaitingGoesOnWhileTheServerIsAway(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.land(t, "2026-01-01")
	file, env := writeDAG(t, t.TempDir(), "x", readingsDAG), w.env(t, writer)
	var refusals *atomic.Int64
	env["DAGCTL_URL"], refusals = w.restarting(t)
	follow := func(patience time.Duration, args ...string) result {
		var out, errs output
		code := run(t.Context(), args, cli.Environment{In: strings.NewReader(""), Out: &out, Err: &errs,
			Getenv: func(name string) string { return env[name] }, Patience: patience})
		return result{out.String(), errs.String(), code}
	}
	backfill := []string{"backfill", "readings/daily", "--from", "2026-01-01", "--to", "2026-01-01",
		"--existing", "all"}

	refusals.Store(2)
	deployed := follow(time.Minute, "deploy", file, "--yes")
	require.Zero(t, deployed.code, deployed.err)
	require.Contains(t, deployed.out, "is Active")
	require.Equal(t, 1, strings.Count(deployed.err, "No answer, asked again for 1m: the database does not respond"))
	refusals.Store(2)
	filled := follow(time.Minute, backfill...)
	require.Zero(t, filled.code, filled.err)
	require.Contains(t, filled.err, "No answer, asked again for 1m")

	refusals.Store(1_000_000)
	filled = follow(time.Millisecond, backfill...)
	require.Equal(t, cli.ExitServer, filled.code, filled.err)
	require.Contains(t, filled.err, "the backfill goes on without this command")
	require.Contains(t, filled.err, "Next: `dagctl backfill list readings` says how far it is")
	deployed = follow(time.Millisecond, "deploy", writeDAG(t, t.TempDir(), "x",
		strings.Replace(readingsDAG, "max(celsius)", "1 + max(celsius)", 1)), "--yes")
	require.Equal(t, cli.ExitServer, deployed.code, deployed.err)
	require.Contains(t, deployed.err, "the build of readings v2 goes on without this command")
	require.Contains(t, deployed.err, "Next: `dagctl status readings --watch` follows it")
	require.NotContains(t, deployed.err, "idempotency")
}

func TestAWatchedStatusGoesOnWhileTheServerIsAway(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.land(t, "2026-01-01")
	must(t, w.env(t, writer), "deploy", writeDAG(t, t.TempDir(), "x", readingsDAG), "--yes")
	env := w.env(t, reader)
	target, err := url.Parse(w.url)
	require.NoError(t, err)
	var asked atomic.Int64
	proxy := httputil.NewSingleHostReverseProxy(target)
	front := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if asked.Add(1) == 2 {
			rw.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		proxy.ServeHTTP(rw, r)
	}))
	t.Cleanup(front.Close)
	env["DAGCTL_URL"] = front.URL

	ctx, stop := context.WithCancel(t.Context())
	var out, errs output
	ended := make(chan int)
	go func() {
		ended <- run(ctx, []string{"status", "--watch"}, cli.Environment{In: strings.NewReader(""), Out: &out,
			Err: &errs, Getenv: func(name string) string { return env[name] }})
	}()
	require.Eventually(t, func() bool { return strings.Count(out.String(), "readings") == 2 }, time.Minute,
		20*time.Millisecond, "%s%s", &out, &errs)
	stop()
	<-ended
	require.Equal(t, 1, strings.Count(errs.String(), "No answer, asked again for 2m"), errs.String())
}
