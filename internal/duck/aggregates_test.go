package duck

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestAggregatesAreDuckDBs(t *testing.T) {
	t.Parallel()
	s, err := Open(t.Context(), Config{Threads: 1})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })

	var names string
	require.NoError(t, s.Value(t.Context(), &names, "SELECT string_agg(DISTINCT function_name, ' ') "+
		"FROM duckdb_functions() WHERE function_type = 'aggregate'"))
	want := setOf(names + " count_star")
	require.Equal(t, slices.Sorted(maps.Keys(want)), slices.Sorted(maps.Keys(aggregates)))

	calls := slices.Concat(slices.Sorted(maps.Keys(aggregates)), slices.Sorted(maps.Keys(aggregateMacros)))
	var macros string
	require.NoError(t, s.Value(t.Context(), &macros, "SELECT string_agg(DISTINCT function_name, ' ') "+
		"FROM duckdb_functions() WHERE function_type = 'macro' AND schema_name = 'main' AND list_has_any("+
		"regexp_extract_all(macro_definition, '([a-z_]+)\\(', 1), $1::VARCHAR[])", "["+strings.Join(calls, ",")+"]"))
	require.Equal(t, slices.Sorted(maps.Keys(aggregateMacros)), slices.Sorted(maps.Keys(setOf(macros))))
}
