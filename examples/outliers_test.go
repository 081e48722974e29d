package examples_test

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestOutliersExample runs the commands of the README: code that comes with the deploy, another one, and back.
func TestOutliersExample(t *testing.T) {
	t.Parallel()
	s := newStory(t, "outliers")
	server := s.serve(t)
	s.settle(t)
	s.shows(t, "look")
	s.do(t, "third")
	s.shows(t, "spike")
	s.settle(t)

	tasks := func(job string) int {
		return s.count(t, `SELECT count(*) FROM tasks t JOIN jobs j ON j.id = t.job_id WHERE j.name = $1`, job)
	}
	require.Equal(t, 3, tasks("marked"))
	s.do(t, "code")
	s.shows(t, "stuck")
	s.settle(t)
	require.Equal(t, 6, tasks("marked"), "other code marks three days again")
	require.Equal(t, 3, tasks("readings"), "which are not read again")
	s.do(t, "back")
	s.shows(t, "before")
	require.Equal(t, 6, tasks("marked"), "a rollback computes nothing")
	server.Stop(t)
}
