package openlineage_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/lineage"
	"github.com/dagctl/dagctl/lineage/openlineage"
	"github.com/dagctl/dagctl/lineage/openlineage/openlineagetest"
)

// ended returns a run with every field set.
func ended(how openlineage.Type) openlineage.Run {
	at := time.Date(2026, 1, 2, 3, 4, 5, 6, time.FixedZone("", 3600))
	revision := openlineage.Revision{Generation: uuid.New(), Partition: "2026-01-01", Revision: 2, Rows: 3, Bytes: 40}
	return openlineage.Run{Namespace: openlineage.Namespace("acme"), Program: "1.2", Org: "acme", DAG: "shop",
		Job: "sums", Operator: "sql", DAGVersion: 3, DAGVersionID: uuid.New(), TaskID: uuid.New(), Attempt: 2,
		Kind: "reactive", Started: at, Ended: at.Add(time.Second), Type: how, Reason: "timeout",
		Inputs: []openlineage.Dataset{{Name: "orders", Revisions: []openlineage.Revision{revision},
			Columns: []openlineage.Column{{Name: "size", Type: `STRUCT(e ENUM('s''m', 'large'), n DECIMAL(3, 1))`}}}},
		Outputs: []openlineage.Dataset{{Name: "sums", Revisions: []openlineage.Revision{revision, revision},
			Origins: []openlineage.Origin{
				{Column: "n", Dataset: "orders", Field: "size", Transform: lineage.Aggregate},
				{Column: "n", Dataset: "orders", Field: "n", Transform: lineage.Identity},
			}}}}
}

func TestEventsAreValid(t *testing.T) {
	t.Parallel()
	for _, how := range []openlineage.Type{openlineage.Complete, openlineage.Fail, openlineage.Abort} {
		r := ended(how)
		events := openlineage.Events(r)
		require.Len(t, events, 2)
		require.Equal(t, []openlineage.Type{openlineage.Start, how}, []openlineage.Type{events[0].Type, events[1].Type})
		for _, e := range events {
			body, err := json.Marshal(e)
			require.NoError(t, err)
			require.NoError(t, openlineagetest.Check(body))
			require.NotContains(t, string(body), "large")
			require.Equal(t, openlineage.RunID(r.TaskID, 2), e.Run.ID)
			require.Equal(t, "shop.sums", e.Job.Name)
			require.Equal(t, e.Type == openlineage.Fail, strings.Contains(string(body), "failed: timeout"))
		}
		body, err := json.Marshal(events[1])
		require.NoError(t, err)
		require.Contains(t, string(body), `"STRUCT(e ENUM, n DECIMAL(3, 1))"`)
		require.Equal(t, how == openlineage.Complete, strings.Contains(string(body), `"rowCount":6,"size":80`))
	}
}

// The check finds what is wrong with an event, and with each facet.
func TestWhatIsNotValidIsFound(t *testing.T) {
	t.Parallel()
	body, err := json.Marshal(openlineage.Events(ended(openlineage.Fail))[1])
	require.NoError(t, err)
	for _, change := range [][2]string{
		{`"eventType":"FAIL"`, `"eventType":"FAILED"`}, {`"producer":"https://`, `"producer":":// `},
		{`"message"`, `"said"`}, {`"inputFields"`, `"fields"`}, {`"dagVersion":3`, `"dagVersion":"3"`},
		{`"revision":2`, `"revision":"2"`}, {`"_producer"`, `"_by"`}, {`"dagctl_run":{`, `"dagctl_run":{"dag":1,"`},
	} {
		broken := strings.Replace(string(body), change[0], change[1], 1)
		require.NotEqual(t, string(body), broken, change)
		require.Error(t, openlineagetest.Check([]byte(broken)), change)
	}
}
