package main

import (
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/cmd/dagctl/cli"
	"github.com/dagctl/dagctl/dispatcher/control"
	"github.com/dagctl/dagctl/dispatcher/views"
)

const failingDAG = `name: mails
jobs:
  - name: send
    operator: command
    source: { kind: manual }
    outputs: 0
    max_attempts: 1
    config: { argv: [/bin/sh, -c, "grep -q good && exit 0; echo mailbox $$ is full >&2; exit 65"] }
`

// deadMails deploys failingDAG and waits for n dead tasks.
func (w *world) deadMails(t *testing.T, n int) map[string]string {
	t.Helper()
	env := w.env(t, writer)
	must(t, env, "deploy", writeDAG(t, t.TempDir(), "x", failingDAG))
	for range n {
		must(t, env, "run", "mails/send", "--payload", `{"to": "bad"}`)
	}
	eventually(t, "all are dead", func() (bool, error) {
		return len(decode[[]views.Task](t, env, "tasks", "list", "--dead")) == n, nil
	})
	return env
}

func TestBulkVerbsOnTheCommandLine(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	env := w.deadMails(t, 3)
	groups := decode[[]views.ErrorGroup](t, env, "tasks", "list", "--dead", "--group-by", "error")
	require.Len(t, groups, 1)
	require.Equal(t, int64(3), groups[0].Count)
	require.Regexp(t, `mailbox \d+ is full`, groups[0].Error)
	require.Regexp(t, `mailbox \d+ is full`, must(t, env, "tasks", "list", "--dead", "--group-by", "error"))
	require.Contains(t, dagctl(t, env, "tasks", "list", "--group-by", "age").err, "grouped by error")

	require.Equal(t, "3 tasks to retry.\n", must(t, env, "tasks", "retry", "--error-group", groups[0].Group,
		"--dry-run"))
	r := dagctl(t, env, "tasks", "retry", "--dead")
	require.Equal(t, cli.ExitFailed, r.code)
	require.Contains(t, r.err, "pass --yes")
	for args, want := range map[string]string{
		"tasks retry":                        "no tasks are selected",
		"tasks retry x --dead --yes":         `"x" is not the id of a task`,
		"tasks retry --dead --rate fast":     "is not a rate",
		"tasks list --created-after morning": "neither a date nor a time",
		"tasks skip --dead --yes":            "reason",
	} {
		r := dagctl(t, env, strings.Fields(args)...)
		require.NotZero(t, r.code, args)
		require.Contains(t, r.err, want, args)
	}
	require.NotZero(t, dagctl(t, w.env(t, reader), "tasks", "retry", "--dead", "--yes").code)

	b := decode[control.BulkAction](t, env, "tasks", "retry", "--dag", "mails", "--dead", "--rate", "2/s", "--yes")
	require.Equal(t, []int64{3, 3}, []int64{b.Matched, b.Done})
	require.Equal(t, "Completed", b.Status)
	eventually(t, "all are dead again", func() (bool, error) {
		return len(decode[[]views.Task](t, env, "tasks", "list", "--dead")) == 3, nil
	})
	require.Contains(t, must(t, env, "tasks", "skip", "--dead", "--reason", "lost", "--yes"), "Completed")
	require.Empty(t, decode[[]views.Task](t, env, "tasks", "list", "--dead"))
	require.Len(t, decode[[]control.BulkAction](t, env, "tasks", "bulk", "list"), 2)
	require.Equal(t, cli.ExitConflict, dagctl(t, env, "tasks", "bulk", "cancel", b.ID.String()).code)
}

func TestVerbsNeedTheStateThatWasLookedAt(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	env := w.deadMails(t, 1)
	id := w.tasks(t)[0].ID.String()
	act := func(ifMatch string) *http.Response {
		t.Helper()
		request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, w.url+"/v1/tasks/"+id+":retry", nil)
		require.NoError(t, err)
		request.Header.Set("Authorization", "Bearer "+w.tokens[writer])
		request.Header.Set("If-Match", ifMatch)
		response, err := http.DefaultClient.Do(request)
		require.NoError(t, err)
		require.NoError(t, response.Body.Close())
		return response
	}
	require.Equal(t, http.StatusPreconditionFailed, act(`"0"`).StatusCode)
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, w.url+"/v1/tasks/"+id, nil)
	require.NoError(t, err)
	request.Header.Set("Authorization", "Bearer "+w.tokens[writer])
	seen, err := http.DefaultClient.Do(request)
	require.NoError(t, err)
	require.NoError(t, seen.Body.Close())
	require.NotEmpty(t, seen.Header.Get("ETag"))
	done := act(seen.Header.Get("ETag"))
	require.Equal(t, http.StatusOK, done.StatusCode)
	require.NotEqual(t, seen.Header.Get("ETag"), done.Header.Get("ETag"))
	require.NotZero(t, dagctl(t, env, "tasks", "cancel", id, "--if-match", "0").code)
}

func TestDeadLettersPage(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.deadMails(t, 2)
	page := w.page(t, writer, "/dead")
	require.Regexp(t, `mailbox \d+ is full`, text(page))
	require.Empty(t, all(w.page(t, reader, "/dead"), "table"), "a reader may not read what a job without datasets says")
	group := ""
	for _, a := range withClass(page, "a", "button") {
		if address, err := url.Parse(attribute(a, "href")); err == nil {
			group = address.Query().Get("error_group")
		}
	}
	for _, verb := range []string{"retry", "skip"} {
		asked := w.page(t, writer, "/dead/"+verb+"?error_group="+group)
		requireAccessible(t, asked, "/dead/"+verb)
		require.Contains(t, text(all(asked, "h1")[0]), "2 dead tasks?", "it says how many first")
	}
	send := func(caller, path string, form url.Values) int {
		status, _ := w.send(t, caller, http.MethodPost, path, "application/x-www-form-urlencoded",
			strings.NewReader(form.Encode()))
		return status
	}
	require.Equal(t, http.StatusForbidden, send(reader, "/dead/skip", url.Values{"error_group": {group},
		"reason": {"x"}}))
	require.NotEqual(t, http.StatusSeeOther, send(writer, "/dead/skip", url.Values{"error_group": {group}}),
		"without a reason")
	require.NotEqual(t, http.StatusSeeOther, send(writer, "/dead/retry", url.Values{}), "without a group")
	require.NotEqual(t, http.StatusSeeOther, send(writer, "/dead/retry", url.Values{"error_group": {group},
		"matched": {"0"}}), "the page had named fewer tasks")
	require.Equal(t, http.StatusSeeOther, send(writer, "/dead/retry", url.Values{"error_group": {group},
		"matched": {"100"}}))
	eventually(t, "they have died again", func() (bool, error) {
		return len(decode[[]views.Task](t, w.env(t, writer), "tasks", "list", "--dead")) == 2, nil
	})
	require.Equal(t, http.StatusSeeOther, send(writer, "/dead/skip", url.Values{"error_group": {group},
		"matched": {"100"}, "reason": {"x"}}))
	require.Contains(t, text(w.page(t, writer, "/dead")), "Nothing is dead.")
}

// What only the API would refuse is said in the words of the command line.
func TestArgumentsAreRefusedInTheWordsOfTheCommand(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for want, commands := range map[string][][]string{
		`"zz" is not the id of a task`: {{"tasks", "get", "zz"}, {"tasks", "events", "zz"}, {"tasks", "logs", "zz"},
			{"tasks", "retry", "zz"}, {"tasks", "cancel", "zz", "--if-match", "1"}},
		"--limit -4 is not between 1 and 1000": {{"datasets", "preview", "x", "--limit", "-4"}},
		"--offset -1 is negative":              {{"datasets", "preview", "x", "--offset", "-1"}},
		"--limit -4 shows nothing": {{"tasks", "list", "--limit", "-4"},
			{"datasets", "list", "--limit", "-4"}},
		"--attempt -1 is negative": {{"tasks", "logs", "zz", "--attempt", "-1"}},
	} {
		for _, command := range commands {
			said := dagctl(t, w.env(t, writer), command...)
			require.Equal(t, cli.ExitFailed, said.code, command)
			require.Contains(t, said.err, want, command)
			require.NotContains(t, said.err, "validation", command)
		}
	}
}

// An empty list of a DAG that does not exist would hide a typing error.
func TestListsOfADAGThatDoesNotExist(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.deployReadings(t, "2026-01-01")
	for _, command := range [][]string{{"tasks", "list"}, {"datasets", "list"}, {"timers", "list"}} {
		said := dagctl(t, w.env(t, reader), append(command, "--dag", "raedings")...)
		require.Equal(t, cli.ExitFailed, said.code, command)
		require.Contains(t, said.err, "there is no DAG raedings\nNext: did you mean readings?\n", command)
	}
	require.Equal(t, "[]\n", must(t, w.env(t, reader), "timers", "list", "--dag", "readings", "-o", "json"))
}
