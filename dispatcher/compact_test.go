package dispatcher_test

import (
	"context"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/dispatcher"
	"github.com/dagctl/dagctl/dispatcher/dispatchertest"
	"github.com/dagctl/dagctl/operators"
)

// compacting appends rows in small files, and has them again in one.
const compacting = `
name: mail
jobs:
  - name: news
    operator: hook
    source: { kind: manual }
    update_strategy: append
    unique_key: [n]
    config: {}
  - name: compact
    operator: parquet_compact
    inputs: [{ from: { job: news } }]
    config: {}
publish:
  mail_news: { from: { job: news } }
  mail_compact: { from: { job: compact } }
`

// Each revision of many small files becomes one of a single file with the same rows, also if the process dies with the
// work done and ends it late.
func TestCompactionOfAppendedFiles(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	n := 0
	w.Probe.On("news", func(ctx context.Context, task *operators.Task) (operators.Result, error) {
		n++
		return operators.Result{}, dispatchertest.CopyToParquet(ctx,
			fmt.Sprintf("SELECT %d - range AS n, 'x' AS text FROM range(3)", 10*n),
			filepath.Join(task.OutputDirs[0], "part.parquet"))
	})
	w.Serve(compacting)
	other := w.Dispatcher("two")

	files := func(job string) (n int) {
		t.Helper()
		w.Row(`SELECT jsonb_array_length(p.files) FROM partition_versions p
			JOIN dataset_versions g ON g.id = p.dataset_version JOIN jobs j ON j.id = g.origin_job_id
			WHERE p.state = 'Published' AND j.name = $1`, job)(&n)
		return n
	}
	for round := range 4 {
		w.Enqueue("news", dispatcher.EnqueueItem{})
		dispatchertest.Execute(t.Context(), w.D, w.One(w.D))
		w.Route()
		task := w.One(w.D)
		require.Equal(t, "compact", task.Job.Name)
		late := w.Do(w.D, task)
		w.Reap(dispatchertest.Later(time.Minute)) // the process is taken for dead
		w.Promote(dispatchertest.Later(time.Hour))
		again := w.One(other)
		dispatchertest.Execute(t.Context(), other, again)
		_ = w.D.Report(t.Context(), task, late, nil, false)
		w.Settle()

		require.Equal(t, round+1, files("news"))
		require.Equal(t, 1, files("compact"))
		require.Equal(t, w.Read("mail_news"), w.Read("mail_compact"))
		require.Len(t, w.Read("mail_compact")["all"], 3*(round+1))
		require.Equal(t, int64(round+1), w.Published("compact")["all"])
	}
}
