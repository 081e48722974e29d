//go:build clockskew

package clock

import (
	"os"
	"time"
)

// A binary with the tag clockskew, which only tests build, reads its own clock wrong by DAGCTL_CLOCK_SKEW. That changes
// nothing if every decision is by Now.
func init() {
	text, ok := os.LookupEnv("DAGCTL_CLOCK_SKEW")
	if !ok {
		return
	}
	by, err := time.ParseDuration(text)
	if err != nil {
		panic("DAGCTL_CLOCK_SKEW: " + err.Error())
	}
	own = func() time.Time { return time.Now().Add(by) }
}
