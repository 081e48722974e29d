package deploy

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestPathBack(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		reads map[string][]string
		want  []string
	}{
		"nothing":   {nil, nil},
		"itself":    {map[string][]string{"a": {"a"}}, []string{"a", "a"}},
		"two":       {map[string][]string{"a": {"b"}, "b": {"a"}}, []string{"a", "b", "a"}},
		"a diamond": {map[string][]string{"a": {"b", "c"}, "b": {"d"}, "c": {"d"}}, nil},
		"another's": {map[string][]string{"a": {"b"}, "b": {"c"}, "c": {"b"}}, nil},
		"past dead end": {map[string][]string{"a": {"b", "c"}, "b": {"x"}, "c": {"d"}, "d": {"a"}},
			[]string{"a", "c", "d", "a"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.Equal(t, c.want, pathBack(c.reads, "a"))
		})
	}
}
