package main

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/pgdev"
)

// devTokenFile holds the token of the running dev server.
const devTokenFile = "token"

// devWorkerTokenFile holds the token for workers of the running dev server.
const devWorkerTokenFile = "worker-token"

// devTaskKeyFile holds the key that a dev server signs capability tokens with.
const devTaskKeyFile = "task.pem"

// devSecretsKeyFile holds the key that a dev server encrypts secrets with.
const devSecretsKeyFile = "secrets.key"

// devData is the data folder of a dev server, locked by this process.
type devData struct {
	dir  string
	lock *os.File
}

// openDevData makes the folder if needed and locks it until this process ends, however it ends.
func openDevData(dir string) (*devData, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, fmt.Errorf("data folder: %w", err)
	}
	// PostgreSQL may run under another account, which has to get through to its own folder. Files here are private.
	if err := os.MkdirAll(dir, 0o711); err != nil {
		return nil, fmt.Errorf("data folder: %w", err)
	}
	lock, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock the data folder: %w", err)
	}
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		holder, _ := bufio.NewReader(lock).ReadString('\n') // told only; without it the message is still right
		_ = lock.Close()
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, fault.New(fault.Conflict, "a dev server runs on the data folder %s already (process %s)", dir, strings.TrimSpace(holder)).
				WithHint("use that one, stop it, or pass another folder with --data")
		}
		return nil, fmt.Errorf("lock the data folder %s: %w", dir, err)
	}
	err = lock.Truncate(0)
	if err == nil {
		_, err = fmt.Fprintln(lock, os.Getpid())
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("lock the data folder: %w", err), lock.Close())
	}
	return &devData{dir: dir, lock: lock}, nil
}

func (d *devData) path(name string) string { return filepath.Join(d.dir, name) }

// reset forgets everything an earlier dev server left.
func (d *devData) reset() error {
	if err := pgdev.Remove(d.path("postgres")); err != nil {
		return err
	}
	for _, name := range []string{"storage", devServerFile, devTokenFile, devWorkerTokenFile, devSecretsKeyFile} {
		if err := os.RemoveAll(d.path(name)); err != nil {
			return fmt.Errorf("reset: %w", err)
		}
	}
	return nil
}

// secretsKey is the key that secrets are encrypted with, made when there is none. Only this account may read it.
func (d *devData) secretsKey() (string, error) {
	text, err := os.ReadFile(d.path(devSecretsKeyFile))
	if err == nil {
		return string(text), nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("key of the secrets: %w", err)
	}
	key := authz.NewVaultKey()
	return key, writePrivate(d.path(devSecretsKeyFile), []byte(key+"\n"))
}

// openLog opens the server's own log; what a person should see is printed.
func (d *devData) openLog() (*os.File, *slog.Logger, error) {
	file, err := os.OpenFile(d.path("dagctl.log"), os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return nil, nil, fmt.Errorf("open the log: %w", err)
	}
	return file, slog.New(slog.NewTextHandler(file, nil)), nil
}

// close takes back what announced the server, and unlocks the folder.
func (d *devData) close() error {
	var errs []error
	for _, name := range []string{devServerFile, devTokenFile, devWorkerTokenFile} {
		if err := os.Remove(d.path(name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(append(errs, d.lock.Close())...)
}
