package duck_test

import (
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/internal/duck"
)

func TestMain(m *testing.M) {
	duck.BinderMain()
	os.Exit(m.Run())
}

// deep has constants that end the process that binds it.
const deep = `SELECT json_transform('1', repeat('[', 100000) || '"INT"' || repeat(']', 100000)) AS x FROM orders`

// doubled reads its relation a trillion times.
func doubled() string {
	query := "WITH c0 AS (SELECT * FROM orders a, orders b)"
	for i := range 40 {
		query += fmt.Sprintf(", c%d AS (SELECT * FROM c%d a, c%d b)", i+1, i, i)
	}
	return query + " SELECT 1 AS x FROM c40"
}

func TestTheServerOutlivesWhatItBinds(t *testing.T) {
	t.Parallel()
	var b duck.Binder
	orders := map[string][]duck.Column{"orders": {{Name: "id", Type: "INTEGER"}}}
	for _, bad := range []string{deep, doubled(), "SELECT nothing FROM orders"} {
		began := time.Now()
		_, err := b.Describe(t.Context(), bad, orders)
		require.Error(t, err)
		require.Less(t, time.Since(began), 30*time.Second)
	}

	columns, err := b.Describe(t.Context(),
		"SELECT id + 1 AS next, getvariable('partition') AS day FROM orders", orders)
	require.NoError(t, err)
	require.Equal(t, []duck.Column{{Name: "next", Type: "INTEGER"}, {Name: "day", Type: "VARCHAR"}}, columns)
}
