package plain_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/dispatcher/dispatchertest"
	"github.com/dagctl/dagctl/engine/inside"
	"github.com/dagctl/dagctl/internal/fault"
)

func TestMain(m *testing.M) {
	inside.Main()
	os.Exit(m.Run())
}

// days are those around the changes of clocks, and others of their months.
var days = []string{"2024-03-09", "2024-03-10", "2024-03-11", "2024-03-30", "2024-03-31", "2024-04-01", "2024-10-26",
	"2024-10-27", "2024-10-28", "2024-11-02", "2024-11-03", "2024-11-04"}

// compare lives through some rounds of changes to the files of one random pipeline, and compares all that readers see
// with the evaluator after each.
func compare(t *testing.T, seed uint64, rounds int) {
	t.Helper()
	random := rand.New(rand.NewPCG(seed, 0))
	p := anyPipeline(random)
	w := dispatchertest.NewWorld(t)
	s := &state{}
	for i := range p.sources {
		require.NoError(t, os.Mkdir(filepath.Join(w.Landing, fmt.Sprintf("s%d", i)), 0o755))
		s.files, s.read = append(s.files, map[string][]line{}), append(s.read, map[string][]line{})
		change(t, w, random, s, i, false)
	}
	w.Serve(p.yaml())
	w.Settle()

	for round := range rounds {
		if round > 0 {
			for range 1 + random.IntN(4) {
				change(t, w, random, s, random.IntN(len(p.sources)), true)
			}
			w.Poll()
			w.Settle()
		}
		p.evaluate(s)
		for i, j := range p.jobs {
			got, err := w.TryRead(j.name)
			if !fault.Is(err, fault.NotFound) {
				require.NoError(t, err)
			}
			if got == nil {
				got = map[string][]string{}
			}
			require.Equal(t, s.outputs[i].texts(), got, "seed %d, round %d, %s of\n%s", seed, round, j.name, p.yaml())
		}
	}
}

// change makes a file new, corrects or empties one, or deletes one, whose rows stay. Any may come late.
func change(t *testing.T, w *dispatchertest.World, random *rand.Rand, s *state, source int, may bool) {
	t.Helper()
	day := days[random.IntN(len(days))]
	file := fmt.Sprintf("s%d/%s.csv", source, day)
	if may && random.IntN(6) == 0 {
		if err := os.Remove(filepath.Join(w.Landing, file)); !os.IsNotExist(err) {
			require.NoError(t, err)
		}
		delete(s.files[source], day)
		return
	}

	lines := []line{}
	if !may || random.IntN(6) > 0 {
		for range 1 + random.IntN(4) {
			lines = append(lines, line{string("abc"[random.IntN(3)]), random.Int64N(6),
				[]string{"00:00:00", "00:30:00", "05:30:00", "12:00:00", "23:59:00"}[random.IntN(5)]})
		}
	}
	text := strings.Builder{}
	text.WriteString("k,n,moment\n")
	for _, l := range lines {
		fmt.Fprintf(&text, "%s,%d,%s %s\n", l.k, l.n, day, l.at)
	}
	w.Drop(file, text.String())
	s.files[source][day] = lines
}

// TestPipelinesMeanWhatAPlainEvaluatorSays compares a few random pipelines, of new seeds in each run.
func TestPipelinesMeanWhatAPlainEvaluatorSays(t *testing.T) {
	t.Parallel()
	first := uint64(time.Now().UnixNano())
	for seed := range uint64(10) {
		t.Run(fmt.Sprint(first+seed), func(t *testing.T) {
			t.Parallel()
			compare(t, first+seed, 3)
		})
	}
}
