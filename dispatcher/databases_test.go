package dispatcher_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/dispatcher/dispatchertest"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/testdb"
)

const shop = `
name: work
jobs:
  - name: orders
    operator: postgres_query
    source: { kind: manual }
    config:
      { host: HOST, port: PORT, database: NAME, user: USER, password: { secret: PG }, sslmode: disable,
        query: "SELECT id, total FROM orders ORDER BY id", types: { total: "DECIMAL(18,2)" } }
  - name: reported
    operator: postgres_load
    outputs: 0
    inputs: [{ from: { job: orders } }]
    config:
      { host: HOST, port: PORT, database: NAME, user: USER, password: { secret: PG }, sslmode: disable,
        table: reports.orders, mode: replace, create: true }
publish:
  shop_orders: { from: { job: orders } }
`

// Rows go from one table of a user's to another: what is new is read, published and loaded, and nothing else is.
func TestRowsGoThroughUsersDatabases(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	url := testdb.Empty(t)
	f := testdb.Behind(t, url, nil)
	conn, err := pgx.Connect(t.Context(), url)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close(t.Context()) })
	exec := func(statements string) {
		t.Helper()
		_, err := conn.PgConn().Exec(t.Context(), statements).ReadAll()
		require.NoError(t, err)
	}
	text := func(query string) (text string) {
		t.Helper()
		require.NoError(t, conn.QueryRow(t.Context(), query).Scan(&text))
		return text
	}
	exec(`CREATE SCHEMA reports; CREATE TABLE orders (id int, total numeric); INSERT INTO orders VALUES (1, 1.5)`)

	document := strings.NewReplacer("HOST", f.Host, "PORT", fmt.Sprint(f.Port), "NAME", f.Database, "USER",
		f.User).Replace(shop)
	w.Secret("PG", f.Password, authz.Binding{AddJobs: []string{"work/orders", "work/reported"},
		AddHosts: []string{fmt.Sprintf("http://%s:%d", f.Host, f.Port)}})
	_, err = w.TryDeploy(dispatchertest.Edit(document, "host: "+f.Host, "host: db.example.com"))
	require.True(t, fault.Is(err, fault.Invalid) || fault.Is(err, fault.Forbidden), "%v", err)
	require.ErrorContains(t, err, "PG")

	w.Serve(document)
	run := func() {
		t.Helper()
		w.Want("orders")
		w.Settle()
	}
	run()
	require.Equal(t, int64(1), w.Published("orders")["all"])
	require.Equal(t, "(1,1.50)", text("SELECT string_agg(o::text, ' ') FROM reports.orders o"))
	loaded := text("SELECT loaded_at::text FROM reports._dagctl_loads")

	run()
	require.Equal(t, int64(1), w.Published("orders")["all"], "the same rows are no news")
	require.Equal(t, loaded, text("SELECT loaded_at::text FROM reports._dagctl_loads"))

	exec("INSERT INTO orders VALUES (2, 0.25)")
	run()
	require.Equal(t, int64(2), w.Published("orders")["all"])
	require.Equal(t, "(1,1.50) (2,0.25)", text("SELECT string_agg(o::text, ' ' ORDER BY id) FROM reports.orders o"))
	require.NotEqual(t, loaded, text("SELECT loaded_at::text FROM reports._dagctl_loads"))

	// A value that does not fit fails the task for good, and what was loaded stays.
	exec("INSERT INTO orders VALUES (3, 0.001)")
	run()
	require.Equal(t, int64(2), w.Published("orders")["all"])
	var message string
	w.Row(`SELECT error_message FROM tasks WHERE status = 'Failed'`)(&message)
	require.Contains(t, message, `row 3, column "total" has a value that does not fit DECIMAL(18,2)`)
	require.NotContains(t, message, f.Password)
	require.Equal(t, "2", text("SELECT count(*)::text FROM reports.orders"))
}
