package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/dispatcher/control"
	"github.com/dagctl/dagctl/dispatcher/views"
	"github.com/dagctl/dagctl/registry"
)

// askedDAG has sources that are asked for their partitions: a program makes the rows of a month out of its task, and of
// the file `rows` beside it.
const askedDAG = `name: archive
jobs:
  - name: months
    operator: command
    code_version: "1"
    source: { kind: manual, first_partition: %[1]s }
    partition_by: { time: month }
    config: { argv: [sh, ./months.sh] }
  - name: scheduled
    operator: command
    source: { kind: cron, schedule: "@monthly", first_partition: %[1]s }
    partition_by: { time: month }
    config: { argv: [sh, ./months.sh] }
  - name: counts
    operator: sql
    inputs: [{ from: { job: months } }]
    config: { query: "SELECT count(*) AS n FROM months" }
publish:
  months: { from: { job: months } }
  scheduled: { from: { job: scheduled } }
  counts: { from: { job: counts } }
`

const monthsProgram = `set -e
task=$(cat)
field() { printf %s "$task" | sed -n "s/.*\"$1\":\"\([^\"]*\)\".*/\1/p"; }
key=$(field key) start=$(field start) end=$(field end)
{
	echo key,start,end,n
	n=0
	while [ $n -lt "$(cat "$(dirname "$0")/rows")" ]; do
		echo "$key,$start,$end,$n"
		n=$((n + 1))
	done
} > "$(field dir)/rows.csv"
`

// TestASourceIsAskedForItsPartitions runs programs that make the month they are asked for: a build asks for each month
// since the first one, people ask for one or a range of them, and a month whose rows are the same keeps its revision.
func TestASourceIsAskedForItsPartitions(t *testing.T) {
	t.Parallel()
	b := newBuilt(t, "operators: { allow_command: [acme] }\n")
	env := b.env(t, admin)
	write := func(name, text string) {
		require.NoError(t, os.WriteFile(filepath.Join(b.roots, name), []byte(text), 0o600))
	}
	write("months.sh", monthsProgram)
	write("rows", "2")

	month := func(ago int) string {
		now := time.Now().UTC()
		return time.Date(now.Year(), now.Month()-time.Month(ago), 1, 0, 0, 0, 0, time.UTC).Format("2006-01")
	}
	revisions := func(dataset string) map[string]int64 {
		found := map[string]int64{}
		for _, p := range decode[[]registry.Revision](t, env, "datasets", "partitions", dataset, "--limit", "1000") {
			found[p.Key] = max(found[p.Key], p.Revision)
		}
		return found
	}
	settled := func(dataset string, want map[string]int64) {
		t.Helper()
		eventually(t, dataset, func() (bool, error) {
			open := decode[views.DAGDetail](t, env, "status", "archive").Tasks.Open()
			found := revisions(dataset)
			if open == 0 && fmt.Sprint(found) == fmt.Sprint(want) {
				return true, nil
			}
			return false, fmt.Errorf("%d tasks are open, and there is %v", open, found)
		})
	}

	file := filepath.Join(t.TempDir(), "dag.yaml")
	deploy := func(text string) {
		t.Helper()
		require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
		must(t, env, "deploy", file, "--yes")
	}

	// The plan counts the months, and the first build makes each of them.
	require.NoError(t, os.WriteFile(file, fmt.Appendf(nil, askedDAG, month(3)), 0o600))
	var plan registry.Plan
	require.NoError(t, json.Unmarshal([]byte(must(t, env, "plan", file, "--output", "json")), &plan))
	for _, c := range plan.Changes {
		require.NotNil(t, c.Partitions, c.Job)
		require.Equal(t, 3, *c.Partitions, c.Job)
	}
	deploy(fmt.Sprintf(askedDAG, month(3)))
	made := map[string]int64{month(3): 1, month(2): 1, month(1): 1}
	for _, dataset := range []string{"months", "scheduled", "counts"} {
		settled(dataset, made)
	}
	rows := must(t, env, "query", "SELECT DISTINCT key, start, \"end\" FROM months ORDER BY 1", "--output", "json")
	require.Contains(t, rows, month(3))
	require.Contains(t, rows, month(2)+"-01 00:00:00+00")

	// The same rows make no revision, whoever asks; other rows make one, and what reads the month follows.
	must(t, env, "run", "archive/months", "--partition", month(2), "--watch")
	must(t, env, "run", "archive/scheduled", "--partition", month(2), "--watch")
	must(t, env, "backfill", "archive/months", "--from", month(3), "--to", month(1), "--existing", "all")
	eventually(t, "the backfill", func() (bool, error) {
		all := decode[[]control.Backfill](t, env, "backfill", "list", "archive")
		open := func(b control.Backfill) bool { return b.Status != "Completed" }
		return !slices.ContainsFunc(all, open), fmt.Errorf("%v", all)
	})
	settled("months", made)
	write("rows", "3")
	must(t, env, "run", "archive/months", "--partition", month(2), "--watch")
	changed := map[string]int64{month(3): 1, month(2): 2, month(1): 1}
	settled("months", changed)
	settled("counts", changed)
	settled("scheduled", made)
	must(t, env, "run", "archive/scheduled", "--partition", month(1), "--watch")
	settled("scheduled", map[string]int64{month(3): 1, month(2): 1, month(1): 2})

	// An earlier first month adds those before, and rebuilds nothing.
	deploy(fmt.Sprintf(askedDAG, month(4)))
	changed[month(4)] = 1
	settled("months", changed)

	// Another program makes all of them again, in a build.
	deploy(strings.Replace(fmt.Sprintf(askedDAG, month(4)), `code_version: "1"`, `code_version: "2"`, 1))
	settled("months", map[string]int64{month(4): 1, month(3): 1, month(2): 1, month(1): 1})
	settled("counts", map[string]int64{month(4): 1, month(3): 1, month(2): 1, month(1): 1})

	for want, args := range map[string][]string{
		"is before " + month(4):                {"run", "archive/months", "--partition", month(5)},
		month(5) + " is before":                {"run", "archive/scheduled", "--partition", month(5)},
		month(0) + " has not ended yet":        {"run", "archive/months", "--partition", month(0)},
		"is not a month":                       {"run", "archive/months", "--partition", month(2) + "-05"},
		"the first partition, " + month(1):     {"backfill", "archive/months", "--from", month(1), "--to", month(2)},
		"an earlier `first_partition` lets it": {"backfill", "archive/scheduled", "--from", month(9), "--to", month(2)},
	} {
		r := dagctl(t, env, args...)
		require.NotZero(t, r.code, args)
		require.Contains(t, r.err, want, args)
	}
}
