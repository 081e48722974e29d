package dispatcher

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/operators"
)

const january = `
name: letters
jobs:
  - name: raw
    operator: listed
    source: { kind: poll, every: 1h }
    partition_by: { time: day }
    config: { list: raw }
  - name: made
    operator: hook
    inputs: [{ from: { job: raw } }]
    execution_strategy: PerPartition
    max_attempts: 1
    config: { tag: m }
  - name: summed
    operator: hook
    inputs: [{ from: { job: made } }]
    partition_by: none
    execution_strategy: PerUpdate
publish:
  letters_made: { from: { job: made } }
`

// monthWorld serves the DAG january with days of January.
func monthWorld(t *testing.T, days ...string) *world {
	w := newWorld(t)
	for _, day := range days {
		w.probe.put("raw", "2024-01-"+day, day)
	}
	w.serve(january)
	return w
}

func (w *world) backfill(req BackfillRequest) Backfill {
	w.t.Helper()
	b, err := w.d.StartBackfill(w.t.Context(), w.caller, "letters", req, time.Now())
	require.NoError(w.t, err)
	return b
}

// follow works until a backfill has ended.
func (w *world) follow(b Backfill) Backfill {
	w.t.Helper()
	for range 50 {
		_, err := w.d.advanceBackfills(w.t.Context(), time.Now())
		require.NoError(w.t, err)
		w.settle()
		b, err = w.d.Backfill(w.t.Context(), w.caller, "letters", b.ID)
		require.NoError(w.t, err)
		if b.Status != "Running" {
			return b
		}
	}
	require.Fail(w.t, "the backfill does not end")
	return b
}

func TestBackfillAll(t *testing.T) {
	t.Parallel()
	w := monthWorld(t, "01", "02", "03", "04")
	made, summed := w.attempts("made"), w.attempts("summed")
	b := w.backfill(BackfillRequest{Job: "made", From: "2024-01-02", To: "2024-01-04", Existing: "all", Propagate: "once", Concurrency: 2})
	require.Equal(t, 3, b.Pending)
	_, err := w.d.advanceBackfills(t.Context(), time.Now())
	require.NoError(t, err)
	require.Equal(t, 2, w.count(`SELECT FROM ready`), "its own concurrency")
	b = w.follow(b)
	require.Equal(t, "Completed", b.Status)
	require.Equal(t, 3, b.Done)
	require.NotNil(t, b.EndedAt)
	require.Equal(t, made+3, w.attempts("made"))
	require.Equal(t, map[string]int64{"2024-01-01": 1, "2024-01-02": 2, "2024-01-03": 2, "2024-01-04": 2}, w.published("made"))
	w.settle()
	require.Equal(t, summed+1, w.attempts("summed"), "consumers follow once, at the end")
}

func TestBackfillPropagation(t *testing.T) {
	t.Parallel()
	for propagate, follows := range map[string]bool{"none": false, "each": true} {
		t.Run(propagate, func(t *testing.T) {
			t.Parallel()
			w := monthWorld(t, "01", "02")
			before := w.published("summed")
			require.Equal(t, "Completed", w.follow(w.backfill(BackfillRequest{Job: "made", From: "2024-01-01", To: "2024-01-02", Existing: "all", Propagate: propagate})).Status)
			require.NoError(t, w.d.Reconcile(t.Context(), time.Now()))
			w.settle()
			if !follows {
				require.Equal(t, before, w.published("summed"), "not now, and not at the next sweep")
				require.Equal(t, 2, w.count(`SELECT FROM partition_inputs WHERE accepted = 2 AND input_revision = 1`), "what it was made from stays on record")
			} else {
				require.Greater(t, w.published("summed")["all"], before["all"])
			}
			w.probe.put("raw", "2024-01-02", "new")
			w.poll()
			w.settle()
			require.Greater(t, w.published("summed")["all"], before["all"], "new data is another matter")
			require.Equal(t, map[string]int64{"2024-01-01": 2, "2024-01-02": 3}, w.published("made"))
		})
	}
}

func TestBackfillExisting(t *testing.T) {
	t.Parallel()
	w := monthWorld(t, "01", "02", "03")
	w.probe.on("made", func(ctx context.Context, task *operators.Task) (operators.Result, error) {
		return operators.Result{}, errors.New("no luck")
	})
	w.probe.put("raw", "2024-01-04", "d")
	w.poll()
	w.settle()
	require.Equal(t, 1, w.count(`SELECT FROM waiting WHERE reason = 'dead'`))
	require.Zero(t, w.backfill(BackfillRequest{Job: "made", From: "2024-01-01", To: "2024-01-31"}).Pending, "nothing is missing that did not fail")
	b := w.backfill(BackfillRequest{Job: "made", From: "2024-01-01", To: "2024-01-31", Existing: "failed"})
	require.Equal(t, 1, b.Pending)
	b = w.follow(b)
	require.Equal(t, "Failed", b.Status)
	require.Equal(t, 1, b.Failed)
	w.probe.on("made", nil)
	b = w.follow(w.backfill(BackfillRequest{Job: "made", From: "2024-01-01", To: "2024-01-31", Existing: "failed"}))
	require.Equal(t, "Completed", b.Status)
	require.Len(t, w.read("letters_made"), 4)
	w.check()

	// A source reads again what it has.
	raw := w.attempts("raw")
	b = w.follow(w.backfill(BackfillRequest{Job: "raw", From: "2024-01-02", To: "2024-01-03", Existing: "all"}))
	require.Equal(t, 2, b.Done)
	require.Equal(t, raw+2, w.attempts("raw"))
}

func TestBackfillCanceled(t *testing.T) {
	t.Parallel()
	w := monthWorld(t, "01", "02", "03")
	b := w.backfill(BackfillRequest{Job: "made", From: "2024-01-01", To: "2024-01-03", Existing: "all", Concurrency: 1})
	_, err := w.d.advanceBackfills(t.Context(), time.Now())
	require.NoError(t, err)
	b, err = w.d.CancelBackfill(t.Context(), w.caller, "letters", b.ID, time.Now())
	require.NoError(t, err)
	require.Equal(t, "Canceled", b.Status)
	w.settle()
	_, err = w.d.advanceBackfills(t.Context(), time.Now())
	require.NoError(t, err)
	w.settle()
	require.Equal(t, map[string]int64{"2024-01-01": 2, "2024-01-02": 1, "2024-01-03": 1}, w.published("made"))
	_, err = w.d.CancelBackfill(t.Context(), w.caller, "letters", b.ID, time.Now())
	require.ErrorContains(t, err, "no backfill")

	// One whose job is replaced ends.
	b = w.backfill(BackfillRequest{Job: "made", From: "2024-01-01", To: "2024-01-03", Existing: "all", Concurrency: 1})
	w.serve(strings.ReplaceAll(january, "tag: m", "tag: other"))
	require.Equal(t, "Canceled", w.follow(b).Status)
	list, err := w.d.Backfills(t.Context(), w.caller, "letters", b.ID, 10)
	require.NoError(t, err)
	require.Len(t, list, 1)
}

func TestBackfillRefuses(t *testing.T) {
	t.Parallel()
	w := monthWorld(t, "01")
	for want, req := range map[string]BackfillRequest{
		"no job":    {Job: "nothing", From: "2024-01-01", To: "2024-01-02"},
		"not a day": {Job: "made", From: "January", To: "2024-01-02"},
	} {
		_, err := w.d.StartBackfill(t.Context(), w.caller, "letters", req, time.Now())
		require.ErrorContains(t, err, want)
	}
}
