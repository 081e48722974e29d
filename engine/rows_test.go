package engine

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// A JSON value may be a number that no DOUBLE holds, or none as it is written: it stays so.
func TestCellsHaveNumbersOfAnySize(t *testing.T) {
	t.Parallel()
	long := "1" + strings.Repeat("0", 100_000)
	for _, line := range []string{"[1e400]", "[-1e400,null]", "[" + long + ",\"x\",[1e400],true]", "[0.5,-8,1e3]",
		"[99999999999999999999999999999999999999999,0.1234567890123456789,-0,1.50,1e+21,1e-7]"} {
		rows, err := cells([]byte(line+"\n"), 1)
		require.NoError(t, err, line)
		text, err := json.Marshal(rows[0])
		require.NoError(t, err, line)
		require.Equal(t, line, string(text))
	}
	for _, line := range []string{"[x]", "{}", "[1", "1"} {
		_, err := cells([]byte(line+"\n"), 1)
		require.Error(t, err, line)
	}
}
