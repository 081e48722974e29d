package clock

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
)

// database answers with a time, after the process's own clock has moved on.
type database struct {
	shared time.Time
	takes  func()
}

func (d database) QueryRow(context.Context, string, ...any) pgx.Row { return d }

func (d database) Scan(into ...any) error {
	d.takes()
	*into[0].(*time.Time) = d.shared
	return nil
}

// The tests of this package share its clock, so they are one.
func TestNowIsTheDatabases(t *testing.T) {
	at := time.Date(2026, 11, 24, 12, 0, 0, 0, time.UTC)
	mine := at.Add(-5 * time.Minute)
	own = func() time.Time { return mine }
	pass := func(d time.Duration) func() { return func() { mine = mine.Add(d) } }
	require.Equal(t, mine, Now(), "nothing is known yet")

	require.NoError(t, Measure(t.Context(), database{at, pass(20 * time.Millisecond)}))
	require.Equal(t, at.Add(10*time.Millisecond), Now())
	pass(time.Minute)()
	require.Equal(t, at.Add(time.Minute+10*time.Millisecond), Now())

	known := Now()
	require.NoError(t, Measure(t.Context(), database{known.Add(3 * time.Second), pass(10 * time.Second)}))
	require.Equal(t, known.Add(10*time.Second), Now(), "a slow answer contradicts nothing")

	known = Now()
	require.NoError(t, Measure(t.Context(), database{known.Add(-time.Hour), pass(0)}))
	require.Equal(t, known.Add(-time.Hour), Now(), "the database's clock was set")
}
