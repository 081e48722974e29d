//go:build soak

package memory_test

import (
	"flag"
	"testing"
	"time"
)

var memoryFor = flag.Duration("memory-for", time.Hour,
	"how long the soak tests of memory run, a sixth of it to warm up")

// long is the run that makes the bound of a megabyte an hour measurable.
func long() run {
	return run{warmUp: *memoryFor / 6, window: *memoryFor * 5 / 6, look: time.Second, windows: 1, slope: perHour}
}

func TestSoakMemoryOfDev(t *testing.T) {
	t.Parallel()
	dev(t, long())
}

func TestSoakMemoryOfServe(t *testing.T) {
	t.Parallel()
	serve(t, long())
}
