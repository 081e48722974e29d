package views

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestCriticalPath(t *testing.T) {
	t.Parallel()

	for name, c := range map[string]struct {
		steps   []step
		path    []string
		seconds float64
	}{
		"nothing": {nil, nil, 0},
		"one":     {[]step{{"a", nil, 2}}, []string{"a"}, 2},
		"a chain": {[]step{{"a", nil, 2}, {"b", []string{"a"}, 3}}, []string{"a", "b"}, 5},
		"the longer way": {
			[]step{{"a", nil, 2}, {"b", nil, 5}, {"c", []string{"a", "b"}, 1}}, []string{"b", "c"}, 6,
		},
		"through a job without work": {
			[]step{{"a", nil, 2}, {"b", []string{"a"}, 0}, {"c", []string{"b"}, 1}}, []string{"a", "c"}, 3,
		},
		"two outputs": {[]step{{"a", nil, 2}, {"a", nil, 3}}, []string{"a"}, 3},
		"a circle":    {[]step{{"a", []string{"b"}, 1}, {"b", []string{"a"}, 1}}, []string{"b", "a"}, 2},
	} {

		path, seconds := criticalPath(c.steps)
		require.Equal(t, c.path, path, name)
		require.InDelta(t, c.seconds, seconds, 1e-9, name)
	}
}

func TestTook(t *testing.T) {
	t.Parallel()

	for _, c := range []struct {
		n      int
		mean   float64
		atOnce int
		want   float64
	}{{0, 3, 4, 0}, {-1, 3, 4, 0}, {1, 3, 4, 3}, {4, 3, 4, 3}, {8, 3, 4, 6}, {2, 3, 1, 6}, {2, 3, 0, 6}} {
		require.InDelta(t, c.want, took(c.n, c.mean, c.atOnce), 1e-9, "%+v", c)
	}
}
