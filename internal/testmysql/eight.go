package testmysql

import (
	"context"
	"crypto/rand"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"

	"github.com/dagctl/dagctl/internal/freeport"
	"github.com/dagctl/dagctl/internal/testserver"
)

var theEight = sync.OnceValues(func() (*Server, error) { return startEight(context.Background()) })

// NewEight returns a database of the test's own on a server of another kind, go-mysql-server, which speaks as MySQL 8
// does where MariaDB does not: JSON is a type, and the account logs in with caching_sha2_password. Its version is
// pinned in tools/gomysql/go.mod.
func NewEight(t testing.TB) Database {
	t.Helper()
	s, err := theEight()
	if err != nil {
		t.Fatal(err)
	}
	return s.database(t)
}

func startEight(ctx context.Context) (*Server, error) {
	binary, err := testserver.Build("gomysql", "github.com/dagctl/dagctl/tools/gomysql", "CGO_ENABLED=0")
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "dagctl-my8-")
	if err != nil {
		return nil, err
	}

	s := &Server{password: rand.Text(), login: bySHA2}
	if err := s.beginEight(ctx, dir, binary); err != nil {
		said, _ := os.ReadFile(filepath.Join(dir, "log"))
		s.stop(false)
		_ = os.RemoveAll(dir)
		return nil, fmt.Errorf("start go-mysql-server: %w\n%s", err, said)
	}
	return s, nil
}

func (s *Server) beginEight(ctx context.Context, dir, binary string) error {
	if _, err := s.write(dir); err != nil {
		return err
	}

	// A port that is free when we look may be taken when the server binds it.
	var err error
	for range 5 {
		if s.port, err = freeport.Find(); err != nil {
			return err
		}
		if err = s.run(dir, []string{binary, "-port", strconv.Itoa(s.port), "-cert", filepath.Join(dir, "cert.pem"),
			"-key", filepath.Join(dir, "key.pem"), "-admin", admin, "-password", s.password}); err != nil {
			return err
		}
		if err = s.answers(ctx); err == nil {
			return nil
		}
		s.stop(true)
	}
	return err
}
