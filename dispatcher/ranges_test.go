package dispatcher_test

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/dispatcher"
	"github.com/dagctl/dagctl/dispatcher/dispatchertest"
	"github.com/dagctl/dagctl/operators"
)

// tiling has small ranges that come as partitions, big ranges made of them, and smaller ones made of those.
const tiling = `
name: tiling
jobs:
  - name: parts
    operator: listed
    source: { kind: poll, every: 1h }
    partition_by: { range: 10, column: height }
    config: { list: parts }
  - name: big
    operator: range_aggregator
    inputs: [{ from: { job: parts } }]
    execution_strategy: PerUpdate
    partition_by: none
    update_strategy: append
    unique_key: [range_start]
    config: { size: 50 }
  - name: small
    operator: range_splitter
    inputs: [{ from: { job: big } }]
    execution_strategy: PerUpdate
    partition_by: none
    update_strategy: append
    unique_key: [range_start]
    config: { size: 25 }
publish:
  tiling_big: { from: { job: big } }
  tiling_small: { from: { job: small } }
`

// listedRanges returns the rows of aligned ranges, as Read returns them.
func listedRanges(size int, starts ...int) (rows []string) {
	for _, start := range starts {
		rows = append(rows, fmt.Sprintf("%d,%d", start, start+size))
	}
	return rows
}

// sortedRows returns the rows of a dataset's one partition in the order of their first number.
func sortedRows(w *dispatchertest.World, name string) []string {
	rows := slices.Clone(w.Read(name)["all"])
	number := func(row string) (n int) {
		_, err := fmt.Sscanf(row, "%d,", &n)
		require.NoError(w.T, err)
		return n
	}
	slices.SortFunc(rows, func(a, b string) int { return number(a) - number(b) })
	return rows
}

// Partitions come in a random order, are published anew, and their tasks die between the work and the commit, and are
// worked on by two processes: each big range is there once it is whole, and once.
func TestRangesOfPartitionsInAnyOrder(t *testing.T) {
	t.Parallel()
	for seed := range uint64(4) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			w, random := dispatchertest.NewWorld(t), rand.New(rand.NewPCG(seed, 7))
			other := w.Dispatcher("two")
			w.Serve(tiling)
			count := map[int]bool{}
			for n, part := range slices.Concat(random.Perm(20), random.Perm(20)[:8]) {
				w.Probe.Put("parts", fmt.Sprintf("%d-%d", 10*part, 10*part+10), fmt.Sprint("revision ", n))
				count[part] = true
				w.Poll()
				if random.IntN(3) == 0 { // the process dies with its work done, or it ends after another one has it
					w.Promote(dispatchertest.Later(time.Hour))
					for _, task := range w.Claim(w.D) {
						_ = w.Do(w.D, task)
					}
					w.Reap(dispatchertest.Later(time.Minute))
					w.Promote(dispatchertest.Later(2 * time.Hour))
				}
				if random.IntN(2) == 0 {
					for _, task := range w.Claim(other) {
						dispatchertest.Execute(t.Context(), other, task)
					}
				}
				w.Settle()

				var big, small []int
				for first := 0; first < 20; first += 5 {
					whole := true
					for at := first; at < first+5; at++ {
						whole = whole && count[at]
					}
					if whole {
						big, small = append(big, 10*first), append(small, 10*first, 10*first+25)
					}
				}
				if len(big) > 0 {
					require.Equal(t, listedRanges(50, big...), sortedRows(w, "tiling_big"))
					require.Equal(t, listedRanges(25, small...), sortedRows(w, "tiling_small"))
				}
			}
			require.Equal(t, listedRanges(50, 0, 50, 100, 150), sortedRows(w, "tiling_big"))
			require.Equal(t, []string{"[[0, 200]]", "[[0, 200]]"},
				dispatchertest.Texts(t, w.Pool, `SELECT state->>'covered' FROM operator_state`))
			require.Zero(t, w.Count(`SELECT FROM tasks WHERE status = 'Failed'`))
		})
	}
}

// The segments of a cursor are parts, too, also where they have no row; after a re-organisation they come again.
func TestRangesOfACursor(t *testing.T) {
	t.Parallel()
	w, l := dispatchertest.NewWorld(t), &dispatchertest.Ledger{Blocks: "abcdefg"}
	w.Probe.On("parts", l.Read)
	w.Serve(dispatchertest.Edit(tiling, "operator: listed", "operator: hook", "range: 10, column: height",
		"cursor: height", "config: { list: parts }", "config: {}", "size: 50", "size: 4", "size: 25", "size: 2"))
	require.Equal(t, listedRanges(4, 0), sortedRows(w, "tiling_big"))

	grow := func(blocks string) {
		t.Helper()
		l.Set(blocks)
		w.Poll()
		w.Settle()
	}
	grow("abcdefgh")
	grow("abcdefghij")
	require.Equal(t, listedRanges(4, 0, 4), sortedRows(w, "tiling_big"))
	require.Equal(t, listedRanges(2, 0, 2, 4, 6), sortedRows(w, "tiling_small"))
	require.Equal(t, 2, w.Count(`SELECT FROM operator_state`))
	require.Equal(t, 1, w.Count(`SELECT FROM operator_state WHERE state->>'covered' = '[[0, 10]]'`))
}

// A check that rejects ranges loses none: they come with the next part.
func TestRangesThatACheckRejects(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Serve(dispatchertest.Edit(tiling, "config: { size: 50 }",
		"config: { size: 50 }\n    checks: [{ row_count: { min: 2 } }]"))
	put := func(from, to int) {
		t.Helper()
		for at := from; at < to; at += 10 {
			w.Probe.Put("parts", fmt.Sprintf("%d-%d", at, at+10), "x")
		}
		w.Poll()
		w.Settle()
	}
	put(0, 50)
	require.Empty(t, w.Read("tiling_big"), "one range is less than two")
	put(50, 100)
	require.Equal(t, listedRanges(50, 0, 50), sortedRows(w, "tiling_big"))
}

// byChain has parts of several chains, each of which has a state of its own.
const byChain = `
name: mail
jobs:
  - name: parts
    operator: hook
    source: { kind: manual }
    partition_by: key
    config: {}
  - name: big
    operator: range_aggregator
    inputs: [{ from: { job: parts } }]
    update_strategy: append
    unique_key: [range_start]
    state_key: "{partition}"
    config: { size: 10 }
publish:
  chains_big: { from: { job: big } }
`

// Runs of one chain and of several at once: the state of each chain is its own, and two runs that have read the same
// state do not both write it.
func TestRangesByKeyAtOnce(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Probe.On("parts", func(ctx context.Context, task *operators.Task) (operators.Result, error) {
		var part [2]int
		if err := json.Unmarshal(task.Payload, &part); err != nil {
			return operators.Result{}, err
		}
		return operators.Result{}, dispatchertest.CopyToParquet(ctx,
			fmt.Sprintf("SELECT %d AS range_start, %d AS range_end", part[0], part[1]),
			filepath.Join(task.OutputDirs[0], "part.parquet"))
	})
	w.Serve(byChain)
	stop := []func(){w.Start(w.Dispatcher("two")), w.Start(w.Dispatcher("three"))}

	random := rand.New(rand.NewPCG(3, 3))
	for _, first := range append(random.Perm(10), 3, 3) {
		var wait sync.WaitGroup
		for _, chain := range []string{"eth", "base", "op"} {
			payload := dispatchertest.Payload([2]int{4 * first, 4*first + 4})
			wait.Go(func() { w.Enqueue("parts", dispatcher.EnqueueItem{Partition: chain, Payload: payload}) })
		}
		wait.Wait()
		w.Eventually("all is read", func() bool {
			return w.Count(`SELECT FROM operator_state
			WHERE EXISTS (SELECT FROM jsonb_array_elements(state->'covered') AS r
				WHERE (r->>0)::int <= $1 AND (r->>1)::int > $1)`, 4*first) == 3
		})
	}
	w.Eventually("every range is there", func() bool {
		found := w.Read("chains_big")
		return len(found["eth"]) == 4 && len(found["base"]) == 4 && len(found["op"]) == 4
	})
	for _, f := range stop {
		f()
	}

	for chain, rows := range w.Read("chains_big") {
		slices.Sort(rows)
		require.Equal(t, []string{"0,10", "10,20", "20,30", "30,40"}, rows, chain)
	}
	require.Equal(t, []string{"base", "eth", "op"},
		dispatchertest.Texts(t, w.Pool, `SELECT state_key FROM operator_state ORDER BY 1`))
}

// A dataset that another definition has made says what to do, instead of waiting for parts that never come again.
func TestRangesOfAnotherDefinition(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	for at := 0; at < 70; at += 10 {
		w.Probe.Put("parts", fmt.Sprintf("%d-%d", at, at+10), "x")
	}
	w.Serve(tiling)
	w.Exec(`DELETE FROM operator_state`)
	w.Probe.Put("parts", "70-80", "x")
	w.Poll()
	w.Settle()
	require.Equal(t, listedRanges(50, 0), sortedRows(w, "tiling_big"))
	var message string
	w.Row(`SELECT error_message FROM tasks WHERE status = 'Failed'`)(&message)
	require.Contains(t, message, "does not know which parts were read before")
}
