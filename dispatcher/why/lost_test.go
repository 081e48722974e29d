package why_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/dispatcher"
	"github.com/dagctl/dagctl/dispatcher/control"
	"github.com/dagctl/dagctl/dispatcher/dispatchertest"
	"github.com/dagctl/dagctl/internal/tests3"
	"github.com/dagctl/dagctl/storage/health"
)

// loseFile removes the files that only the newest revision of a published partition has, and returns the name of one.
func loseFile(w *dispatchertest.World, job, key string) (name string) {
	w.T.Helper()
	w.Row(`SELECT p.files -> 0 ->> 'path' FROM partition_versions p
		JOIN datasets d ON d.id = p.dataset_uuid AND d.producer_job_name = $1
		WHERE p.partition_key = $2 AND p.state = 'Published'`, job, key)(&name)
	require.NoError(w.T, os.Remove(filepath.Join(w.Data, name)))
	return name
}

// Who asks about a partition whose file is gone hears that, and how it is made again; what is said does so.
func TestWhyNotOfAPartitionWhoseFileIsGone(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Probe.Put("raw", dispatchertest.FirstDay, "a")
	w.Serve(dispatchertest.Upkept)
	require.Equal(t, []string{"published", "up_to_date"},
		dispatchertest.CodesIn(w.WhyNot("letters_made", dispatchertest.FirstDay).Reasons))

	again := func(job string) {
		day := dispatchertest.FirstDay
		done := w.Follow(w.Backfill(control.BackfillRequest{Job: job, From: day, To: day, Existing: "all"}))
		require.Equal(t, "Completed", done.Status)
	}
	for _, c := range []struct{ job, dataset, or, command string }{
		{"made", "letters_made", ", or", "dagctl run letters/made --partition 2024-01-01"},
		{"raw", "letters/raw/0", " or, if its source still has it,",
			"dagctl backfill letters/raw --from 2024-01-01 --to 2024-01-01 --existing all"},
	} {
		file := loseFile(w, c.job, dispatchertest.FirstDay)
		_, err := w.TryRead(c.dataset)
		require.Error(t, err)

		reasons := w.WhyNot(c.dataset, dispatchertest.FirstDay).Reasons
		codes := dispatchertest.CodesIn(reasons)
		require.Equal(t, "file_gone", codes[0])
		require.False(t, slices.Contains(codes, "up_to_date"), codes)
		require.Equal(t, "letters/"+c.job+" 2024-01-01: what is stored of it cannot be read: file "+file+
			" is missing from the storage; queries and tasks that read it fail. Restore it"+c.or+" make it again: "+
			c.command, reasons[0].Text)
		require.Equal(t, c.command, reasons[0].Command)

		again(c.job) // what the command does
		require.Len(t, w.Read(c.dataset), 1)
		require.Equal(t, "published", dispatchertest.CodesIn(w.WhyNot(c.dataset, dispatchertest.FirstDay).Reasons)[0])
	}
}

// A command that could not help is not named: what a partition is made from comes first, and a pause ends before.
func TestWhyNotOfWhatCannotBeMadeAgain(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Probe.Put("raw", dispatchertest.FirstDay, "a")
	w.Serve(dispatchertest.Upkept)
	loseFile(w, "made", dispatchertest.FirstDay)
	w.Pause("letters", "made")
	run := "dagctl run letters/made --partition 2024-01-01"
	require.Equal(t, "dagctl resume letters/made && "+run,
		w.WhyNot("letters_made", dispatchertest.FirstDay).Reasons[0].Command)
	paused := w.WhyJob("letters", "made").Reasons[0]
	require.EqualValues(t, "paused", paused.Code)
	require.Equal(t, "dagctl resume letters/made", paused.Command)
	require.Contains(t, paused.Text, "a reason; it goes on after: dagctl resume letters/made")

	loseFile(w, "raw", dispatchertest.FirstDay)
	lost := w.WhyNot("letters_made", dispatchertest.FirstDay).Reasons[0]
	require.Empty(t, lost.Command)
	require.Contains(t, lost.Text, "Restore it; it cannot be made again before what it is made of, which is gone, too")
	require.Len(t, lost.Because, 1)
	require.EqualValues(t, "file_gone", lost.Because[0].Code)
	require.Equal(t, "letters/raw", lost.Because[0].Job)
	require.Equal(t, "dagctl backfill letters/raw --from 2024-01-01 --to 2024-01-01 --existing all",
		lost.Because[0].Command)
}

// sentBy has a manual job whose tasks may have payloads.
const sentBy = `
name: mail
jobs:
  - name: sent
    operator: hook
    source: { kind: manual }
publish:
  mails: { from: { job: sent } }
`

// What a manual job made of a payload is made again of one.
func TestWhyNotOfWhatAPayloadMade(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Serve(sentBy)
	w.Enqueue("sent", dispatcher.EnqueueItem{})
	w.Settle()
	file := loseFile(w, "sent", "all")
	require.Equal(t, "dagctl run mail/sent", w.WhyNot("mails", "all").Reasons[0].Command, file)
	w.Enqueue("sent", dispatcher.EnqueueItem{Payload: []byte(`{"to": "ann"}`)})
	require.Equal(t, "dagctl run mail/sent --payload JSON", w.WhyNot("mails", "all").Reasons[0].Command)
}

// The rows of a table can be lost, too.
func TestWhyNotOfAPartitionWhoseRowsAreGone(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Probe.Put("raw", dispatchertest.FirstDay, "a")
	w.Serve(dispatchertest.InTables)
	require.Equal(t, []string{"published", "up_to_date"},
		dispatchertest.CodesIn(w.WhyNot("letters_made", dispatchertest.FirstDay).Reasons))
	w.Exec(`DELETE FROM data_acme._revisions`)
	require.Equal(t, []string{"file_gone"},
		dispatchertest.CodesIn(w.WhyNot("letters_made", dispatchertest.FirstDay).Reasons))
}

// While the storage is away, nobody knows whether a file is there; the rest of the answer stands.
func TestWhyNotWhileTheStorageIsAway(t *testing.T) {
	t.Parallel()
	srv := tests3.Start(t)
	w := dispatchertest.NewWorld(t, dispatchertest.InBucket(srv))
	w.Probe.Put("raw", dispatchertest.FirstDay, "a")
	w.Serve(dispatchertest.Upkept)
	srv.Kill()

	reasons := w.WhyNot("letters_made", dispatchertest.FirstDay).Reasons
	require.Equal(t, []string{"published", "file_unseen", "up_to_date"}, dispatchertest.CodesIn(reasons))
	require.Contains(t, reasons[1].Text, "whether its file is there could not be looked at: ")

	h, err := health.New(health.Config{Storage: w.Storage, Pool: w.Pool, Log: w.D.Log})
	require.NoError(t, err)
	reason := h.Look(t.Context())
	require.NotEmpty(t, reason)
	w.D.Health = h
	reasons = w.WhyNot("letters_made", dispatchertest.FirstDay).Reasons
	require.Equal(t, []string{"published", "file_unseen", "up_to_date"}, dispatchertest.CodesIn(reasons))
	require.Contains(t, reasons[1].Text, reason)
}

// accounts has what is made again as a whole only, and what is not made again: what somebody told it.
const accounts = `
name: mail
jobs:
  - name: uploads
    operator: file_source
    source: { kind: poll, every: 10s }
    partition_by: key
    config: { path: ".", pattern: "{key}.csv", format: csv, types: { range_start: BIGINT, range_end: BIGINT } }
  - name: tens
    operator: range_aggregator
    inputs: [{ from: { job: uploads } }]
    execution_strategy: PerUpdate
    partition_by: none
    update_strategy: append
    unique_key: [range_start]
    config: { size: 10 }
  - name: told
    operator: command
    source: { kind: manual }
    partition_by: none
    update_strategy: append
    unique_key: [n]
    config: { argv: [/bin/sh, -c, "dir=$(sed 's/.*\"dir\": *\"\\([^\"]*\\)\".*/\\1/'); printf 'n\n1\n' > $dir/x.csv"] }
publish:
  numbers: { from: { job: tens } }
  sayings: { from: { job: told } }
`

// A dataset that is made again as a whole is named as commands take it. What a run would only append to is restored, or
// is gone.
func TestWhyNotOfWhatWasAppended(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Drop("a.csv", "range_start,range_end\n0,10\n")
	w.Serve(accounts)
	w.Settle()
	w.Enqueue("told", dispatcher.EnqueueItem{})
	w.Settle()

	for _, c := range []struct{ job, dataset, command, end string }{
		{"tens", "numbers", "dagctl rematerialize numbers", "Restore it, or make it again: " +
			"dagctl rematerialize numbers"},
		{"told", "sayings", "", "Restore it"},
	} {
		loseFile(w, c.job, "all")
		reason := w.WhyNot(c.dataset, "all").Reasons[0]
		require.EqualValues(t, "file_gone", reason.Code)
		require.Equal(t, c.command, reason.Command)
		require.True(t, strings.HasSuffix(reason.Text, c.end), reason.Text)
	}
}
