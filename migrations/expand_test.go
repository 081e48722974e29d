package migrations_test

import (
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"
)

// contracts matches what servers of the build before could not live with.
var contracts = regexp.MustCompile(`(?im)^\s*(DROP\s+(TABLE|VIEW|FUNCTION|TYPE)\b|.*\bDROP\s+COLUMN\b|.*\bRENAME\b|` +
	`.*\bSET\s+NOT\s+NULL\b|.*\bALTER\s+COLUMN\s+\w+\s+(SET\s+DATA\s+)?TYPE\b)`)

// Since 0012, a migration only expands: servers of the build before serve on the schema that it makes, during a rolling
// upgrade and after going back to them. What is not used any more is dropped by a later build.
func TestMigrationsOnlyExpand(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("[0-9]*.sql")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, file := range files {
		if file < "0012" {
			continue
		}
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		require.Empty(t, contracts.FindAllString(string(text), -1), "%s takes away what older servers use", file)
	}
	require.Regexp(t, contracts, "ALTER TABLE tasks DROP COLUMN payload;")
	require.NotRegexp(t, contracts, "ALTER TABLE tasks ADD COLUMN type TEXT;")
}
