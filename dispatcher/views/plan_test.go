package views_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/dispatcher/dispatchertest"
	"github.com/dagctl/dagctl/operators"
	"github.com/dagctl/dagctl/registry"
)

// monthSums reads letters_made of Upkept, and makes a partition a month of it.
var monthSums = dispatchertest.Edit(dispatchertest.WordsDAG, "name: words", "name: months", "  words:", "  sums:",
	"letters_made }", "letters_made }, map: { window: month, require: available }", "time: day", "time: month")

// A plan says what a change costs in other DAGs: which columns their jobs read, and which of their partitions they
// will compute again.
func TestAPlanSaysWhatOtherDAGsCompute(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	for _, day := range []string{"2024-01-01", "2024-01-02", "2024-02-01"} {
		w.Probe.Put("raw", day, day)
	}
	for _, yaml := range []string{dispatchertest.Upkept, dispatchertest.WordsDAG, monthSums} {
		w.Serve(yaml)
	}
	ask := func(caller authz.Caller, yaml string) registry.Change {
		t.Helper()
		p, err := w.D.Views.Plan(t.Context(), caller, "letters", registry.DeployRequest{YAML: yaml})
		require.NoError(t, err)
		for _, c := range p.Changes {
			if c.Dataset == "letters_made" {
				return c
			}
		}
		require.Fail(t, "letters_made is not in the plan")
		return registry.Change{}
	}

	made := ask(w.Caller, dispatchertest.Tagged("n"))
	require.Equal(t, []string{"months/spelled", "words/spelled"}, made.Consumers)
	require.Len(t, made.ConsumerCosts, 2)
	for i, want := range []struct {
		job        string
		partitions int
	}{{"months/spelled", 2}, {"words/spelled", 3}} {
		cost := made.ConsumerCosts[i]
		require.Equal(t, want.job, cost.Job)
		require.Equal(t, []string{"*"}, cost.Columns)
		require.Equal(t, want.partitions, *cost.Partitions)
		require.Positive(t, cost.Bytes)
		require.Positive(t, cost.Seconds)
	}

	// What stays as it is costs nobody anything.
	described := dispatchertest.Edit(dispatchertest.Upkept, "letters_made: { from", "letters_made: { owner: me, from")
	for _, cost := range ask(w.Caller, described).ConsumerCosts {
		require.Zero(t, *cost.Partitions)
		require.Zero(t, cost.Bytes+int64(cost.Seconds))
	}

	// A job whose dataset is hidden from the caller is no part of their plan.
	w.Exec(`UPDATE datasets SET read_roles = '{finance}' WHERE name = 'words'`)
	writer := w.Caller
	writer.Role = authz.RoleWriter
	made = ask(writer, dispatchertest.Tagged("n"))
	require.Equal(t, []string{"months/spelled"}, made.Consumers)
	require.Len(t, made.ConsumerCosts, 1)
	require.Len(t, ask(w.Caller, dispatchertest.Tagged("n")).ConsumerCosts, 2)
}

// A forward-only deploy costs other DAGs only what it computes, and by column only those that are named.
func TestAPlanSaysWhichColumnsOtherDAGsRead(t *testing.T) {
	t.Parallel()
	w := dispatchertest.LettersWorld(t)
	w.Serve(dispatchertest.Letters)
	w.Serve(`
name: words
jobs:
  - name: spelled
    operator: sql
    inputs: [{ from: { dataset: letters_upper } }]
    config: { query: "SELECT content || '!' AS said FROM letters_upper" }
publish:
  words: { from: { job: spelled } }
`)
	p, err := w.D.Views.Plan(t.Context(), w.Caller, "letters", registry.DeployRequest{YAML: dispatchertest.Edit(
		dispatchertest.Letters, "SELECT upper(content) AS content", "SELECT upper(content) || '?' AS content")})
	require.NoError(t, err)
	var costs []registry.ConsumerCost
	for _, c := range p.Changes {
		costs = append(costs, c.ConsumerCosts...)
	}
	require.Len(t, costs, 1)
	require.Equal(t, "words/spelled", costs[0].Job)
	require.Equal(t, []string{"content"}, costs[0].Columns)
	require.Equal(t, 2, *costs[0].Partitions)
}

// A consumer that was never filled has nothing to compute again: the plan says how much it will make.
func TestAPlanForetellsWhatAConsumerMakesFirst(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Serve(dispatchertest.Upkept)
	w.Serve(dispatchertest.WordsDAG)
	_, err := w.D.Control.Pause(t.Context(), w.Caller, "words", "", "not yet", time.Now())
	require.NoError(t, err)
	w.Probe.Put("raw", "2024-01-01", "a")
	w.Probe.Put("raw", "2024-01-02", "b")
	w.Poll()
	w.Settle()

	p, err := w.D.Views.Plan(t.Context(), w.Caller, "letters", registry.DeployRequest{YAML: dispatchertest.Tagged("n")})
	require.NoError(t, err)
	for _, c := range p.Changes {
		if c.Dataset == "letters_made" {
			require.Len(t, c.ConsumerCosts, 1)
			require.Equal(t, 2, *c.ConsumerCosts[0].Partitions)
		}
	}
}

// The plan of a document that was deployed before, and failed, says so.
func TestAPlanSaysThatAVersionHasFailed(t *testing.T) {
	t.Parallel()
	w := dispatchertest.PairWorld(t)
	w.Probe.On("made", func(context.Context, *operators.Task) (operators.Result, error) {
		return operators.Result{}, operators.Permanent(errors.New("never"))
	})
	next := dispatchertest.Edit(dispatchertest.Pair, "tag: m", "tag: n")
	w.Deploy(next)
	w.Settle()
	require.Equal(t, registry.Failed, w.Plan(next).Status)
}
