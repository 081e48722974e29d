package dispatcher_test

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/dispatcher/dispatchertest"
	"github.com/dagctl/dagctl/internal/testdb"
)

// lateRows returns the n-th DAG that docs/yaml.md shows under the heading about late rows.
func lateRows(t *testing.T, n int) string {
	t.Helper()
	page, err := os.ReadFile("../docs/yaml.md")
	require.NoError(t, err)
	_, section, found := strings.Cut(string(page), "#### Incremental models, lookback and late rows\n")
	require.True(t, found)
	blocks := strings.Split(section, "```yaml\n")
	text, _, _ := strings.Cut(blocks[n], "```")
	return text
}

// A query over all days is split: a late row changes its day, and the windows that the day is in.
func TestALateRowOfATable(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	yaml := lateRows(t, 1) + `publish: { revenue: { from: { job: revenue } } }`
	require.NoError(t, os.Mkdir(w.Landing+"/shop", 0o700))
	orders := "id,placed_at,price\n1,2026-03-02 08:00:00,5\n2,2026-03-03 09:00:00,7\n3,2026-03-03 10:00:00,1\n" +
		"4,2026-03-20 10:00:00,2\n"
	w.Drop("shop/orders.csv", orders)
	w.Serve(yaml)
	days := map[string]int64{"2026-03-02": 1, "2026-03-03": 1, "2026-03-20": 1}
	require.Equal(t, days, w.Published("revenue"))
	require.Equal(t, int64(1), w.Published("trend")["2026-03-08"])

	w.Drop("shop/orders.csv", orders+"5,2026-03-02 23:00:00,4\n")
	w.Poll()
	w.Settle()
	days["2026-03-02"] = 2
	require.Equal(t, days, w.Published("orders_by_day"))
	require.Equal(t, days, w.Published("revenue"))
	require.Equal(t, []string{"2,9"}, w.Read("revenue")["2026-03-02"])
	for key, revision := range w.Published("trend") {
		require.Equal(t, key <= "2026-03-08", revision == 2, key)
	}
}

// A source that looks back reads the days of a database again: one with a row that is late gets a new revision.
func TestALateRowOfADatabase(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	url := testdb.Empty(t)
	f := testdb.Behind(t, url, nil)
	conn, err := pgx.Connect(t.Context(), url)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close(t.Context()) })
	day := func(ago int) string { return time.Now().UTC().AddDate(0, 0, -ago).Format(time.DateOnly) }
	invoice := func(id, ago int) {
		t.Helper()
		_, err := conn.Exec(t.Context(), `INSERT INTO invoices VALUES ($1, 10, $2::text::timestamptz)`, id,
			day(ago)+" 12:00+00")
		require.NoError(t, err)
	}
	_, err = conn.Exec(t.Context(), `CREATE TABLE invoices (id int, total int, booked_at timestamptz)`)
	require.NoError(t, err)
	for id := range 5 {
		invoice(id, id+1)
	}

	yaml := dispatchertest.Edit(lateRows(t, 2), "host: db.example.com",
		fmt.Sprintf("host: %s\n      port: %d\n      sslmode: disable", f.Host, f.Port),
		"database: billing", "database: "+f.Database, "user: reader", "user: "+f.User,
		"2026-01-01", `"`+day(5)+`"`)
	w.Secret("BILLING_DB", f.Password, authz.Binding{AddJobs: []string{"billing/invoices"},
		AddHosts: []string{fmt.Sprintf("http://%s:%d", f.Host, f.Port)}})
	w.Deploy(yaml)
	w.Settle() // the first task of a source finds its columns, and the others give way to it
	w.Promote(time.Now().Add(time.Hour))
	w.Settle()
	made := map[string]int64{day(1): 1, day(2): 1, day(3): 1, day(4): 1, day(5): 1}
	require.Equal(t, made, w.Published("totals"))

	invoice(6, 3)
	invoice(7, 5) // beyond the lookback
	runs := w.Attempts("invoices")
	w.Poll()
	w.Settle()
	require.Equal(t, runs+4, w.Attempts("invoices"))
	made[day(3)] = 2
	require.Equal(t, made, w.Published("invoices"))
	require.Equal(t, made, w.Published("totals"))
	require.Equal(t, 6, w.Attempts("totals"))
}
