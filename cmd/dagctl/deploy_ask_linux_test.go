package main

import (
	"bytes"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/dagctl/dagctl/cmd/dagctl/cli"
	"github.com/dagctl/dagctl/registry"
)

// terminal returns the two ends of a pseudo-terminal: that of the person, and that of the command.
func terminal(t *testing.T) (typist, command *os.File) {
	t.Helper()
	typist, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	require.NoError(t, err)
	t.Cleanup(func() { typist.Close() })
	require.NoError(t, unix.IoctlSetPointerInt(int(typist.Fd()), unix.TIOCSPTLCK, 0))
	n, err := unix.IoctlGetInt(int(typist.Fd()), unix.TIOCGPTN)
	require.NoError(t, err)
	command, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	require.NoError(t, err)
	t.Cleanup(func() { command.Close() })
	return typist, command
}

func TestDeployAsksOnATerminal(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.deployReadings(t, "2026-01-01")
	env, dir := w.env(t, writer), t.TempDir()
	file := writeDAG(t, dir, "x", strings.Replace(readingsDAG, "max(celsius)", "1 + max(celsius)", 1))
	ask := func(answers string, asked func(prompts *prompts)) (int, string) {
		typist, command := terminal(t)
		_, err := typist.WriteString(answers)
		require.NoError(t, err)
		p := &prompts{asked: asked}
		var out bytes.Buffer
		code := run(t.Context(), []string{"deploy", file},
			cli.Environment{In: command, Out: &out, Err: p, Getenv: func(name string) string { return env[name] }})
		return code, p.text.String()
	}
	code, said := ask("n\n", nil)
	require.Equal(t, cli.ExitAborted, code, said)
	require.Contains(t, said, "readings · base v1 → v2")
	require.Regexp(t, `~ +daily_highest +rebuild +definition changed`, said)
	require.Contains(t, said, "Deploy readings v2? [y/N] ")
	require.Len(t, decode[[]registry.Version](t, env, "history", "readings"), 1, "nothing was started")

	// Somebody else deploys between the question and the answer, so deploy asks again.
	other := writeDAG(t, dir, "y", strings.Replace(readingsDAG, "max(celsius)", "2 + max(celsius)", 1))
	code, said = ask("y\ny\n", func(p *prompts) {
		if p.n == 1 {
			must(t, env, "deploy", other)
		}
	})
	require.Zero(t, code, said)
	require.Contains(t, said, "The DAG has changed meanwhile")
	require.Contains(t, said, "Deploy readings v3? [y/N] ")
	require.Equal(t, "v3", activeOf(t, env, "readings"))

	code, said = ask("", nil)
	require.Zero(t, code, said)
	require.NotContains(t, said, "[y/N]", "there is nothing to agree to")
}

// prompts collects what a person reads, and acts for the person when a question comes.
type prompts struct {
	text  bytes.Buffer
	n     int
	asked func(*prompts)
}

func (p *prompts) Write(b []byte) (int, error) {
	p.text.Write(b)
	if strings.Contains(string(b), "[y/N]") {
		p.n++
		if p.asked != nil {
			p.asked(p)
		}
	}
	return len(b), nil
}
