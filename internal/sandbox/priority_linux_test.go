//go:build linux && (amd64 || arm64)

package sandbox

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestNiceOf(t *testing.T) {
	t.Parallel()
	for threads, want := range map[int]int{1: 5, 16: 5, 17: 6, 32: 9, 100: 14, 400: 20, 4000: 20} {
		require.Equal(t, want, niceOf(threads, 2), "%d threads on two processors", threads)
	}
	require.Equal(t, 5, niceOf(400, 64))
}

// A program with many processes goes down, its session as well, and does not come back.
func TestAProgramGoesDownWithTheNumberOfItsThreads(t *testing.T) {
	t.Parallel()
	const beyond = programNice + 2
	many := 16 * runtime.NumCPU() // twice as many as weigh what they are
	p := newBare(t)
	p.walls.Processes = many + 50
	cmd := exec.Command("/bin/sh", "-c", fmt.Sprintf(`
for i in $(seq %d); do sleep 600 & done
until [ "$(nice)" -gt %d ]; do sleep 0.05; done
while read group word nice < /proc/self/autogroup && [ "$nice" -le %d ]; do sleep 0.05; done
echo down; nice -n -1 true 2>/dev/null && [ "$(nice -n -1 nice)" -lt "$(nice)" ] && echo up
echo 0 > /proc/self/autogroup && echo up
kill $(jobs -p)`, many, beyond, beyond))
	if _, err := os.Stat("/proc/self/autogroup"); err != nil {
		cmd.Args[2] = strings.ReplaceAll(cmd.Args[2], "while read", "while false && read")
	}
	cmd.Env = []string{"PATH=/usr/bin:/bin"}
	exceeded, _ := p.start(cmd)
	require.NoError(t, exceeded)
	require.Contains(t, p.out.String(), "down\n")
	require.NotContains(t, p.out.String(), "up\n")
}
