// Package testmysql gives each test a database of its own on a real MariaDB server, which the first test of a process
// starts in a folder of its own and which ends with the process. scripts/test_servers.sh installs MariaDB. It owns no
// tables.
package testmysql

import (
	"context"
	"crypto/rand"
	"database/sql"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/dagctl/dagctl/internal/freeport"
)

// Server is a running server, which listens on the loopback address, with TLS and without.
type Server struct {
	CA string // PEM of the authority of its certificate, which is for 127.0.0.1

	port     int
	password string // of the user admin, who may do everything
	login    string // what CREATE USER says before the password of an account
	guard    io.WriteCloser
	wait     func() error // for the end of the guard
}

const admin = "admin"

// What CREATE USER says before a password, by how the account logs in then.
const (
	byNative = "BY"
	bySHA2   = "WITH caching_sha2_password BY" // over TLS, since the server remembers nobody's hash
)

// places are where distributions and installers put MariaDB, the PATH apart.
var places = []string{"/usr/sbin", "/usr/libexec", "/usr/bin", "/opt/homebrew/opt/mariadb/bin",
	"/usr/local/opt/mariadb/bin", "/home/linuxbrew/.linuxbrew/opt/mariadb/bin", "/usr/local/mysql/bin"}

// find returns the path of a program of MariaDB.
func find(name string) (string, error) {
	if path, err := exec.LookPath(name); err == nil {
		return path, nil
	}
	for _, place := range places {
		if path, err := exec.LookPath(filepath.Join(place, name)); err == nil {
			return path, nil
		}
	}
	return "", fmt.Errorf("%s is not installed: scripts/test_servers.sh installs MariaDB, or says how to", name)
}

// start starts a server with more arguments.
func start(ctx context.Context, more ...string) (*Server, error) {
	daemon, err := find("mariadbd")
	if err != nil {
		return nil, err
	}
	install, err := find("mariadb-install-db")
	if err != nil {
		return nil, err
	}
	return started("MariaDB", byNative, func(s *Server, dir string) error {
		return s.begin(ctx, dir, daemon, install, more)
	})
}

// started returns a server that begin has started in a folder of its own.
func started(name, login string, begin func(s *Server, dir string) error) (*Server, error) {
	dir, err := os.MkdirTemp("", "dagctl-my-") // a socket's path is short
	if err != nil {
		return nil, err
	}

	s := &Server{password: rand.Text(), login: login}
	if err := begin(s, dir); err != nil {
		said, _ := os.ReadFile(filepath.Join(dir, "log"))
		s.stop(false)
		_ = os.RemoveAll(dir)
		return nil, fmt.Errorf("start %s: %w\n%s", name, err, said)
	}
	return s, nil
}

func (s *Server) begin(ctx context.Context, dir, daemon, install string, more []string) error {
	var as []string // MariaDB does not run as root
	if os.Geteuid() == 0 {
		name, err := lend(dir)
		if err != nil {
			return err
		}
		as = []string{"--user=" + name}
	}
	data := filepath.Join(dir, "data")
	made := exec.CommandContext(ctx, install, append([]string{"--no-defaults", "--datadir=" + data, "--skip-test-db",
		"--auth-root-authentication-method=normal"}, as...)...)
	made.Env = append(os.Environ(), "TMPDIR="+dir) // a server removes what others have left in a folder that they share
	if said, err := made.CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, said)
	}
	files, err := s.write(dir)
	if err != nil {
		return err
	}

	return s.listen(ctx, dir, func(port string) []string {
		args := append(append([]string{daemon, "--no-defaults", "--datadir=" + data,
			"--tmpdir=" + dir, "--socket=" + filepath.Join(dir, "s"), "--pid-file=" + filepath.Join(dir, "pid"),
			"--bind-address=127.0.0.1", "--port=" + port, "--skip-name-resolve",
			"--innodb-flush-log-at-trx-commit=0", "--innodb-buffer-pool-size=64M", "--innodb-log-file-size=16M",
			"--max-connections=200", "--performance-schema=off", "--max-allowed-packet=64M"}, files...), as...)
		return append(args, more...)
	})
}

// listen runs a server's program, with its arguments for a port, until it answers. A port that is free when we look may
// be taken when the server binds it.
func (s *Server) listen(ctx context.Context, dir string, args func(port string) []string) (err error) {
	for range 5 {
		if s.port, err = freeport.Find(); err != nil {
			return err
		}
		if err = s.run(dir, args(strconv.Itoa(s.port))); err != nil {
			return err
		}
		if err = s.answers(ctx); err == nil {
			return nil
		}
		s.stop(true)
	}
	return err
}

// lend gives a folder to the user that runs the server for root.
func lend(dir string) (name string, err error) {
	for _, name := range []string{"mysql", "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		id, err := strconv.Atoi(u.Uid)
		if err != nil {
			return "", err
		}
		return name, os.Chown(dir, id, -1)
	}
	return "", fmt.Errorf("MariaDB does not run as root, and there is neither a user mysql nor a user nobody")
}

// write writes the files that the server reads at its start, and returns the arguments that name them.
func (s *Server) write(dir string) ([]string, error) {
	ca, key, err := certificate()
	if err != nil {
		return nil, err
	}
	s.CA = ca
	files := map[string]string{"cert.pem": ca, "key.pem": key, "init.sql": "CREATE USER IF NOT EXISTS " + admin +
		"@'%' IDENTIFIED BY '" + s.password + "';\nGRANT ALL ON *.* TO " + admin + "@'%' WITH GRANT OPTION;\n"}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			return nil, err
		}
	}
	return []string{"--ssl-cert=" + filepath.Join(dir, "cert.pem"), "--ssl-key=" + filepath.Join(dir, "key.pem"),
		"--init-file=" + filepath.Join(dir, "init.sql")}, nil
}

// run starts the server below a shell that kills it and removes its folder when our end of a pipe closes, which happens
// however this process ends.
func (s *Server) run(dir string, args []string) error {
	log, err := os.OpenFile(filepath.Join(dir, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.Command("/bin/sh", append([]string{"-c", `dir=$1; shift; "$@" </dev/null & pid=$!
		read -r word; kill -9 $pid; wait $pid; [ "$word" = again ] || rm -rf "$dir"`, "guard", dir}, args...)...)
	cmd.Stdout, cmd.Stderr = log, log
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}

	s.guard, s.wait = stdin, cmd.Wait
	return nil
}

// stop ends the server at once. Its folder is removed, unless it is to be started again.
func (s *Server) stop(again bool) {
	if s.guard == nil {
		return
	}
	if again {
		_, _ = io.WriteString(s.guard, "again\n") // an error means that it is already gone
	}
	_ = s.guard.Close()
	_ = s.wait() // it is killed
	s.guard = nil
}

// answers returns when the admin can log in.
func (s *Server) answers(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	again := time.NewTicker(20 * time.Millisecond)
	defer again.Stop()
	db, err := s.open("")
	if err != nil {
		return err
	}
	defer db.Close()

	for {
		err := db.PingContext(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("it does not answer: %w", err)
		case <-again.C:
		}
	}
}

// open opens a database for the admin, who may send several statements at once.
func (s *Server) open(database string) (*sql.DB, error) {
	cfg := mysql.NewConfig()
	cfg.User, cfg.Passwd, cfg.DBName, cfg.MultiStatements = admin, s.password, database, true
	cfg.Net, cfg.Addr = "tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(s.port))
	cfg.Logger = &mysql.NopLogger{}
	connector, err := mysql.NewConnector(cfg)
	if err != nil {
		return nil, err
	}
	return sql.OpenDB(connector), nil
}
