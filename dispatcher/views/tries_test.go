package views_test

import (
	"testing"

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
