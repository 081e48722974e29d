//go:build unix

package workdir

import (
	"errors"
	"os"
	"syscall"
)

// lock waits for the lock of a file, which ends with the process.
func lock(file *os.File) error { return syscall.Flock(int(file.Fd()), syscall.LOCK_EX) }

// release removes a file while this process has its lock: whoever waits for that finds no file that stands.
func release(file *os.File) error { return errors.Join(os.Remove(file.Name()), file.Close()) }

// free takes the lock of a file if no process holds it.
func free(file *os.File) bool {
	return syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == nil
}
