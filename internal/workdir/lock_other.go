//go:build !unix

package workdir

import (
	"errors"
	"os"
)

// lock does nothing here.
func lock(*os.File) error { return nil }

// release removes a file. An open one may be one that cannot be removed.
func release(file *os.File) error { return errors.Join(file.Close(), os.Remove(file.Name())) }

// free reports that a process may hold the lock of a file: here, nobody knows.
func free(*os.File) bool { return false }
