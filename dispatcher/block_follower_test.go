package dispatcher_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/dispatcher/dispatchertest"
	"github.com/dagctl/dagctl/internal/testgeth"
)

const followed = `
name: followed
jobs:
  - name: chain
    operator: block_follower
    source: { kind: poll, every: 1h }
    partition_by: { range: 4, column: block_number }
    config: { url: "%s", headers: { X-Token: { secret: NODE } }, chain_id: 1337, partial: false }
publish: { followed_blocks: { from: { job: chain } } }
`

// A node that wants a token gets it when a source is listed, and when its blocks are read.
func TestASecretIsThereWhenASourceIsListed(t *testing.T) {
	t.Parallel()
	node := testgeth.Start(t)
	node.MineTo(9)
	to, err := url.Parse(node.URL)
	require.NoError(t, err)
	proxy := httputil.NewSingleHostReverseProxy(to)
	server := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if r.Header.Get("X-Token") != "hunter22" {
			rw.WriteHeader(http.StatusUnauthorized)
			return
		}
		proxy.ServeHTTP(rw, r)
	}))
	t.Cleanup(server.Close)

	w := dispatchertest.NewWorld(t)
	w.Secret("NODE", "hunter22", authz.Binding{AddJobs: []string{"followed/chain"}, AddHosts: []string{server.URL}})
	w.Serve(fmt.Sprintf(followed, server.URL))
	w.Poll()
	w.Settle()
	read := w.Read("followed_blocks")
	require.Len(t, read["0-4"], 4)
	require.Len(t, read["4-8"], 4)
}
