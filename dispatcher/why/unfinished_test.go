package why

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/dispatcher/builds"
)

// A gate has reasons if and only if it does not open.
func TestGateReasons(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		p     builds.Progress
		codes []string
	}{
		"ready":     {builds.Progress{}, nil},
		"open":      {builds.Progress{Open: true}, []string{"gate_open"}},
		"caught up": {builds.Progress{Open: true, CaughtUp: true}, nil},
		"dead":      {builds.Progress{Dead: []string{"a", "b"}, Open: true}, []string{"gate_dead", "gate_open"}},
		"rejected":  {builds.Progress{Rejected: []string{"a"}}, []string{"gate_rejected"}},
		"unread": {builds.Progress{Unread: []string{"d/raw"}, Open: true, CaughtUp: true},
			[]string{"gate_unread"}},
		"stale, held": {builds.Progress{Stale: 3, Held: 2}, []string{"gate_stale", "gate_held"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ready, _ := builds.Gate(c.p)
			reasons := gateReasons(c.p, 4)
			require.Equal(t, c.codes, codesIn(reasons))
			require.Equal(t, ready, len(reasons) == 0)
		})
	}
}
