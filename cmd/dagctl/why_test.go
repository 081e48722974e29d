package main

import (
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/cmd/dagctl/cli"
	"github.com/dagctl/dagctl/dispatcher"
	"github.com/dagctl/dagctl/dispatcher/why"
)

func TestWhy(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.deployReadings(t, "2026-01-01")
	env := w.env(t, writer)

	require.Contains(t, must(t, env, "why", "daily_highest"), "└─ readings/daily: it is up to date with its inputs")
	require.Contains(t, must(t, env, "why-not", "daily_highest", "2026-01-01"),
		"├─ readings/daily 2026-01-01: it has been published since 20")
	tree := must(t, env, "why-not", "daily_highest", "2026-02-03")
	lines := strings.Split(strings.TrimSpace(tree), "\n")
	require.Equal(t, "daily_highest 2026-02-03", lines[0])
	require.Equal(t, "└─ readings/daily 2026-02-03: it waits for all of its inputs", lines[1])
	require.Equal(t, "   └─ readings/landing/0 lacks 2026-02-03", lines[2])
	require.Contains(t, lines[3], "      ├─ readings/landing: the source was read at 20")
	require.Contains(t, lines[4], "      └─ readings/landing: the source fires next at 20")
	require.Contains(t, must(t, env, "why", "readings/note"),
		"└─ readings/note: the source runs when somebody asks for it")

	// A waiting task, by its id, for programs.
	must(t, env, "pause", "readings/note", "--reason", "the house is empty")
	made := decode[[]dispatcher.Enqueued](t, env, "run", "readings/note", "--payload", `{"text": "hello"}`)
	why := decode[why.Why](t, env, "why", made[0].ID.String())
	require.Equal(t, "Queued", why.State)
	require.Equal(t, "paused", string(why.Reasons[0].Code))
	require.Equal(t, "the house is empty", why.Reasons[0].Detail)
	require.Contains(t, must(t, env, "why", made[0].ID.String(), "--output", "yaml"), "code: paused")
	require.Contains(t, text(w.page(t, writer, "/tasks/"+made[0].ID.String())), "it is paused by token:writer")
	require.NotContains(t, text(w.page(t, reader, "/datasets/daily_highest")), "it is up to date with its inputs",
		"a page explains only what is behind")

	// The answer names nothing that the reader may not see.
	seen := must(t, w.env(t, reader), "why-not", "daily_highest", "2026-02-03")
	require.Contains(t, seen, "an input that you may not see has nothing that it needs")
	require.NotContains(t, seen, "landing")
	seen = must(t, w.env(t, reader), "why", made[0].ID.String())
	require.Contains(t, seen, "a task that you may not see: it is paused by token:writer")
	for _, args := range [][]string{{"why-not", "readings/landing/0", "2026-01-01"}, {"why", "readings/landing/0"}} {
		r := dagctl(t, w.env(t, reader), args...)
		require.Equal(t, cli.ExitFailed, r.code)
		require.Contains(t, r.err, "there is no dataset")
	}
	r := dagctl(t, env, "why", "daily_highest@")
	require.Equal(t, cli.ExitFailed, r.code)
	require.Contains(t, r.err, "no partition of daily_highest is named")
	require.Contains(t, r.err, "`dagctl datasets partitions daily_highest` lists them")
	for _, args := range [][]string{{"why", "nothing"}, {"why", "readings/nothing"}, {"why", "nothing/nothing"},
		{"why", "01a1fd91-0000-7000-8000-000000000000"}, {"why-not", "daily_highest", "yesterday"}} {
		r := dagctl(t, env, args...)
		require.Equal(t, cli.ExitFailed, r.code, "%v\n%s%s", args, r.out, r.err)
		require.NotEmpty(t, r.err)
	}
	status, _ := w.send(t, writer, http.MethodGet, "/v1/datasets/daily_highest/partitions/yesterday/why-not", "", nil)
	require.Equal(t, http.StatusUnprocessableEntity, status)
}
