package dispatcher_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/dispatcher/dispatchertest"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/testmysql"
)

const visits = `
name: work
jobs:
  - name: visits
    operator: mysql_query
    source: { kind: manual }
    config:
      { host: HOST, port: PORT, database: NAME, user: USER, password: { secret: DB }, sslmode: disable,
        query: "SELECT id, total, day FROM visits ORDER BY id", types: { total: "DECIMAL(18,2)" } }
  - name: totals
    operator: sql
    inputs: [{ from: { job: visits } }]
    config: { query: "SELECT sum(total) AS total, count(*) AS visits FROM visits" }
`

// Rows of a user's MariaDB are read, published and computed with: what is new is, and nothing else.
func TestRowsOfUsersMySQL(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	d := testmysql.New(t)
	d.Exec(t, "CREATE TABLE visits (id int, total decimal(65,30), day date); INSERT INTO visits VALUES (1, 1.5, NULL)")

	document := strings.NewReplacer("HOST", d.Host, "PORT", fmt.Sprint(d.Port), "NAME", d.Database, "USER",
		d.User).Replace(visits)
	w.Secret("DB", d.Password, authz.Binding{AddJobs: []string{"work/visits"},
		AddHosts: []string{fmt.Sprintf("http://%s:%d", d.Host, d.Port)}})
	_, err := w.TryDeploy(dispatchertest.Edit(document, "host: "+d.Host, "host: db.example.com"))
	require.True(t, fault.Is(err, fault.Invalid) || fault.Is(err, fault.Forbidden), "%v", err)
	require.ErrorContains(t, err, "DB")
	_, err = w.TryDeploy(dispatchertest.Edit(document, "ORDER BY id", "INTO OUTFILE 'x'"))
	require.True(t, fault.Is(err, fault.Invalid), "%v", err)

	w.Serve(document)
	run := func() {
		t.Helper()
		w.Want("visits")
		w.Settle()
	}
	run()
	require.Equal(t, int64(1), w.Published("visits")["all"])
	require.Equal(t, int64(1), w.Published("totals")["all"])
	run()
	require.Equal(t, int64(1), w.Published("visits")["all"], "the same rows are no news")

	d.Exec(t, "INSERT INTO visits VALUES (2, 0.25, '2024-02-29')")
	run()
	require.Equal(t, int64(2), w.Published("visits")["all"])
	require.Equal(t, int64(2), w.Published("totals")["all"])

	// A value that does not fit fails the task for good, with what helps, and what was published stays.
	d.Exec(t, "SET sql_mode = ''; INSERT INTO visits VALUES (3, 0, '0000-00-00')")
	run()
	require.Equal(t, int64(2), w.Published("visits")["all"])
	var message string
	w.Row(`SELECT error_message FROM tasks WHERE status = 'Failed'`)(&message)
	require.Contains(t, message, `row 3, column "day" has 0000-00-00, which is no date`)
	require.Contains(t, message, `NULLIF(day, '0000-00-00')`)
	require.NotContains(t, message, d.Password)
}
