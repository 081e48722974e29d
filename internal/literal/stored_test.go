package literal_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/internal/literal"
	"github.com/dagctl/dagctl/internal/testdb"
)

func TestStoredBytesAreThoseOfPostgres(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	for _, text := range []string{
		`null`, `true`, `"x"`, `"é\u00e9\n"`, `7`, `[]`, `{}`, `[[],[],{}]`, `[1,2,3]`, `["a",1,"bc",2.5,"def",[3]]`,
		`{"b":1,"aa":"x","a":[1,"y",{"c":null}]}`, `{"a":1,"a":"twice","b":"x"}`,
		`[0,-0,0.0,0.000,1e5,1E-5,1.50,12345,10000,99999999,123456789.987654321,-1.5e+3,0.00001,1e300,1e-300]`,
		`[1e255,1e256,1e260,1e-256,1e-257,1e-63,1e-64,0e-70,12.0e1,120000e-4]`,
		"[" + strings.Repeat("1,", 30_000) + "1]", strings.Repeat("[", 400) + strings.Repeat("]", 400),
	} {
		var want int
		require.NoError(t, db.QueryRow(t.Context(), `SELECT pg_column_size($1::text::jsonb)`, text).Scan(&want))
		got, err := literal.StoredBytes([]byte(text))
		require.NoError(t, err)
		require.Equal(t, want, got, "%.100s", text)
	}
	_, err := literal.StoredBytes([]byte(`[`))
	require.Error(t, err)

	require.Zero(t, literal.StoredOver(1000, []byte(`[1,2,3]`)))
	require.Zero(t, literal.StoredOver(47, []byte(`[1,2,3]`)))
	require.Equal(t, 44, literal.StoredOver(43, []byte(`[1,2,3]`)))
	require.Zero(t, literal.StoredOver(1, []byte(`[`)))
}

func TestNestingHasALimit(t *testing.T) {
	t.Parallel()
	nested := func(n int) []byte { return []byte(strings.Repeat(`[{"[[":`, n/2) + "1" + strings.Repeat("}]", n/2)) }
	require.NoError(t, literal.Nesting(nested(literal.MaxNesting)))
	require.EqualError(t, literal.Nesting(nested(literal.MaxNesting+2)),
		"is nested too deeply: lists and objects may be 500 levels deep")
	require.NoError(t, literal.Nesting([]byte(strings.Repeat("[],", 1000))), "beside each other")
	require.NoError(t, literal.Nesting(nil))
}
