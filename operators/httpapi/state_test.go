package httpapi

import (
	"encoding/json"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestStateOfManyPartitions(t *testing.T) {
	t.Parallel()
	var s state
	require.NoError(t, json.Unmarshal([]byte(`{"request": "old", "sha256": "a"}`), &s))
	s, same := s.with(reading{"old", "a"})
	require.True(t, same, "a state of before has one partition")
	s, same = s.with(reading{"old", "b"})
	require.False(t, same)

	for n := range maxRemembered - 1 {
		s, same = s.with(reading{fmt.Sprint(n), "x"})
		require.False(t, same)
	}
	s, same = s.with(reading{"old", "b"})
	require.True(t, same, "it is the oldest that is remembered")
	s, same = s.with(reading{"more", "x"})
	require.False(t, same)
	s, same = s.with(reading{"0", "x"})
	require.False(t, same, "0 had become the oldest one, and is forgotten")
	require.Len(t, s.Read, maxRemembered)

	text, err := json.Marshal(s)
	require.NoError(t, err)
	var again state
	require.NoError(t, json.Unmarshal(text, &again))
	require.Equal(t, s, again)
}
