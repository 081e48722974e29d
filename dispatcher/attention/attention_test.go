package attention

import (
	"encoding/binary"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/dispatcher"
	"github.com/dagctl/dagctl/dispatcher/pressure"
	"github.com/dagctl/dagctl/dispatcher/tasks"
	"github.com/dagctl/dagctl/dispatcher/views"
	"github.com/dagctl/dagctl/registry"
)

func TestTheMostUrgentComesFirst(t *testing.T) {
	t.Parallel()
	at := func(hour int) time.Time { return time.Date(2026, 11, 1, hour, 0, 0, 0, time.UTC) }
	since := func(hour int) *time.Time { moment := at(hour); return &moment }
	madeAt := func(t time.Time) uuid.UUID {
		id := uuid.UUID{6: 0x70, 8: 0x80}
		binary.BigEndian.PutUint64(id[:], uint64(t.UnixMilli())<<16|0x7000)
		return id
	}
	most := int64(5)

	sales := views.DAGStatus{WithheldJobs: map[string]int64{"join": 1},
		Blocked: []views.BlockedJob{{Job: "join", Text: "no common partitions"}}}
	sales.Name, sales.Failed = "sales", &registry.Version{Number: 3, CreatedAt: at(2), Error: "no such column"}
	ready := views.DAGStatus{}
	ready.Name, ready.Building = "fares", &registry.Version{Number: 2, Status: registry.Ready, ReadyAt: since(1)}
	building := views.DAGStatus{}
	building.Name, building.Building = "fine", &registry.Version{Number: 9, Status: registry.Building}

	list := items(seen{
		dags: []views.DAGStatus{sales, ready, building},
		dead: []views.ErrorGroup{
			{Group: "g1", Error: "disk full", Count: 2, Jobs: []string{"sales/load"}, FirstSeen: at(5), Retryable: 2},
			{Group: "g2", Error: "no route", Count: 1, Jobs: []string{"a/x", "b/y"}, FirstSeen: at(4), Retryable: 1}},
		late: []registry.Dataset{{Name: "daily", DAG: "sales", Job: "join", Owner: "ann",
			Late: &registry.Late{Partition: "2026-10-31", DueAt: at(3)}},
			{Name: "rates", DAG: "fares", Job: "get", Late: &registry.Late{DueAt: at(1)}}},
		sources: []views.SourceStatus{
			{DAG: "sales", Job: "files", Error: "no such folder"}, {DAG: "sales", Job: "hook"},
			{DAG: "sales", Job: "logs", LeftOut: "1 file is left out", LastFireAt: since(5)},
			{DAG: "sales", Job: "feed", Failing: "no answer", FailingSince: since(2), LastFireAt: since(6)},
			{DAG: "sales", Job: "away", Error: "no host", ErrorSince: since(3), LastFireAt: since(6)}},
		pauses: []tasks.Pause{{DAG: "sales", Job: "load", Actor: "user:ann", Reason: "stock-taking", At: at(6)}},
		servers: []dispatcher.Troubled{{ID: "h1", Unfit: "the storage is full"},
			{ID: "h2", Lacks: []string{"k1", "k2"}}},
		secrets: map[string]int64{"k2": 2},
		unserved: []tasks.OrgQueue{
			{Runtime: "poll", Needs: "a", Count: 2, First: madeAt(at(5))},
			{Runtime: "poll", Needs: "b", Count: 1, First: madeAt(at(4))}},
		pressure: pressure.Pressure{Runtimes: []pressure.Queued{
			{Runtime: "poll", Queued: 9, Since: since(1)}, {Runtime: "sqs"}}},
		usage: []authz.Usage{{Quota: authz.StorageBytes, Used: 5, Most: &most, Full: true, Text: "5 of 5"},
			{Quota: authz.QueuedTasks}},
		made: registry.Products{"sales": {"load": {Owner: "ben"},
			"join": {Dataset: "daily", Owner: "ann"}}},
	})

	type row struct {
		kind        Kind
		what, owner string
		since       *time.Time
		text        string
	}
	var got []row
	for _, i := range list {
		got = append(got, row{i.Kind, i.What(), i.Owner, i.Since, i.Text})
		require.NotEmpty(t, i.Command, i)
	}
	require.Equal(t, []row{
		{Dead, "a/x and 1 other job", "", since(4), "1 task is out of attempts: no route"},
		{Dead, "sales/load", "ben", since(5), "2 tasks are out of attempts: disk full"},
		{BuildFailed, "sales v3", "", since(2), "no such column"},
		{Blocked, "sales/join", "ann", nil, "no common partitions"},
		{SourceError, "sales/feed", "", since(2), "its tasks fail, one after the other: no answer"},
		{SourceError, "sales/away", "", since(3), "no host"},
		{SourceError, "sales/logs", "", since(5), "1 file is left out"},
		{SourceError, "sales/files", "", nil, "no such folder"},
		{ServerUnfit, "h1", "", nil, "it takes no tasks: the storage is full"},
		{KeyMissing, "h2", "", nil, "2 secrets are under the key k2, which it does not have: webhooks and tasks that " +
			"use them fail there"},
		{NoWorker, "poll", "", since(4), "3 queued tasks that no live worker can run"},
		{Late, "rates", "", since(1), "it was to be updated by now"},
		{Late, "daily@2026-10-31", "ann", since(3), "the partition is due, and missing"},
		{Withheld, "daily", "ann", nil, "1 partition has a newer revision that readers do not see"},
		{BuildWaits, "fares v2", "", since(1), "it is ready, and waits to be promoted"},
		{Backpressure, "poll", "", since(1), "sources, backfills and builds wait: 9 tasks are queued"},
		{Quota, "storage_bytes", "", nil, "5 of 5"},
		{Paused, "sales/load", "ben", since(6), "paused by user:ann: stock-taking"},
	}, got)
}

func TestACountThatEndsIsSaidToGoOn(t *testing.T) {
	t.Parallel()
	list := ofRuntimes([]tasks.OrgQueue{
		{Runtime: "poll", Needs: "a", Count: mostQueued}, {Runtime: "poll", Needs: "b", Count: 2},
		{Runtime: "sqs", Needs: "a", Count: mostQueued - 1}})
	require.Equal(t, "10002 or more queued tasks that no live worker can run", list[0].Text)
	require.Equal(t, "9999 queued tasks that no live worker can run", list[1].Text)
}

func TestARetryIsOfferedWhereItFits(t *testing.T) {
	t.Parallel()
	group := func(retryable int64) Item {
		return ofDead(views.ErrorGroup{Group: "g", Error: "disk full", Count: 3, Retryable: retryable})
	}
	require.Equal(t, "3 tasks are out of attempts: disk full", group(3).Text)
	require.Equal(t, "dagctl tasks retry --dead --error-group g", group(3).Command)

	some := group(1)
	require.Equal(t, "3 tasks are out of attempts: disk full (2 are of a definition that no version runs any "+
		"more, and can only be skipped)", some.Text)
	require.Equal(t, "dagctl tasks retry --dead --error-group g", some.Command)

	none := group(0)
	require.Contains(t, none.Text, "there is nothing to retry")
	require.Equal(t, "dagctl tasks skip --dead --error-group g --reason REASON", none.Command)
}
