package dev

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/cmd/dagctl/cli"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/filelock"
	"github.com/dagctl/dagctl/internal/pgdev"
)

// The files in the data folder, besides those that other commands read.
const (
	workerTokenFile = "worker-token" // token for workers, from start to start
	taskKeyFile     = "task.pem"     // signs capability tokens
	secretsKeyFile  = "secrets.key"  // encrypts secrets
)

// dataFolder is the data folder of a dev server, locked by this process.
type dataFolder struct {
	dir  string
	lock *filelock.Lock
}

// openDataFolder creates the folder if there is none, and locks it until this process ends, however it ends.
func openDataFolder(dir string) (*dataFolder, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, fmt.Errorf("data folder: %w", err)
	}

	// PostgreSQL may run under another account, which must be able to enter its own folder. Files here are private.
	if err := os.MkdirAll(dir, 0o711); err != nil {
		return nil, fmt.Errorf("data folder: %w", err)
	}

	lock, err := filelock.Take(filepath.Join(dir, "lock"))
	var held *filelock.HeldError
	if errors.As(err, &held) {
		return nil, fault.New(fault.Conflict, "a dev server is already running on the data folder %s (process %s)",
			dir, held.Process).WithHint("use that server, stop it, or pass another folder with --data")
	}
	if err != nil {
		return nil, fmt.Errorf("lock the data folder %s: %w", dir, err)
	}
	return &dataFolder{dir: dir, lock: lock}, nil
}

func (d *dataFolder) path(name string) string { return filepath.Join(d.dir, name) }

// reset deletes everything that earlier dev servers left.
func (d *dataFolder) reset() error {
	if err := pgdev.Remove(d.path("postgres")); err != nil {
		return err
	}
	for _, name := range []string{"storage", cli.DevServerFile, cli.DevTokenFile, workerTokenFile, secretsKeyFile} {
		if err := os.RemoveAll(d.path(name)); err != nil {
			return fmt.Errorf("reset: %w", err)
		}
	}
	return nil
}

// secretsKey returns the key that encrypts secrets, and creates it if there is none. Only this account may read it.
func (d *dataFolder) secretsKey() (string, error) {
	text, err := os.ReadFile(d.path(secretsKeyFile))
	if err == nil {
		return string(text), nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("key of the secrets: %w", err)
	}
	key := authz.NewVaultKey()
	return key, cli.WritePrivate(d.path(secretsKeyFile), []byte(key+"\n"))
}

// openLog opens the server's own log. What a person should see is printed instead.
func (d *dataFolder) openLog() (*os.File, *slog.Logger, error) {
	file, err := os.OpenFile(d.path("dagctl.log"), os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return nil, nil, fmt.Errorf("open the log: %w", err)
	}
	return file, slog.New(slog.NewTextHandler(file, nil)), nil
}

// close removes the files that announce the server, and unlocks the folder.
func (d *dataFolder) close() error {
	var errs []error
	for _, name := range []string{cli.DevServerFile, cli.DevTokenFile} {
		if err := os.Remove(d.path(name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(append(errs, d.lock.Release())...)
}
