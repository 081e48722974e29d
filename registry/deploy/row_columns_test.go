package deploy

import (
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/internal/testdb"
)

func TestColumnsArriveAsTheyWere(t *testing.T) {
	t.Parallel()
	rows := newColumns(3, "n int", "words text[]", "content jsonb", "rare text")
	odd := []string{`a"b`, `c\d`, "{e,f}", "", "NULL", " g "}
	rows.add(1, odd, map[string]any{"list": odd}, "once")
	rows.add(2, []string{}, []string{"x"}, nil)
	rows.add(3, []string(nil), nil, nil)
	require.NoError(t, rows.err)

	from, args := rows.from("before")
	found, err := testdb.New(t).Query(t.Context(),
		"SELECT $1::text, "+rows.typed()+" FROM "+from+" ORDER BY 2", args...)
	require.NoError(t, err)
	type row struct {
		Before  string
		N       int
		Words   []string
		Content any
		Rare    *string
	}
	got, err := pgx.CollectRows(found, pgx.RowToStructByPos[row])
	require.NoError(t, err)
	once, list := "once", []any{}
	for _, s := range odd {
		list = append(list, s)
	}
	require.Equal(t, []row{
		{"before", 1, odd, map[string]any{"list": list}, &once},
		{"before", 2, []string{}, []any{"x"}, nil},
		{"before", 3, nil, nil, nil},
	}, got)
}
