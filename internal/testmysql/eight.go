package testmysql

import (
	"context"
	"path/filepath"
	"sync"
	"testing"

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

	return started("go-mysql-server", bySHA2, func(s *Server, dir string) error {
		if _, err := s.write(dir); err != nil {
			return err
		}
		return s.listen(ctx, dir, func(port string) []string {
			return []string{binary, "-port", port, "-cert", filepath.Join(dir, "cert.pem"), "-key",
				filepath.Join(dir, "key.pem"), "-admin", admin, "-password", s.password}
		})
	})
}
