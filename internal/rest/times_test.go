package rest

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestTimesThatNoAnswerCouldContainAreRefused(t *testing.T) {
	t.Parallel()
	type line struct {
		At time.Time `json:"at"`
	}
	type input struct {
		Until time.Time `query:"until"`
		Body  struct {
			RunAt *time.Time `json:"run_at"`
			Lines []line     `json:"lines"`
		}
	}

	var in input
	require.NoError(t, checkTimes(&in))
	late, err := time.Parse(time.RFC3339, "9999-12-31T23:59:59-12:00")
	require.NoError(t, err)
	in.Body.Lines = []line{{time.Now()}, {late}}
	require.ErrorContains(t, checkTimes(&in), "body.lines[1].at is not within the years 1 to 8999")
	in.Body.RunAt = &late
	require.ErrorContains(t, checkTimes(&in), "body.run_at is not")
	in.Until = late
	require.ErrorContains(t, checkTimes(&in), "until is not")
	require.NoError(t, checkTimes(&struct{ Name string }{"none"}))
}
