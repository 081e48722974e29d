package operators_test

import (
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/secret"
	"github.com/dagctl/dagctl/operators"
)

const hidden = "Zq7/kP+x9=Wm&t\"u'‹é>%Rv"

// told collects the lines of a task's log, as they are stored.
type told struct {
	mu    sync.Mutex
	lines []string
}

func (l *told) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lines = append(l.lines, string(p))
	return len(p), nil
}

// runSecretly runs a Python program that has the secret as v, and returns its log and its outcome.
func runSecretly(t *testing.T, value, program string) ([]string, operators.Outcome) {
	t.Helper()
	w, log := newWorld(t), &told{}
	w.KeepLog = func(_ *slog.Logger, _, _ uuid.UUID, _ int, redact func(string) string) (*slog.Logger, func()) {
		return slog.New(slog.NewTextHandler(log, nil)), func() {}
	}
	a := assignment("command", map[string]any{
		"argv": []any{"python3", "-c",
			"import os, sys, json\nv = os.environ['V']\nout = sys.stderr.buffer\n" + program},
		"env": map[string]any{"V": map[string]any{"secret": "SK"}}})
	a.Secrets = map[string]secret.Value{"SK": secret.New("SK", value, nil).Granted()}
	out := w.run(t, a)
	return log.lines, out
}

// However a program's output falls into writes, lines, entries of the log and the tail in an error, no piece of a
// secret is in it. The log here redacts nothing itself.
func TestNoPieceOfASecretIsPrinted(t *testing.T) {
	t.Parallel()
	for name, program := range map[string]string{
		"over two entries": "out.write(b'y'*(65536-10)+v.encode()+b'\\n')",
		"at an entry":      "out.write(b'y'*16374+v.encode()+b'\\n')",
		"over writes":      "for c in v.encode():\n  out.write(bytes([c])); out.flush()\nout.write(b'\\n')",
		"NUL":              "out.write((v[:5]+'\\0'+v[5:]+'\\n').encode())",
		"CR":               "out.write((v[:7]+'\\r'+v[7:]+'\\n').encode())",
		"UTF-16":           "out.write(v.encode('utf-16-le')+b'\\n')",
		"no line":          "out.write(v.encode())",
		"on stdout":        "sys.stdout.write('y'*16374+v+'\\n')",
	} {
		lines, out := runSecretly(t, hidden, program)
		require.NoError(t, out.Err, name)
		all := strings.Join(lines, "")
		require.Contains(t, strings.Join(strings.Fields(all), ""), "secret]", name)
		for _, piece := range []string{"Zq7/", "P+x9", "Wm&t", "%Rv", "Wm\\u"} {
			require.NotContains(t, all, piece, name)
		}
	}
}

func TestTheEndOfStderrHasNoPieceOfASecret(t *testing.T) {
	t.Parallel()
	for _, n := range []int{8166, 8171, 8175, 8180, 8192} {
		program := fmt.Sprintf("out.write(b'X'*50+v.encode()+b'\\n'+b'z'*%d)\nout.flush()\nsys.exit(65)", n)
		_, out := runSecretly(t, hidden, program)
		require.ErrorContains(t, out.Err, "exit status 65\n")
		require.NotContains(t, out.Err.Error(), "Wm&t", "%d", n)
		require.NotContains(t, out.Err.Error(), "%Rv", "%d", n)
		require.False(t, out.Retryable)
	}
}

func TestASecretOfSeveralLinesIsNotPrinted(t *testing.T) {
	t.Parallel()
	lines, out := runSecretly(t, "the first\nxyz\nthe third", "out.write(b'a\\n'); out.flush()\n"+
		"for line in v.split('\\n'):\n  out.write(line.encode()+b'\\r\\n'); out.flush()\nout.write(b'b\\n')")
	require.NoError(t, out.Err)
	all := strings.Join(lines, "")
	for _, piece := range []string{"first", "xyz", "third"} {
		require.NotContains(t, all, piece)
	}
	require.Contains(t, all, "msg=a\n")
	require.Contains(t, all, "msg=b\n")
}

// A payload with a secret would be shown to all who see that task, so the run fails, once and for all.
func TestATaskWithASecretIsRefused(t *testing.T) {
	t.Parallel()
	for _, field := range []string{`'payload': {'a': ['x' + v]}`, `'metadata': {v: 1}`, `'idempotency_key': v`} {
		_, out := runSecretly(t, hidden, "print(json.dumps({'tasks': [{'job': 'other', "+field+"}]}))")
		require.True(t, fault.Is(out.Err, fault.Invalid), "%s: %v", field, out.Err)
		require.ErrorContains(t, out.Err, "tasks[0]."+strings.Split(field, "'")[1]+" holds a value of a secret")
		require.False(t, out.Retryable)
		require.NotContains(t, out.Err.Error(), hidden)
	}
}
