package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/dagctl/dagctl/cmd/dagctl/cli"
	"github.com/dagctl/dagctl/registry"
)

// waitingDAG publishes the output of a job that waits until somebody writes to a pipe.
const waitingDAG = `name: waiting
jobs:
` + landingJob + `  - name: copied
    operator: sql
    inputs: [{ from: { job: landing } }]
    execution_strategy: PerPartition
    config: { query: "SELECT * FROM landing" }
  - name: gated
    operator: command
    inputs: [{ from: { job: copied } }]
    execution_strategy: PerPartition
    partition_by: { time: day }
    config:
      argv:
        - /bin/sh
        - -c
        - |
          in=$(cat)
          cat PIPES/$(echo "$in" | sed 's/.*"key": *"\([^"]*\)".*/\1/') >/dev/null
          echo a,b >"$(echo "$in" | sed 's/.*"dir": *"\([^"]*\)".*/\1/')/x.csv"
publish:
  gated: { from: { job: gated } }
`

func (w *world) waiting(t *testing.T) (file, pipes string) {
	t.Helper()
	pipes = t.TempDir()
	for _, day := range []string{"2026-01-01", "2026-01-02"} {
		w.land(t, day)
		require.NoError(t, unix.Mkfifo(filepath.Join(pipes, day), 0o600))
	}
	return writeDAG(t, t.TempDir(), "x", strings.ReplaceAll(waitingDAG, "PIPES", pipes)), pipes
}

// SIGTERM ends the waiting and not the build, and the command says so.
func TestATerminatedDeployGoesOn(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	file, pipes := w.waiting(t)
	env := w.env(t, writer)
	for signal, code := range map[error]int{errTerminated: cli.ExitTerminated, errInterrupted: cli.ExitInterrupted} {
		ctx, end := context.WithCancelCause(t.Context())
		var errs firstWrite
		errs.then = func() {
			if strings.Contains(errs.String(), "is Building") {
				end(signal)
			}
		}
		require.Equal(t, code, run(ctx, []string{"deploy", file}, cli.Environment{In: strings.NewReader(""),
			Out: new(bytes.Buffer), Err: &errs, Getenv: func(name string) string { return env[name] }}), errs.String())
		require.Contains(t, errs.String(),
			"The build of waiting v1 goes on without this command: `dagctl status waiting --watch` shows it.")
		require.NotContains(t, errs.String(), "Error:")
	}

	named := must(t, env, "why", "gated")
	require.Contains(t, named, "no version of the DAG serves yet", "it is known by the name that it is to have")
	require.Contains(t, must(t, env, "tasks", "list", "--job", "waiting/landing"), "waiting/landing")
	require.Contains(t, dagctl(t, env, "tasks", "list", "--job", "waiting/gated", "--dag", "y").err, "leave --dag out")
	let(t, pipes, "2026-01-01", "2026-01-02")
	eventually(t, "it serves", func() (bool, error) {
		return strings.Contains(dagctl(t, env, "status", "waiting").out, "active v1"), nil
	})
}

// let ends the tasks that wait at the pipes of the given days, or will wait there.
func let(t *testing.T, pipes string, days ...string) {
	for _, day := range days {
		f, err := os.OpenFile(filepath.Join(pipes, day), os.O_WRONLY, 0) // opens when somebody reads
		if assert.NoError(t, err) {
			assert.NoError(t, f.Close())
		}
	}
}

// screen holds what a terminal shows. It understands the escape sequences that a redraw uses.
type screen struct {
	mu    sync.Mutex
	lines []string
	row   int
	seen  strings.Builder
}

func (s *screen) write(b []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seen.Write(b)
	text := string(b)
	for text != "" {
		for len(s.lines) <= s.row {
			s.lines = append(s.lines, "")
		}
		var up int
		switch {
		case strings.HasPrefix(text, "\x1b["):
			end := strings.IndexAny(text[2:], "AJKm") + 2
			switch text[end] {
			case 'A':
				_, _ = fmt.Sscanf(text[2:end], "%d", &up)
				s.row -= up
			case 'J':
				s.lines = s.lines[:s.row+1]
				s.lines[s.row] = ""
			}
			text = text[end+1:]
		case text[0] == '\n':
			s.row++
			text = text[1:]
		case text[0] == '\r':
			text = text[1:]
		default:
			s.lines[s.row] += text[:1]
			text = text[1:]
		}
	}
}

func (s *screen) text() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return strings.Join(s.lines, "\n")
}

func TestDeployDrawsBarsOnATerminal(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	file, pipes := w.waiting(t)
	env := w.env(t, writer)
	typist, command := terminal(t)
	require.NoError(t, unix.IoctlSetWinsize(int(command.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 30, Col: 100}))
	s := &screen{}
	go func() {
		buffer := make([]byte, 1<<16)
		for {
			n, err := typist.Read(buffer)
			if err != nil {
				return
			}
			s.write(buffer[:n])
		}
	}()
	var out bytes.Buffer
	ended := make(chan int, 1)
	go func() {
		ended <- run(t.Context(), []string{"deploy", file, "--yes"},
			cli.Environment{In: strings.NewReader(""), Out: &out, Err: command,
				Getenv: func(name string) string { return env[name] }})
	}()
	shows := func(what, pattern string) {
		t.Helper()
		wanted := regexp.MustCompile(pattern)
		require.Eventually(t, func() bool {
			return wanted.MatchString(s.text())
		}, 30*time.Second, 20*time.Millisecond, "%s\n%s", what, pattern)
	}
	shows("what is done, and what is at work",
		`(?s)waiting v1 is Building: .*\nlanding +\[#{20}\] +2/2.*\ncopied +\[#{20}\] +2/2.*\ngated +\[\.{20}\] +0/2`)
	require.NotContains(t, s.text(), "\nCritical", "no task of gated has ever ended")
	let(t, pipes, "2026-01-01")
	shows("half of it", `\ngated +\[#{10}\.{10}\] +1/2 +0\.\d/s +~\d+s|\ngated +\[#{10}\.{10}\] +1/2 +\d\.\d/s +<1s`)
	shows("what is left", `\nCritical path (<1s|~\d+m?s?) left \(gated\)`)
	require.Equal(t, 1, strings.Count(s.text(), "waiting v1 is Building"), "it is redrawn in place")
	let(t, pipes, "2026-01-02")
	require.Zero(t, <-ended, s.text())
	require.Contains(t, out.String(), "is Active")
	shows("nothing is left behind", `(?s)^Target [^\n]*\n.*Live data is untouched until cutover\.\n*$`)
}

func TestStatusWatchesABuild(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	file, pipes := w.waiting(t)
	env := w.env(t, writer)
	must(t, env, "deploy", file, "--wait=false")
	running := regexp.MustCompile(`\ngated +command +\w+ +0 +2 `) // landing's two run before
	eventually(t, "both tasks of gated run", func() (bool, error) {
		return running.MatchString(must(t, env, "status", "waiting")), nil
	})
	require.Regexp(t, `waiting v1 is Building: .*\nlanding +\[#{20}\] +2/2(.*\n)+gated +\[\.{20}\] +0/2`,
		must(t, env, "status", "waiting"))
	let(t, pipes, "2026-01-01", "2026-01-02")
}

func TestDeployTellsEvents(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	file, pipes := w.waiting(t)
	env := w.env(t, writer)
	go let(t, pipes, "2026-01-01", "2026-01-02")
	r := dagctl(t, env, "deploy", file)
	require.Zero(t, r.code, r.err)
	require.Contains(t, r.err, "\nwaiting v1 is Building\n")
	require.Regexp(t, `\nwaiting v1 gated: 2/2 .*\n|\nwaiting v1 is Active`, r.err)
	require.NotContains(t, r.err, "\x1b")

	file = writeDAG(t, t.TempDir(), "x", strings.ReplaceAll(strings.Replace(waitingDAG, "SELECT *", "SELECT station",
		1), "PIPES", pipes))
	go let(t, pipes, "2026-01-01", "2026-01-02")
	r = dagctl(t, env, "deploy", file, "--output", "json")
	require.Zero(t, r.code, r.err)
	var deployed registry.Deployment
	require.NoError(t, json.Unmarshal([]byte(r.out), &deployed))
	require.Equal(t, registry.Active, deployed.Version.Status)
	type event struct {
		Event  string          `json:"event"`
		Status registry.Status `json:"status"`
	}
	var events []event
	for line := range strings.Lines(r.err) {
		if !strings.HasPrefix(line, "{") {
			require.Regexp(t, "^Target ", line)
			continue
		}
		var e event
		require.NoError(t, json.Unmarshal([]byte(line), &e), line)
		events = append(events, e)
	}
	require.Equal(t, "status", events[0].Event)
	require.Equal(t, registry.Building, events[0].Status)
	require.Equal(t, registry.Active, events[len(events)-1].Status)
}
