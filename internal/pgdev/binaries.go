package pgdev

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"

	embedded "github.com/fergusstrange/embedded-postgres"

	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/freeport"
	"github.com/dagctl/dagctl/internal/late"
)

// oldest is the first PostgreSQL with all that the schema uses: UNIQUE NULLS NOT DISTINCT and security_invoker views.
const oldest = 15

// binaries is an installed PostgreSQL.
type binaries struct {
	dir   string
	major int
}

func (b binaries) path(name string) string { return filepath.Join(b.dir, name) }

// places are where distributions and installers put PostgreSQL, the PATH apart.
var places = []string{
	"/usr/lib/postgresql/*/bin",                          // Debian, Ubuntu
	"/usr/pgsql-*/bin",                                   // PostgreSQL's own packages for Fedora and its kin
	"/usr/libexec/postgresql*",                           // Alpine
	"/usr/bin",                                           // Fedora, Arch
	"/opt/homebrew/opt/postgresql*/bin",                  // Homebrew, Apple silicon
	"/usr/local/opt/postgresql*/bin",                     // Homebrew, Intel
	"/home/linuxbrew/.linuxbrew/opt/postgresql*/bin",     // Homebrew, Linux
	"/Applications/Postgres.app/Contents/Versions/*/bin", // Postgres.app
	"/usr/local/pgsql/bin",                               // built from source
}

// findBinaries returns the newest PostgreSQL of this machine or, if major is not 0, exactly that version, because only
// the version that made a cluster can serve it.
func findBinaries(ctx context.Context, major int, download bool, log *slog.Logger) (binaries, error) {
	best, err := choose(installed(ctx), major)
	if err != nil && major == 0 && download {
		return fetchBinaries(ctx, log)
	}
	return best, err
}

func choose(all []binaries, major int) (binaries, error) {
	var best binaries
	for _, b := range all {
		if fits := b.major >= oldest && (major == 0 || b.major == major); fits && b.major > best.major {
			best = b
		}
	}

	switch {
	case best.major != 0:
		return best, nil
	case major != 0:
		return best, fault.New(fault.Unavailable, "the data folder was made by PostgreSQL %d, which is not installed",
			major).
			WithHint("install PostgreSQL %d, or start empty with --reset", major)
	case len(all) > 0:
		return best, notInstalled("PostgreSQL %d is installed, but %d or newer is needed", all[0].major, oldest)
	}
	return best, notInstalled("PostgreSQL %d or newer is not installed", oldest)
}

// installed returns the versions on the PATH, followed by those in the usual places.
func installed(ctx context.Context) []binaries {
	var dirs []string
	if path, err := exec.LookPath("postgres"); err == nil {
		if path, err = filepath.EvalSymlinks(path); err == nil {
			dirs = append(dirs, filepath.Dir(path))
		}
	}
	for _, pattern := range append(places, fetchedDir("*")) {
		found, _ := filepath.Glob(pattern) // the patterns are constant and well-formed
		dirs = append(dirs, found...)
	}

	var all []binaries
	for _, dir := range dirs {
		if major := versionIn(ctx, dir); major != 0 {
			all = append(all, binaries{dir: dir, major: major})
		}
	}
	return all
}

var versionLine = late.Pattern(`^postgres \(PostgreSQL\) (\d+)`)

// versionIn returns the major version of the server in dir, or 0 if one of its programs is missing or does not run.
func versionIn(ctx context.Context, dir string) int {
	for _, name := range []string{"postgres", "initdb", "pg_ctl"} {
		if _, err := exec.LookPath(filepath.Join(dir, name)); err != nil {
			return 0
		}
	}
	out, err := exec.CommandContext(ctx, filepath.Join(dir, "postgres"), "--version").Output()
	if err != nil {
		return 0
	}
	match := versionLine.FindSubmatch(out)
	if match == nil {
		return 0
	}
	major, _ := strconv.Atoi(string(match[1]))
	return major
}

const fetchedVersion = embedded.V17

// fetchedDir returns the folder of downloaded programs. For root, it must be one that the account can reach.
func fetchedDir(version string) string {
	root := elsewhere
	if os.Geteuid() != 0 {
		cache, err := os.UserCacheDir()
		if err != nil {
			cache = os.TempDir()
		}
		root = filepath.Join(cache, "dagctl")
	}
	return filepath.Join(root, "postgresql-"+version, "bin")
}

// fetchBinaries downloads PostgreSQL's programs once. The library can only do that by starting a server, so
// fetchBinaries starts one on scratch data and then checks only that the programs are there: for root, the download
// works but the server does not start.
func fetchBinaries(ctx context.Context, log *slog.Logger) (binaries, error) {
	log.Info("PostgreSQL is not installed: downloading it once", "version", fetchedVersion)
	scratch, err := os.MkdirTemp("", "dagctl-pgfetch-")
	if err != nil {
		return binaries{}, fmt.Errorf("download PostgreSQL: %w", err)
	}
	defer os.RemoveAll(scratch)
	port, err := freeport.Find()
	if err != nil {
		return binaries{}, err
	}

	dir := fetchedDir(string(fetchedVersion))
	server := embedded.NewDatabase(embedded.DefaultConfig().
		Version(fetchedVersion).
		BinariesPath(filepath.Dir(dir)).
		CachePath(filepath.Join(scratch, "archive")).
		RuntimePath(filepath.Join(scratch, "run")).
		Port(uint32(port)).
		Password(newPassword()).
		Logger(nil))
	fetchErr := server.Start()
	if fetchErr == nil {
		if err := server.Stop(); err != nil {
			return binaries{}, fmt.Errorf("download PostgreSQL: %w", err)
		}
	}
	if major := versionIn(ctx, dir); major != 0 {
		return binaries{dir: dir, major: major}, nil
	}
	return binaries{}, notInstalled("PostgreSQL %d or newer is not installed, and could not be downloaded: %w",
		oldest, fetchErr)
}
