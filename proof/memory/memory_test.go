package memory_test

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/examples/processtest"
)

// TestMain makes the servers collect garbage often: what a collection leaves is what a leak adds to, and the time
// between two collections only adds noise.
func TestMain(m *testing.M) {
	if err := os.Setenv("GOGC", "20"); err != nil {
		panic(err)
	}
	os.Exit(processtest.Main(m))
}

// MiB per second and per hour.
const (
	perSecond = 1.0
	perHour   = perSecond / 3600
)

// run says how long a server is watched, and what slope is still flat.
type run struct {
	warmUp, window, look time.Duration
	windows              int     // how many of them a slope may need to become flat
	slope                float64 // in MiB a second
}

// short is the run of every test. A leak of 3.6 MB a second grows at three and a half times its bound, in each window.
// A machine with other work may take longer to warm up, and a server that has warmed up stays flat: so the first flat
// window is enough, and only a slope in three windows on end is a leak.
var short = run{warmUp: 15 * time.Second, window: 45 * time.Second, look: 250 * time.Millisecond, windows: 3,
	slope: perSecond}

// sample is the resident memory at a time.
type sample struct{ seconds, mib float64 }

// watch requires that the memory of a process becomes flat.
func watch(t *testing.T, pid int, r run) {
	t.Helper()
	follow(t, pid, r.warmUp, r.look)
	slopes := []float64{}
	for range r.windows {
		samples := follow(t, pid, r.window, r.look)
		rises := slope(samples)
		slopes = append(slopes, rises)
		t.Logf("resident memory: %.1f MiB at first, %.1f at last, slope %.4f MiB/s, %.2f MiB/h; %s",
			samples[0].mib, samples[len(samples)-1].mib, rises, rises*3600, held(pid))
		if rises <= r.slope {
			return
		}
	}
	require.Fail(t, "memory leaks", "slopes of %v on end, in MiB/s: %.4f; flat is %.4f", r.window, slopes, r.slope)
}

// follow returns the resident memory of a process over a time.
func follow(t *testing.T, pid int, span, look time.Duration) (samples []sample) {
	t.Helper()
	tick := time.NewTicker(look)
	defer tick.Stop()

	start := time.Now()
	for said := start; time.Since(start) < span; {
		samples = append(samples, sample{time.Since(start).Seconds(), resident(t, pid)})
		if time.Since(said) > 5*time.Minute {
			t.Logf("after %v: %.1f MiB; %s", time.Since(start).Round(time.Second), samples[len(samples)-1].mib,
				held(pid))
			said = time.Now()
		}
		select {
		case <-tick.C:
		case <-t.Context().Done():
			require.NoError(t, t.Context().Err())
		}
	}
	return samples
}

// slope returns the slope of the lower edge in units a second: the least of each twelfth of the time, which is what
// collections leave, and of those the median of the slopes between any two (Theil and Sen), which one outlier in four
// does not move.
func slope(samples []sample) float64 {
	const parts = 12
	span := samples[len(samples)-1].seconds - samples[0].seconds
	least := make([]sample, parts)
	for i := range least {
		least[i].mib = math.Inf(1)
	}
	for _, s := range samples {
		i := min(int((s.seconds-samples[0].seconds)/span*parts), parts-1)
		if s.mib < least[i].mib {
			least[i] = s
		}
	}

	slopes := []float64{}
	for i, a := range least {
		for _, b := range least[i+1:] {
			if b.seconds > a.seconds && !math.IsInf(a.mib, 1) && !math.IsInf(b.mib, 1) {
				slopes = append(slopes, (b.mib-a.mib)/(b.seconds-a.seconds))
			}
		}
	}
	slices.Sort(slopes)
	return slopes[len(slopes)/2]
}

// resident returns how much of a process's own memory is resident, in MiB: heaps, stacks and what it shares with other
// processes. The pages of the binary, which are read as its code is first used and which the kernel drops as it likes,
// are not its own: they are at most the size of the file.
func resident(t *testing.T, pid int) float64 {
	t.Helper()
	own := status(pid, "RssAnon") + status(pid, "RssShmem")
	require.Positive(t, own, "the server has ended")
	return own
}

// status returns a line of a process's status in MiB; 0 if it has ended.
func status(pid int, name string) float64 {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(text)) {
		if value, ok := strings.CutPrefix(line, name+":"); ok {
			kib, _ := strconv.ParseFloat(strings.TrimSuffix(strings.TrimSpace(value), " kB"), 64)
			return kib / 1024
		}
	}
	return 0
}

// held says what else a process holds that a leak may hold.
func held(pid int) string {
	count := func(what string) int {
		entries, _ := filepath.Glob(fmt.Sprintf("/proc/%d/%s/*", pid, what)) // for people only
		return len(entries)
	}
	return fmt.Sprintf("%.1f MiB of the binary, %d open files, %d threads", status(pid, "RssFile"), count("fd"),
		count("task"))
}

// The memory of a server that collects garbage goes up and down, and jumps now and then.
func TestSlopeOfALeakIsFound(t *testing.T) {
	t.Parallel()
	for leak, want := range map[float64]float64{0: 0, 3.6: 3.6, 20 * perHour: 20 * perHour} {
		samples := []sample{}
		for i := range 180 {
			at := float64(i) / 4
			mib := 100 + leak*at + float64(i%7)*3 // seven looks between two collections
			if i > 60 && i < 75 {
				mib += 40 // an upload
			}
			samples = append(samples, sample{at, mib})
		}
		require.InDelta(t, want, slope(samples), 0.2, "%.3f MiB a second", leak)
	}
}
