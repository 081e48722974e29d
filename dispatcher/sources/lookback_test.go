package sources_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/dispatcher/dispatchertest"
	"github.com/dagctl/dagctl/dispatcher/upkeep"
	"github.com/dagctl/dagctl/operators"
	"github.com/dagctl/dagctl/registry"
)

// looksBack has a source that is asked for days of Berlin, and looks back at two of them.
const looksBack = `
name: late
jobs:
  - name: days
    operator: hook
    source: { kind: cron, schedule: "30 0 * * *", timezone: Europe/Berlin, first_partition: 2026-03-26, lookback: 2,
      on_deploy: false }
    partition_by: { time: day, timezone: Europe/Berlin }
  - name: after
    operator: sql
    inputs: [{ from: { job: days } }]
    config: { query: "SELECT content || '!' AS content FROM days" }
publish:
  days: { from: { job: days } }
  after: { from: { job: after } }
`

// backWorld is a world with a source whose rows are those of a table of the test, by partition.
type backWorld struct {
	*dispatchertest.World
	rows map[string]string
}

func newBackWorld(t *testing.T, yaml string) backWorld {
	t.Helper()
	b := backWorld{dispatchertest.NewWorld(t), map[string]string{}}
	b.Probe.On("days", func(ctx context.Context, task *operators.Task) (operators.Result, error) {
		content := b.rows[task.Partition.Key]
		if content == "broken" {
			return operators.Result{}, operators.Permanent(errors.New("the archive is closed"))
		}
		return operators.Result{}, b.Probe.Write(ctx, task, content)
	})
	b.Serve(yaml)
	b.rest()
	return b
}

// rest makes the source due far ahead, so that only the test fires it.
func (b backWorld) rest() { b.Exec(`UPDATE sources SET next_fire_at = '2500-01-01'`) }

// look fires the source at a time, and returns the partitions that it is asked for.
func (b backWorld) look(at string) []string {
	b.T.Helper()
	now, err := time.Parse(time.RFC3339, at)
	require.NoError(b.T, err)
	b.Exec(`UPDATE sources SET next_fire_at = $1`, now)
	_, err = b.D.Sources.Fire(b.T.Context(), now)
	require.NoError(b.T, err)
	b.D.Sources.EndReading()
	require.Empty(b.T, dispatchertest.Texts(b.T, b.Pool, `SELECT error FROM sources WHERE error IS NOT NULL`))
	b.rest()
	return b.open()
}

// open lists the partitions of the source that have a task which is not dead.
func (b backWorld) open() []string {
	b.T.Helper()
	return dispatchertest.Texts(b.T, b.Pool, `SELECT t.partitions[1] FROM tasks t JOIN jobs j ON j.id = t.job_id
		WHERE t.kind <> 'reactive' AND t.status IN ('Queued', 'Running') ORDER BY 1`)
}

// due fires the source as look does, runs what it is asked for, and returns that.
func (b backWorld) due(at string) []string {
	b.T.Helper()
	asked := b.look(at)
	b.Settle()
	return asked
}

// revisions says which revision of each partition a dataset has.
func revisions(first int64, keys ...string) map[string]int64 {
	all := map[string]int64{}
	for _, key := range keys {
		all[key] = first
	}
	return all
}

// A source is asked for its newest partition and, again, for those before it that its lookback says. One with the same
// rows stays as it is; one with a row that is late is made again, and so is what reads it, and nothing else.
func TestASourceLooksBack(t *testing.T) {
	t.Parallel()
	b := newBackWorld(t, looksBack)
	require.Equal(t, []string{"2026-03-26"}, b.due("2026-03-26T23:30:00Z"), "half past midnight in Berlin")
	require.Equal(t, []string{"2026-03-26", "2026-03-27"}, b.due("2026-03-27T23:30:00Z"),
		"it is not asked for what is before its first partition")

	// The 29th has 23 hours.
	require.Equal(t, []string{"2026-03-26", "2026-03-27", "2026-03-28"}, b.due("2026-03-28T23:30:00Z"))
	require.Equal(t, []string{"2026-03-27", "2026-03-28", "2026-03-29"}, b.due("2026-03-29T22:30:00Z"))
	all := revisions(1, "2026-03-26", "2026-03-27", "2026-03-28", "2026-03-29")
	require.Equal(t, all, b.Published("days"))
	require.Equal(t, all, b.Published("after"))
	require.Equal(t, 4, b.Attempts("after"))

	b.rows["2026-03-26"], b.rows["2026-03-28"] = "too late", "late"
	require.Equal(t, []string{"2026-03-28", "2026-03-29", "2026-03-30"}, b.due("2026-03-30T22:30:00Z"))
	all["2026-03-28"], all["2026-03-30"] = 2, 1
	require.Equal(t, all, b.Published("days"))
	require.Equal(t, all, b.Published("after"))
	require.Equal(t, 6, b.Attempts("after"))
	require.Equal(t, []string{"late!"}, b.Read("after")["2026-03-28"])

	// The schedule may be narrower than the partitions, and somebody may have it read now.
	require.Equal(t, []string{"2026-03-28", "2026-03-29", "2026-03-30"}, b.due("2026-03-31T12:00:00Z"))
	require.Equal(t, all, b.Published("after"))
}

// What was missed, in an outage or a pause, is asked for, and so is what would have been asked for again meanwhile.
func TestASourceLooksBackAfterAnOutage(t *testing.T) {
	t.Parallel()
	b := newBackWorld(t, looksBack)
	require.Equal(t, []string{"2026-03-26", "2026-03-27", "2026-03-28"}, b.due("2026-03-28T23:30:00Z"))
	require.Equal(t, []string{"2026-03-27", "2026-03-28", "2026-03-29"}, b.due("2026-03-29T22:30:00Z"))

	_, err := b.D.Control.Pause(t.Context(), b.Caller, "late", "days", "", time.Now())
	require.NoError(t, err)
	require.Empty(t, b.look("2026-03-31T22:30:00Z"))
	require.NoError(t, b.D.Control.Resume(t.Context(), b.Caller, "late", "days", time.Now()))
	_, err = b.D.Sources.ReadNow(t.Context(), b.Caller, "late", "days", time.Now())
	require.NoError(t, err)
	b.rows["2026-03-28"] = "late"
	require.Equal(t, []string{"2026-03-28", "2026-03-29", "2026-03-30", "2026-03-31", "2026-04-01"},
		b.due("2026-04-01T22:30:00Z"), "the 30th looks back at the 28th")
	require.Equal(t, int64(2), b.Published("after")["2026-03-28"])
	require.Equal(t, []string{"2026-03-31", "2026-04-01", "2026-04-02"}, b.due("2026-04-02T22:30:00Z"))
}

// A deploy after an outage forgets nothing of it, whatever it changes: its build reads what is missing, and what is
// late is found when the source is due next.
func TestASourceLooksBackAfterAnOutageAndADeploy(t *testing.T) {
	t.Parallel()
	for change, yaml := range map[string]string{
		"nothing of the source": dispatchertest.Edit(looksBack, "'!'", "'?'"),
		"its name": dispatchertest.Edit(looksBack, "- name: days", "- name: daily\n    renamed_from: days",
			"days: { from: { job: days } }", "days: { from: { job: daily } }",
			"inputs: [{ from: { job: days } }]", "inputs: [{ from: { job: daily }, as: days }]"),
		"its start": dispatchertest.Edit(looksBack, "lookback: 2", "lookback: 2, start: 2026-01-01T00:00:00Z"),
	} {
		t.Run(change, func(t *testing.T) {
			t.Parallel()
			b := newBackWorld(t, looksBack)
			b.due("2026-03-28T23:30:00Z")
			require.Equal(t, []string{"2026-03-27", "2026-03-28", "2026-03-29"}, b.due("2026-03-29T22:30:00Z"))

			b.rows["2026-03-28"] = "late"
			b.Probe.On("daily", func(ctx context.Context, task *operators.Task) (operators.Result, error) {
				return operators.Result{}, b.Probe.Write(ctx, task, b.rows[task.Partition.Key])
			})
			b.Serve(yaml)
			b.rest()
			require.Equal(t, []string{"2026-03-28", "2026-03-29", "2026-03-30", "2026-03-31", "2026-04-01"},
				b.due("2026-04-01T22:30:00Z"), "the 30th looks back at the 28th")
			require.Equal(t, "late", strings.Trim(b.Read("after")["2026-03-28"][0], "!?"))
			require.Equal(t, []string{"2026-03-31", "2026-04-01", "2026-04-02"}, b.due("2026-04-02T22:30:00Z"))
		})
	}
}

// A partition whose task is queued already is asked for once, as is one whose task waits for its retry; one that failed
// for good is tried again.
func TestASourceLooksBackAtWhatIsUnderWay(t *testing.T) {
	t.Parallel()
	b := newBackWorld(t, strings.Replace(looksBack, "operator: hook", "operator: hook\n    max_attempts: 2", 1))
	b.look("2026-03-28T23:30:00Z")
	require.Len(t, b.look("2026-03-28T23:31:00Z"), 3, "they are queued")
	b.Settle()

	// A running one may be past what is late, so that it is read once more after it.
	b.look("2026-03-28T23:32:00Z")
	running := b.Claim(b.D)
	require.Len(t, running, 3)
	require.Len(t, b.look("2026-03-28T23:33:00Z"), 6)
	require.Len(t, b.look("2026-03-28T23:34:00Z"), 6)
	for _, task := range running {
		dispatchertest.Execute(t.Context(), b.D, task)
	}
	b.Settle()
	require.Empty(t, b.open())

	b.Probe.On("days", func(context.Context, *operators.Task) (operators.Result, error) {
		return operators.Result{}, errors.New("the archive is away")
	})
	require.Len(t, b.due("2026-03-28T23:35:00Z"), 3)
	before := b.Tasks("days")
	require.Empty(t, b.due("2026-03-28T23:36:00Z"), "they are to be tried again soon")
	require.Equal(t, before, b.Tasks("days"))

	b.Promote(time.Now().Add(time.Hour))
	b.Settle()
	require.Equal(t, 3, b.Count(`SELECT FROM waiting WHERE reason = 'dead'`))
	require.Len(t, b.due("2026-03-28T23:37:00Z"), 3)
	require.Zero(t, b.Count(`SELECT FROM waiting WHERE reason = 'dead'`))
	require.Equal(t, revisions(1, "2026-03-26", "2026-03-27", "2026-03-28"), b.Published("days"))
}

// What somebody has purged does not come back because a source looks back.
func TestASourceDoesNotLookBackAtWhatIsPurged(t *testing.T) {
	t.Parallel()
	b := newBackWorld(t, looksBack)
	b.due("2026-03-28T23:30:00Z")
	_, err := b.D.Upkeep.Purge(t.Context(), b.Caller, "days", upkeep.PurgeRequest{From: "2026-03-27",
		To: "2026-03-27", Reason: "asked for"}, time.Now())
	require.NoError(t, err)
	require.Equal(t, []string{"2026-03-26", "2026-03-28"}, b.due("2026-03-28T23:31:00Z"))
}

// A deploy that adds a lookback, or changes it, computes nothing, and the next time follows it.
func TestADeployChangesHowFarASourceLooksBack(t *testing.T) {
	t.Parallel()
	without := dispatchertest.Edit(looksBack, "lookback: 2,", "")
	b := newBackWorld(t, without)
	all := []string{"2026-03-26", "2026-03-27", "2026-03-28"}
	require.Equal(t, all, b.due("2026-03-28T23:30:00Z"))
	require.Empty(t, b.look("2026-03-28T23:31:00Z"))
	runs := b.Runs()

	for _, step := range []struct {
		yaml, at string
		asked    []string
	}{
		{looksBack, "2026-03-28T23:32:00Z", all},
		{dispatchertest.Edit(looksBack, "lookback: 2", "lookback: 1"), "2026-03-28T23:33:00Z", all[1:]},
		{without, "2026-03-28T23:34:00Z", []string{}},
	} {
		for _, change := range b.Plan(step.yaml).Changes {
			require.Equal(t, "reuse", change.Action, change)
		}
		b.Serve(step.yaml)
		b.rest()
		require.Equal(t, runs, b.Runs())
		require.Equal(t, step.asked, b.due(step.at))
		runs = b.Runs()
	}
	require.Equal(t, revisions(1, all...), b.Published("days"))
	require.Equal(t, revisions(1, all...), b.Published("after"))
}

// Where clocks change, a lookback counts partitions, not hours.
func TestASourceLooksBackAtHours(t *testing.T) {
	t.Parallel()
	hours := dispatchertest.Edit(looksBack, "time: day", "time: hour", "first_partition: 2026-03-26",
		`first_partition: "2026-03-29T00"`, "lookback: 2", "lookback: 3")
	b := newBackWorld(t, hours)
	require.Equal(t, []string{"2026-03-29T00", "2026-03-29T01", "2026-03-29T03", "2026-03-29T04"},
		b.due("2026-03-29T03:10:00Z"), "02 does not exist")

	b.rows["2026-03-29T01"] = "late"
	b.due("2026-03-29T03:20:00Z")
	require.Equal(t, map[string]int64{"2026-03-29T00": 1, "2026-03-29T01": 2, "2026-03-29T03": 1, "2026-03-29T04": 1},
		b.Published("after"))
}

// What checks rejected fails a version, also its first one. Whoever has mended the data outside resumes the build: it
// asks for that partition again, and for no other.
func TestABuildAsksAgainForWhatWasRejected(t *testing.T) {
	t.Parallel()
	today := time.Now().UTC()
	first, second := today.AddDate(0, 0, -3).Format(time.DateOnly), today.AddDate(0, 0, -2).Format(time.DateOnly)
	b := backWorld{dispatchertest.NewWorld(t), map[string]string{second: "wrong"}}
	asked := map[string]int{}
	b.Probe.On("days", func(ctx context.Context, task *operators.Task) (operators.Result, error) {
		asked[task.Partition.Key]++
		return operators.Result{}, b.Probe.Write(ctx, task, b.rows[task.Partition.Key])
	})
	yaml := dispatchertest.Edit(looksBack, "2026-03-26", first, ", lookback: 2,\n      on_deploy: false", "",
		"Europe/Berlin", "UTC",
		"  - name: after",
		"    checks: [{ name: right, sql: \"SELECT * FROM output WHERE content = 'wrong'\" }]\n  - name: after")
	build := func(change ...func(*registry.DeployRequest)) registry.Status {
		deployed := b.Deploy(yaml, change...)
		for range 5 {
			b.Advance()
			b.Settle()
		}
		status, _ := b.Status(deployed.Version.ID)
		return status
	}
	require.Equal(t, registry.Failed, build())
	require.Equal(t, 1, asked[second])

	resume := func(r *registry.DeployRequest) { r.Resume = true }
	require.Equal(t, registry.Failed, build(resume))
	require.Equal(t, 2, asked[second], "it is as it was")
	b.rows[second] = "right"
	require.Equal(t, registry.Active, build(resume))
	require.Equal(t, 3, asked[second])
	require.Equal(t, 1, asked[first])
	require.Equal(t, []string{"right!"}, b.Read("after")[second])
}
