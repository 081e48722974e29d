package filelock

import "os"

// File returns the file of a lock.
func File(l *Lock) *os.File { return l.file }
