package examples_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/examples/processtest"
	"github.com/dagctl/dagctl/internal/freeport"
	"github.com/dagctl/dagctl/internal/testdb"
	"github.com/dagctl/dagctl/query"
)

// rowsOf waits until a dataset has so many rows, and returns them.
func rowsOf(t *testing.T, dir, data, dataset string, count int, more ...string) (rows [][]any) {
	t.Helper()
	processtest.Eventually(t, fmt.Sprintf("%s has %d rows", dataset, count), func() bool {
		args := append([]string{"datasets", "preview", dataset, "--data", data, "-o", "json"}, more...)
		if processtest.Run(t, dir, args...).Code != 0 {
			return false
		}
		rows = processtest.Decode[query.Rows](t, dir, args[:len(args)-2]...).Rows
		return len(rows) == count
	})
	return rows
}

// TestTemplateAPI reads what stands in for an API, and an earthquake that comes later.
func TestTemplateAPI(t *testing.T) {
	t.Parallel()
	dir, data := template(t, "api"), t.TempDir()
	free, err := freeport.Find()
	require.NoError(t, err)
	port := fmt.Sprint(free)
	api := exec.Command("python3", "api.py", port)
	api.Dir, api.Env = dir, processtest.Environment(t)
	start(t, api)
	server := processtest.Dev(t, dir, data, "--database-url", testdb.URL(t), "--var", "api=http://127.0.0.1:"+port)
	require.Len(t, rowsOf(t, dir, data, "earthquakes_by_day", 3), 3)

	file := filepath.Join(dir, "data", "earthquakes.json")
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	later := strings.Replace(string(text), "[\n",
		`[{"id": "nc3", "happened_at": "2026-01-04T01:00:00", "magnitude": 2.5, "place": "Cobb"},`+"\n", 1)
	require.NoError(t, os.WriteFile(file, []byte(later), 0o600))
	processtest.Must(t, dir, "run", "quakes/earthquakes", "--data", data)
	require.Equal(t, []any{"2026-01-04", 1.0, 2.5, 2.5}, rowsOf(t, dir, data, "earthquakes_by_day", 4)[3])
	server.Stop(t)
}

// TestTemplateDatabase goes from a table of PostgreSQL to another one.
func TestTemplateDatabase(t *testing.T) {
	t.Parallel()
	dir, data, url := template(t, "database"), t.TempDir(), testdb.Empty(t)
	shop := testdb.Behind(t, url, nil)
	conn, err := pgx.Connect(t.Context(), url)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close(t.Context()) })
	orders, err := os.ReadFile(filepath.Join(dir, "data", "shop.sql"))
	require.NoError(t, err)
	_, err = conn.PgConn().Exec(t.Context(), string(orders)).ReadAll()
	require.NoError(t, err)

	server := processtest.Dev(t, dir, data, "--database-url", testdb.URL(t), "--var", "database="+shop.Database,
		"--var", "user="+shop.User, "--var", fmt.Sprint("port=", shop.Port))
	password := filepath.Join(t.TempDir(), "password")
	require.NoError(t, os.WriteFile(password, []byte(shop.Password), 0o600))
	shell(t, dir, "dagctl secrets set SHOP_DB --data "+data+" < "+password)
	shell(t, dir, fmt.Sprintf("dagctl secrets bind SHOP_DB --data %s --job shop/orders --job shop/report"+
		" --host http://127.0.0.1:%d", data, shop.Port))
	shell(t, dir, fmt.Sprintf("dagctl deploy --data %s --yes --var database=%s --var user=%s --var port=%d", data,
		shop.Database, shop.User, shop.Port))
	require.Equal(t, [][]any{{"rum", 1.0, "19.00"}, {"tea", 2.0, "22.50"}},
		rowsOf(t, dir, data, "revenue_by_product", 2))

	_, err = conn.Exec(t.Context(), `INSERT INTO shop.orders VALUES (4, 'gin', 2, 12.00, now())`)
	require.NoError(t, err)
	processtest.Must(t, dir, "run", "shop/orders", "--data", data)
	processtest.Eventually(t, "the report is in the database", func() bool {
		var there bool
		var revenue string
		require.NoError(t, conn.QueryRow(t.Context(), `SELECT to_regclass('shop.revenue') IS NOT NULL`).Scan(&there))
		return there && conn.QueryRow(t.Context(), `SELECT revenue::text FROM shop.revenue WHERE product = 'gin'`).
			Scan(&revenue) == nil && revenue == "24.00"
	})
	server.Stop(t)
}

// TestTemplateEvents sends events, one of them twice.
func TestTemplateEvents(t *testing.T) {
	t.Parallel()
	dir, data := template(t, "events"), t.TempDir()
	server := processtest.Dev(t, dir, data, "--database-url", testdb.URL(t))
	address, _, _ := strings.Cut(server.URL, "/?")
	shell(t, dir, "printf a-key-that-only-the-shop-has | dagctl secrets set SHOP_KEY --data "+data)
	shell(t, dir, "dagctl secrets bind SHOP_KEY --job orders/received --data "+data)
	shell(t, dir, "dagctl deploy --yes --data "+data)

	for _, event := range []string{
		`order-1 '{"product": "tea", "amount": 3}'`,
		`order-2 '{"product": "rum", "amount": 1}'`,
		`order-2 '{"product": "rum", "amount": 1}'`,
	} {
		shell(t, dir, "SHOP_KEY=a-key-that-only-the-shop-has DAGCTL_URL="+address+" python3 send.py "+event)
	}
	require.Equal(t, [][]any{{"rum", 1.0, 1.0}, {"tea", 1.0, 3.0}}, rowsOf(t, dir, data, "ordered_by_product", 2))
	server.Stop(t)
}

// TestTemplateDAGs runs two DAGs, one of which reads what the other publishes.
func TestTemplateDAGs(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "dags")
	processtest.Must(t, t.TempDir(), "init", "--template", "dags", dir)
	data := t.TempDir()
	server := processtest.Dev(t, dir, data, "--database-url", testdb.URL(t))
	require.Equal(t, [][]any{{"harbour", 3.9, 4.3}, {"summit", -8.0, -7.8}},
		rowsOf(t, dir, data, "monthly_temperatures", 2))
	require.Contains(t, processtest.Must(t, dir, "lineage", "monthly_temperatures", "--up", "--data", data), "readings")
	server.Stop(t)
}

// shell runs a command as a reader of a README does.
func shell(t *testing.T, dir, command string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "sh", "-c", command)
	cmd.Dir, cmd.Env = dir, processtest.Environment(t)
	output, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s\n%s", command, output)
}
