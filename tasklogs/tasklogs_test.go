package tasklogs

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/worker/protocol"
)

func TestLinesAreStoredOnceAndInOrder(t *testing.T) {
	t.Parallel()
	lines := func(numbers ...int64) (out []protocol.LogLine) {
		for _, n := range numbers {
			out = append(out, protocol.LogLine{Seq: n, At: time.Unix(0, 0), Text: "0123456789"})
		}
		return out
	}

	for name, c := range map[string]struct {
		last, stored int64
		lines        []protocol.LogLine
		fresh        []int64
		answer       protocol.LogsAnswer
	}{
		"first":         {0, 0, lines(1, 2), []int64{1, 2}, protocol.LogsAnswer{Accepted: 2}},
		"again":         {2, 20, lines(1, 2, 3), []int64{3}, protocol.LogsAnswer{Accepted: 3}},
		"nothing new":   {3, 30, lines(2, 3), nil, protocol.LogsAnswer{Accepted: 3}},
		"none":          {3, 30, nil, nil, protocol.LogsAnswer{Accepted: 3}},
		"a gap":         {3, 30, lines(5, 6), nil, protocol.LogsAnswer{Accepted: 3}},
		"a gap between": {3, 30, lines(4, 6), []int64{4}, protocol.LogsAnswer{Accepted: 4}},
		"out of order":  {0, 0, lines(1, 3, 2), []int64{1}, protocol.LogsAnswer{Accepted: 1}},
		"twice":         {0, 0, lines(1, 1, 2), []int64{1, 2}, protocol.LogsAnswer{Accepted: 2}},
		"over the cap":  {8, 80, lines(9, 10, 11, 12), []int64{9, 10}, protocol.LogsAnswer{Accepted: 12, Dropped: 3}},
		"full":          {10, 200, lines(11, 12), nil, protocol.LogsAnswer{Accepted: 12, Dropped: 2}},
	} {
		fresh, answer := accept(c.last, c.stored, 100, c.lines)
		var numbers []int64
		for _, line := range fresh {
			numbers = append(numbers, line.Seq)
		}

		require.Equal(t, c.fresh, numbers, name)
		require.Equal(t, c.answer, answer, name)
	}
	fresh, _ := accept(8, 80, 100, lines(9, 10))
	require.Contains(t, fresh[1].Text, "more than 100 bytes")
}

func TestLinesAreSafeToShow(t *testing.T) {
	t.Parallel()
	require.Equal(t, "a\tb[31mred\uFFFD", clean("a\tb\x1b[31mred\xff\x00"))
	require.LessOrEqual(t, len(clean(string(make([]byte, 1<<20)))), longest+3)
}
