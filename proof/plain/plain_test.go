package plain_test

import (
	"context"
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
	"github.com/dagctl/dagctl/operators"
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
	s := &state{segments: table{}}
	w.Probe.On("tape", s.wind)
	s.lengthen(random)
	for i := range p.sources {
		require.NoError(t, os.Mkdir(filepath.Join(w.Landing, fmt.Sprintf("s%d", i)), 0o755))
		s.files, s.read = append(s.files, map[string][]line{}), append(s.read, map[string][]line{})
		change(t, w, random, s, i, p.sources[i], false)
	}
	w.Serve(p.yaml())
	w.Settle()

	for round := range rounds {
		if round > 0 {
			for range 1 + random.IntN(4) {
				i := random.IntN(len(p.sources))
				change(t, w, random, s, i, p.sources[i], true)
			}
			if random.IntN(2) == 0 {
				s.lengthen(random)
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

// lengthen adds rows at the end of the tape.
func (s *state) lengthen(random *rand.Rand) {
	for range 1 + random.IntN(3) {
		s.tape = append(s.tape, row{string("abc"[random.IntN(3)]), int64(len(s.tape)), random.Int64N(6)})
	}
}

// wind is the run of the tape's source: it writes the rows beyond the cursor.
func (s *state) wind(ctx context.Context, task *operators.Task) (operators.Result, error) {
	begin := task.Cursor.Value + 1
	if begin >= int64(len(s.tape)) {
		return operators.Result{Unchanged: true}, nil
	}
	var rows []string
	for _, r := range s.tape[begin:] {
		rows = append(rows, fmt.Sprintf("('%s', %d::BIGINT, %d::BIGINT)", r.k, r.n, r.h))
	}
	return operators.Result{}, dispatchertest.CopyToParquet(ctx,
		"SELECT * FROM (VALUES "+strings.Join(rows, ", ")+") AS v(k, n, h)",
		filepath.Join(task.OutputDirs[0], "part.parquet"))
}

// hours are those around which clocks change, and one more.
var hours = []string{"T00", "T01", "T02", "T03", "T12"}

// change makes a file new, corrects or empties one, or deletes one, whose rows stay. Any may come late.
func change(t *testing.T, w *dispatchertest.World, random *rand.Rand, s *state, n int, of source, may bool) {
	t.Helper()
	key := days[random.IntN(len(days))]
	start, minutes := time.Time{}, 0
	if of.hours {
		key += hours[random.IntN(len(hours))]
		if start, minutes = hour(of.zone, key); minutes == 0 {
			key = key[:len(time.DateOnly)] + "T12"
			start, minutes = hour(of.zone, key)
		}
	}
	file := fmt.Sprintf("s%d/%s.csv", n, key)
	if may && random.IntN(6) == 0 {
		if err := os.Remove(filepath.Join(w.Landing, file)); !os.IsNotExist(err) {
			require.NoError(t, err)
		}
		delete(s.files[n], key)
		return
	}

	lines, text := []line{}, strings.Builder{}
	text.WriteString("k,n,moment\n")
	if !may || random.IntN(6) > 0 {
		for range 1 + random.IntN(4) {
			l := line{string("abc"[random.IntN(3)]), random.Int64N(6),
				[]string{"00:00:00", "00:30:00", "05:30:00", "12:00:00", "23:59:00"}[random.IntN(5)]}
			moment := key + " " + l.at
			if of.hours {
				after := random.IntN(minutes)
				l.at = fmt.Sprint(after)
				moment = start.Add(time.Duration(after) * time.Minute).Format("2006-01-02 15:04:05Z")
			}
			fmt.Fprintf(&text, "%s,%d,%s\n", l.k, l.n, moment)
			lines = append(lines, l)
		}
	}
	w.Drop(file, text.String())
	s.files[n][key] = lines
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
