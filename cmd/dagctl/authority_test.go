package main

import (
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/dispatcher/views"
	"github.com/dagctl/dagctl/dispatcher/why"
	"github.com/dagctl/dagctl/registry"
)

// A version runs on the authority of whoever deployed it, or made it serve since. Its tasks wait while that person or
// pipeline may not read what they read, and go on once somebody answers for it who may.
func TestAVersionRunsOnSomebodysAuthority(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.deployReadings(t, "2026-01-01")
	admins, writers := w.env(t, admin), w.env(t, writer)
	finance := w.withOrgRole(t, "finance", "writer", "role:finance")
	doubles := writeDAG(t, t.TempDir(), "doubles", doublesDAG)
	must(t, writers, "deploy", doubles)

	days := 1
	computed := func() bool {
		return len(decode[[]registry.Revision](t, admins, "datasets", "partitions", "doubled")) == days
	}
	require.True(t, computed())
	waiting := func() (task views.Task, ok bool) {
		ok = slices.ContainsFunc(decode[[]views.Task](t, admins, "tasks", "list"), func(x views.Task) bool {
			task = x
			return x.DAG == "doubles" && x.Waiting == "paused"
		})
		return task, ok
	}
	// waits lands days until a task waits for somebody who answers for the version: what was known of the authority
	// counts for two seconds.
	waits := func(actor string) (task views.Task) {
		t.Helper()
		eventually(t, "a task waits", func() (ok bool, _ error) {
			days++
			w.land(t, fmt.Sprintf("2026-01-%02d", days))
			eventually(t, "it is computed or waits", func() (bool, error) {
				task, ok = waiting()
				return ok || computed(), nil
			})
			return ok, nil
		})
		reasons := decode[why.Why](t, admins, "why", task.ID.String()).Reasons
		require.Equal(t, why.WhyNoAuthority, reasons[0].Code)
		require.Contains(t, reasons[0].Text, "runs on the authority of "+actor+", who may no longer read")
		return task
	}
	goesOn := func() {
		t.Helper()
		eventually(t, "all is computed", func() (bool, error) { return computed(), nil })
	}

	require.Contains(t, must(t, admins, "datasets", "visibility", "daily_highest", "--role", "role:finance"),
		"doubles/doubled: version 1 runs on the authority of token:writer, who may not read")
	task := waits("token:writer")
	require.Contains(t, must(t, admins, "status", "doubles"), "runs on the authority of token:writer")

	// Who may not read it either changes nothing; who may takes the authority, and the same task goes on.
	must(t, writers, "pause", "doubles")
	must(t, writers, "resume", "doubles")
	eventually(t, "the task waits again", func() (bool, error) {
		still, ok := waiting()
		return ok && still.ID == task.ID, nil
	})
	must(t, finance, "deploy", doubles)
	goesOn()
	entries := decode[[]authz.AuditEntry](t, admins, "audit", "list", "--action", "dag.authority")
	require.Len(t, entries, 1)
	require.Equal(t, "token:finance", entries[0].Actor)

	// That a token has ended says nothing about what it may read: its org roles do.
	must(t, admins, "tokens", "revoke", "finance", "--yes")
	days++
	w.land(t, fmt.Sprintf("2026-01-%02d", days))
	goesOn()
	_, err := w.pool.Exec(t.Context(), `UPDATE service_tokens SET org_roles = '{}' WHERE name = 'finance'`)
	require.NoError(t, err)
	waits("token:finance")

	// Whoever resumes a DAG answers for it.
	must(t, admins, "pause", "doubles")
	must(t, admins, "resume", "doubles")
	goesOn()
}
