package control_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/dispatcher"
	"github.com/dagctl/dagctl/dispatcher/control"
	"github.com/dagctl/dagctl/dispatcher/dispatchertest"
	"github.com/dagctl/dagctl/dispatcher/upkeep"
	"github.com/dagctl/dagctl/internal/fault"
)

// hourly is a schedule with a partition an hour.
const hourly = `
name: letters
jobs:
  - name: ticks
    operator: command
    source: { kind: cron, schedule: "0 * * * *", on_deploy: false }
    partition_by: { time: hour }
    config: { argv: ["true"] }
`

// A backfill of more partitions than it may have is refused before any are listed: a mistyped year costs nothing.
func TestABackfillOfTooManyPartitionsIsRefused(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Serve(hourly)
	start := func(from, to string) error {
		_, err := w.D.Control.StartBackfill(t.Context(), w.Caller, "letters",
			control.BackfillRequest{Job: "ticks", From: from, To: to}, time.Now())
		return err
	}

	began := time.Now()
	err := start("0001-01-01T00", "9999-12-31T23")
	require.True(t, fault.Is(err, fault.Invalid), "%v", err)
	require.ErrorContains(t, err, "there are 87649416 partitions from 0001-01-01T00 to 9999-12-31T23, "+
		"and one backfill computes 100000 at most")
	require.Less(t, time.Since(began), 2*time.Second)
	require.Empty(t, w.Count(`SELECT FROM backfills`))
	require.NoError(t, start("2014-01-01T00", "2024-12-31T23"))
	require.Equal(t, 96_432, w.Count(`SELECT FROM backfill_partitions`))
}

// A range that ends before it begins is a mistake and not an empty range.
func TestReversedRangesAreRefused(t *testing.T) {
	t.Parallel()
	w := dispatchertest.MonthWorld(t, "01", "02")
	for name, do := range map[string]func() error{
		"backfill": func() error {
			_, err := w.D.Control.StartBackfill(t.Context(), w.Caller, "letters",
				control.BackfillRequest{Job: "made", From: "2024-01-02", To: "2024-01-01"}, time.Now())
			return err
		},
		"purge": func() error {
			_, err := w.D.Upkeep.Purge(t.Context(), w.Caller, "letters_made",
				upkeep.PurgeRequest{From: "2024-01-02", To: "2024-01-01", Reason: "a test"}, time.Now())
			return err
		},
		"invalidate": func() error {
			_, err := w.D.Invalidate(t.Context(), w.Caller, "letters_made",
				dispatcher.InvalidateRequest{From: "2024-01-02", To: "2024-01-01"}, time.Now())
			return err
		},
	} {
		err := do()
		require.True(t, fault.Is(err, fault.Invalid), "%s: %v", name, err)
		require.ErrorContains(t, err, "the first partition, 2024-01-02, comes after the last one, 2024-01-01", name)
	}
}
