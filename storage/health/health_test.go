package health_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/internal/testdb"
	"github.com/dagctl/dagctl/internal/tests3"
	"github.com/dagctl/dagctl/storage"
	"github.com/dagctl/dagctl/storage/health"
)

// kept is a storage whose state a test looks at, with what was logged.
type kept struct {
	*health.Health
	storage *storage.Storage
	log     *bytes.Buffer
	changes int
}

func keep(t *testing.T, pool *pgxpool.Pool, c storage.Config) *kept {
	t.Helper()
	s, err := storage.New(c)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	k := &kept{storage: s, log: new(bytes.Buffer)}
	k.Health, err = health.New(health.Config{Storage: s, Pool: pool, Log: slog.New(slog.NewTextHandler(k.log, nil)),
		Changed: func() { k.changes++ }})
	require.NoError(t, err)
	return k
}

func database(t *testing.T) *pgxpool.Pool {
	t.Helper()
	pool, err := pg.Open(t.Context(), testdb.URL(t), pg.WithMaxConns(4))
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	return pool
}

// small returns a folder that is a file system of 4 MiB.
func small(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	require.NoError(t, unix.Mount("none", dir, "tmpfs", 0, "size=4m"))
	t.Cleanup(func() { require.NoError(t, unix.Unmount(dir, unix.MNT_DETACH)) })
	return dir
}

func TestAFullDiskIsSaidOnceAndOver(t *testing.T) {
	t.Parallel()
	root := small(t)
	k := keep(t, database(t), storage.Config{Root: root})
	require.Equal(t, "the storage has not been looked at yet", k.Reason())
	require.Empty(t, k.Look(t.Context()))
	require.Empty(t, k.log.String())

	full := filepath.Join(root, "full")
	err := os.WriteFile(full, make([]byte, 8<<20), 0o600)
	require.ErrorIs(t, err, unix.ENOSPC)
	require.Empty(t, explains(t, k, errors.New("division by zero")), "no error of a disk")
	require.Equal(t, "the storage is full", explains(t, k, fmt.Errorf("write: %w", err)))
	require.Equal(t, "the storage is full",
		explains(t, k, errors.New(`IO Error: could not write "x.parquet": No space left on device`)))
	require.Equal(t, 1, strings.Count(k.log.String(), "the storage cannot be used"))
	require.Contains(t, k.log.String(), root, "the log names the folder")
	require.NotContains(t, k.Reason(), root, "and what everybody may read does not")

	require.NoError(t, os.Remove(full))
	require.Empty(t, k.Look(t.Context()))
	require.Equal(t, 1, strings.Count(k.log.String(), "the storage can be used again"))
	require.Equal(t, 3, k.changes)
	figures := prometheus.NewRegistry()
	require.NoError(t, figures.Register(k.Health))
	families, err := figures.Gather()
	require.NoError(t, err)
	require.Len(t, families, 3)
	require.Equal(t, "dagctl_storage_usable", families[2].GetName())
	require.InDelta(t, 1, families[2].GetMetric()[0].GetGauge().GetValue(), 0)
	left, err := filepath.Glob(filepath.Join(root, ".probe-*"))
	require.NoError(t, err)
	require.Empty(t, left)
}

// explains returns what the storage has to do with an error of some task.
func explains(t *testing.T, k *kept, err error) string {
	t.Helper()
	reason, tooOften := k.Explains(t.Context(), uuid.New(), err)
	require.NoError(t, tooOften)
	return reason
}

func TestAReadOnlyFolder(t *testing.T) {
	t.Parallel()
	root := small(t)
	k := keep(t, database(t), storage.Config{Root: root})
	require.Empty(t, k.Look(t.Context()))
	require.NoError(t, unix.Mount("none", root, "tmpfs", unix.MS_REMOUNT|unix.MS_RDONLY, ""))
	require.Equal(t, "the storage can only be read", k.Look(t.Context()))
	require.NoError(t, unix.Mount("none", root, "tmpfs", unix.MS_REMOUNT, ""))
	require.Empty(t, k.Look(t.Context()))
}

func TestABucketThatIsAway(t *testing.T) {
	t.Parallel()
	srv := tests3.Start(t)
	bucket := &storage.S3Config{Bucket: srv.Bucket, Prefix: "lake", Region: srv.Region, Endpoint: srv.Endpoint,
		PathStyle: true, AccessKeyID: srv.AccessKeyID, SecretAccessKey: srv.SecretAccessKey}
	pool := database(t)
	k := keep(t, pool, storage.Config{Root: t.TempDir(), S3: bucket})
	require.Empty(t, k.Look(t.Context()), k.log)

	wrong := *bucket
	wrong.SecretAccessKey = "wrong"
	refused := keep(t, pool, storage.Config{Root: t.TempDir(), S3: &wrong})
	require.Equal(t, "the storage refuses this server", refused.Look(t.Context()))
	require.Contains(t, refused.log.String(), "check its credentials")

	srv.Kill()
	require.Equal(t, "the storage does not answer", k.Look(t.Context()))
	_, err := k.storage.Marker(t.Context())
	require.Error(t, err)
	srv.Restart()
	require.Equal(t, "the storage does not answer", explains(t, k, err),
		"an outage that is over by now is none of the task's")
	require.Empty(t, k.Reason())
}

// Once a task or a request has met an outage, its end is found soon, and not when the next look was due before.
func TestAnOutageThatOthersFoundIsWatched(t *testing.T) {
	t.Parallel()
	root := small(t)
	k := keep(t, database(t), storage.Config{Root: root})
	k.Every = time.Millisecond
	require.Empty(t, k.Look(t.Context()))
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- k.Run(ctx) }()

	require.NoError(t, unix.Mount("none", root, "tmpfs", unix.MS_REMOUNT|unix.MS_RDONLY, ""))
	require.Equal(t, "the storage can only be read", k.Look(t.Context()))
	began := time.Now()
	require.NoError(t, unix.Mount("none", root, "tmpfs", unix.MS_REMOUNT, ""))
	require.Eventually(t, func() bool { return k.Reason() == "" }, time.Minute, time.Millisecond)
	require.Less(t, time.Since(began), 20*time.Second, "the next look at a storage that is well is due after thirty")
	stop()
	require.ErrorIs(t, <-ended, context.Canceled)
}

// Many who meet an outage at once look once or twice, not each by itself.
func TestLooksAreShared(t *testing.T) {
	t.Parallel()
	k := keep(t, database(t), storage.Config{Root: t.TempDir()})
	var group sync.WaitGroup
	for range 50 {
		group.Go(func() { k.Explains(t.Context(), uuid.New(), unix.EACCES) })
	}
	group.Wait()
	require.Empty(t, k.Reason())
	require.Equal(t, 1, k.changes)
}

func TestTwoServersWithDifferentFolders(t *testing.T) {
	t.Parallel()
	pool, first, second := database(t), t.TempDir(), t.TempDir()
	one, two := keep(t, pool, storage.Config{Root: first}), keep(t, pool, storage.Config{Root: second})
	require.Empty(t, one.Look(t.Context()))
	require.Equal(t, "the storage is not the one that this installation wrote to before", two.Look(t.Context()))
	require.NoFileExists(t, filepath.Join(second, ".dagctl-installation"))
	require.Contains(t, two.log.String(), "give every server the same storage.root")
	require.ErrorContains(t, health.Check(t.Context(), pool, two.storage), "does not exist")
	require.NoError(t, health.Check(t.Context(), pool, one.storage))

	// The files move there, and the marker with them.
	id, err := os.ReadFile(filepath.Join(first, ".dagctl-installation"))
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(second, ".dagctl-installation"), id, 0o600))
	require.Empty(t, two.Look(t.Context()))

	// A folder that is unmounted while the server runs is found out as well.
	require.NoError(t, os.Remove(filepath.Join(first, ".dagctl-installation")))
	require.Equal(t, "the storage is not the one that this installation wrote to before", one.Look(t.Context()))
}

func TestTheFolderOfAnotherInstallation(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	require.Empty(t, keep(t, database(t), storage.Config{Root: root}).Look(t.Context()))
	before, err := os.ReadFile(filepath.Join(root, ".dagctl-installation"))
	require.NoError(t, err)

	pool := database(t)
	_, err = pool.Exec(t.Context(), `INSERT INTO installation (id) VALUES (gen_random_uuid())`)
	require.NoError(t, err)
	other := keep(t, pool, storage.Config{Root: root})
	require.Equal(t, "the storage is that of another installation", other.Look(t.Context()))
	after, err := os.ReadFile(filepath.Join(root, ".dagctl-installation"))
	require.NoError(t, err)
	require.Equal(t, before, after)
	require.ErrorContains(t, health.Check(t.Context(), pool, other.storage), "is the storage of installation")
}

// Of servers that start at once on empty folders, one marks its own.
func TestManyServersMarkOneStorage(t *testing.T) {
	t.Parallel()
	pool := database(t)
	var group sync.WaitGroup
	all := make([]*kept, 4)
	for i := range all {
		all[i] = keep(t, pool, storage.Config{Root: t.TempDir()})
	}
	for _, k := range all {
		group.Go(func() { k.Look(t.Context()) })
	}
	group.Wait()
	well := 0
	for _, k := range all {
		if k.Reason() == "" {
			well++
		}
	}
	require.Equal(t, 1, well)
}

// join is keep for one of several servers.
func join(t *testing.T, pool *pgxpool.Pool, c storage.Config, name string) *kept {
	t.Helper()
	k := keep(t, pool, c)
	k.Server, k.Patience = name, time.Nanosecond
	return k
}

const apart = "the storage is not the one that another server of this database uses; it may be a copy"

// copied returns a copy of a folder, as cp -a makes it.
func copied(t *testing.T, root string) string {
	t.Helper()
	to := t.TempDir()
	require.NoError(t, os.CopyFS(to, os.DirFS(root)))
	return to
}

// A copy of a folder carries its marker. Of two servers that use one each, the one that came later takes no tasks.
func TestACopyOfTheFolder(t *testing.T) {
	t.Parallel()
	pool, root := database(t), t.TempDir()
	require.Empty(t, keep(t, pool, storage.Config{Root: root}).Look(t.Context()))
	before := copied(t, root)

	one, same := join(t, pool, storage.Config{Root: root}, "one"), join(t, pool, storage.Config{Root: root}, "same")
	require.Empty(t, one.Look(t.Context()))
	require.Empty(t, same.Look(t.Context()))
	require.Empty(t, one.Look(t.Context()))

	// The copy was made before the others came: their names are missing.
	two := join(t, pool, storage.Config{Root: before}, "two")
	require.Contains(t, two.Look(t.Context()), apart)
	require.Contains(t, two.log.String(), "give every server the same storage.root")
	for _, k := range []*kept{one, same, one} {
		require.Empty(t, k.Look(t.Context()), "who was there before goes on")
	}

	// The copy was made later: the others miss the name of this one.
	three := join(t, pool, storage.Config{Root: copied(t, root)}, "three")
	require.Empty(t, three.Look(t.Context()), "it sees the others, and they have not looked yet")
	require.Empty(t, one.Look(t.Context()))
	require.Equal(t, 1, strings.Count(one.log.String(), "server=three"))
	require.Contains(t, three.Look(t.Context()), apart)
	require.Empty(t, one.Look(t.Context()))
	require.Equal(t, 1, strings.Count(one.log.String(), "server=three"), "it is said once")

	// It is mended, and the files are brought together.
	four := join(t, pool, storage.Config{Root: root}, "four")
	require.Empty(t, four.Look(t.Context()))
	require.NoError(t, os.WriteFile(filepath.Join(root, ".dagctl-server-three"), nil, 0o600))
	require.Empty(t, one.Look(t.Context()))
	require.Empty(t, three.Look(t.Context()))
}

// A restored database names servers that are no more. A new one says until when it waits for them, everywhere, and once
// in its log.
func TestAServerThatIsNoMore(t *testing.T) {
	t.Parallel()
	pool, root := database(t), t.TempDir()
	gone := join(t, pool, storage.Config{Root: root}, "gone")
	require.Empty(t, gone.Look(t.Context()))
	require.NoError(t, os.Remove(filepath.Join(root, ".dagctl-server-gone"))) // as it has stopped since
	var looked time.Time
	require.NoError(t, pool.QueryRow(t.Context(), `SELECT looked_at FROM storage_servers`).Scan(&looked))

	fresh := join(t, pool, storage.Config{Root: root}, "fresh")
	until := "if gone runs no more, this server goes on at " + looked.Add(90*time.Second).UTC().Format(time.RFC3339)
	require.Equal(t, apart+"; "+until, fresh.Look(t.Context()))
	require.Equal(t, apart+"; "+until, fresh.Reason())
	require.Equal(t, apart+"; "+until, fresh.Look(t.Context()))
	require.Equal(t, 1, strings.Count(fresh.log.String(), until))

	_, err := pool.Exec(t.Context(), `UPDATE storage_servers SET looked_at = looked_at - interval '90 s' WHERE id = 'gone'`)
	require.NoError(t, err)
	require.Empty(t, fresh.Look(t.Context()))
}

// What a server has left is removed at its end, or by others if it was killed.
func TestNamesOfServersThatHaveEnded(t *testing.T) {
	t.Parallel()
	pool, root := database(t), t.TempDir()
	one, killed := join(t, pool, storage.Config{Root: root}, "one"), join(t, pool, storage.Config{Root: root}, "killed")
	require.Empty(t, killed.Look(t.Context()))
	_, err := pool.Exec(t.Context(), `UPDATE storage_servers SET looked_at = now() - interval '2 hours'`)
	require.NoError(t, err)
	require.Empty(t, one.Look(t.Context()))
	require.NoFileExists(t, filepath.Join(root, ".dagctl-server-killed"))
	require.FileExists(t, filepath.Join(root, ".dagctl-server-one"))

	require.NoError(t, os.Remove(filepath.Join(root, ".dagctl-server-one")))
	require.Empty(t, one.Look(t.Context()))
	require.FileExists(t, filepath.Join(root, ".dagctl-server-one"), "somebody had removed it")

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, one.Run(ctx), context.Canceled)
	require.NoFileExists(t, filepath.Join(root, ".dagctl-server-one"))
	var left int
	require.NoError(t, pool.QueryRow(t.Context(), `SELECT count(*) FROM storage_servers`).Scan(&left))
	require.Zero(t, left)
}

func TestRunLooksAgain(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	s, err := storage.New(storage.Config{Root: root})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	changed := make(chan struct{}, 1)
	h, err := health.New(health.Config{Storage: s, Pool: database(t), Every: time.Millisecond,
		Changed: func() { changed <- struct{}{} }})
	require.NoError(t, err)
	go func() { _ = h.Run(t.Context()) }()
	<-changed
	require.Empty(t, h.Reason())
}
