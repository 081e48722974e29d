package operators_test

import (
	"context"
	"encoding/json"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/operators"
)

// committed records the commits of runs. The dispatcher's tests show their effect.
type committed struct {
	commits []operators.Commit
	fails   error
}

func (c *committed) Commit(_ context.Context, commit operators.Commit) (operators.Committed, error) {
	c.commits = append(c.commits, commit)
	return operators.Committed{Cursor: &operators.CursorPosition{Value: 7}}, c.fails
}

func (c *committed) Rest(_ context.Context, a operators.Assignment) (operators.Assignment, error) {
	return a, nil
}

// asks runs a program that asks for commits. It returns the answers and the names of the remaining files.
func asks(
	t *testing.T, to operators.Committer, requests ...string,
) (answers []operators.CommandCommitted, left []string, out operators.Outcome) {
	t.Helper()
	a := assignment("command", self(t, "commits", nil))
	payload, err := json.Marshal(requests)
	require.NoError(t, err)

	a.Payload, a.Committer = payload, to
	out = newWorld(t).run(t, a)
	if out.Err != nil {
		return nil, nil, out
	}

	var told struct{ Answers, Left []string }
	require.NoError(t, json.Unmarshal(out.Result.Result, &told))
	for _, text := range told.Answers {
		var answer operators.CommandCommitted
		require.NoError(t, json.Unmarshal([]byte(text), &answer))
		answers = append(answers, answer)
	}
	return answers, told.Left, out
}

func TestWrongCommitsOfACommandAreRefused(t *testing.T) {
	t.Parallel()
	tests := []struct{ request, says string }{
		{`commit`, "the request is not a line of JSON with outputs, events, tasks and operator_state: invalid " +
			"character 'c' looking for beginning of value"},
		{``, "the request is not a line of JSON with outputs, events, tasks and operator_state: EOF"},
		{`{"output": []}`,
			`the request is not a line of JSON with outputs, events, tasks and operator_state: unknown field "output"`},
		{`{} {}`, "the request is not a line of JSON with outputs, events, tasks and operator_state: the line has " +
			"more than one value"},
		{`{"outputs": [{"name": "other"}]}`, `outputs[0].name: the job has no output "other"; it has ["out"]`},
		{`{"outputs": [{"files": ["x.csv"]}]}`, `outputs[0].files[0]: there is no file "x.csv" in the output's folder`},
		{`{"outputs": [{"files": ["a.ndjson", "../b.csv"]}]}`,
			`outputs[0].files[1]: "../b.csv" is not the name of a file in the output's folder`},
		{`{"outputs": [{"files": ["c.txt"]}]}`,
			`outputs[0].files[0]: "c.txt" is not *.parquet, *.csv or *.ndjson; the latter two may end in .gz or .zst`},
		{`{"outputs": [{"files": ["d.csv"]}]}`, `outputs[0].files[0]: "d.csv" is not a regular file`},
		{`{"outputs": [{"files": ["b.csv"]}, {"files": ["b.csv"]}]}`,
			`outputs[1].files[0]: "b.csv" is already committed by outputs[0].files[0]`},
		{`{"outputs": [], "events": [{"output": "other"}]}`,
			`events[0].output: the job has no output "other"; it has ["out"]`},
	}

	var requests []string
	for _, test := range tests {
		requests = append(requests, test.request)
	}
	to := &committed{}
	answers, left, _ := asks(t, to, requests...)
	require.Empty(t, to.commits)
	require.Len(t, answers, len(tests))

	for i, test := range tests {
		require.NotNil(t, answers[i].Error, test.request)
		require.False(t, answers[i].OK)
		require.Equal(t, test.says, answers[i].Error.Message)
	}
	require.Equal(t, []string{"a.ndjson", "b.csv", "c.txt"}, left, "refused files stay")
}

func TestACommandCommits(t *testing.T) {
	t.Parallel()
	to := &committed{}
	answers, left, _ := asks(t, to, `{"outputs": [{"partition_key": "p", "files": ["a.ndjson"]}], `+
		`"operator_state": {"n": 1}, "events": [{"scope": "range", "from": 3, "reason": "reorg"}], `+
		`"tasks": [{"job": "send"}]}`)
	require.Equal(t, operators.CommandCommitted{OK: true,
		Committed: operators.Committed{Cursor: &operators.CursorPosition{Value: 7}}}, answers[0])
	require.Equal(t, []string{"b.csv", "c.txt"}, left, "committed files are gone")
	require.Len(t, to.commits, 1)

	from := int64(3)
	c := to.commits[0]
	require.Equal(t, []any{"p", 1}, []any{c.Outputs[0].Partition, len(c.Outputs[0].Files)})
	require.Equal(t, []operators.Event{{Scope: "range", From: &from, Reason: "reorg"}}, c.Events)
	require.Equal(t, []operators.EnqueuedTask{{Job: "send"}}, c.Tasks)
	require.JSONEq(t, `{"n": 1}`, string(c.State))
}

// A commit that fails for a reason other than its content ends the program and the attempt.
func TestAFailedCommitEndsTheCommand(t *testing.T) {
	t.Parallel()
	gone := errors.New("the lease was lost")
	_, _, out := asks(t, &committed{fails: gone}, `{"outputs": [], "operator_state": 1}`,
		`{"outputs": [], "operator_state": 2}`)
	require.ErrorIs(t, out.Err, gone)
	require.ErrorContains(t, out.Err, "commit 1: ")
	require.True(t, out.Retryable)
}

func TestACommitWithoutAReaderOfTheAnswer(t *testing.T) {
	t.Parallel()
	to := &committed{}
	a := assignment("command", self(t, "hasty", nil))
	a.Committer = to
	newWorld(t).mustRun(t, a)
	require.Len(t, to.commits, 1)
}
