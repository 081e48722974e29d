package pgdev

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
)

// Signal says what a copy of a cluster does at its start.
type Signal string

const (
	Standby  Signal = "standby"  // follow the server that the setting primary_conninfo names, until it is promoted
	Recovery Signal = "recovery" // play the log that the setting restore_command fetches
)

// BackUp makes a data folder with a copy of the server's cluster as it is now. The server needs the settings wal_level
// replica and max_wal_senders 2. A server that starts on the folder has the same password.
func (s *Server) BackUp(ctx context.Context, dataDir string, signal Signal) (err error) {
	to, err := openFolder(dataDir, s.account)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, to.close()) }()
	bin, err := findBinaries(ctx, s.folder.clusterVersion(), false, nil)
	if err != nil {
		return err
	}

	fresh := to.cluster + ".new"
	if err := errors.Join(os.RemoveAll(fresh), os.Mkdir(fresh, 0o700), s.account.own(fresh)); err != nil {
		return fmt.Errorf("make a folder for a copy of the cluster: %w", err)
	}
	copying := s.account.command(exec.CommandContext(ctx, bin.path("pg_basebackup"), "-D", fresh,
		"-h", s.sockets, "-p", strconv.Itoa(s.port), "-U", superuser,
		"--no-sync", "--checkpoint=fast", "--wal-method=stream"), fresh)
	copying.Env = append(copying.Env, "PGPASSWORD="+s.password)
	if out, err := copying.CombinedOutput(); err != nil {
		return fmt.Errorf("pg_basebackup: %w\n%s", err, strings.TrimSpace(string(out)))
	}

	mark := filepath.Join(fresh, string(signal)+".signal")
	if err := errors.Join(os.WriteFile(mark, nil, 0o600), s.account.own(mark)); err != nil {
		return fmt.Errorf("mark the copy of the cluster: %w", err)
	}
	return to.place(fresh, s.password)
}
