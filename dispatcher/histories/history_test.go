package histories_test

import (
	"context"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/dispatcher/dispatchertest"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/storage"
)

var (
	seed  = flag.Int64("seed", -1, "repeat the history of this seed alone")
	steps = flag.Int("steps", 250, "steps of each history")
	seeds = flag.Int("seeds", 8, "histories")
	shown = flag.Int("shown", 25, "steps that a history which fails prints")
)

// firstSeed is that of the first history. docs/reliability.md says which others were run.
const firstSeed = 190

// history is a run of the model beside the real thing.
type history struct {
	*model
	t      *testing.T
	w      *dispatchertest.World
	rng    *rand.Rand
	seed   uint64
	number int                 // of the step
	given  map[string]consents // to each document
	texts  map[string]string   // of each revision in PostgreSQL, which does not change
	asked  atomic.Uint32       // how often a check was run
	steps  []string
	each   func() // called after each step; nil: nothing
}

func newHistory(t *testing.T, seed uint64) *history {
	h := &history{model: newModel(), t: t, w: dispatchertest.NewWorld(t), rng: rand.New(rand.NewPCG(seed, 12)),
		seed: seed, given: map[string]consents{}, texts: map[string]string{}}
	h.w.D.RunChecks = h.runChecks
	h.put("2024-01-01", "r0")
	return h
}

func pick[T any](h *history, from []T) T { return from[h.rng.IntN(len(from))] }

func (h *history) run(steps int) {
	for h.number = 1; h.number <= steps; h.number++ {
		h.step()
		h.check()
		if h.each != nil {
			h.each()
		}
	}
}

// check compares every dataset and every name with the model, once all has caught up.
func (h *history) check() {
	require.NoError(h.t, h.w.D.Upkeep.Reconcile(h.t.Context(), time.Now()))
	h.wait()
	seen := map[string]bool{}
	for _, name := range []string{"anna", "bert", "carl"} {
		d := h.dags[name]
		h.settleDAG(d)
		if d.live != nil {
			for _, job := range slices.Sorted(maps.Keys(d.live.gens)) {
				name := h.address(d, job)
				seen[name] = true
				h.compare(name, d.live.gens[job])
			}
		}
	}

	for _, name := range append(slices.Clone(names), "read_by_carl") {
		if !seen[name] {
			_, _, err := h.shown(name)
			require.Error(h.t, err, "%s should be nobody's\n%s", name, h.story())
		}
	}
	for _, name := range dispatchertest.Texts(h.t, h.w.Pool,
		`SELECT viewname::text FROM pg_views WHERE schemaname = 'data_acme'`) {
		if !seen[name] {
			h.compareView(name, nil, false)
		}
	}
}

// wait works until nothing is left to do, tasks included that a build holds back for some seconds.
func (h *history) wait() {
	for held := true; held; held = h.w.Count(`SELECT FROM waiting WHERE reason = 'run_at'`) > 0 {
		h.w.Settle()
		h.w.Promote(dispatchertest.Later(2 * time.Minute))
	}
	h.w.Settle()
}

// address returns the name that readers use for a dataset of a version that serves.
func (h *history) address(d *dagModel, job string) string {
	if name := h.called(d, job); name != "" {
		return name
	}
	return d.name + "/" + job + "/0"
}

// compare requires that a name shows what its generation has, through the read path and the view.
func (h *history) compare(name string, g *generation) {
	got, kind, err := h.shown(name)
	require.NoError(h.t, err, "%s\n%s", name, h.story())
	h.resolve(g, got)
	want := map[string]string{}
	for key, p := range g.visible() {
		want[key] = p.text
	}
	require.Equal(h.t, want, got, "%s\n%s", name, h.story())

	if strings.Contains(name, "/") {
		return
	}
	views := h.w.Count(`SELECT FROM pg_views WHERE schemaname = 'data_acme' AND viewname = $1`, name)
	if views > 0 {
		h.compareView(name, got, kind == storage.Postgres)
	} else {
		require.False(h.t, kind == storage.Postgres && len(got) > 0, "%s has no view\n%s", name, h.story())
	}
}

// compareView requires that a stable view shows the same as the read path, or answers with an error.
func (h *history) compareView(name string, got map[string]string, serves bool) {
	rows, err := h.w.Pool.Query(h.t.Context(), `SELECT content FROM data_acme.`+name+` ORDER BY content COLLATE "C"`)
	require.NoError(h.t, err)
	seen, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if !serves {
		require.Error(h.t, err, "the view %s shows %v\n%s", name, seen, h.story())
		return
	}
	require.NoError(h.t, err, "%s\n%s", name, h.story())
	want := slices.Sorted(maps.Values(got))
	if len(want) == 0 {
		want = []string{}
	}
	require.Equal(h.t, want, seen, "the view %s\n%s", name, h.story())
}

// shown returns what readers see under a name, by partition.
func (h *history) shown(name string) (map[string]string, storage.Kind, error) {
	var generation storage.Generation
	var partitions []storage.Partition
	err := pg.InOrgTx(h.t.Context(), h.w.Requests, h.w.Caller.OrgID, func(ctx context.Context, tx pgx.Tx) (err error) {
		generation, partitions, _, err = h.w.D.Registry.ResolveForRead(ctx, tx, h.w.Caller, name)
		return err
	})
	if err != nil {
		return nil, "", err
	}
	found := map[string]string{}
	for _, p := range partitions {
		if found[p.Key], err = h.content(generation, p); err != nil {
			return nil, "", err
		}
	}
	return found, generation.Kind, nil
}

// content returns the one row of a partition. Files that the test's operators have written need no DuckDB.
func (h *history) content(g storage.Generation, p storage.Partition) (string, error) {
	if len(p.Files) == 1 {
		if text, ok := h.w.Probe.Known(filepath.Join(h.w.Data, p.Files[0].Path)); ok {
			return text, nil
		}
	}
	revision := fmt.Sprint(g.Version, p.Key, p.Revision)
	if text, ok := h.texts[revision]; ok {
		return text, nil
	}
	if g.Kind == storage.Postgres && p.Revision%4 > 0 { // DuckDB takes long
		var text string
		h.w.Row(`SELECT content FROM data_acme._g_`+strings.ReplaceAll(g.Version.String(), "-", "")+`
			WHERE _partition = $1`, p.Key)(&text)
		h.texts[revision] = text
		return text, nil
	}
	_, rows, err := h.w.Storage.Preview(h.t.Context(), g, []storage.Partition{p}, 10, 0)
	if err != nil {
		return "", err
	}
	require.True(h.t, len(rows) == 1 && len(rows[0]) == 1, "%s has the rows %v\n%s", revision, rows, h.story())
	h.texts[revision] = fmt.Sprint(rows[0][0])
	return h.texts[revision], nil
}

func TestHistoriesFollowTheModel(t *testing.T) {
	t.Parallel()
	for i := range uint64(*seeds) {
		i += firstSeed
		if *seed >= 0 {
			i = uint64(*seed)
		}
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			t.Parallel()
			newHistory(t, i).run(*steps)
		})
		if *seed >= 0 {
			break
		}
	}
}
