// Package filelock keeps a folder to one process until it releases it or ends, however it ends.
package filelock

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
)

// Lock is a locked file that says who holds it.
type Lock struct{ file *os.File }

// HeldError says that another holder has the lock.
type HeldError struct{ Process string } // its id, if it has written that already

func (e *HeldError) Error() string { return "locked by process " + e.Process }

// Take locks a file, which it makes if there is none. Its error is a HeldError if another holder has it.
func Take(path string) (*Lock, error) {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	l := &Lock{file}

	if err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		holder, _ := bufio.NewReader(file).ReadString('\n') // only for the message
		_ = file.Close()
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, &HeldError{strings.TrimSpace(holder)}
		}
		return nil, err
	}

	if err = file.Truncate(0); err == nil {
		_, err = fmt.Fprintln(file, os.Getpid())
	}
	if err != nil {
		return nil, errors.Join(err, l.Release())
	}
	return l, nil
}

// Release unlocks the file. Closing it alone would leave it locked for as long as a process that is just being started
// has its descriptor, too.
func (l *Lock) Release() error {
	return errors.Join(syscall.Flock(int(l.file.Fd()), syscall.LOCK_UN), l.file.Close())
}
