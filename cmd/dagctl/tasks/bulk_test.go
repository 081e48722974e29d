package tasks

import (
	"net/url"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/dispatcher/views"
)

func TestParseTime(t *testing.T) {
	t.Parallel()
	day, err := parseTime("2026-01-31")
	require.NoError(t, err)
	require.Equal(t, time.Date(2026, 1, 31, 0, 0, 0, 0, time.Local), day)
	instant, err := parseTime("2026-01-31T09:00:00+02:00")
	require.NoError(t, err)
	require.True(t, instant.Equal(time.Date(2026, 1, 31, 7, 0, 0, 0, time.UTC)))
	for _, bad := range []string{"", "yesterday", "2026-02-30", "2026-01-31 09:00"} {
		_, err := parseTime(bad)
		require.Error(t, err, bad)
	}
}

func TestParseRate(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]float64{"": 0, "100": 100, "100/s": 100, "0.5/s": 0.5} {
		rate, err := parseRate(text)
		require.NoError(t, err, text)
		require.Equal(t, want, rate, text)
	}
	for _, bad := range []string{"fast", "0", "-1/s", "100/m"} {
		_, err := parseRate(bad)
		require.Error(t, err, bad)
	}
}

func TestSelection(t *testing.T) {
	t.Parallel()
	_, filters, err := new(selectionFlags).selection()
	require.NoError(t, err)
	require.False(t, filters)

	s := selectionFlags{TaskSelection: views.TaskSelection{DAG: "mail", Dead: true}, after: "2026-01-31T00:00:00Z"}
	sel, filters, err := s.selection()
	require.NoError(t, err)
	require.True(t, filters)
	require.Equal(t, url.Values{"dag": {"mail"}, "dead": {"true"}, "created_after": {"2026-01-31T00:00:00Z"}},
		selectionQuery(sel))

	require.ErrorContains(t, checkAddress("seventeen"), `"seventeen" is not the id of a task`)
	_, _, err = (&selectionFlags{before: "soon"}).selection()
	require.Error(t, err)
}
