package authz_test

import (
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/authz/auditlog"
	"github.com/dagctl/dagctl/internal/rest"
)

// refusal is the detail of an entry about refused requests.
type refusal struct {
	Action, Need string
	Count        int
	Since        time.Time
}

// refusedOf returns the entries about refused requests, oldest first, with their details.
func (w world) refusedOf(t *testing.T) (entries []authz.AuditEntry, details []refusal) {
	t.Helper()
	for page := (rest.PageInput{Limit: 500}); ; {
		list, err := auditlog.List(t.Context(), w.requests, w.admin(),
			auditlog.Filter{Action: "request.refused", Outcome: authz.Refused}, page)
		require.NoError(t, err)
		for _, e := range list.Items {
			var d refusal
			require.NoError(t, json.Unmarshal(e.Detail, &d))
			entries, details = append([]authz.AuditEntry{e}, entries...), append([]refusal{d}, details...)
		}
		if page.Cursor = list.NextCursor; page.Cursor == "" {
			return entries, details
		}
	}
}

func (w world) refusals() *authz.Refusals {
	return authz.NewRefusals(w.requests, slog.New(slog.DiscardHandler))
}

func TestRefusalsAreAudited(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	refusals := w.refusals()
	api := w.api(t, authz.Config{Refusals: refusals})
	api.HandlePage(authz.To(authz.Operate, authz.TheDAG), "GET /page/{dag}",
		func(http.ResponseWriter, *http.Request, authz.Caller) error { return nil })
	api.HandlePage(authz.To(authz.Operate, authz.InBody), "GET /later",
		func(_ http.ResponseWriter, _ *http.Request, caller authz.Caller) error {
			return fmt.Errorf("do it: %w", authz.Authorize(caller, authz.Deploy, authz.OnDAG("orders")))
		})
	reader := w.token(t, authz.NewToken{Name: "reader", Role: authz.RoleReader,
		Grants: []authz.Grant{{Role: authz.RoleWriter, DAGs: "sales"}}})
	began := time.Now()

	for range 2 {
		require.Equal(t, 403, call(api, "DELETE", "/v1/tokens/hidden-name", "", as(reader)...).Code)
	}
	require.Equal(t, 403, call(api, "GET", "/page/hidden-name", "", as(reader)...).Code)
	require.Equal(t, 403, call(api, "GET", "/later", "", as(reader)...).Code)
	// None of these is a refusal of a caller.
	require.Equal(t, 200, call(api, "GET", "/page/sales", "", as(reader)...).Code)
	require.Equal(t, 404, call(api, "GET", "/v1/no-such-route", "", as(reader)...).Code)
	require.Equal(t, 401, call(api, "DELETE", "/v1/tokens/x", "").Code)
	require.Equal(t, 401, call(api, "DELETE", "/v1/tokens/x", "", as("junk")...).Code)
	require.NoError(t, refusals.Write(t.Context(), began))

	entries, details := w.refusedOf(t)
	require.Len(t, entries, 3)
	found := map[string]refusal{}
	for i, e := range entries {
		require.Equal(t, "token:reader", e.Actor)
		require.NotEmpty(t, e.RequestID)
		require.NotContains(t, e.Object+string(e.Detail), "hidden-name", "what it was about is the caller's guess")
		require.WithinDuration(t, began, details[i].Since, time.Minute)
		details[i].Since = time.Time{}
		found[e.Object] = details[i]
	}
	require.Equal(t, map[string]refusal{
		"DELETE /v1/tokens/{name}": {Action: "administer", Need: "admin", Count: 2},
		"GET /page/{dag}":          {Action: "operate", Need: "writer", Count: 1},
		"GET /later":               {Action: "deploy", Need: "writer", Count: 1},
	}, found)

	// The next entry of a caller and a route is a minute away, or at the end of the server.
	require.Equal(t, 403, call(api, "DELETE", "/v1/tokens/x", "", as(reader)...).Code)
	require.NoError(t, refusals.Write(t.Context(), began.Add(59*time.Second)))
	entries, _ = w.refusedOf(t)
	require.Len(t, entries, 3)
	refusals.Flush(t.Context())
	_, details = w.refusedOf(t)
	require.Len(t, details, 4)
	require.Equal(t, 1, details[3].Count)
	refusals.Flush(t.Context())
	entries, _ = w.refusedOf(t)
	require.Len(t, entries, 4)
}

// A change that a page of another site made a browser send is a refusal, which no role would have changed.
func TestARefusalForTheOrigin(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	refusals := w.refusals()
	dev, err := authz.NewDev(authz.DevConfig{Org: w.org, Addr: local, TokenFile: filepath.Join(t.TempDir(), "token")})
	require.NoError(t, err)
	api := w.api(t, authz.Config{Refusals: refusals, Dev: dev})
	api.HandlePage(authz.Reader, "GET /{$}", func(w http.ResponseWriter, _ *http.Request, caller authz.Caller) error {
		_, err := io.WriteString(w, caller.CSRFToken())
		return err
	})
	cookie, _ := signIn(t, api, dev)
	answer := call(api, "POST", "/v1/roles", `{"slug":"x"}`, "Host", local, "Cookie", cookie)
	require.Equal(t, 403, answer.Code, answer.Body.String())
	refusals.Flush(t.Context())
	entries, details := w.refusedOf(t)
	require.Len(t, entries, 1)
	require.Equal(t, []string{"dev", "POST /v1/roles", "administer", ""},
		[]string{entries[0].Actor, entries[0].Object, details[0].Action, details[0].Need})
}

// Ten thousand refused requests leave one entry for each caller and route, and none is lost while the database is away.
func TestAFloodOfRefusalsLeavesFewEntries(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	refusals := w.refusals()
	api := w.api(t, authz.Config{Refusals: refusals})
	tokens := []string{w.token(t, authz.NewToken{Name: "a", Role: authz.RoleReader}),
		w.token(t, authz.NewToken{Name: "b", Role: authz.RoleWriter})}
	handler := api.Handler()
	flood := func(requests int) {
		var group errgroup.Group
		for i := range 4 {
			group.Go(func() error {
				for range requests / 4 {
					answer := callHandler(handler, "GET", "/v1/tokens", "", as(tokens[i%2])...)
					if answer.Code != 403 {
						return fmt.Errorf("%d: %s", answer.Code, answer.Body)
					}
				}
				return nil
			})
		}
		require.NoError(t, group.Wait())
	}
	flood(9000)

	_, err := w.owner.Exec(t.Context(), `ALTER TABLE audit_log ADD CONSTRAINT away CHECK (action = 'x') NOT VALID`)
	require.NoError(t, err)
	now := time.Now()
	require.Error(t, refusals.Write(t.Context(), now))
	flood(1000)
	_, err = w.owner.Exec(t.Context(), `ALTER TABLE audit_log DROP CONSTRAINT away`)
	require.NoError(t, err)
	require.NoError(t, refusals.Write(t.Context(), now))

	_, details := w.refusedOf(t)
	require.Len(t, details, 2)
	require.Equal(t, []int{5000, 5000}, []int{details[0].Count, details[1].Count})
}

// What is beyond the callers and routes that are counted apart is counted for the org as a whole.
func TestManyRefusedRoutesTakeLittleMemory(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	refusals := w.refusals()
	api := w.api(t, authz.Config{Refusals: refusals})
	const routes, callers = 50, 12
	for i := range routes {
		api.HandlePage(authz.Admin, fmt.Sprintf("GET /page/%d", i),
			func(http.ResponseWriter, *http.Request, authz.Caller) error { return nil })
	}
	handler := api.Handler()
	for c := range callers {
		token := w.token(t, authz.NewToken{Name: fmt.Sprintf("reader-%d", c), Role: authz.RoleReader})
		for i := range routes {
			require.Equal(t, 403, callHandler(handler, "GET", fmt.Sprintf("/page/%d", i), "", as(token)...).Code)
		}
	}
	refusals.Flush(t.Context())

	entries, details := w.refusedOf(t)
	require.Len(t, entries, 401)
	count, whole := 0, 0
	for i, e := range entries {
		count += details[i].Count
		if e.Object == "many routes" {
			require.Equal(t, "system", e.Actor)
			whole += details[i].Count
		}
	}
	require.Equal(t, []int{routes * callers, routes*callers - 400}, []int{count, whole})

	// Those that were quiet for a minute make room.
	require.NoError(t, refusals.Write(t.Context(), time.Now().Add(5*time.Minute)))
	late := w.token(t, authz.NewToken{Name: "late", Role: authz.RoleReader})
	require.Equal(t, 403, callHandler(handler, "GET", "/page/0", "", as(late)...).Code)
	refusals.Flush(t.Context())
	entries, _ = w.refusedOf(t)
	require.Equal(t, "token:late", entries[len(entries)-1].Actor)
}
