package sqltext_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/internal/duck"
	"github.com/dagctl/dagctl/internal/sqltext"
)

func TestIsType(t *testing.T) {
	t.Parallel()
	s, err := duck.Open(t.Context(), duck.Config{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	for _, text := range []string{
		"INTEGER", "varchar", " DOUBLE ", "DOUBLE PRECISION", "CHARACTER VARYING", "VARCHAR(10)", "DECIMAL(18,3)",
		"DECIMAL( 38 , 0 )", "TIMESTAMP WITH TIME ZONE", "TIMESTAMP WITHOUT TIME ZONE", "TIME WITH TIME ZONE",
		"TIMESTAMP_NS", "INTEGER[]", "INTEGER[3]", "INTEGER[][2]", "STRUCT(a INTEGER, \"b c\" VARCHAR[])",
		"ROW(a INTEGER)", "MAP(VARCHAR, STRUCT(x DOUBLE, y DECIMAL(4, 2)))[]", "UNION(n INTEGER, s VARCHAR)",
	} {
		require.True(t, sqltext.IsType(text), text)
		_, err := s.Describe(t.Context(), "SELECT CAST(NULL AS "+text+") AS v")
		require.NoError(t, err, text)
	}
	for _, text := range []string{
		"", " ", "INTEGER)", "INTEGER), (SELECT 1", "INTEGER) AS a, current_setting(", "(INTEGER)", "INTEGER[",
		"INTEGER]", "INTEGER[1", "INTEGER FROM secrets", "INTEGER AS x", "DECIMAL(", "DECIMAL()", "DECIMAL(a)",
		"DECIMAL(1,)", "STRUCT", "STRUCT()", "STRUCT(INTEGER)", "STRUCT(a INTEGER", "MAP(VARCHAR", "TIMESTAMP WITH",
		"TIMESTAMP WITH ZONE", "INTEGER; DROP", "INTEGER -- x", "INTEGER /* */", "'INTEGER'", "a.b", "\"INTEGER\"",
		"1", "ENUM('a')", "INTEGER,", "INTEGER\x00",
		strings.Repeat("STRUCT(a ", 100) + "INTEGER" + strings.Repeat(")", 100),
	} {
		require.False(t, sqltext.IsType(text), text)
	}
}
