package parquetexport

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/engine/enginetest"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/filelock"
	"github.com/dagctl/dagctl/operators"
	"github.com/dagctl/dagctl/operators/fence"
)

func TestAPartitionIsOneFile(t *testing.T) {
	t.Parallel()
	worlds(t, func(t *testing.T, w *world) {
		const key = `a=b "c" ü%`
		zombie := w.task(t, key, 1, one(1), nil)
		done := w.run(t, w.task(t, key, 1, one(1), nil))
		require.Equal(t, 1, done.Files)
		require.EqualValues(t, 1, done.Rows)
		require.Equal(t, []string{manifestName, wholeName}, w.names(t, key))
		require.Equal(t, "1", w.number(t, key))
		m := w.manifest(t, key)
		require.Equal(t, "acme/d/j", m.Job)
		require.Equal(t, key, m.Partition)
		require.Equal(t, map[string]int64{version.String() + "/" + key: 1}, m.Pins)

		// The same rows are there already: the file stays, also where somebody looks at its time.
		before := w.content(t, key, wholeName)
		require.True(t, w.run(t, w.task(t, key, 2, one(1), nil)).Unchanged)
		require.Equal(t, before, w.content(t, key, wholeName))
		require.Equal(t, map[string]int64{version.String() + "/" + key: 2}, w.manifest(t, key).Pins)

		w.run(t, w.task(t, key, 3, one(3), nil))
		require.Equal(t, "3", w.number(t, key))
		w.fails(t, zombie, "a newer revision of partition")
		w.fails(t, w.task(t, key, 2, one(2), nil), "a newer revision of partition")
		require.Equal(t, "3", w.number(t, key))

		// Of another version, the later task is the newer one; of one task, the later attempt.
		earlier := w.task(t, key, 9, one(8), nil)
		later := w.task(t, key, 1, one(9), nil)
		later.Inputs[0].Generation.Version = uuid.New()
		w.run(t, again(t, later))
		require.Equal(t, "9", w.number(t, key))
		w.fails(t, earlier, "a newer revision of partition")
		require.True(t, w.run(t, later).Unchanged, "an earlier attempt with the same rows")

		other := w.task(t, key, 9, one(8), nil)
		other.Job = "other"
		w.fails(t, other, `job "acme/d/j" exports to this path`)
		if w.server == nil {
			w.fails(t, other, "export to out/"+w.config["path"].(string)[:8]+"/day=")
		}
		require.Equal(t, "9", w.number(t, key))
	})
}

func TestAPartitionIsSeveralFiles(t *testing.T) {
	t.Parallel()
	worlds(t, func(t *testing.T, w *world) {
		two := fields{"max_rows": 2}
		first := w.task(t, "a", 1, several(1), two)
		require.Equal(t, 2, w.run(t, first).Files)
		require.Equal(t, "10,11,12", w.listed(t, "a"))
		require.Equal(t, []string{manifestName, fmt.Sprintf("part-00000-%s-1.parquet", first.TaskID),
			fmt.Sprintf("part-00001-%s-1.parquet", first.TaskID)}, w.names(t, "a"))

		require.True(t, w.run(t, w.task(t, "a", 2, several(1), two)).Unchanged)
		w.run(t, w.task(t, "a", 3, several(2), two))
		require.Equal(t, "20,21,22", w.listed(t, "a"))
		require.Len(t, w.names(t, "a"), 3, "those before are gone")
		w.fails(t, first, "a newer revision")
		require.Len(t, w.names(t, "a"), 3)

		w.run(t, w.task(t, "a", 4, several(4), nil))
		require.Equal(t, []string{manifestName, wholeName}, w.names(t, "a"))
		w.run(t, w.task(t, "a", 5, several(5), two))
		require.Equal(t, "50,51,52", w.listed(t, "a"))
		require.Len(t, w.names(t, "a"), 3)
		w.run(t, w.task(t, "a", 6, several(5)+" WHERE false", two))
		require.Equal(t, 1, len(w.manifest(t, "a").Files), "no rows are a file without rows")
		w.fails(t, w.task(t, "a", 7, "SELECT range AS n FROM range(1001)", fields{"max_rows": 1}), "are 1001 files")
	})
}

// A large object is sent in parts, and is there whole or not at all.
func TestALargeObject(t *testing.T) {
	t.Parallel()
	var parts atomic.Int64
	w := front(t, func(_ http.ResponseWriter, r *http.Request) bool {
		if r.Method == http.MethodPut && r.URL.Query().Has("partNumber") {
			parts.Add(1)
		}
		return false
	})
	w.op.partBytes = 5 << 20
	large := func(n int) string {
		return fmt.Sprintf("SELECT md5((range + %d)::VARCHAR) || md5((range * 7 + %[1]d)::VARCHAR) AS h "+
			"FROM range(300000)", n)
	}
	zombie := w.task(t, "a", 1, large(1), nil)
	w.run(t, w.task(t, "a", 1, large(1), nil))
	require.Greater(t, parts.Load(), int64(1))
	w.run(t, w.task(t, "a", 2, large(2), nil))
	w.fails(t, zombie, "a newer revision")
	require.EqualValues(t, 300000, w.manifest(t, "a").Rows)
	lines, _ := rows(t, w.content(t, "a", wholeName))
	require.Len(t, lines, 300000)
	require.True(t, w.run(t, w.task(t, "a", 3, large(2), nil)).Unchanged)
}

// watched is a target with a hook before and after each of its steps.
type watched struct {
	target

	step func()
}

func (w *watched) read(ctx context.Context, name string) ([]byte, string, error) {
	w.step()
	defer w.step()
	return w.target.read(ctx, name)
}

func (w *watched) set(ctx context.Context, name string, text []byte, tag string) error {
	w.step()
	defer w.step()
	return w.target.set(ctx, name, text, tag)
}

func (w *watched) put(ctx context.Context, name, local string, holds func(context.Context) error) (string, error) {
	w.step()
	defer w.step()
	return w.target.put(ctx, name, local, holds)
}

func (w *watched) swap(ctx context.Context, name, local string, holds func(context.Context) error) (string, error) {
	w.step()
	defer w.step()
	return w.target.swap(ctx, name, local, holds)
}

func (w *watched) parts(ctx context.Context) ([]string, error) {
	w.step()
	defer w.step()
	return w.target.parts(ctx)
}

func (w *watched) remove(ctx context.Context, name string) error {
	w.step()
	defer w.step()
	return w.target.remove(ctx, name)
}

// stepped runs a task that calls step between any two of its steps.
func (w *world) stepped(t *testing.T, task *operators.Task, step func(n int)) error {
	t.Helper()
	c, configFault := parseConfig(task.Config)
	require.Nil(t, configFault)
	path, err := c.layout.folder(task.PartitionBy, task.Partition.Key, "d", "j")
	require.NoError(t, err)
	to, err := w.op.open(c, task, path)
	require.NoError(t, err)
	defer to.close()
	m := manifest{Format: format, Job: "acme/d/j", Partition: task.Partition.Key, Write: fence.Of(task)}
	release := task.Use(enginetest.Engines())
	local, err := c.write(t.Context(), task, &m)
	release()
	require.NoError(t, err)

	n := 0
	e := &export{target: &watched{to, func() { n++; step(n) }}, manifest: m, local: local, scratch: task.Scratch,
		one: c.MaxRows == 0}
	_, err = e.run(t.Context())
	return err
}

// locked reports whether a folder's partition is locked: nobody can come in between.
func (w *world) locked(t *testing.T, key string) bool {
	t.Helper()
	dir := strings.ReplaceAll(w.config["path"].(string), "{partition}", escape(key))
	lock, err := filelock.Take(filepath.Join(w.root, "out", dir, lockName))
	if held := new(filelock.HeldError); errors.As(err, &held) {
		return true
	}
	require.NoError(t, err)
	require.NoError(t, lock.Release())
	return false
}

// A newer write comes at any point of an older one: it stays, and what the older one has begun is gone.
func TestANewerWriteAtAnyStep(t *testing.T) {
	t.Parallel()
	worlds(t, func(t *testing.T, w *world) {
		for name, config := range map[string]fields{"one": nil, "several": {"max_rows": 2}} {
			for at := 1; ; at++ {
				key := fmt.Sprintf("%s-%d", name, at)
				w.run(t, w.task(t, key, 1, several(1), config))
				older := w.task(t, key, 2, several(2), config)
				newer := w.task(t, key, 3, several(3), config)
				if at%2 == 1 {
					newer = w.task(t, key, 3, several(1), config) // as it was before
				}
				want := map[bool]string{true: "10,11,12", false: "30,31,32"}[at%2 == 1]
				came, ended := false, make(chan error, 1)
				err := w.stepped(t, older, func(n int) {
					if n != at {
						return
					}
					came = true
					locked := w.server == nil && w.locked(t, key)
					go func() {
						_, err := w.perform(t, newer)
						ended <- err
					}()
					if !locked { // otherwise it waits for the older one
						ended <- <-ended
					}
				})
				if !came {
					require.NoError(t, err)
					break
				}

				require.NoError(t, <-ended)
				if err != nil {
					require.True(t, fault.Is(err, fault.Conflict), "step %d: %v", at, err)
				}
				require.Equal(t, want, w.listed(t, key), "step %d", at)
				require.Len(t, w.names(t, key), 1+len(w.manifest(t, key).Files), "step %d: %v", at, w.names(t, key))
				if config == nil {
					require.Equal(t, want, w.number(t, key))
				}
			}
		}
	})
}

// A process dies at any point of a write: readers have the rows before or the new ones, and the next attempt writes the
// new ones.
func TestADeathAtAnyStep(t *testing.T) {
	t.Parallel()
	worlds(t, func(t *testing.T, w *world) {
		for name, config := range map[string]fields{"one": nil, "several": {"max_rows": 2}} {
			for at := 1; ; at++ {
				key := fmt.Sprintf("%s-%d", name, at)
				w.run(t, w.task(t, key, 1, several(1), config))
				task := w.task(t, key, 2, several(2), config)
				died := false
				func() {
					defer func() {
						if p := recover(); p != nil && !errors.Is(p.(error), errDied) {
							panic(p)
						}
					}()
					require.NoError(t, w.stepped(t, task, func(n int) {
						// The steps after it, such as those of clean-up, do not happen either.
						if n == at || died {
							died = true
							panic(errDied)
						}
						w.whole(t, key, config)
					}))
				}()
				if !died {
					break
				}
				w.whole(t, key, config)
				w.run(t, again(t, task))
				require.Equal(t, "20,21,22", w.listed(t, key))
				require.Len(t, w.names(t, key), 1+len(w.manifest(t, key).Files), "%v", w.names(t, key))
			}
		}
	})
}

var errDied = errors.New("the process has died")

// whole checks what readers have: the rows before or the new ones.
func (w *world) whole(t *testing.T, key string, config fields) {
	t.Helper()
	if config == nil {
		require.Contains(t, []string{"10,11,12", "20,21,22"}, w.number(t, key))
	} else {
		require.Contains(t, []string{"10,11,12", "20,21,22"}, w.listed(t, key))
	}
}
