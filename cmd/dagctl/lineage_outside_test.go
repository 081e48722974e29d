package main

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/lineage"
)

// tell sends an OpenLineage event of a job in the namespace spark. Datasets are NAME, of dagctl, or NAMESPACE NAME.
func (w *world) tell(t *testing.T, caller, kind, run, job string, inputs, outputs []string) (status int, body string) {
	t.Helper()
	datasets := func(names []string) []map[string]any {
		all := []map[string]any{}
		for _, name := range names {
			namespace, outside, ok := strings.Cut(name, " ")
			if !ok {
				namespace, outside = "dagctl://acme", name
			}
			all = append(all, map[string]any{"namespace": namespace, "name": outside})
		}
		return all
	}
	event, err := json.Marshal(map[string]any{"eventType": kind, "eventTime": "2026-11-01T10:00:00Z",
		"run": map[string]any{"runId": run}, "job": map[string]any{"namespace": "spark", "name": job},
		"inputs": datasets(inputs), "outputs": datasets(outputs)})
	require.NoError(t, err)
	return w.send(t, caller, http.MethodPost, "/v1/lineage", "application/json", strings.NewReader(string(event)))
}

func TestLineageGoesOnOutside(t *testing.T) {
	t.Parallel()
	w, _ := peaks(t)
	told := func(kind, run, job string, inputs, outputs []string) {
		t.Helper()
		status, body := w.tell(t, writer, kind, run, job, inputs, outputs)
		require.Equal(t, http.StatusCreated, status, body)
	}
	join, report, load, failed := uuid.NewString(), uuid.NewString(), uuid.NewString(), uuid.NewString()
	told("START", join, "join", []string{"station_peaks", "s3://raw stations"}, nil)
	before := w.graph(t, reader, "station_peaks", "?direction=down")
	told("COMPLETE", join, "join", nil, []string{"s3://lake joined"})
	told("COMPLETE", join, "join", nil, []string{"s3://lake joined"}) // events come at least once
	told("COMPLETE", report, "report", []string{"s3://lake joined", "daily_highest"}, nil)
	told("COMPLETE", load, "load", []string{"kafka readings"}, []string{"readings/landing/0"})
	told("FAIL", failed, "never", []string{"station_peaks"}, []string{"s3://lake half"})

	nodes, edges := labels(before)
	require.Equal(t, []string{"0 dataset station_peaks", "1 hidden hidden"}, nodes,
		"a run that has only begun made nothing")
	require.Len(t, edges, 1)

	nodes, edges = labels(w.graph(t, writer, "station_peaks", ""))
	require.Subset(t, nodes, []string{"1 external joined", "2 external report", "-4 external readings"})
	require.NotContains(t, strings.Join(nodes, " "), "half")
	require.Subset(t, edges, []string{"station_peaks > joined /join", "joined > report /report",
		"readings > readings/landing/0 /load"})
	require.NotContains(t, strings.Join(nodes, " "), "stations", "joined is made from it, station_peaks is not")
	_, edges = labels(w.graph(t, writer, "daily_highest", "?direction=down"))
	require.Subset(t, edges, []string{"daily_highest > report /report", "joined > report /report"})

	// Bounds hold, and say so.
	near := w.graph(t, writer, "station_peaks", "?direction=down&depth=1")
	require.True(t, near.Truncated)
	nodes, _ = labels(near)
	require.ElementsMatch(t, []string{"0 dataset station_peaks", "1 external joined", "1 sink peaks/tell"}, nodes)

	require.Contains(t, must(t, w.env(t, writer), "lineage", "station_peaks"), "joined  outside, in s3://lake")
	page := w.page(t, writer, "/datasets/station_peaks/lineage")
	requireAccessible(t, page, "lineage")
	require.Contains(t, text(page), "joined")

	// A column is traced as far as somebody says.
	column := w.graph(t, writer, "station_peaks", "?column=peak")
	for _, e := range column.Edges {
		if e.Job == "join" {
			require.True(t, e.ColumnsUnknown)
		}
	}

	// What is made from something closed is absent for those who may not read that.
	must(t, w.env(t, admin), "roles", "create", "weather")
	must(t, w.env(t, admin), "datasets", "visibility", "daily_highest", "--role", "role:weather")
	status, _ := w.send(t, reader, http.MethodGet, "/v1/datasets/station_peaks/lineage", "", nil)
	require.Equal(t, http.StatusNotFound, status)
	told("COMPLETE", uuid.NewString(), "copy", []string{"kafka readings"}, []string{"s3://lake copy"})
	nodes, _ = labels(w.graph(t, writer, "readings/landing/0", ""))
	require.NotContains(t, strings.Join(nodes, " "), "report")
	require.NotContains(t, strings.Join(nodes, " "), "joined")

	var gone struct{ Edges int64 }
	status, body := w.send(t, admin, http.MethodDelete, "/v1/lineage?namespace=s3:%2F%2Flake", "", nil)
	require.Equal(t, http.StatusOK, status, body)
	require.NoError(t, json.Unmarshal([]byte(body), &gone))
	require.EqualValues(t, 4, gone.Edges)
	nodes, _ = labels(w.graph(t, admin, "station_peaks", ""))
	require.NotContains(t, strings.Join(nodes, " "), "joined")
}

func TestEventsFromOutsideThatAreRefused(t *testing.T) {
	t.Parallel()
	w, _ := peaks(t)
	run := uuid.NewString()
	for _, tc := range []struct {
		caller, job string
		inputs      []string
		status      int
		says        string
	}{
		{reader, "join", []string{"daily_highest"}, 403, "role"},
		{nobody, "join", []string{"daily_highest"}, 401, ""},
		{writer, "join", []string{"no_such"}, 422, `there is no dataset \"no_such\"`},
		{writer, "", []string{"daily_highest"}, 422, "job.name"},
	} {
		status, body := w.tell(t, tc.caller, "COMPLETE", run, tc.job, tc.inputs, nil)
		require.Equal(t, tc.status, status, body)
		require.Contains(t, body, tc.says)
	}

	// A hidden dataset is as one that does not exist.
	must(t, w.env(t, admin), "roles", "create", "weather")
	must(t, w.env(t, admin), "datasets", "visibility", "daily_highest", "--role", "role:weather")
	_, hidden := w.tell(t, writer, "COMPLETE", run, "join", []string{"daily_highest"}, nil)
	_, missing := w.tell(t, writer, "COMPLETE", run, "join", []string{"daily_lowest"}, nil)
	require.Equal(t, strings.ReplaceAll(detail(t, missing), "lowest", "highest"), detail(t, hidden))

	// A run has one job.
	status, _ := w.tell(t, writer, "START", run, "join", nil, nil)
	require.Equal(t, http.StatusCreated, status)
	status, body := w.tell(t, writer, "START", run, "other", nil, nil)
	require.Equal(t, http.StatusConflict, status, body)

	var edges []lineage.Edge
	for _, name := range []string{"station_peaks"} {
		edges = append(edges, w.graph(t, admin, name, "").Edges...)
	}
	for _, e := range edges {
		require.Empty(t, e.Namespace, "nothing of that was stored")
	}
}

// detail returns what a problem says.
func detail(t *testing.T, body string) string {
	t.Helper()
	var p struct{ Detail string }
	require.NoError(t, json.Unmarshal([]byte(body), &p), body)
	return p.Detail
}
