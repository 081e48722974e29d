package main

import (
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/cmd/dagctl/cli"
)

// namingNothing are command lines whose arguments or flags name nothing, are reversed, or are no word of theirs, with
// the error and the hint of each. Backquotes enclose an argument with spaces.
const namingNothing = `
tasks list --dag readngs → there is no DAG readngs → did you mean readings?
tasks list --dag readings --job dayly → there is no job readings/dayly → did you mean daily?
tasks list --job dayly → no DAG has a job dayly → did you mean daily?
tasks list --status runing → --status "runing" is not known → did you mean Running? Use Queued, Running, Completed, Failed or Canceled
tasks list --kind check1 → --kind "check1" is not known → did you mean check?
tasks list --partition 2026-07-07 → no task writes the partition 2026-07-07 → shows the partitions of tasks
tasks list --dag readings --job daily --partition 2026-07-07 → no task writes the partition 2026-07-07
tasks list --partition 2026-01-03..2026-01-01 → --partition 2026-01-03..2026-01-01: the first partition comes after the last one → swap them: 2026-01-01..2026-01-03
tasks list --partition 900-1000..100-200 → the first partition comes after the last one
tasks list --partition 2026-01-03.. → has no beginning or no end
tasks list --error-group nope → no failed task has an error of the group nope → --group-by error
tasks list --group-by error --dag readngs → there is no DAG readngs → did you mean readings?
tasks list --created-after 2026-02-01 --created-before 2026-01-01 → --created-after 2026-02-01 is not before --created-before 2026-01-01 → swap them
tasks list --created-after yesterday → "yesterday" is neither a date nor a time
tasks get readings/dayly → there is no job readings/dayly → did you mean daily?
tasks get readngs/daily → there is no DAG readngs → did you mean readings?
tasks logs readings/daily@2026-07-07 → there is no task of readings/daily@2026-07-07
tasks retry --dag readngs --yes → there is no DAG readngs → did you mean readings?
tasks retry --error-group nope --yes → no failed task has an error of the group nope
tasks cancel --job dayly --yes → no DAG has a job dayly → did you mean daily?
tasks cancel --status runing --yes → --status "runing" is not known → did you mean Running?
tasks skip --kind x --reason r --yes → --kind "x" is not known → use reactive, source
tasks skip --partition 2026-07-07 --reason r --yes → no task writes the partition 2026-07-07
tasks purge --dag readngs --reason r --yes → there is no DAG readngs → did you mean readings?
tasks purge --job dayly --reason r --yes → no DAG has a job dayly → did you mean daily?
tasks purge --partition 2026-01-03..2026-01-01 --reason r --yes → comes after the last one
timers list --dag readngs → there is no DAG readngs → did you mean readings?
timers list --dag readings --job dayly → there is no job readings/dayly → did you mean daily?
timers list --job dayly → no DAG has a job dayly → did you mean daily?
timers list --status pending → --status "pending" is not known → did you mean PENDING?
audit list --actor token:nobody → no entry of the audit log has the actor token:nobody
audit list --action dag.deplyo → no entry of the audit log has the action dag.deplyo
audit list --object dag:nobody → no entry of the audit log has the object dag:nobody
audit list --dataset daily_highst → there is no dataset daily_highst → did you mean daily_highest?
audit list --outcome refusd → --outcome "refusd" is not known → did you mean refused? Use done or refused
audit list --since 2026-02-01 --until 2026-01-01 → --since 2026-02-01 is not before --until 2026-01-01 → swap them
audit list --since yesterday → --since "yesterday" is not a time
audit export --since 2026-02-01 --until 2026-01-01 → --since 2026-02-01 is not before --until 2026-01-01
audit export --outcome refusd → --outcome "refusd" is not known
audit export --actor token:nobody → no entry of the audit log has the actor token:nobody
audit export --dataset daily_highst → there is no dataset daily_highst
costs --dag readngs → there is no DAG readngs → did you mean readings?
costs --by jobs → --by "jobs" is not known → did you mean job? Use job, dataset, owner, dag or org
costs --step month → --step "month" is not known → use hour, day or week
costs --since 2026-02-01 --until 2026-01-01 → --since 2026-02-01 is not before --until 2026-01-01 → swap them
datasets list --dag readngs → there is no DAG readngs → did you mean readings?
datasets list --tag wether → no dataset has the tag wether → shows the tags
datasets get daily_highst → there is no dataset daily_highst → did you mean daily_highest?
datasets partitions daily_highst → there is no dataset daily_highst → did you mean daily_highest?
datasets preview daily_highest --partition 2026-07-07 → dataset daily_highest has no partition "2026-07-07"
datasets preview daily_highest --version v9 → has no version v9
datasets export daily_highest --partition 2026-07-07 -o x.csv → dataset daily_highest has no partition "2026-07-07"
datasets purge daily_highest --partition= --reason r --yes → --partition names no partition → leave it out
datasets purge daily_highest --partition 2026-01-03..2026-01-01 --reason r --yes → --partition 2026-01-03..2026-01-01: the first partition comes after the last one
datasets purge daily_highest --partitions 2026-01-03..2026-01-01 --reason r --yes → --partitions 2026-01-03..2026-01-01: the first partition comes after the last one
datasets visibility daily_highest --role role:finanse → there is no org role "role:finanse" → dagctl roles list
invalidate daily_highest --partition 2026-07-07 → dataset daily_highest has no such partition
events publish daily_highst --partition 2026-01-01 → there is no dataset daily_highst → did you mean daily_highest?
backfill readings/daily --from 2026-01-03 --to 2026-01-01 → comes after the last one, 2026-01-01 → swap --from and --to
backfill readings/dayly --from 2026-01-01 --to 2026-01-01 → there is no job readings/dayly → did you mean daily?
backfill readngs/daily --from 2026-01-01 --to 2026-01-01 → there is no DAG readngs → did you mean readings?
backfill readings/daily --from 2026-01-01 --to 2026-01-01 --existing al → --existing "al" is not known → use skip, failed or all
backfill readings/daily --from 2026-01-01 --to 2026-01-01 --propagate often → --propagate "often" is not known → use none, once or each
backfill list readngs → there is no DAG readngs → did you mean readings?
backfill cancel readngs 01a1fd91-0000-7000-8000-000000000000 → there is no DAG readngs → did you mean readings?
run readngs/daily → there is no DAG readngs → did you mean readings?
run readings/dayly → there is no job readings/dayly → did you mean daily?
pause readngs → there is no DAG readngs → did you mean readings?
pause readings/dayly → there is no job readings/dayly → did you mean daily?
resume readngs → there is no DAG readngs → did you mean readings?
history readngs → there is no DAG readngs → did you mean readings?
status readngs → there is no DAG readngs → did you mean readings?
diff readngs v1 v2 → there is no DAG readngs → did you mean readings?
rollback readngs --yes → there is no DAG readngs → did you mean readings?
promote readngs 1 --yes → there is no DAG readngs → did you mean readings?
pin readngs 1 → there is no DAG readngs → did you mean readings?
abandon readngs --yes → there is no DAG readngs → did you mean readings?
delete readngs --yes → there is no DAG readngs → did you mean readings?
notify test readngs → there is no DAG readngs → did you mean readings?
why readings/dayly → there is no job readings/dayly → did you mean daily?
lineage daily_highst → there is no dataset daily_highst → did you mean daily_highest?
lineage daily_highest --partition 2026-07-07 → no partition "2026-07-07"
query --at v9 --dag readings ` + "`SELECT 1 FROM daily_highest`" + ` → has no version v9
users invite a@example.com --role readr → --role "readr" is not known → did you mean reader? Use reader, proposer, writer or admin
tokens create x --role readr → --role "readr" is not known → did you mean reader?
tokens create x --kind usr → --kind "usr" is not known → did you mean user? Use user, worker or scim
tokens revoke nobody --yes → there is no token "nobody"
secrets delete nobody --yes → there is no secret "nobody"
workers drain nobody --yes → no worker nobody is alive
`

// A name that is nothing, a reversed range and a word that is none are errors in all commands, in the same words.
func TestFiltersThatNameNothingAreErrors(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.deployReadings(t, "2026-01-01")
	root, tried := anyRoot(), map[string]bool{}
	for line := range strings.Lines(strings.TrimSpace(namingNothing)) {
		parts := strings.Split(strings.TrimSpace(line), " → ")
		before, quoted, _ := strings.Cut(parts[0], "`")
		args := strings.Fields(before)
		if quoted != "" {
			args = append(args, strings.TrimSuffix(quoted, "`"))
		}

		r := dagctl(t, w.env(t, admin), args...)
		assert.Equal(t, cli.ExitFailed, r.code, "%s\n%s%s", line, r.out, r.err)
		for _, want := range parts[1:] {
			assert.Contains(t, r.err, want, line)
		}
		for _, arg := range args {
			if name, ok := strings.CutPrefix(arg, "--"); ok {
				tried[commandOf(root, args)+" "+name] = true
			}
		}
	}

	// Every command with such a flag is tried above.
	var missing []string
	eachFlag(root, func(path string, f *pflag.Flag) {
		switch f.Name {
		case "dag", "job", "dataset", "status", "kind", "tag", "since", "created-after", "outcome", "actor":
		default:
			return
		}
		if path = strings.TrimPrefix(path, "dagctl "); !tried[path+" "+f.Name] && !elsewhere[path+" "+f.Name] {
			missing = append(missing, path+" --"+f.Name)
		}
	})
	require.Empty(t, missing, "try what a name that is nothing does there")
}

// elsewhere are flags of those names that filter nothing, or that share their code with one that is tried.
var elsewhere = map[string]bool{
	"secrets bind job": true, "trust add kind": true, "tasks purge kind": true,
	"tasks purge status": true, "tasks purge created-after": true, "tasks retry job": true, "tasks retry kind": true,
	"tasks retry status": true, "tasks retry created-after": true, "tasks cancel dag": true, "tasks cancel kind": true,
	"tasks cancel created-after": true, "tasks skip dag": true, "tasks skip job": true, "tasks skip status": true,
	"tasks skip created-after": true,
}

// anyRoot returns a root command that nothing runs.
func anyRoot() *cobra.Command {
	return rootCommand(&cli.CLI{Environment: cli.Environment{Getenv: func(string) string { return "" }}})
}

// commandOf returns the words of a command line before its arguments and flags.
func commandOf(root *cobra.Command, args []string) string {
	cmd, _, err := root.Find(args)
	if err != nil {
		return ""
	}
	return strings.TrimPrefix(cmd.CommandPath(), "dagctl ")
}

// eachFlag calls a function for the flags of all commands.
func eachFlag(cmd *cobra.Command, call func(path string, f *pflag.Flag)) {
	cmd.LocalNonPersistentFlags().VisitAll(func(f *pflag.Flag) { call(cmd.CommandPath(), f) })
	for _, child := range cmd.Commands() {
		eachFlag(child, call)
	}
}

// What is hidden has the error of what is not there.
func TestHiddenAndUnknownNamesHaveTheSameError(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.lockVault(t)
	for _, command := range []string{
		"run vault/NAME --partition 2026-01-01", "backfill vault/NAME --from 2026-01-01 --to 2026-01-01",
		"pause vault/NAME",
	} {
		said := func(name string) string {
			r := dagctl(t, w.env(t, writer), strings.Fields(strings.ReplaceAll(command, "NAME", name))...)
			require.Equal(t, cli.ExitFailed, r.code, command)
			return strings.ReplaceAll(r.err, name, "NAME")
		}
		require.Equal(t, said("zzzzz"), said("daily"), command)
	}
	for _, command := range []string{"datasets get NAME", "lineage NAME", "invalidate NAME --partition 2026-01-01"} {
		said := func(name string) string {
			r := dagctl(t, w.env(t, writer), strings.Fields(strings.ReplaceAll(command, "NAME", name))...)
			require.Equal(t, cli.ExitFailed, r.code, command)
			return strings.ReplaceAll(r.err, name, "NAME")
		}
		require.Equal(t, said("zzzzz_zzzzz"), said("vault_daily"), command)
	}
}
