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
	require.Equal(t, 3, s.tasks(t, "marked"))
	s.do(t, "code")
	s.shows(t, "stuck")
	s.settle(t)
	require.Equal(t, 6, s.tasks(t, "marked"), "other code marks three days again")
	require.Equal(t, 3, s.tasks(t, "readings"), "which are not read again")
	s.do(t, "back")
	s.shows(t, "before")
	require.Equal(t, 6, s.tasks(t, "marked"), "a rollback computes nothing")
	server.Stop(t)
}
