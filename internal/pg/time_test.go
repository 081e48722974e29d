package pg_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/internal/testdb"
)

func TestTimesAreReadInUTC(t *testing.T) {
	t.Parallel()
	var one time.Time
	var many []time.Time
	err := testdb.New(t).QueryRow(t.Context(), `
		SELECT '2024-03-31 03:30:00+02'::timestamptz, ARRAY['2024-03-31 03:30:00+02'::timestamptz]`).Scan(&one, &many)
	require.NoError(t, err)
	want := time.Date(2024, 3, 31, 1, 30, 0, 0, time.UTC)
	require.Equal(t, want, one)
	require.Equal(t, []time.Time{want}, many)
}
