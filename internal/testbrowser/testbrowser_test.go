package testbrowser_test

import (
	"fmt"
	"html"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/internal/testbrowser"
)

const form = `<!doctype html><title>Greeting</title>
<form method="post" action="/greet"><input name="who" value="nobody"><button>Greet</button></form>
<button id="later" onclick="setTimeout(() => { document.querySelector('p').textContent = 'done' }, 50)">Later</button>
<p>not yet</p>`

func TestAFormIsFilledAndSent(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		if r.Method == http.MethodPost {
			_, _ = fmt.Fprintf(w, "<h1>Hello, %s</h1>", html.EscapeString(r.FormValue("who")))
			return
		}
		_, _ = fmt.Fprint(w, form)
	}))
	t.Cleanup(server.Close)

	b := testbrowser.Start(t)
	b.Open(server.URL)
	require.Equal(t, "not yet", b.Text("p"))
	b.Click("#later")
	b.WaitText("p", "done")

	b.Fill("input[name=who]", "Ada <3")
	b.Follow("form button")
	require.Equal(t, server.URL+"/greet", b.URL())
	require.Equal(t, "Hello, Ada <3", b.Text("h1"))
}
