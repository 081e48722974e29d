package main

import (
	"net/http"
	"net/http/httptest"
	"net/url"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/cmd/dagctl/server"
)

// A button sends a test notice, as the command does, and says what became of it.
func TestANoticeIsTriedByAButton(t *testing.T) {
	t.Parallel()
	w := newWorld(t, withPages, func(cfg *server.Config) { cfg.Operators.AllowedAddresses = []string{"127.0.0.0/8"} })
	var status atomic.Int64
	status.Store(http.StatusAccepted)
	hook := httptest.NewServer(http.HandlerFunc(func(out http.ResponseWriter, _ *http.Request) {
		out.WriteHeader(int(status.Load()))
	}))
	t.Cleanup(hook.Close)
	w.land(t, "2026-01-01")
	must(t, w.env(t, writer), "deploy", writeDAG(t, t.TempDir(), "quiet", readingsDAG))
	require.NotContains(t, buttons(w.page(t, writer, "/dags/readings")), "Send a test notice", "it notifies nobody")
	const path = "/dags/readings/notify/test"
	w.refuses(t, writer, path, url.Values{}, http.StatusConflict, "readings notifies nobody")

	require.Zero(t, dagctlWithInput(t, w.env(t, admin), hook.URL+"/hush", "secrets", "set", "HOOK").code)
	must(t, w.env(t, admin), "secrets", "bind", "HOOK", "--job", "readings", "--host", hook.URL)
	notified := readingsDAG + "\nnotify:\n  - { on: [dead], slack: { secret: HOOK } }\n"
	must(t, w.env(t, writer), "deploy", writeDAG(t, t.TempDir(), "told", notified))
	require.Contains(t, buttons(w.page(t, writer, "/dags/readings")), "Send a test notice")
	asked := w.page(t, writer, path)
	requireAccessible(t, asked, path)
	require.Contains(t, text(asked), "slack HOOK")

	b := w.openAs(t, "ada@example.com", authz.RoleWriter)
	b.Open(w.url + "/dags/readings")
	b.Enter(`a[href="` + path + `"]`)
	b.Enter("form.confirm button")
	require.Equal(t, w.url+"/dags/readings", b.URL())
	require.Equal(t, "The test notice arrived: slack HOOK answered 202.", b.Text(".told[role=status]"))
	require.Empty(t, b.Violations())

	status.Store(http.StatusGone)
	b.Open(w.url + path)
	b.Enter("form.confirm button")
	require.Contains(t, b.Text("main"), "it did not reach slack HOOK")
	require.Contains(t, b.Text("main"), "answered 410")
	require.NotContains(t, b.Text("main"), "/hush")

	require.NotContains(t, buttons(w.page(t, reader, "/dags/readings")), "Send a test notice")
	code, _ := w.send(t, reader, http.MethodPost, path, formType, nil)
	require.Equal(t, http.StatusForbidden, code)
}
