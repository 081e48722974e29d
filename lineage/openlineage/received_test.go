package openlineage_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/lineage"
	"github.com/dagctl/dagctl/lineage/openlineage"
)

const sparkEvent = `{"eventType": "COMPLETE", "eventTime": "2026-11-01T10:00:00.000Z", "producer": "https://spark",
	"schemaURL": "https://openlineage.io/spec/2-0-2/OpenLineage.json#/$defs/RunEvent",
	"run": {"runId": "019a3f1e-0000-7000-8000-000000000001", "facets": {"spark_version": {"spark-version": "3.5"}}},
	"job": {"namespace": "spark", "name": "app.join", "facets": {}},
	"inputs": [{"namespace": "s3://raw", "name": "orders", "facets": {}}],
	"outputs": [{"namespace": "s3://lake", "name": "joined", "outputFacets": {},
		"facets": {"columnLineage": {"fields": {
		"id": {"inputFields": [{"namespace": "s3://raw", "name": "orders", "field": "order_id",
			"transformations": [{"type": "DIRECT", "subtype": "IDENTITY"}]}]},
		"total": {"inputFields": [{"namespace": "s3://raw", "name": "orders", "field": "amount",
			"transformations": [{"type": "DIRECT", "subtype": "AGGREGATION"}]}]},
		"old": {"inputFields": [{"namespace": "s3://raw", "name": "orders", "field": "x"}],
			"transformationType": "IDENTITY"}}}}}]}`

// received is when the events of tests come.
var received = time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)

func TestReceive(t *testing.T) {
	t.Parallel()
	got, err := openlineage.Receive([]byte(sparkEvent), received)
	require.NoError(t, err)
	orders := lineage.Outside{Namespace: "s3://raw", Name: "orders"}
	require.Equal(t, openlineage.Complete, got.Type)
	require.Equal(t, uuid.MustParse("019a3f1e-0000-7000-8000-000000000001"), got.Run)
	require.Equal(t, lineage.Outside{Namespace: "spark", Name: "app.join"}, got.Job)
	require.Equal(t, time.Date(2026, 11, 1, 10, 0, 0, 0, time.UTC), got.At)
	require.Equal(t, []openlineage.ReceivedDataset{{Outside: orders}}, got.Inputs)
	require.ElementsMatch(t, []openlineage.ReceivedOrigin{
		{Column: "id", From: orders, Field: "order_id", Transform: lineage.Identity},
		{Column: "total", From: orders, Field: "amount", Transform: lineage.Aggregate},
		{Column: "old", From: orders, Field: "x", Transform: lineage.Identity}}, got.Outputs[0].Origins)
	require.True(t, got.Done())

	only := strings.Replace(sparkEvent, `"inputs": [{"namespace": "s3://raw", "name": "orders", "facets": {}}]`,
		`"inputs": [{"namespace": "s3://raw", "name": "rates"}]`, 1)
	got, err = openlineage.Receive([]byte(only), received)
	require.NoError(t, err)
	require.Equal(t, []openlineage.ReceivedDataset{{Outside: lineage.Outside{Namespace: "s3://raw", Name: "rates"}},
		{Outside: orders}}, got.Inputs, "what only a column names is read, too")

	job, err := openlineage.Receive([]byte(`{"eventTime": "2026-11-01T10:00:00Z",
		"job": {"namespace": "bi", "name": "n"}, "inputs": [{"namespace": "a", "name": "b"}]}`), received)
	require.NoError(t, err)
	require.True(t, job.Done(), "an event of a job says what is so")

	dataset, err := openlineage.Receive([]byte(`{"eventTime": "2026-11-01T10:00:00Z",
		"dataset": {"namespace": "a", "name": "b"}}`), received)
	require.NoError(t, err)
	require.Nil(t, dataset)
}

func TestReceiveRefusesWhatIsNoEvent(t *testing.T) {
	t.Parallel()
	event := func(change ...string) string { return strings.NewReplacer(change...).Replace(sparkEvent) }
	many := strings.Repeat(`{"namespace": "a", "name": "b"},`, lineage.MaxEnds)
	for body, says := range map[string]string{
		``:                                      "the body is no OpenLineage event: it is not JSON",
		`{"eventTime": }`:                       "the body is no OpenLineage event: it is not JSON",
		`[]`:                                    "the body is no OpenLineage event: it is an array, not an object",
		`{"job": 3}`:                            "job is a number, not an object",
		`{"eventTime": 12}`:                     "eventTime is a number, not text",
		event(`"s3://lake"`, `[]`):              "outputs.namespace is an array, not text",
		`null`:                                  "no eventTime",
		`{"eventTime": "2026-11-01T10:00:00Z"}`: "no job",
		event(`"eventTime"`, `"then"`):          "no eventTime",
		event(`2026-11-01T10`, `yesterday`):     `eventTime "yesterday:00:00.000Z" is no time`,
		event(`2026-11-01T10`, `2026-11-03T10`): "eventTime 2026-11-03T10:00:00.000Z is more than a day ahead",
		event(`2026-11-01T10`, `9999-11-03T10`): "is more than a day ahead",
		event(`"COMPLETE"`, `"DONE"`):           `eventType is "DONE"`,
		event(`019a3f1e-0000`, `x`):             "is no UUID",
		event(`"app.join"`, `""`):               "job.name is not a text",
		event(`"app.join"`, `"a\u0000b"`):       "job.name is not a text",
		event(`"s3://lake"`, fmt.Sprintf("%q", strings.Repeat("x", 600))): "outputs[0].namespace is not a text",
		event(`"inputs": [`, `"inputs": [`+many):                          "201 inputs",
		event(`"order_id"`, `"a\u0000b"`):                                 "names a column",
		event(`"total"`, `""`):                                            "names a column",
	} {
		_, err := openlineage.Receive([]byte(body), received)
		require.ErrorContains(t, err, says, body)
		require.NotContains(t, err.Error(), "Go ")
		require.NotContains(t, err.Error(), "json:")
	}
}

func FuzzReceive(f *testing.F) {
	f.Add([]byte(sparkEvent))
	f.Fuzz(func(t *testing.T, body []byte) {
		got, err := openlineage.Receive(body, received)
		if err == nil && got != nil {
			require.NotEmpty(t, got.Job.Name)
			require.LessOrEqual(t, len(got.Inputs), lineage.MaxEnds)
		}
	})
}
