package dispatcher_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/dispatcher"
	"github.com/dagctl/dagctl/dispatcher/dispatchertest"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/sqltext"
	"github.com/dagctl/dagctl/operators"
)

// onTheWay is a DAG of always_on sources, by cursor and by append, with their consumers.
const onTheWay = `
name: onway
jobs:
  - { name: tail, operator: hook, source: { kind: always_on }, partition_by: { cursor: height }, retry: { initial_seconds: 60 }, enqueues: [note], config: { tag: t } }
  - { name: news, operator: hook, inputs: [{ from: { job: tail } }], update_strategy: append, unique_key: [content], config: { tag: n } }
  - { name: note, operator: hook, source: { kind: manual }, outputs: 0, config: { tag: m } }
publish:
  onway_tail: { from: { job: tail } }
  onway_news: { from: { job: news } }
`

// block is the row of a height of a chain.
func block(ctx context.Context, t *operators.Task, height int64, content string) error {
	return dispatchertest.CopyToParquet(ctx, fmt.Sprintf("SELECT %d AS height, %s AS content", height,
		sqltext.Literal(content)),
		filepath.Join(t.OutputDirs[0], fmt.Sprintf("%d.parquet", height)))
}

// told is a queue of actions for a run; the run answers each with its result.
type told struct {
	do  chan dispatchertest.Hook
	did chan error
}

func newTold() told { return told{make(chan dispatchertest.Hook), make(chan error)} }

// run is a run that executes its actions one by one, until there are no more.
func (o told) run(ctx context.Context, t *operators.Task) (operators.Result, error) {
	for f := range o.do {
		result, err := f(ctx, t)
		o.did <- err
		if err != nil || result.Unchanged {
			return result, err
		}
	}
	return operators.Result{}, nil
}

// now makes the run do something.
func (o told) now(f dispatchertest.Hook) error {
	o.do <- f
	return <-o.did
}

// commit makes the run write the blocks from its cursor on, one per letter, and commit them.
func (o told) commit(blocks string, change ...func(*operators.Commit)) (done operators.Committed, err error) {
	err = o.now(func(ctx context.Context, t *operators.Task) (operators.Result, error) {
		for i, letter := range blocks {
			if err := block(ctx, t, t.Cursor.Value+1+int64(i), string(letter)); err != nil {
				return operators.Result{}, err
			}
		}
		c := operators.Commit{}
		for _, f := range change {
			f(&c)
		}
		var err error
		done, err = t.Commit(ctx, c)
		return operators.Result{}, err
	})
	return done, err
}

// running returns the claimed, running task of an always_on job; it ends when there are no more actions.
func running(w *dispatchertest.World, name string) (t dispatcher.Claimed, o told, ended chan struct{}) {
	w.T.Helper()
	o, ended = newTold(), make(chan struct{})
	w.Probe.On(name, o.run)
	t = w.One(w.D)
	require.Equal(w.T, name, t.Job.Name)
	go func() {
		defer close(ended)
		dispatchertest.Execute(context.WithoutCancel(w.T.Context()), w.D, t)
	}()
	return t, o, ended
}

func alwaysWorld(t *testing.T, yaml string) *dispatchertest.World {
	t.Helper()
	w := dispatchertest.NewWorld(t)
	w.Serve(yaml)
	_, err := w.D.Sources.Supervise(t.Context(), time.Now())
	require.NoError(t, err)
	return w
}

func state(text string) func(*operators.Commit) {
	return func(c *operators.Commit) { c.State = json.RawMessage(text) }
}

// Commits of a run are published, and consumers follow them, while the run continues.
func TestARunCommitsOnItsWay(t *testing.T) {
	t.Parallel()
	w := alwaysWorld(t, onTheWay)
	task, o, ended := running(w, "tail")
	news := map[string][]string{}
	for i, blocks := range []string{"ab", "c", "def"} {
		done, err := o.commit(blocks, state(fmt.Sprintf(`{"commit":%d}`, i+1)), func(c *operators.Commit) {
			c.Tasks = []operators.EnqueuedTask{{Job: "note", IdempotencyKey: blocks}}
		})
		require.NoError(t, err)
		require.Len(t, done.Tasks, 1)
		w.Settle() // runs the consumers
		require.Equal(t, "Running leased", w.Task(task.TaskID))
		news["all"] = append(news["all"], "n("+strings.Join(strings.Split(blocks, ""), "+")+")")
		require.Equal(t, news, w.Read("onway_news"))
	}
	require.Equal(t, map[string][]string{"0-2": {"0,a", "1,b"}, "2-3": {"2,c"}, "3-6": {"3,d", "4,e", "5,f"}},
		w.Read("onway_tail"))
	require.Len(t, w.Tasks("note"), 3)
	require.Equal(t, 1, w.Count(`SELECT FROM task_attempts WHERE commits = 3 AND cardinality(staging) = 1`),
		"what is committed is not in the attempt's record any more")

	// A refused commit changes nothing, and the run continues.
	before := committed(w)
	require.NoError(t, o.now(func(ctx context.Context, t *operators.Task) (operators.Result, error) {
		_, err := t.Commit(ctx, operators.Commit{State: json.RawMessage(`"\u0000"`),
			Events:  []operators.Event{{Output: 3}, {Scope: "some"}},
			Outputs: []operators.CommittedOutput{{Partition: "p"}}})
		require.True(w.T, operators.IsPermanent(err), "%v", err)
		var places []string
		for _, p := range err.(*fault.Error).Problems {
			places = append(places, p.Location)
		}
		require.ElementsMatch(w.T, []string{"body.outputs[0].partition_key", "body.events[0].output",
			"body.events[1].scope", "body.operator_state"}, places)
		return operators.Result{}, nil
	}))
	require.Equal(t, before, committed(w))

	// The end of the run commits the rest.
	require.NoError(t, o.now(func(ctx context.Context, t *operators.Task) (operators.Result, error) {
		require.JSONEq(w.T, `{"commit":3}`, string(t.State))
		return operators.Result{}, block(ctx, t, 6, "g")
	}))
	close(o.do)
	<-ended
	require.Equal(t, "Completed", w.Task(task.TaskID))
	w.Settle()
	require.Equal(t, append(news["all"], "n(g)"), w.Read("onway_news")["all"])
	require.Equal(t, 1, w.Attempts("tail"))
	require.Zero(t, w.Count(`SELECT FROM tasks WHERE failures > 0`))
}

// A run that has lost its lease can commit nothing more and is stopped; the next run continues after its last commit.
func TestACommitOfAStaleAttempt(t *testing.T) {
	t.Parallel()
	for name, lose := range map[string]func(w *dispatchertest.World, task dispatcher.Claimed) uuid.UUID{
		"a newer attempt": func(w *dispatchertest.World, task dispatcher.Claimed) uuid.UUID {
			w.Reap(dispatchertest.Later(time.Hour))
			w.Promote(dispatchertest.Later(2 * time.Hour))
			return task.TaskID
		},
		"a lease that ran out": func(w *dispatchertest.World, task dispatcher.Claimed) uuid.UUID {
			w.Exec(`UPDATE leases SET expires_at = now() - interval '1 second' WHERE task_id = $1`, task.TaskID)
			return task.TaskID
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := alwaysWorld(t, onTheWay)
			task, o, ended := running(w, "tail")
			_, err := o.commit("ab", state(`1`))
			require.NoError(t, err)
			lose(w, task)
			next := w.Claim(w.D)
			before := committed(w)
			_, err = o.commit("XY", state(`2`))
			if !fault.Is(err, fault.Conflict) {
				require.EqualError(t, err, "the lease was lost", "the run has noticed before")
			}
			<-ended
			require.Equal(t, before, committed(w), "the run's end changes nothing either")
			if len(next) == 0 {
				w.Reap(dispatchertest.Later(time.Hour))
				w.Promote(dispatchertest.Later(2 * time.Hour))
				next = w.Claim(w.D)
			}
			require.Len(t, next, 1)
			require.Equal(t, []any{task.TaskID, 2}, []any{next[0].TaskID, next[0].Attempt})
			require.Equal(t, int64(1), next[0].Assignment.Cursor.Value)
			require.JSONEq(t, `1`, string(next[0].Assignment.State))
			w.Probe.On("tail", (&dispatchertest.Ledger{Blocks: "abcd"}).Read)
			dispatchertest.Execute(t.Context(), w.D, next[0])
			w.Settle()
			require.Equal(t, map[string][]string{"0-2": {"0,a", "1,b"}, "2-4": {"2,c", "3,d"}}, w.Read("onway_tail"),
				"nothing is lost, nothing is there twice")
		})
	}
}

// The database becomes unreachable between commits, and an answer is lost: committed blocks are not committed again.
func TestCommitsWhileTheDatabaseGoesAway(t *testing.T) {
	t.Parallel()
	w := alwaysWorld(t, onTheWay)
	killer, err := pgx.ConnectConfig(t.Context(), w.Pool.Config().ConnConfig) // the pool's connections all end
	require.NoError(t, err)
	t.Cleanup(func() { _ = killer.Close(context.Background()) })
	task, o, ended := running(w, "tail")
	for _, letter := range []string{"a", "b", "c"} {
		_, err := o.commit(letter)
		require.NoError(t, err)
		_, err = killer.Exec(t.Context(), `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database()
			AND pid <> pg_backend_pid()`)
		require.NoError(t, err)
	}
	// Commits along the way are retried on another connection. The completion is not, and its connection must be
	// intact.
	w.Pool.Reset()
	close(o.do)
	<-ended
	w.Settle()
	require.Equal(t, map[string][]string{"all": {"n(a+b+c)"}}, w.Read("onway_news"))
	require.Equal(t, 1, w.Attempts("tail"))
	require.Equal(t, "Completed", w.Task(task.TaskID))

	_, err = w.D.Sources.Supervise(t.Context(), time.Now())
	require.NoError(t, err)
	again := w.One(w.D)
	way := &dispatcher.InProcessCommits{D: w.D.Dispatcher, T: &again, Stop: func(error) {}}
	file := filepath.Join(t.TempDir(), "d.parquet")
	require.NoError(t, dispatchertest.CopyToParquet(t.Context(), "SELECT 3 AS height, 'd' AS content", file))
	commit := operators.Commit{Outputs: []operators.CommittedOutput{{Files: []string{file}}},
		Tasks: []operators.EnqueuedTask{{Job: "note"}}}
	first, err := way.Try(t.Context(), commit, "call", time.Now())
	require.NoError(t, err)
	before := committed(w)
	second, err := way.Try(t.Context(), commit, "call", time.Now())
	require.NoError(t, err)
	require.Equal(t, first, second)
	require.Equal(t, before, committed(w))
}

// Each append continues from the one before, also the append at the end; each waits for the checks of the one before.
func TestAppendsOnTheWay(t *testing.T) {
	t.Parallel()
	w := alwaysWorld(t, `
name: onway
jobs:
  - { name: tail, operator: hook, source: { kind: always_on }, update_strategy: append, unique_key: [content], checks: [{ not_null: [content] }], config: { tag: t } }
publish:
  onway_tail: { from: { job: tail } }
`)
	task, o, ended := running(w, "tail")
	write := func(ctx context.Context, t *operators.Task, content string) error { return block(ctx, t, 1, content) }
	for _, content := range []string{"a", "b", "a"} {
		committed := make(chan error, 1)
		go func() {
			committed <- o.now(func(ctx context.Context, t *operators.Task) (operators.Result, error) {
				if err := write(ctx, t, content); err != nil {
					return operators.Result{}, err
				}
				_, err := t.Commit(ctx, operators.Commit{})
				return operators.Result{}, err
			})
		}()
		for done := false; !done; {
			select {
			case err := <-committed:
				require.NoError(t, err)
				done = true
			default:
				w.Work() // runs the check of the commit before
			}
		}
	}
	w.Work()
	require.NoError(t, o.now(func(ctx context.Context, t *operators.Task) (operators.Result, error) {
		return operators.Result{}, write(ctx, t, "c")
	}))
	close(o.do)
	<-ended
	w.Settle()
	require.Equal(t, map[string][]string{"all": {"1,a", "1,b", "1,c"}}, w.Read("onway_tail"))
	require.Equal(t, "Completed", w.Task(task.TaskID))
	require.Equal(t, 1, w.Attempts("tail"))
}

// documented returns a page's code block with the given first line, and the block before it.
func documented(t *testing.T, page, info string) (before, block string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "docs", page))
	require.NoError(t, err)
	for _, part := range strings.Split(string(text), "\n```\n") {
		if _, found, ok := strings.Cut(part, "```"+info+"\n"); ok {
			return before, found + "\n"
		}
		if at := strings.LastIndex(part, "```"); at >= 0 {
			_, before, _ = strings.Cut(part[at:], "\n")
		}
	}
	require.Fail(t, "there is no block "+info)
	return "", ""
}

// The program in the documentation publishes while it runs. After it loses its lease, the next attempt loses nothing
// and repeats nothing.
func TestTheDocumentedProgramCommits(t *testing.T) {
	t.Parallel()
	job, program := documented(t, "operators.md", "python follow.py")
	w := dispatchertest.NewWorld(t)
	feed := func(ticks int) {
		var lines strings.Builder
		for seq := range ticks {
			fmt.Fprintf(&lines, `{"seq": %d, "price": %d}`+"\n", seq, seq*10)
		}
		w.Drop("ticks.ndjson", lines.String())
	}
	w.Drop("follow.py", program)
	feed(2)
	w.Deploy("name: example\njobs:\n" + job + `
- { name: sums, operator: sql, inputs: [{ from: { job: ticks } }], config: { query: "SELECT sum(price)::BIGINT AS sum FROM ticks" } }
publish:
  doc_ticks: { from: { job: ticks } }
  doc_sums: { from: { job: sums } }
`)
	stop := w.Start(w.Dispatcher("two"))
	published := func(sum string) func() bool {
		return func() bool {
			read, err := w.TryRead("doc_sums")
			return err == nil && slices.Equal(read["all"], []string{sum})
		}
	}
	running := func(attempt int) {
		require.Equal(t, 1, w.Count(`SELECT FROM leases l JOIN jobs j ON j.id = l.origin_job_id WHERE j.name = 'ticks'
			AND l.attempt = $1`, attempt))
	}
	w.Eventually("the first ticks are followed", published("10"))
	running(1)
	feed(4)
	w.Eventually("and the next", published("60"))
	running(1)
	w.Exec(`UPDATE leases SET expires_at = now() - interval '1 second', lease_seconds = 0`)
	feed(5)
	w.Eventually("another attempt goes on", published("100"))
	running(2)
	stop()
	require.Equal(t, map[string][]string{"0-2": {"0,0", "1,10"}, "2-4": {"2,20", "3,30"}, "4-5": {"4,40"}},
		w.Read("doc_ticks"))
	w.Check()
}
