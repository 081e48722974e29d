package python_test

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/internal/rest"
	"github.com/dagctl/dagctl/query"
	"github.com/dagctl/dagctl/worker/protocol"
)

// block is a fenced block of a page: what follows the fence on its first line, and what is inside.
type block struct{ info, text string }

var fenced = regexp.MustCompile("(?ms)^```([^\n]+)\n(.*?)^```$")

func blocks(t *testing.T, page string) []block {
	t.Helper()
	text, err := os.ReadFile(page)
	require.NoError(t, err)
	var found []block
	for _, match := range fenced.FindAllStringSubmatch(string(text), -1) {
		found = append(found, block{match[1], match[2]})
	}
	require.NotEmpty(t, found, page)
	return found
}

// The protocol's examples have the fields of the protocol and no others.
func TestExamplesOfTheProtocol(t *testing.T) {
	t.Parallel()
	shapes := map[string][2]func() any{
		"POST /internal/task-poll":        {as[protocol.PollRequest], as[protocol.PollResponse]},
		"POST /internal/task-claim":       {as[protocol.ClaimRequest], as[protocol.Claim]},
		"POST /internal/worker-heartbeat": {as[protocol.WorkerHeartbeat], as[protocol.WorkerOrders]},
		"POST /v1/task/heartbeat":         {as[protocol.Heartbeat], as[protocol.HeartbeatAnswer]},
		"POST /v1/task/events":            {as[protocol.Events], as[protocol.EventsAnswer]},
		"POST /v1/task/logs":              {as[protocol.Logs], as[protocol.LogsAnswer]},
		"POST /v1/task/complete":          {as[protocol.Completion], as[protocol.TaskState]},
		"POST /v1/tasks/complete": {as[protocol.Many[protocol.Completion]],
			as[manyAnswers[protocol.TaskState]]},
		"POST /v1/tasks/heartbeat": {as[protocol.Many[protocol.Heartbeat]],
			as[manyAnswers[protocol.HeartbeatAnswer]]},
	}

	asked, seen := "", map[string]bool{}
	for _, b := range blocks(t, "../../docs/workers.md") {
		name, isJSON := bytes.CutPrefix([]byte(b.info), []byte("json "))
		if !isJSON {
			continue
		}
		side := 1
		if string(name) != "answer" {
			asked, side = string(name), 0
		}
		shape, known := shapes[asked]
		require.True(t, known, asked)
		decoder := json.NewDecoder(bytes.NewReader([]byte(b.text)))
		decoder.DisallowUnknownFields()
		require.NoError(t, decoder.Decode(shape[side]()), "%s\n%s", b.info, b.text)
		seen[asked] = true
	}
	require.Len(t, seen, len(shapes))
}

// manyAnswers answer the calls for many attempts.
type manyAnswers[A any] struct {
	Answers []struct {
		Status  int
		Answer  *A
		Problem *rest.Problem
	}
}

func as[T any]() any { return new(T) }

// programs are the examples of a page in Python, each with the DAG that stands before it, if one does.
type program struct{ dag, text string }

func programs(t *testing.T, page string) []program {
	t.Helper()
	var found []program
	dag := ""
	for _, b := range blocks(t, page) {
		switch b.info {
		case "yaml":
			dag = b.text
		case "python":
			found = append(found, program{dag, b.text})
			dag = ""
		}
	}
	return found
}

// What pages show in Python runs as it stands.
func TestExamplesOfThePages(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	exampleWith := func(t *testing.T, python string, p program) {
		t.Helper()
		file := filepath.Join(t.TempDir(), "worker.py")
		require.NoError(t, os.WriteFile(file, []byte(p.text), 0o600))
		w.workerOf(t, python, file)
	}
	example := func(t *testing.T, p program) {
		t.Helper()
		exampleWith(t, "python3", p)
	}

	shown := programs(t, "../../docs/workers.md")
	require.Len(t, shown, 5, "run new ones here, too")

	t.Run("mail", func(t *testing.T) {
		t.Parallel()
		w.serve(t, shown[0].dag)
		example(t, shown[0])
		id := w.run(t, "mail/send", `{"to": "ada", "copies": ["bob"]}`)
		require.JSONEq(t, `{"sent": "ada"}`, string(w.ended(t, id, "Completed").Result))
	})

	t.Run("rows", func(t *testing.T) {
		t.Parallel()
		w.land(t, "orders/2026-01-01.csv", "id,amount\n1,2.5\n2,-1\n3,4\n")
		w.land(t, "orders/2026-01-02.csv", "id,amount\n4,1\n")
		example(t, shown[1])
		w.serve(t, shown[1].dag)
		require.Equal(t, [][]any{{1.0, 2.5, "EUR"}, {3.0, 4.0, "EUR"}}, w.rows(t, "priced", "2026-01-01"))
		require.Equal(t, [][]any{{4.0, 1.0, "EUR"}}, w.rows(t, "priced", "2026-01-02"))
		require.Equal(t, [][]any{{2.0, "negative"}}, w.rows(t, "refused", "2026-01-01"))
		require.Empty(t, w.rows(t, "refused", "2026-01-02"))
	})

	t.Run("frames", func(t *testing.T) {
		t.Parallel()
		w.land(t, "entries/1.csv", "account,amount\nrent,-800.10\nsalary,3000\nrent,0.10\n")
		exampleWith(t, pythonWith(t, "pandas"), shown[2])
		w.serve(t, shown[2].dag)
		require.Equal(t, [][]any{{"rent", "-800.00"}, {"salary", "3000.00"}}, w.rows(t, "balances", ""))
	})

	t.Run("the first one", func(t *testing.T) {
		t.Parallel()
		p := programs(t, "README.md")
		require.Len(t, p, 1)
		require.Less(t, len(regexp.MustCompile(`(?m)^.*\S`).FindAllString(p[0].text, -1)), 7, "it is a short one")
		w.serve(t, "name: greetings\njobs:\n  - { name: greet, runtime: python, operator: handler, source: { kind: "+
			"manual }, config: { handler: greet } }\n"+
			"publish:\n  greetings: { from: { job: greet } }\n")
		example(t, p[0])
		w.ended(t, w.run(t, "greetings/greet", `{"name": "Ada"}`), "Completed")
		require.Equal(t, [][]any{{"Hello Ada"}}, w.rows(t, "greetings", ""))
	})
}

// land puts a file where file sources find it.
func (w *world) land(t *testing.T, name, text string) {
	t.Helper()
	file := filepath.Join(w.files, name)
	require.NoError(t, os.MkdirAll(filepath.Dir(file), 0o700))
	require.NoError(t, os.WriteFile(file+".new", []byte(text), 0o600))
	require.NoError(t, os.Rename(file+".new", file))
}

// rows reads a partition of a dataset, ordered.
func (w *world) rows(t *testing.T, dataset, partition string) [][]any {
	t.Helper()
	args := []string{"datasets", "preview", dataset}
	if partition != "" {
		args = append(args, "--partition", partition)
	}
	var found query.Rows
	w.decode(t, &found, args...)
	slices.SortFunc(found.Rows, func(a, b []any) int { return cmp.Compare(fmt.Sprint(a), fmt.Sprint(b)) })
	return found.Rows
}
