package engine_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/engine"
	"github.com/dagctl/dagctl/engine/inside"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/relations"
	"github.com/dagctl/dagctl/internal/rest"
)

func TestMain(m *testing.M) {
	inside.Main()
	os.Exit(m.Run())
}

func engines(t *testing.T, c engine.Config) *engine.Engines {
	t.Helper()
	if c.Dir == "" {
		c.Dir = t.TempDir()
	}
	e, err := engine.New(c)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, e.Close()) })
	return e
}

// take takes an engine that is released with the test.
func take(t *testing.T, e *engine.Engines, p engine.Purpose) *engine.Engine {
	t.Helper()
	taken, err := e.Take(t.Context(), p)
	require.NoError(t, err)
	return taken
}

var job = engine.Purpose{Kind: engine.Job, Org: "acme", Of: "dag/job",
	Limits: relations.Limits{Memory: 256 << 20, Threads: 1}}

// rows writes a file of rows with an engine.
func rows(t *testing.T, g *engine.Engine, sql string) (file string, selected engine.Selected) {
	t.Helper()
	require.NoError(t, g.Do(t.Context(), engine.Open{Scope: relations.UTC}, nil))
	inside := g.Out("rows.parquet")
	require.NoError(t, g.Do(t.Context(), engine.Select{SQL: sql, Target: inside}, &selected))
	file = filepath.Join(t.TempDir(), "rows.parquet")
	require.NoError(t, g.Fetch(inside, file))
	return file, selected
}

func TestAnEngineWorks(t *testing.T) {
	t.Parallel()
	e := engines(t, engine.Config{})
	g := take(t, e, job)
	file, selected := rows(t, g, "SELECT i, i % 2 = 0 AS even FROM range(10) r(i)")
	require.EqualValues(t, 10, selected.Rows)
	require.Equal(t, []relations.Column{{Name: "i", Type: "BIGINT"}, {Name: "even", Type: "BOOLEAN"}}, selected.Columns)

	linked, err := g.In(file)
	require.NoError(t, err)
	var opened engine.Opened
	require.NoError(t, g.Do(t.Context(), engine.Open{Scope: relations.UTC,
		Relations: []relations.Relation{{Name: "n", Files: linked}}}, &opened))
	require.Equal(t, [][]relations.Column{selected.Columns}, opened.Columns)
	require.NoError(t, g.Do(t.Context(), engine.Select{SQL: "SELECT sum(i) AS s FROM n", Target: g.Out("s.parquet")},
		&selected))
	require.Equal(t, []relations.Origin{{OutputColumn: "s", Relation: "n", Column: "i", Transform: "aggregate"}},
		selected.Origins)

	// What was open is forgotten.
	require.NoError(t, g.Do(t.Context(), engine.Open{Scope: relations.UTC}, nil))
	err = g.Do(t.Context(), engine.Select{SQL: "SELECT * FROM n", Target: g.Out("n.parquet")}, nil)
	require.True(t, fault.Is(err, fault.Invalid), err)
	g.Release()
}

func TestEnginesServeOnePurpose(t *testing.T) {
	t.Parallel()
	e := engines(t, engine.Config{})
	first := take(t, e, job)
	pid := first.PID()
	first.Release()

	again := take(t, e, job)
	require.Equal(t, pid, again.PID(), "the next task of the job has the engine of the last")
	other := job
	other.Org = "other"
	foreign := take(t, e, other)
	require.NotEqual(t, pid, foreign.PID())
	foreign.Release()
	again.Release()
}

// Where starting an engine took all the time of the work, the next try has it, and not the same wait again.
func TestAnEngineThatHadNoWorkIsKept(t *testing.T) {
	t.Parallel()
	e := engines(t, engine.Config{})
	g := take(t, e, job)
	pid := g.PID()
	late, end := context.WithCancel(t.Context())
	end()
	require.ErrorIs(t, g.Do(late, engine.Canonical{SQL: "SELECT 1"}, nil), context.Canceled)
	g.Discard()

	g = take(t, e, job)
	require.Equal(t, pid, g.PID())
	require.NoError(t, g.Do(t.Context(), engine.Canonical{SQL: "SELECT 1"}, nil))
	g.Discard()
	g = take(t, e, job)
	require.NotEqual(t, pid, g.PID(), "it had work")
	g.Discard()
}

// A text that ends DuckDB's process ends one engine, and the next one works.
func TestAServerOutlivesItsEngines(t *testing.T) {
	t.Parallel()
	e := engines(t, engine.Config{})
	deep := "SELECT " + strings.Repeat("[", 100_000) + strings.Repeat("]", 100_000)
	g := take(t, e, job)
	require.Error(t, g.Do(t.Context(), engine.Canonical{SQL: deep}, nil))
	g.Release()

	g = take(t, e, job)
	_, selected := rows(t, g, "SELECT 1 AS one")
	require.EqualValues(t, 1, selected.Rows)
	g.Release()
}

// Whatever stops a task stops its engine: the caller learns the cause, and the process is gone within a second. The
// bound here leaves room for a machine with much other work.
func TestWorkIsKilledAtOnce(t *testing.T) {
	t.Parallel()
	const endless = "SELECT count(*) AS n FROM range(10000000000) a, range(10000000000) b"
	for name, cause := range map[string]error{
		"cancel": errors.New("canceled by a person"), "timeout": errors.New("the task timed out"),
		"lost lease": errors.New("the lease was lost"),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := take(t, engines(t, engine.Config{}), job)
			require.NoError(t, g.Do(t.Context(), engine.Open{Scope: relations.UTC}, nil))
			ctx, stop := context.WithCancelCause(t.Context())
			asked := make(chan error)
			go func() { asked <- g.Do(ctx, engine.Select{SQL: endless, Target: g.Out("n.parquet")}, nil) }()
			require.Eventually(t, func() bool {
				begun, err := os.ReadDir(filepath.Dir(g.Out("n.parquet")))
				return err == nil && len(begun) > 0
			}, time.Minute, time.Millisecond)

			began, pid := time.Now(), g.PID()
			stop(cause)
			require.ErrorIs(t, <-asked, cause)
			g.Release()
			require.ErrorIs(t, syscall.Kill(pid, 0), syscall.ESRCH)
			t.Logf("gone after %v", time.Since(began).Round(time.Millisecond))
			require.Less(t, time.Since(began), 5*time.Second)
		})
	}
}

// A statement that needs more memory than it may have fails with that text, and its engine serves the next one.
func TestTooMuchMemoryIsSaid(t *testing.T) {
	t.Parallel()
	g := take(t, engines(t, engine.Config{}), job)
	require.NoError(t, g.Do(t.Context(), engine.Open{Scope: relations.UTC}, nil))
	began := time.Now()
	large := "SELECT list(repeat('x', 1000) || i) AS texts FROM range(10000000) r(i)"
	err := g.Do(t.Context(), engine.Select{SQL: large, Target: g.Out("n.parquet")}, nil)
	require.EqualError(t, err, "the work needs more than the 256 MB of memory that it may use")
	require.True(t, engine.OutOfMemory(err))
	t.Logf("failed after %v", time.Since(began).Round(time.Millisecond))

	_, selected := rows(t, g, "SELECT 1 AS one")
	require.EqualValues(t, 1, selected.Rows)
	g.Release()
}

// What the system says of a file comes out of the engine as such, and what a statement says does not.
func TestAFullDiskIsKnownOutside(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	require.NoError(t, syscall.Mount("none", dir, "tmpfs", 0, "size=4m"))
	t.Cleanup(func() { require.NoError(t, syscall.Unmount(dir, syscall.MNT_DETACH)) })
	g := take(t, engines(t, engine.Config{Dir: dir}), job)
	defer g.Release()
	require.NoError(t, g.Do(t.Context(), engine.Open{Scope: relations.UTC}, nil))

	large := "SELECT hash(i) AS h, hash(i + 1) AS g FROM range(1000000) r(i)"
	err := g.Do(t.Context(), engine.Select{SQL: large, Target: g.Out("n.parquet")}, nil)
	require.ErrorIs(t, err, syscall.ENOSPC)
	require.False(t, engine.Deterministic(err))

	said := "SELECT error('No space left on device') AS e"
	err = g.Do(t.Context(), engine.Select{SQL: said, Target: g.Out("e.parquet")}, nil)
	require.Error(t, err)
	require.NotErrorIs(t, err, syscall.ENOSPC)
}

func TestFoldersOfKilledServersGo(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	left := filepath.Join(dir, "engine-left")
	require.NoError(t, os.Mkdir(left, 0o700))
	require.NoError(t, os.WriteFile(left+".lock", nil, 0o600))
	e := engines(t, engine.Config{Dir: dir})
	g := take(t, e, job)
	require.NoDirExists(t, left)

	engines(t, engine.Config{Dir: dir}) // another server sweeps, too
	_, selected := rows(t, g, "SELECT 1 AS one")
	require.EqualValues(t, 1, selected.Rows)
	g.Release()
}

// The org with the fewest engines is next, whoever waits longest.
func TestOrgsShareSlots(t *testing.T) {
	t.Parallel()
	e := engines(t, engine.Config{Slots: map[engine.Kind]int{engine.Parse: 1, engine.Job: 2, engine.Query: 1,
		engine.Copy: 1},
		PerOrg: func(string, engine.Kind) int { return 2 }})
	of := func(org string) engine.Purpose {
		p := job
		p.Org = org
		return p
	}
	first, second := take(t, e, of("greedy")), take(t, e, of("greedy"))

	got := make(chan *engine.Engine)
	wait := func(org string, waiting int) {
		go func() {
			g, err := e.Take(context.Background(), of(org))
			if err == nil {
				got <- g
			}
		}()
		require.Eventually(t, func() bool { return e.Waiting(engine.Job) == waiting }, time.Minute, time.Millisecond)
	}
	wait("greedy", 1)
	wait("modest", 2)
	first.Release()
	modest := <-got
	require.Equal(t, "modest", modest.Org())
	second.Release()
	greedy := <-got
	require.Equal(t, "greedy", greedy.Org())
	modest.Release()
	greedy.Release()
}

// An org's bound is its weight: who may have thrice as many slots gets thrice as many where all wait.
func TestSlotsGoInProportionToBounds(t *testing.T) {
	t.Parallel()
	e := engines(t, engine.Config{Slots: map[engine.Kind]int{engine.Parse: 1, engine.Job: 4, engine.Query: 1,
		engine.Copy: 1},
		PerOrg: func(org string, _ engine.Kind) int { return map[string]int{"large": 6, "small": 2}[org] }})
	other := job
	other.Org = "other"
	blocker := make([]*engine.Engine, 3) // all but one
	for i := range blocker {
		blocker[i] = take(t, e, other)
	}
	last := job
	last.Org = "last"
	held := append(blocker, take(t, e, last))

	ctx, leave := context.WithCancel(t.Context())
	got, waiting := make(chan *engine.Engine, 8), 0
	for _, org := range []string{"small", "large"} {
		for range 4 {
			p := job
			p.Org = org
			go func() {
				if g, err := e.Take(ctx, p); err == nil {
					got <- g
				}
			}()
			waiting++
			all := func() bool { return e.Waiting(engine.Job) == waiting }
			require.Eventually(t, all, time.Minute, time.Millisecond)
		}
	}
	for _, g := range held {
		g.Release()
	}
	count := map[string]int{}
	var taken []*engine.Engine
	for range held {
		g := <-got
		count[g.Org()]++
		taken = append(taken, g)
	}
	require.Equal(t, map[string]int{"large": 3, "small": 1}, count)
	leave()
	for _, g := range taken {
		g.Release()
	}
}

// Whatever an org runs, and for however long, one slot is left for the others.
func TestAnOrgLeavesASlotToOthers(t *testing.T) {
	t.Parallel()
	e := engines(t, engine.Config{Slots: map[engine.Kind]int{engine.Parse: 1, engine.Job: 2, engine.Query: 1,
		engine.Copy: 1}})
	g := take(t, e, job)
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	_, err := e.Take(ctx, job)
	require.ErrorIs(t, err, context.DeadlineExceeded)

	other := job
	other.Org = "other"
	take(t, e, other).Release()
	g.Release()
}

// Who waits for rows or a plan, and gets no engine in time, is told to try again.
func TestPeopleAreToldToTryAgain(t *testing.T) {
	t.Parallel()
	e := engines(t, engine.Config{Slots: map[engine.Kind]int{engine.Parse: 1, engine.Job: 1, engine.Query: 1,
		engine.Copy: 1}})
	for _, kind := range []engine.Kind{engine.Query, engine.Parse} {
		p := engine.Purpose{Kind: kind, Org: "acme"}
		g := take(t, e, p)
		ctx, cancel := context.WithTimeoutCause(t.Context(), time.Millisecond, errors.New("too slow"))
		_, err := e.Take(ctx, p)
		require.True(t, fault.Is(err, fault.TooMany), "%v", err)
		require.EqualValues(t, http.StatusTooManyRequests, rest.ProblemOf(err).Status)

		gone, leave := context.WithCancel(t.Context())
		leave()
		_, err = e.Take(gone, p)
		require.ErrorIs(t, err, context.Canceled)
		cancel()
		g.Release()
	}
}

// A question that binds for ever ends by its processor time, and the next one is answered.
func TestAQuestionHasItsTime(t *testing.T) {
	t.Parallel()
	e := engines(t, engine.Config{})
	p := engine.Purpose{Kind: engine.Parse, Org: "acme", Each: time.Second,
		Limits: relations.Limits{Memory: 256 << 20, Threads: 1}}
	doubled := "WITH c0 AS (SELECT * FROM orders a, orders b)"
	for i := range 40 {
		doubled += fmt.Sprintf(", c%d AS (SELECT * FROM c%d a, c%d b)", i+1, i, i)
	}
	orders := map[string][]relations.Column{"orders": {{Name: "id", Type: "INTEGER"}}}
	shape := func(sql string) (shaped engine.Shaped, err error) {
		err = e.Do(t.Context(), p, engine.Shape{Queries: []string{sql}, Bind: []bool{true}, Relations: orders}, &shaped)
		return shaped, err
	}

	for _, bad := range []string{
		doubled + " SELECT 1 AS x FROM c40",
		`SELECT json_transform('1', repeat('[', 100000) || '"INT"' || repeat(']', 100000)) AS x FROM orders`,
	} {
		shaped, err := shape(bad)
		require.True(t, err != nil || shaped.Writes[0] == nil, bad)
	}
	shaped, err := shape("SELECT id + 1 AS next, getvariable('partition') AS day FROM orders")
	require.NoError(t, err)
	require.Equal(t, [][]relations.Column{{{Name: "next", Type: "INTEGER"}, {Name: "day", Type: "VARCHAR"}}},
		shaped.Writes)
}

func TestAnOrgsBound(t *testing.T) {
	t.Parallel()
	e := engines(t, engine.Config{PerOrg: func(string, engine.Kind) int { return 1 }})
	g := take(t, e, job)
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	_, err := e.Take(ctx, job)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	g.Release()
	take(t, e, job).Release()
}

func FuzzReadFrame(f *testing.F) {
	f.Add([]byte{0, 0, 0, 2, '{', '}'})
	f.Add([]byte{255, 255, 255, 255})
	f.Fuzz(func(t *testing.T, frame []byte) {
		var asked engine.Asked
		if engine.ReadFrame(bytes.NewReader(frame), &asked) != nil {
			return
		}
		var out bytes.Buffer
		require.NoError(t, engine.WriteFrame(&out, asked))
		var again engine.Asked
		require.NoError(t, engine.ReadFrame(&out, &again))
	})
}
