package builds

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestGate(t *testing.T) {
	t.Parallel()

	for name, c := range map[string]struct {
		p      Progress
		ready  bool
		failed string
	}{
		"nothing left":              {Progress{}, true, ""},
		"tasks are open":            {Progress{Open: true}, false, ""},
		"a source was not read":     {Progress{Unread: []string{"raw"}}, false, ""},
		"something is stale":        {Progress{Stale: 1}, false, ""},
		"a check has not decided":   {Progress{Held: 1}, false, ""},
		"a task is dead":            {Progress{Dead: []string{"a", "b"}}, false, "a"},
		"a revision was rejected":   {Progress{Rejected: []string{"r"}}, false, "r"},
		"dead while others go on":   {Progress{Open: true, Dead: []string{"a"}}, false, "a"},
		"dead counts before checks": {Progress{Dead: []string{"a"}, Rejected: []string{"r"}}, false, "a"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ready, failed := Gate(c.p)
			require.Equal(t, c.ready, ready)
			require.Equal(t, c.failed, failed)
		})
	}
}
