package pg_test

import (
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/internal/testdb"
)

type (
	plain string
	loud  string
)

func (l loud) String() string { return string(l) + "!" }

// Arrays that are encoded as a whole arrive as they do without that.
func TestArraysArriveAsTheyAre(t *testing.T) {
	t.Parallel()
	url := testdb.Empty(t)
	ours, err := pg.Open(t.Context(), url)
	require.NoError(t, err)
	defer ours.Close()
	theirs, err := pgx.Connect(t.Context(), url)
	require.NoError(t, err)
	defer theirs.Close(t.Context())

	id, text := uuid.New(), `a "quoted", {brace}d \text, ÿ`
	early, late := time.Date(-4000, 1, 2, 3, 4, 5, 6789, time.UTC), time.Date(9999, 12, 31, 23, 59, 59, 999_999_999,
		time.FixedZone("", 3600))
	for _, c := range []struct {
		value any
		kind  string
		want  any // of elements that are NULL: nil
	}{
		{[]uuid.UUID{id, uuid.Nil}, "uuid", []any{id.String(), uuid.Nil.String()}},
		{[]*uuid.UUID{nil, &id}, "uuid", []any{nil, id.String()}},
		{[]uuid.UUID{}, "uuid", []any{}},
		{[]uuid.UUID(nil), "uuid", nil},
		{[]*uuid.UUID(nil), "uuid", nil},
		{[]string{text, ""}, "text", []any{text, ""}},
		{[]*string{&text, nil}, "text", []any{text, nil}},
		{[]string(nil), "text", nil},
		{[]plain{"Queued", ""}, "text", []any{"Queued", ""}},
		{[]plain(nil), "text", nil},
		{[]loud{"Queued"}, "text", []any{"Queued"}},
		{[]time.Time{early, late}, "timestamptz",
			[]any{"4001-01-02 03:04:05.000006+00 BC", "9999-12-31 22:59:59.999999+00"}},
		{[]*time.Time{nil, &late}, "timestamptz", []any{nil, "9999-12-31 22:59:59.999999+00"}},
	} {
		const ask = `SELECT ARRAY(SELECT v::text FROM unnest(a) WITH ORDINALITY AS u(v, n) ORDER BY n), a IS NULL
			FROM (SELECT $1::`
		var got, other []any
		var none, noneOther bool
		err := ours.QueryRow(t.Context(), ask+c.kind+`[] AS a) x`, c.value).Scan(&got, &none)
		require.NoError(t, err, "%#v", c.value)
		require.Equal(t, c.want == nil, none, "%#v", c.value)
		if !none {
			require.Equal(t, c.want, got, "%#v", c.value)
		}

		_, err = theirs.Exec(t.Context(), `SET timezone = 'UTC'`)
		require.NoError(t, err)
		require.NoError(t, theirs.QueryRow(t.Context(), ask+c.kind+`[] AS a) x`, c.value).Scan(&other, &noneOther))
		require.Equal(t, []any{other, noneOther}, []any{got, none}, "%#v", c.value)
	}

	_, err = ours.Exec(t.Context(), `SELECT $1::text[]`, []string{"a\x00b"})
	require.ErrorContains(t, err, "0x00")
}
