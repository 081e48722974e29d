package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/cmd/dagctl/cli"
	"github.com/dagctl/dagctl/dispatcher"
	"github.com/dagctl/dagctl/registry/deploy"
)

// TestDryRunsOfSwaps shows what promote, rollback and abandon would do, and that a dry run does none of it.
func TestDryRunsOfSwaps(t *testing.T) {
	t.Parallel()
	w := twoVersions(t)
	env := w.env(t, writer)

	refused := dagctl(t, env, "rollback", "readings", "--dry-run")
	require.Equal(t, cli.ExitConflict, refused.code)
	require.Contains(t, refused.err, "no version of readings served before the active one")
	require.Contains(t, must(t, env, "abandon", "readings", "--dry-run"),
		"readings v2 is built and ready, and would be given up: it could not be promoted any more. What ")
	for range 2 {
		out := must(t, env, "promote", "readings", "--dry-run")
		require.Contains(t, out, "readings v2 would serve in place of v1.")
		require.Regexp(t, `daily_highest +swapped +4 +2 +2 +2`, out)
	}
	require.Regexp(t, `(?m)^v1 +Active`, must(t, env, "history", "readings"))

	must(t, env, "promote", "readings", "--yes")
	for _, to := range [][]string{{}, {"--to", "v1"}} {
		args := append([]string{"rollback", "readings", "--dry-run"}, to...)
		preview := decode[deploy.SwapPreview](t, env, args...)
		require.Equal(t, []int{2, 1}, []int{*preview.From, preview.To})
		require.Regexp(t, `daily_highest +swapped +2 +4 +2 +2`, must(t, env, args...))
	}
	require.Regexp(t, `(?m)^v2 +Active`, must(t, env, "history", "readings"))
	refused = dagctl(t, env, "abandon", "readings", "--dry-run")
	require.Equal(t, cli.ExitConflict, refused.code)
	require.Contains(t, refused.err, "no version of readings is being built")
}

// TestDryRunsOfDataAndAccess shows that dry runs of other commands say what they would do, or why not, and do nothing.
func TestDryRunsOfDataAndAccess(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.deployReadings(t, "2026-01-01", "2026-01-02")
	env := w.env(t, writer)

	for range 2 {
		made := decode[[]dispatcher.Invalidated](t, env, "invalidate", "daily_highest", "--range",
			"2026-01-01..2026-01-31", "--dry-run")
		require.Len(t, made, 2)
		require.Equal(t, int64(2), made[0].Revision, "the dry run before has made none")
	}
	missing := dagctl(t, env, "invalidate", "daily_highest", "--partition", "1999-01-01", "--dry-run")
	require.Contains(t, missing.err, "no such partition")

	admins := w.env(t, admin)
	require.Zero(t, dagctlWithInput(t, admins, "s3cret-value", "secrets", "set", "KEY").code)
	require.Contains(t, dagctl(t, admins, "secrets", "delete", "KEY", "--dry-run").err, "would be deleted")
	require.Contains(t, must(t, admins, "secrets", "list"), "KEY")
	require.Contains(t, dagctl(t, admins, "secrets", "delete", "NONE", "--dry-run").err, "no secret")

	require.Contains(t, must(t, env, "timers", "update", "--group", "g", "--timezone", "Asia/Kathmandu", "--dry-run"),
		"0 timers to move")
	require.Contains(t, dagctl(t, env, "timers", "update", "--group", "g", "--timezone", "Mars/X", "--dry-run").err,
		`"Mars/X" is not an IANA time zone`)
	require.Contains(t, dagctl(t, env, "timers", "update", "01a1fd91-0000-7000-8000-000000000000", "--dry-run").err,
		"--dry-run is for a group")
}

// TestDryRunsTellWhatOtherDAGsRefuse goes back to days under a consumer that was deployed on months.
func TestDryRunsTellWhatOtherDAGsRefuse(t *testing.T) {
	t.Parallel()
	w := twoVersions(t, strings.Replace(readingsDAG, "      - from: { job: landing }\n",
		"      - { from: { job: landing }, map: { window: month, require: available } }\n", 1))
	env, dir := w.env(t, writer), t.TempDir()
	must(t, env, "promote", "readings", "--yes")
	must(t, env, "deploy", writeDAG(t, dir, "peaks", `name: peaks
jobs:
  - { name: peak, operator: sql, inputs: [{ from: { dataset: daily_highest }, as: d, map: same }],
      config: { query: SELECT * FROM d } }
`))

	out := must(t, env, "rollback", "readings", "--dry-run")
	require.Contains(t, out, "peaks/peak maps its input d by `map: same`")
	require.Contains(t, out, "This rollback is refused")
	require.Equal(t, cli.ExitConflict, dagctl(t, env, "rollback", "readings", "--yes").code)
}
