package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/cmd/dagctl/cli"
	"github.com/dagctl/dagctl/dispatcher/views"
	"github.com/dagctl/dagctl/registry"
)

// withOrgRole returns the environment of a new token of an org role, which it creates.
func (w *world) withOrgRole(t *testing.T, name, role, orgRole string) map[string]string {
	t.Helper()
	must(t, w.env(t, admin), "roles", "create", orgRole)
	env := w.env(t, admin)
	secret := must(t, env, "tokens", "create", name, "--role", role, "--org-role", orgRole)
	env["DAGCTL_TOKEN"] = strings.TrimSpace(secret)
	return env
}

// tripledDAG reads what doublesDAG publishes.
var tripledDAG = strings.NewReplacer("doubles", "triples", "doubled", "tripled", "daily_highest", "doubled",
	"highest AS", "doubled AS").Replace(doublesDAG)

// What is computed from a dataset with read roles is as closed, over DAGs, versions and names.
func TestReadRolesAreNeverLaundered(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.deployReadings(t, "2026-01-01")
	admins, writers, readers := w.env(t, admin), w.env(t, writer), w.env(t, reader)
	finance := w.withOrgRole(t, "finance", "writer", "role:finance")
	dir := t.TempDir()
	must(t, writers, "deploy", writeDAG(t, dir, "doubles", doublesDAG))
	must(t, readers, "query", "FROM doubled")

	hidden := func(env map[string]string, name string) {
		t.Helper()
		require.Contains(t, dagctl(t, env, "query", "FROM "+name).err, "there is no dataset")
		require.Contains(t, dagctl(t, env, "datasets", "get", name).err, "there is no dataset")
		require.NotContains(t, must(t, env, "datasets", "list", "--all"), name)
	}
	must(t, admins, "datasets", "visibility", "daily_highest", "--role", "role:finance")
	for _, env := range []map[string]string{readers, writers} {
		hidden(env, "daily_highest")
		hidden(env, "doubled")
	}
	must(t, finance, "query", "FROM doubled")
	require.Contains(t, must(t, admins, "datasets", "visibility", "doubled"),
		"members of role:finance (it is computed from daily_highest)")

	// A member may publish a copy: it is as closed. Nobody else may make a copy, or make one serve.
	parked := writeDAG(t, dir, "triples", tripledDAG)
	must(t, finance, "deploy", parked, "--no-activate")
	hidden(writers, "tripled")
	refused := dagctl(t, writers, "promote", "triples", "1")
	require.Equal(t, cli.ExitFailed, refused.code)
	require.Contains(t, refused.err, "job tripled reads what token:writer may not read")
	must(t, finance, "promote", "triples", "1")
	hidden(readers, "tripled")
	copied := dagctl(t, writers, "plan", writeDAG(t, dir, "copies", strings.NewReplacer("doubles", "copies",
		"doubled", "copied").Replace(doublesDAG)))
	require.Equal(t, cli.ExitFailed, copied.code)
	require.Contains(t, copied.err, "daily_highest")

	// Definitions, differences and tasks of what the caller may not read tell nothing.
	edited := strings.Replace(tripledDAG, "2 * doubled", "30 * doubled", 1)
	must(t, finance, "deploy", writeDAG(t, dir, "triples", edited))
	var version views.VersionDetail
	require.NoError(t, w.as(writer).Get(t.Context(), "/v1/dags/triples/versions/2", nil, &version))
	require.True(t, version.Redacted)
	require.Empty(t, version.YAML)
	require.NotContains(t, dagctl(t, writers, "diff", "triples", "1", "2").err, "30 *")
	require.Contains(t, dagctl(t, writers, "rollback", "triples", "--yes").err, "may not read")
	for _, task := range decode[[]views.Task](t, writers, "tasks", "list") {
		require.False(t, task.DAG == "triples" && task.Partition != "", "a task tells its partition")
	}

	// Only an admin opens what holds nothing of it, and the audit log knows.
	require.Equal(t, cli.ExitFailed, dagctl(t, finance, "datasets", "visibility", "doubled", "--opened").code)
	must(t, admins, "datasets", "visibility", "doubled", "--opened")
	must(t, readers, "query", "FROM doubled")
	must(t, readers, "query", "FROM tripled")
	hidden(readers, "daily_highest")
	require.Contains(t, must(t, admins, "tokens", "list"), "role:finance")
	require.Contains(t, must(t, admins, "datasets", "visibility", "doubled", "--everyone"),
		"the read roles of its inputs do not count, until --opened=false")
	require.NotContains(t, must(t, admins, "datasets", "visibility", "doubled", "--opened=false"), "do not count")
	hidden(readers, "tripled")

	must(t, admins, "datasets", "visibility", "daily_highest", "--everyone")

	// Who may not read what a DAG reads within itself does not deploy it either: a job does more than write outputs.
	must(t, admins, "datasets", "visibility", "readings/landing/0", "--role", "role:finance")
	hidden(readers, "daily_highest")
	changed := writeDAG(t, dir, "readings", strings.Replace(readingsDAG, "ORDER BY station", "ORDER BY 2", 1))
	for _, command := range []string{"plan", "deploy"} {
		require.Contains(t, dagctl(t, writers, command, changed).err, "job daily reads what token:writer may not read")
	}
	must(t, finance, "deploy", changed)
	must(t, admins, "datasets", "visibility", "readings/landing/0", "--everyone")
	require.Len(t, decode[[]registry.Dataset](t, readers, "datasets", "list"), 3)
	require.Contains(t, dagctl(t, admins, "roles", "delete", "finance").err, "1 tokens")
	require.Contains(t, dagctl(t, admins, "datasets", "visibility", "doubled", "--role", "role:finanse").err,
		`there is no org role "role:finanse"`)
}

// Admins say who may read datasets before there are any: the longest pattern counts, from the first row on, and also
// for a dataset that exists and takes such a name.
func TestReadRolesOfDatasetsToCome(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	admins, readers := w.env(t, admin), w.env(t, reader)
	must(t, admins, "roles", "create", "role:finance")
	require.Contains(t, must(t, admins, "datasets", "visibility"), "No pattern")
	require.Contains(t, dagctl(t, admins, "datasets", "visibility", "d*", "--role", "role:nobody").err,
		`there is no org role "role:nobody"`)
	require.Contains(t, dagctl(t, admins, "datasets", "visibility", "d*", "--remove").err, `there is no pattern "d*"`)
	require.Contains(t, dagctl(t, admins, "datasets", "visibility", "d", "--remove").err, "is for patterns")
	require.Equal(t, cli.ExitFailed, dagctl(t, readers, "datasets", "visibility", "d*", "--everyone").code)
	must(t, admins, "datasets", "visibility", "d*", "--role", "role:finance")
	must(t, admins, "datasets", "visibility", "daily_*", "--everyone")
	require.Len(t, decode[[]registry.ReadRolePattern](t, admins, "datasets", "visibility"), 2)

	w.deployReadings(t, "2026-01-01")
	file := writeDAG(t, t.TempDir(), "others", strings.NewReplacer("doubles", "others", "doubled: {", "free: {").
		Replace(doublesDAG))
	must(t, w.env(t, writer), "deploy", file)
	visible := func(name string) bool { return dagctl(t, readers, "datasets", "get", name).code == 0 }
	require.True(t, visible("daily_highest"), "the longest pattern counts")
	require.True(t, visible("free"))

	// What exists keeps its read roles, unless it takes a name that fits.
	require.Contains(t, must(t, admins, "datasets", "visibility", "fr*", "--role", "role:finance"),
		"exist already and keep theirs: free")
	require.True(t, visible("free"))
	renamed := writeDAG(t, t.TempDir(), "others", strings.NewReplacer("doubles", "others", "doubled: {", "doubled: {").
		Replace(doublesDAG))
	must(t, w.env(t, writer), "deploy", renamed, "--allow-breaking", "--allow-removals")
	require.False(t, visible("doubled"))
	require.Equal(t, cli.ExitFailed, dagctl(t, w.env(t, writer), "query", "FROM doubled").code)

	require.Contains(t, dagctl(t, admins, "roles", "delete", "finance").err, "patterns of datasets to come d*, fr*")
	must(t, admins, "datasets", "visibility", "d*", "--remove")
	require.False(t, visible("doubled"), "what a removed pattern has closed stays closed")
	for _, e := range decode[[]authz.AuditEntry](t, admins, "audit", "list", "--action", "visibility.pattern") {
		require.Equal(t, "token:admin", e.Actor)
	}
}

// Whoever rolls back must be able to read what the version makes, too, as for a deletion: it would serve again.
func TestNobodyRollsBackToWhatIsHidden(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.deployReadings(t, "2026-01-01")
	finance := w.withOrgRole(t, "finance", "writer", "role:finance")
	must(t, w.env(t, admin), "datasets", "visibility", "daily_highest", "--role", "role:finance")
	must(t, finance, "deploy", writeDAG(t, t.TempDir(), "dag", strings.Replace(readingsDAG, "max(celsius)",
		"min(celsius)", 1)))

	refused := dagctl(t, w.env(t, writer), "rollback", "readings", "--yes")
	require.Equal(t, cli.ExitFailed, refused.code)
	require.Contains(t, refused.err, "version 1 makes what token:writer may not read")
	must(t, finance, "rollback", "readings", "--yes")
}
