package query

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/internal/fault"
)

// Long queries of one org leave a place to each other org in turn.
func TestAnOrgCannotTakeAllSlots(t *testing.T) {
	t.Parallel()
	s := newSlots(4)
	var ours []func()
	for range 3 {
		release, err := s.take("acme")
		require.NoError(t, err)
		ours = append(ours, release)
	}
	_, err := s.take("acme")
	require.True(t, fault.Is(err, fault.TooMany), "%v", err)
	require.ErrorContains(t, err, "your org is already running 3 queries on this server")

	other, err := s.take("other")
	require.NoError(t, err, "a place is kept for those that have none")
	_, err = s.take("third")
	require.ErrorContains(t, err, "this server is already running 4 queries")
	ours[0]()
	ours[0]() // twice is once
	for _, org := range []string{"acme", "other"} {
		_, err = s.take(org)
		require.ErrorContains(t, err, "the free places are kept for others", org)
	}
	third, err := s.take("third")
	require.NoError(t, err)

	for _, release := range append(ours[1:], other, third) {
		release()
	}
	require.Empty(t, s.taken)
	require.Zero(t, s.busy)
}

func TestReservedSlots(t *testing.T) {
	t.Parallel()
	for n, reserved := range map[int]int{1: 0, 2: 1, 4: 1, 8: 2, 100: 25} {
		require.Equal(t, reserved, newSlots(n).reserved, n)
	}
}
