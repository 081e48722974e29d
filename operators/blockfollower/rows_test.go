package blockfollower_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/internal/duck"
)

// values are the values of one row of a query over the rows of a partition, as text.
func (w *world) values(partition, query string) (text string) {
	w.t.Helper()
	s, err := duck.Open(w.t.Context(), duck.Config{AnyPath: true, Threads: 1})
	require.NoError(w.t, err)
	defer s.Close()
	require.NoError(w.t, s.Value(w.t.Context(), &text, "SELECT concat_ws(' ', "+query+") FROM "+
		duck.ReadParquet(w.files[partition])))
	return text
}

func TestLargeNumbersAreExact(t *testing.T) {
	t.Parallel()
	n := newChain(t)
	w := newWorld(t, n.URL, map[string]any{"records": []any{"transactions"}, "partial": false})
	n.node.Send(map[string]string{"to": "0x000000000000000000000000000000000000dEaD",
		"value": "0x100000000000000000000000000000000000000000000000000000000000001"})
	n.mine(3)
	require.Equal(t, []string{"0-4"}, w.follow())
	require.Equal(t, "452312848583266388373324160190187140051835877600158453279131187530910662657 0x"+
		strings.Repeat("0", 36)+"dead 0x",
		w.values("0-4", "max(value) FILTER (length(value) > 9), min(to_address), max(input)"))
}

func TestLogs(t *testing.T) {
	t.Parallel()
	n := newChain(t)
	w := newWorld(t, n.URL, map[string]any{"records": []any{"logs"}, "partial": false})
	// The constructor writes the number 42 to memory, and a log of it with the topic 7.
	n.node.Send(map[string]string{"data": "0x602a600052600760206000a100", "gas": "0x30d40"})
	n.mine(3)
	require.Equal(t, []string{"0-4"}, w.follow())
	require.Equal(t, "1 0x"+strings.Repeat("0", 62)+"07 0x"+strings.Repeat("0", 62)+"2a 0",
		w.values("0-4", "count(*), max(topic0), max(data), count(topic1)"))
}
