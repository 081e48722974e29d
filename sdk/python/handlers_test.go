package python_test

import (
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/dispatcher/views"
)

// Manual jobs, whose tasks have payloads.
const mailDAG = `name: mail
defaults: { runtime: python, retry: { initial_seconds: 1, max_seconds: 1 } }
jobs:
  - name: send
    operator: handler
    source: { kind: manual }
    outputs: 0
    enqueues: [send]
    config: { handler: "email:send" }
  - name: count
    operator: handler
    source: { kind: manual }
    outputs: 0
    config: { handler: "email:count" }
  - name: secret
    operator: handler
    source: { kind: manual }
    outputs: 0
    config: { handler: "email:secret", key: { secret: smtp } }
  - name: leak
    operator: handler
    source: { kind: manual }
    outputs: 0
    max_attempts: 1
    config: { handler: "email:leak", key: { secret: smtp } }
  - name: wrong
    operator: handler
    source: { kind: manual }
    outputs: 0
    config: { handler: "email:wrong" }
  - name: bounced
    operator: handler
    source: { kind: manual }
    outputs: [bounced]
    config: { handler: "email:bounced" }
publish:
  bounced: { from: { job: bounced, output: bounced } }
`

func TestHandlers(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	secret := w.command(t, "secrets", "set", "smtp")
	secret.Stdin = strings.NewReader("hunter2")
	require.NoError(t, secret.Run())

	for _, name := range []string{"secret", "leak"} {
		job := dag.Job{Operator: dag.Handler, Runtime: "python", Config: dag.Config{"handler": "email:" + name,
			"key": map[string]any{"secret": "smtp"}}}
		w.must(t, "secrets", "bind", "smtp", "--program", "mail/"+name+"@"+job.Program())
	}
	w.serve(t, mailDAG)
	w.worker(t, "mail.py")

	for _, test := range []struct {
		name, job, payload, status string
		attempt                    int
		result, fault              string
	}{
		{"a result", "send", `{"to": "ada"}`, "Completed", 1, `{"to": "ada", "attempt": 1}`, ""},
		{"a failure that may pass", "send", `{"to": "later"}`, "Completed", 2, `{"to": "later", "attempt": 2}`, ""},
		{"a failure that will not", "send", `{"to": "nobody"}`, "Failed", 1, "", "there is no nobody"},
		{"a payload of another type", "send", `{"to": 5}`, "Failed", 1, "", "payload.to is a number, not a string"},
		{"a secret", "secret", `{}`, "Completed", 1, `{"length": 7}`, ""},
		{"a job that it may not enqueue", "wrong", `{}`, "Completed", 1, `{"status": 422}`, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			task := w.ended(t, w.run(t, "mail/"+test.job, test.payload), test.status)
			require.Equal(t, test.attempt, task.Attempt)
			require.Contains(t, task.Error, test.fault)
			if test.result != "" {
				require.Subset(t, decoded(t, task.Result), decoded(t, []byte(test.result)), "%s", task.Result)
			}
		})
	}

	t.Run("an output that has columns and never had a row", func(t *testing.T) {
		t.Parallel()
		w.ended(t, w.run(t, "mail/bounced", `{}`), "Completed")
		require.Equal(t, "address,\"a reason, or none\"\n", w.must(t, "datasets", "preview", "bounced", "-o", "csv"))
	})

	t.Run("where it failed", func(t *testing.T) {
		t.Parallel()
		id := w.run(t, "mail/leak", `{}`)
		task := w.ended(t, id, "Failed")
		frames := regexp.MustCompile(`^ConnectionError: smtp://ada:\S+@mail\.example\.com refused
Traceback of the handler \(most recent call last\):
  File "\S+mail\.py", line \d+, in leak
    login\(ctx\.secrets\["smtp"\]\)
(?: +[~^]+
)?  File "\S+mail\.py", line \d+, in login
    raise ConnectionError\(f"[^\n]+"\)$`)
		require.Regexp(t, frames, task.Error)

		shown := w.must(t, "tasks", "get", id)
		require.Regexp(t, `(?m)^Error +ConnectionError: smtp://ada:\S+ refused
               Traceback of the handler \(most recent call last\):
                 File "\S+mail\.py", line \d+, in leak$`, shown)
		require.Regexp(t, `(?m)^ +1 +\S+ .* ConnectionError: smtp://ada:\S+ refused *$`, shown, "lists have its first line")

		log, why := w.must(t, "tasks", "logs", id), w.must(t, "why", id)
		require.Regexp(t, `(?m)^.*Traceback of the handler[^\n]*\n.*mail\.py", line \d+, in leak$`, log)
		require.Regexp(t, `(?m)^└─ mail/leak: it failed.*: ConnectionError: smtp://ada:\S+ refused.*
   Traceback of the handler \(most recent call last\):
     File "\S+mail\.py", line \d+, in leak$`, why)
		for _, text := range []string{task.Error, shown, log, why} {
			require.NotContains(t, text, "hunter2")
		}
	})

	t.Run("tasks of a task", func(t *testing.T) {
		t.Parallel()
		w.ended(t, w.run(t, "mail/send", `{"to": "ada", "copies": ["bob", "cyd", "bob"]}`), "Completed")
		var tasks []views.Task
		w.decode(t, &tasks, "tasks", "list", "--job", "send")
		copies := 0
		for _, task := range tasks {
			if task.DedupeKey != "" && w.task(t, task.ID.String()).DedupeKey != "" {
				copies++
				w.ended(t, task.ID.String(), "Completed")
			}
		}
		require.Equal(t, 2, copies, "the same key twice is one task")
	})

	t.Run("state goes from task to task", func(t *testing.T) {
		t.Parallel()
		for _, want := range []string{`{"seen": 1}`, `{"seen": 2}`} {
			require.JSONEq(t, want, string(w.ended(t, w.run(t, "mail/count", `{}`), "Completed").Result))
		}
	})
}
