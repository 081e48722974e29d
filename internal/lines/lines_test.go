package lines_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/internal/lines"
)

func TestSplitter(t *testing.T) {
	t.Parallel()
	var told []string
	s := lines.Splitter{Tell: func(line string) { told = append(told, line) }}
	for _, text := range []string{"one\ntw", "o\n\nbad\xff", "\nrest"} {
		s.Add(text)
	}
	require.Equal(t, []string{"one", "two", "", "bad\uFFFD"}, told)
	s.End()
	s.End()
	require.Equal(t, "rest", told[4])
	require.Len(t, told, 5)

	// A line that is too long loses nothing, wherever it is cut.
	long := strings.Repeat("ä1", 30_000)
	told = nil
	for i := 0; i < len(long); i += 7000 {
		s.Add(long[i:min(len(long), i+7000)])
	}
	s.End()
	require.Equal(t, long, strings.Join(told, ""))
	require.Greater(t, len(told), 1)
}
