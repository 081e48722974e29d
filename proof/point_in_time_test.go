package proof_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/internal/pgdev"
	"github.com/dagctl/dagctl/migrations"
	"github.com/dagctl/dagctl/registry"
)

// clusterFolder returns a data folder. Its cluster, which may lie elsewhere, is removed after the server has stopped.
func clusterFolder(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	t.Cleanup(func() { require.NoError(t, pgdev.Remove(dir)) })
	return dir
}

// Somebody deletes rows in the database. It is restored to the moment before, from a base backup and the log that was
// archived since, beside the files as they are: what was served then is served, and work goes on.
func TestPointInTimeRecovery(t *testing.T) {
	t.Parallel()
	// PostgreSQL's account writes there, which cannot pass through the folders of tests.
	archive, err := os.MkdirTemp("", "archive-")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(archive)) })
	require.NoError(t, os.Chmod(archive, 0o777))
	backup := clusterFolder(t)
	p := &postgres{t: t}
	server := p.run(clusterFolder(t), map[string]string{
		"archive_mode": "on", "archive_command": fmt.Sprintf("cp %%p %s/%%f", archive)})
	t.Cleanup(func() { require.NoError(t, server.Stop(context.Background())) })
	require.NoError(t, migrations.Up(t.Context(), server.LoopbackURL()))

	w := newWorldOn(t, server.LoopbackURL())
	w.drop("a.csv", "n\n1\n")
	stop := w.start(w.d)
	w.serve(chain())
	require.NoError(t, server.BackUp(t.Context(), backup, pgdev.Recovery))
	w.drop("b.csv", "n\n2\n")
	w.poll()
	w.eventually("the second file", func() bool { return len(w.read("summed")) == 2 })
	w.settle()
	served := w.read("summed")
	var before string
	w.one(`SELECT clock_timestamp()::text`)(&before)

	w.drop("c.csv", "n\n3\n")
	w.poll()
	w.eventually("the third file", func() bool { return len(w.read("summed")) == 3 })
	w.settle()
	stop()
	w.exec(`DELETE FROM partition_versions`)
	var last string
	w.one(`SELECT pg_walfile_name(pg_switch_wal())`)(&last)
	w.eventually("the log to be archived", func() bool {
		_, err := os.Stat(filepath.Join(archive, last))
		return err == nil
	})

	restored := p.run(backup, map[string]string{
		"restore_command": fmt.Sprintf("cp %s/%%f %%p", archive), "recovery_target_time": before,
		"recovery_target_action": "promote"})
	t.Cleanup(func() { require.NoError(t, restored.Stop(context.Background())) })
	r := w.restoredOn(restored.LoopbackURL())
	r.eventually("the recovery to end", func() bool { return r.count(`SELECT WHERE NOT pg_is_in_recovery()`) == 1 })
	require.NoError(t, migrations.Up(t.Context(), restored.LoopbackURL()))
	require.Equal(t, served, r.read("summed"))

	r.start(r.d)
	r.drop("d.csv", "n\n4\n")
	r.poll()
	r.eventually("the third file again, and the fourth", func() bool { return len(r.read("summed")) == 4 })
	r.settle()
	require.Equal(t, []string{"2", "4", "6", "8"}, r.read("summed"))
	lost, _, _, err := r.registry.VerifyFiles(t.Context(), r.caller, registry.RevisionPosition{}, 1000)
	require.NoError(t, err)
	require.Empty(t, lost)
}
