package views_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/dispatcher/views"
)

// Attempts that were handed back, by a drained worker for instance, do not count: no task has more tries than it may.
func TestTries(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		task views.Task
		want int
	}{
		{"not begun", views.Task{Status: "Queued"}, 0},
		{"the first", views.Task{Status: "Running", Attempt: 1}, 1},
		{"handed back twice", views.Task{Status: "Running", Attempt: 3}, 1},
		{"waits for the second", views.Task{Status: "Failed", Attempt: 1, Failures: 1}, 1},
		{"done at the second", views.Task{Status: "Completed", Attempt: 2, Failures: 1}, 2},
		{"dead, handed back once", views.Task{Status: "Failed", Attempt: 4, Failures: 3}, 3},
	} {
		require.Equal(t, c.want, c.task.Tries(), c.name)
	}
}

// A canceled task does not say how long its last attempt ran: it may have been dead for days before.
func TestTook(t *testing.T) {
	t.Parallel()
	began := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	ended := began.Add(time.Hour)
	took, known := views.Task{Status: "Failed", StartedAt: &began, CompletedAt: &ended}.Took()
	require.True(t, known)
	require.Equal(t, time.Hour, took)
	_, known = views.Task{Status: "Canceled", StartedAt: &began, CompletedAt: &ended}.Took()
	require.False(t, known)
	_, known = views.Task{Status: "Running", StartedAt: &began}.Took()
	require.False(t, known)
}
