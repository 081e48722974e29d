package builds_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/dispatcher/builds"
	"github.com/dagctl/dagctl/dispatcher/dispatchertest"
	"github.com/dagctl/dagctl/dispatcher/upkeep"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/registry"
	"github.com/dagctl/dagctl/registry/deploy"
)

// wideStations has two columns; its readers name one of them, or none.
var (
	wideStations = dispatchertest.Edit(oldStations, "content FROM raw", "content, length(content) AS size FROM raw")
	narrow       = dispatchertest.Edit(wideStations, ", length(content) AS size", "")
	sizes        = dispatchertest.Edit(readsStations, "content || '!' AS content", "size + 1 AS content")
	checksSizes  = dispatchertest.Edit(readsStations, "publish:\n",
		`    checks: [{ name: known, sql: "SELECT * FROM st WHERE size IS NULL" }]`+"\npublish:\n")
	relatesSizes = dispatchertest.Edit(dispatchertest.Edit(readsStations, "AS content", "AS content, 1 AS n"),
		"publish:\n",
		"    checks: [{ relationships: { column: n, to: { input: st, column: size } }, severity: warn }]\n"+
			"publish:\n")
	anything = dispatchertest.Edit(readsStations, "content || '!' AS content", "*")
)

func planned(t *testing.T, w *dispatchertest.World, yaml string) (texts []string) {
	t.Helper()
	for _, f := range w.Plan(yaml).Findings {
		texts = append(texts, string(f.Level)+": "+f.Text)
	}
	return texts
}

func TestAColumnThatOthersReadIsNotTakenAway(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ reader, finding string }{
		"nobody":      {"", "says: dataset stations would lose column size"},
		"another one": {readsStations, "says: dataset stations would lose column size"},
		"that one":    {sizes, "refuses: dataset stations would lose column size, but reader/shout reads size"},
		"in a check":  {checksSizes, "refuses: dataset stations would lose column size, but reader/shout reads size"},
		"as a key":    {relatesSizes, "refuses: dataset stations would lose column size, but reader/shout reads size"},
		"all of them": {anything, "asks: dataset stations would lose column size, and reader/shout may read it"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := dispatchertest.NewWorld(t)
			w.Probe.Put("raw", "2024-01-01", "a")
			w.Serve(wideStations)
			if c.reader != "" {
				w.Serve(c.reader)
			}
			require.Equal(t, []string{c.finding}, planned(t, w, narrow))

			refused := c.finding[:4] != "says"
			_, err := w.TryDeploy(narrow)
			require.Equal(t, refused, fault.Is(err, fault.Conflict), "%v", err)
			if !refused {
				return
			}
			require.ErrorContains(t, err, "dataset stations would lose column size")
			_, err = w.TryDeploy(narrow, func(r *registry.DeployRequest) { r.AllowBreaking = true })
			require.Equal(t, strings.HasPrefix(c.finding, "refuses"), fault.Is(err, fault.Conflict), "%v", err)
		})
	}
}

// A source says which columns it keeps, so a plan knows them, also where nothing is built.
func TestASourceThatKeepsFewerColumnsIsRefusedAhead(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Drop("a.csv", "id,v\n1,x\n")
	feed := `
name: feed
jobs:
  - name: raw
    operator: file_source
    source: { kind: poll, every: 1h }
    partition_by: key
    config: { path: ".", pattern: "{key}.csv", format: csv, columns: [id, v] }
publish:
  fed: { from: { job: raw } }
`
	w.Serve(feed)
	w.Serve(`
name: reader
jobs:
  - name: shout
    operator: sql
    inputs: [{ from: { dataset: fed } }]
    execution_strategy: PerPartition
    partition_by: key
    config: { query: "SELECT v || '!' AS v FROM fed" }
publish:
  shouted: { from: { job: shout } }
`)
	fewer := dispatchertest.Edit(feed, "[id, v]", "[id]")
	for name, forward := range map[string]bool{"rebuilt": false, "forward only": true} {
		_, err := w.TryDeploy(fewer, func(r *registry.DeployRequest) { r.ForwardOnly = forward })
		require.ErrorContains(t, err, "dataset fed would lose column v, but reader/shout reads v", name)
	}
}

// A version whose jobs read a column that another DAG has given up since is not gone back to unasked.
func TestARollbackToAQueryOfAColumnThatIsGoneAsks(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Probe.Put("raw", "2024-01-01", "a")
	w.Serve(wideStations)
	w.Serve(readsStations)
	w.Serve(sizes)
	require.NoError(t, goBack(w, "reader", 1))
	w.Serve(narrow)

	err := goBack(w, "reader", 2)
	require.True(t, fault.Is(err, fault.Conflict), "%v", err)
	require.ErrorContains(t, err, "job shout reads column size of stations, which it has no more")
	require.NoError(t, goBack(w, "reader", 2, func(r *builds.RollbackRequest) { r.AllowBreaking = true }))
}

// A version promises what its first build made, whatever becomes of its data.
func TestVersionsAreComparedByWhatTheyPromised(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Probe.Put("raw", "2024-01-01", "a")
	first, second := w.Serve(wideStations), w.Serve(narrow)
	diff, err := deploy.New(w.D.Registry).DiffVersions(t.Context(), w.Caller, "old", first.Version.Number,
		second.Version.Number)
	require.NoError(t, err)
	require.Len(t, diff.Findings, 1)
	require.Equal(t, "dataset stations would lose column size", diff.Findings[0].Text)
}

// What only the build finds out, it is refused by.
func TestAGateThatFindsColumnsGoneFails(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Probe.Put("raw", "2024-01-01", "a")
	w.Serve(wideStations)
	w.Serve(sizes)
	failed := w.Deploy(dispatchertest.Edit(narrow, "config: { list: raw }", "config: { list: raw, note: other }"))
	w.Settle()
	status, reason := w.Status(failed.Version.ID)
	require.Equal(t, registry.Failed, status, reason)
	require.Contains(t, reason,
		"dataset stations would lose column size, but reader/shout reads size; deploy those DAGs")
	require.Equal(t, []string{"2"}, w.Read("shouted")["2024-01-01"])
}

func TestARollbackPastAConsumerAsks(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Probe.Put("raw", "2024-01-01", "a")
	w.Serve(oldWithout)
	w.Serve(narrow)
	w.Serve(wideStations)
	w.Serve(sizes)

	err := goBack(w, "old", 2)
	require.True(t, fault.Is(err, fault.Conflict), "%v", err)
	require.ErrorContains(t, err, "dataset stations would lose column size, but reader/shout reads size")
	err = goBack(w, "old", 1)
	require.ErrorContains(t, err, "dataset stations would no longer be published, but reader/shout reads it")
	require.NoError(t, goBack(w, "old", 2, func(r *builds.RollbackRequest) { r.AllowBreaking = true }))
}

// gc keeps what another DAG has as an input, also while nothing serves it.
func TestGCKeepsWhatAConsumerWasLeftWithout(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Probe.Put("raw", "2024-01-01", "a")
	w.Serve("name: old\njobs:\n" + dispatchertest.Raw)
	w.Serve(oldStations)
	w.Serve(readsStations)
	require.NoError(t, goBack(w, "old", 1, func(r *builds.RollbackRequest) { r.AllowBreaking = true }))

	late := time.Now().Add(10 * dispatchertest.PastWindow)
	_, err := w.D.Upkeep.CollectGarbage(t.Context(), w.Caller, false, late)
	require.NoError(t, err)
	require.NoError(t, goBack(w, "old", 2))
	require.Equal(t, []string{"old a"}, w.Read("stations")["2024-01-01"])

	require.NoError(t, goBack(w, "old", 1, func(r *builds.RollbackRequest) { r.AllowBreaking = true }))
	_, err = w.D.Upkeep.DeleteDAG(t.Context(), w.Caller, "reader", nil, time.Now())
	require.NoError(t, err)
	_, err = w.D.Upkeep.CollectGarbage(t.Context(), w.Caller, false, late)
	require.NoError(t, err)
	require.ErrorContains(t, goBack(w, "old", 2), "purged")
}

func TestAPromotionThatWouldBreakAConsumerIsRefused(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Probe.Put("raw", "2024-01-01", "a")
	w.Serve(wideStations)
	parked := w.Deploy(narrow, func(r *registry.DeployRequest) { off := false; r.Activate = &off })
	w.Settle()
	w.Serve(sizes)

	_, err := w.D.Builds.Promote(t.Context(), w.Caller, "old", parked.Version.Number)
	require.True(t, fault.Is(err, fault.Conflict), "%v", err)
	require.ErrorContains(t, err, "dataset stations would lose column size, but reader/shout reads size")
	status, _ := w.Status(parked.Version.ID)
	require.Equal(t, registry.Ready, status, "it waits until the consumer has changed")
	w.Serve(dispatchertest.Edit(sizes, "size + 1", "1"))
	_, err = w.D.Builds.Promote(t.Context(), w.Caller, "old", parked.Version.Number)
	require.NoError(t, err)
}

// A name that moves to another dataset takes its readers along: what that one lacks is lost to them.
func TestAMovedNameLosesPartitions(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Probe.Put("raw", "2024-01-01", "a")
	w.Probe.Put("raw", "2024-01-02", "b")
	w.Probe.Put("extra", "2024-01-02", "x")
	w.Serve(daily)
	moved := dispatchertest.Edit(daily, "from: { job: made }", "from: { job: extra }")
	require.Equal(t, []string{
		"says: dataset letters_made would no longer be published",
		"asks: the name letters_made would move from the dataset of job made to that of job extra: " +
			"whoever reads it by name gets other rows",
		"asks: letters_made would lose 1 partition that it serves: 2024-01-01"}, planned(t, w, moved))
	_, err := w.TryDeploy(moved, movesAllowed)
	require.ErrorContains(t, err, "letters_made would lose 1 partition")
	w.Serve(moved, movesAllowed, allowRemovals)
	require.Equal(t, map[string][]string{"2024-01-02": {"x"}}, w.Read("letters_made"))
}

// What was purged while a version served is missing when somebody goes back to it.
func TestARollbackToPurgedPartitionsAsks(t *testing.T) {
	t.Parallel()
	w := dispatchertest.LettersWorld(t)
	w.Serve(dispatchertest.Letters)
	_, err := w.D.Upkeep.Purge(t.Context(), w.Caller, "letters_upper", upkeep.PurgeRequest{
		From: "2024-01-01", To: "2024-01-01", Reason: "for the test"}, time.Now())
	require.NoError(t, err)
	w.Serve(dispatchertest.Edit(dispatchertest.Letters, "upper(content) AS content",
		"upper(content) || '2' AS content"))
	require.Len(t, w.Read("letters_upper"), 2)

	err = goBack(w, "letters", 1)
	require.True(t, fault.Is(err, fault.Conflict), "%v", err)
	require.ErrorContains(t, err, "letters_upper would lose 1 partition that it serves: 2024-01-01 (it was purged)")
	require.Len(t, w.Read("letters_upper"), 2)
	require.NoError(t, goBack(w, "letters", 1, func(r *builds.RollbackRequest) { r.AllowRemovals = true }))
	require.Equal(t, map[string][]string{"2024-01-02": {"B"}}, w.Read("letters_upper"))
}

// A plan knows the columns of most inputs, so it refuses what no task could compare.
func TestALiteralThatNeverEqualsItsColumnIsRefusedAhead(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Probe.Put("raw", "2024-01-01", "a")
	w.Serve(wideStations)
	where := func(condition string) string {
		return dispatchertest.Edit(readsStations, "as: st }", "as: st, where: { "+condition+" } }")
	}
	inDAG := dispatchertest.Edit(wideStations, "publish:\n", `  - name: counted
    operator: sql
    inputs: [{ from: { job: made } }]
    config: { query: "SELECT size FROM made" }
    checks: [{ accepted_values: { column: size, values: [1, "1", one] } }]
publish:
`)

	for name, c := range map[string]struct{ document, problem string }{
		"true in numbers": {where("size: [1, true]"), `column "size" is BIGINT: no value of it equals true`},
		"text in numbers": {where("size: abc"), `column "size" is BIGINT: no value of it equals the text "abc"`},
		"number in text":  {where("content: 1"), `column "content" is VARCHAR: no value of it equals 1`},
		"in a check":      {inDAG, `check accepted_values(size): column "size" is BIGINT: no value of it equals`},
	} {
		_, err := w.TryDeploy(c.document)
		require.True(t, fault.Is(err, fault.Invalid), "%s: %v", name, err)
		var refused *fault.Error
		require.ErrorAs(t, err, &refused)
		require.Len(t, refused.Problems, 1, name)
		require.Contains(t, refused.Problems[0].Message, c.problem)
		require.NotEmpty(t, refused.Problems[0].Suggestion)
		require.Regexp(t, `^dag.yaml:\d+:\d+$`, refused.Problems[0].Location)
	}
	_, err := w.TryDeploy(where(`size: ["1", 1.5], content: a`))
	require.NoError(t, err, "no size equals 1.5, but it can be compared")
}
