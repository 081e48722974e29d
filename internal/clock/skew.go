//go:build clockskew

package clock

import (
	"os"
	"time"
)

// A binary with the tag clockskew, which only tests build, reads its own clock wrong by DAGCTL_CLOCK_SKEW. That changes
// nothing if every decision is by Now. It compares its clock with the database's each DAGCTL_CLOCK_EVERY, so that a
// test that sets the database's need not wait.
func init() {
	if by := duration("DAGCTL_CLOCK_SKEW"); by != 0 {
		own = func() time.Time { return time.Now().Add(by) }
	}
	if every := duration("DAGCTL_CLOCK_EVERY"); every > 0 {
		Every = every
	}
}

// duration returns the value of an environment variable; 0: it is not set.
func duration(name string) time.Duration {
	text, ok := os.LookupEnv(name)
	if !ok {
		return 0
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		panic(name + ": " + err.Error())
	}
	return d
}
