// Package pgdev runs a real PostgreSQL for development and tests. It finds installed binaries, creates a cluster,
// starts a server on it, and stops the server when its own process ends, however it ends.
//
// Vocabulary: a cluster is the folder that initdb makes. A data folder (Config.DataDir) holds the cluster, its
// password, its lock and the server's log. The account is the unprivileged user that runs the server if this process is
// root. A throwaway server has no data folder of the caller's and leaves nothing behind. The guard is a small process
// that stops the server when this process is gone.
//
// Only the owner of the password can connect, on the Unix socket and on the loopback address: authentication is scram,
// or md5 for a throwaway server, and folders have mode 0700. It owns no tables.
package pgdev

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/url"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/freeport"
)

const (
	superuser = "dagctl"
	database  = "dagctl"
)

// Config describes the server to start. The zero value is a throwaway server.
type Config struct {
	// DataDir keeps the data between starts; Start creates it if needed. Empty: a throwaway server, whose data lies in
	// a folder of its own, is never synced to disk and is deleted when the server stops or this process ends.
	DataDir string
	// AllowDownload lets a machine without PostgreSQL download its binaries once.
	AllowDownload bool
	// Settings adds to the server's parameters or replaces them.
	Settings map[string]string
	// Env adds variables to the server's environment, NAME=VALUE.
	Env []string
	// Log gets messages about slow steps; nil: none. The server's own lines go to postgres.log in the data folder.
	Log *slog.Logger
}

// Server is a running PostgreSQL.
type Server struct {
	folder   folder
	account  account
	password string
	port     int    // of the socket; also on the loopback address, unless this is a throwaway server
	sockets  string // the folder of the Unix socket
	cmd      *exec.Cmd
	guard    *guard
	done     chan struct{}
	stop     sync.Once
	stopErr  error
}

// Start starts a server and returns when it accepts connections and its database exists.
func Start(ctx context.Context, cfg Config) (*Server, error) {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}

	acct, err := unprivileged()
	if err != nil {
		return nil, err
	}

	dir, err := openFolder(cfg.DataDir, acct)
	if err != nil {
		return nil, err
	}
	s := &Server{folder: dir, account: acct}
	if err := s.start(ctx, cfg); err != nil {
		return nil, errors.Join(err, s.discard())
	}
	return s, nil
}

func (s *Server) start(ctx context.Context, cfg Config) error {
	bin, err := findBinaries(ctx, s.folder.clusterVersion(), cfg.AllowDownload, cfg.Log)
	if err != nil {
		return err
	}
	if err := s.folder.endLeftover(ctx); err != nil {
		return err
	}
	if s.sockets, err = s.account.socketDir(); err != nil {
		return err
	}
	if s.password, err = s.folder.init(ctx, bin, s.account, s.sockets, cfg.Log); err != nil {
		return err
	}

	// A port that was free a moment ago may be taken when the server binds it.
	for attempt := 1; ; attempt++ {
		err = s.launch(ctx, bin, cfg)
		if err == nil || attempt == 5 || !strings.Contains(err.Error(), "could not create any TCP/IP sockets") {
			return err
		}
	}
}

// launch starts the server and waits until it accepts connections.
func (s *Server) launch(ctx context.Context, bin binaries, cfg Config) error {
	params, err := s.parameters()
	if err != nil {
		return err
	}
	maps.Copy(params, cfg.Settings)
	args := []string{"-D", s.folder.cluster}
	for _, name := range slices.Sorted(maps.Keys(params)) {
		args = append(args, "-c", name+"="+params[name])
	}
	log, err := os.OpenFile(s.folder.path("postgres.log"), os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return fmt.Errorf("open the server's log: %w", err)
	}
	defer log.Close()

	// Not CommandContext: the server outlives the context of its start.
	cmd := s.account.command(exec.Command(bin.path("postgres"), args...), s.folder.cluster)
	cmd.Stdout, cmd.Stderr, cmd.Env = log, log, append(cmd.Env, cfg.Env...)
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start PostgreSQL: %w", err)
	}

	s.cmd, s.done = cmd, make(chan struct{})
	go func() {
		_ = cmd.Wait() // the server's log has the reason
		close(s.done)
	}()
	if s.guard, err = startGuard(bin, s); err != nil {
		return errors.Join(err, s.halt(ctx))
	}
	if err := s.awaitReady(ctx); err != nil {
		return errors.Join(err, s.halt(ctx))
	}
	return nil
}

// parameters returns the server's settings: modest memory, many small pools, a quiet log.
func (s *Server) parameters() (map[string]string, error) {
	params := map[string]string{
		"unix_socket_directories":      s.sockets,
		"dynamic_shared_memory_type":   "mmap", // in the cluster's folder: containers often have a tiny /dev/shm
		"unix_socket_permissions":      "0700",
		"password_encryption":          s.folder.authentication(),
		"listen_addresses":             "127.0.0.1",
		"max_connections":              "300",
		"shared_buffers":               "128MB",
		"max_wal_size":                 "1GB",
		"wal_level":                    "minimal",
		"max_wal_senders":              "0",
		"random_page_cost":             "1.1",
		"jit":                          "off", // compiling takes longer than our short statements
		"log_checkpoints":              "off",
		"log_timezone":                 "UTC",
		"timezone":                     "UTC",
		"max_locks_per_transaction":    "256",
		"cluster_name":                 "dagctl",
		"track_io_timing":              "on",
		"autovacuum_naptime":           "10s",
		"autovacuum_vacuum_cost_delay": "0",
	}

	if s.folder.throwaway {
		s.port = 5432 // only names the socket
		maps.Copy(params, map[string]string{
			"listen_addresses":   "",
			"fsync":              "off",
			"synchronous_commit": "off",
			"full_page_writes":   "off",
			"shared_buffers":     "64MB",
			"autovacuum_naptime": "1min",  // each look at a database starts a process
			"max_wal_size":       "128MB", // the folder may lie in memory
		})
	} else {
		var err error
		if s.port, err = freeport.Find(); err != nil {
			return nil, err
		}
	}
	params["port"] = strconv.Itoa(s.port)
	return params, nil
}

// awaitReady waits until the server accepts connections, and creates the database at the first start.
func (s *Server) awaitReady(ctx context.Context) error {
	// Recovery after a crash replays the log, which usually takes seconds.
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		err := s.createDatabase(ctx)
		if err == nil {
			return nil
		}

		select {
		case <-tick.C:
		case <-s.done:
			return fmt.Errorf("PostgreSQL ended at its start:\n%s", s.lastLog())
		case <-ctx.Done():
			return fmt.Errorf("PostgreSQL did not become ready: %w (%w)\n%s", ctx.Err(), err, s.lastLog())
		}
	}
}

func (s *Server) createDatabase(ctx context.Context) error {
	conn, err := pgx.Connect(ctx, s.url("postgres"))
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	var exists bool
	err = conn.QueryRow(ctx, `SELECT EXISTS (SELECT FROM pg_database WHERE datname = $1)`, database).Scan(&exists)
	if err != nil || exists {
		return err
	}
	_, err = conn.Exec(ctx, "CREATE DATABASE "+database)
	return err
}

// URL returns the URL of the server's database on its Unix socket, for the owner of everything. It has the password.
func (s *Server) URL() string { return s.url(database) }

func (s *Server) url(db string) string {
	query := url.Values{"host": {s.sockets}, "port": {strconv.Itoa(s.port)}, "sslmode": {"disable"}}
	return (&url.URL{Scheme: "postgres", User: url.UserPassword(superuser, s.password), Path: "/" + db,
		RawQuery: query.Encode()}).String()
}

// LoopbackURL returns the URL of the same database over TCP. It is empty for a throwaway server.
func (s *Server) LoopbackURL() string {
	if s.folder.throwaway {
		return ""
	}
	host := net.JoinHostPort("127.0.0.1", strconv.Itoa(s.port))
	return (&url.URL{Scheme: "postgres", User: url.UserPassword(superuser, s.password), Host: host,
		Path: "/" + database, RawQuery: "sslmode=disable"}).String()
}

// Done returns a channel that is closed when the server has ended.
func (s *Server) Done() <-chan struct{} { return s.done }

// Stop ends the server cleanly: it rolls back open transactions and flushes the data. If ctx ends first, Stop ends the
// server at once, and the server recovers at its next start. A second call does nothing.
func (s *Server) Stop(ctx context.Context) error {
	s.stop.Do(func() { s.stopErr = errors.Join(s.halt(ctx), s.discard()) })
	return s.stopErr
}

// halt ends the server process and its guard.
func (s *Server) halt(ctx context.Context) error {
	var err error
	_ = s.cmd.Process.Signal(syscall.SIGINT) // fast shutdown; it may have ended already
	select {
	case <-s.done:
	case <-ctx.Done():
		err = fmt.Errorf("stop PostgreSQL: %w", ctx.Err())
		_ = s.cmd.Process.Signal(syscall.SIGQUIT) // immediate shutdown
		select {
		case <-s.done:
		case <-time.After(5 * time.Second): // the server's own limit before it kills its children
			_ = s.cmd.Process.Kill()
			<-s.done
		}
	}

	if s.guard != nil {
		s.guard.release()
		s.guard = nil
	}
	return err
}

// discard removes what is needed only while the server runs, and releases the data folder.
func (s *Server) discard() error {
	var err error
	if s.sockets != "" {
		err = os.RemoveAll(s.sockets)
	}
	return errors.Join(err, s.folder.close())
}

// lastLog returns the end of the server's log, for errors.
func (s *Server) lastLog() string {
	const most = 2000
	text, err := os.ReadFile(s.folder.path("postgres.log"))
	if err != nil {
		return err.Error()
	}
	return strings.TrimSpace(string(text[max(0, len(text)-most):]))
}

// Remove deletes a data folder and its cluster. It returns an error if a server runs on it.
func Remove(dataDir string) error {
	if _, err := os.Lstat(dataDir); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	acct, err := unprivileged()
	if err != nil {
		return err
	}
	dir, err := openFolder(dataDir, acct)
	if err != nil {
		return err
	}
	if err := dir.endLeftover(context.Background()); err != nil {
		return errors.Join(err, dir.close())
	}
	return errors.Join(dir.remove(), dir.close())
}

// notInstalled returns an error with the hint what to install.
func notInstalled(format string, args ...any) error {
	return fault.New(fault.Unavailable, format, args...).
		WithHint("install it: apt-get install postgresql (Debian, Ubuntu), " +
			"dnf install postgresql-server (Fedora), brew install postgresql@17 (macOS); or name a running one with " +
			"--database-url")
}
