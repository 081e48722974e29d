//go:build linux && (amd64 || arm64)

package sandbox

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"time"

	"github.com/dagctl/dagctl/internal/fault"
)

// scratch counts what a program has written: the files in its folders, and those that it removed and its processes
// still hold, open or mapped, which take as much of the disk. It is for one goroutine.
type scratch struct {
	folders []string
	bytes   int64 // at most; holes count
	files   int   // at most, folders and links included; 0: any number

	found   map[inode]int64 // the sizes of the files that were seen at the last look
	hidden  map[string]bool // processes that did not show their files at the last look
	walk    time.Duration   // how long the last walk through the folders took
	walked  time.Time
	inside  int64 // found by it
	entries int
}

// inode names a file, however many names it has.
type inode struct{ device, number uint64 }

// exceeded returns which limit the program has passed. processes are the folders of its processes in /proc.
func (s *scratch) exceeded(processes []string) error {
	// A walk through many files takes long, so it is repeated the less often the longer it takes.
	if now := time.Now(); s.found == nil || now.Sub(s.walked) >= 20*s.walk {
		s.found = map[inode]int64{}
		s.look()
		s.walk, s.walked = time.Since(now), time.Now()
	}

	removed, files, hides := s.removed(processes)
	switch {
	case s.inside+removed > s.bytes:
		return fault.New(fault.TooLarge, "%w: more than %d MiB, files included that it removed and still holds",
			ErrWritten, s.bytes>>20)
	case s.files > 0 && s.entries+files > s.files:
		return fault.New(fault.TooLarge, "%w: more than %d files", ErrWritten, s.files)
	case hides:
		return fault.New(fault.TooLarge, "%w: one of its processes hides which files it holds open, because its "+
			"program may be run and not read", ErrWritten)
	}
	return nil
}

// look counts what is in the folders, until it is more than there may be.
func (s *scratch) look() {
	s.inside, s.entries = 0, 0
	for _, dir := range s.folders {
		_ = filepath.WalkDir(dir, func(_ string, entry os.DirEntry, err error) error {
			if err != nil {
				return nil // it changes while it is looked at
			}
			s.entries++
			if entry.Type().IsRegular() {
				if info, err := entry.Info(); err == nil {
					s.inside += s.count(info)
				}
			}
			if s.inside > s.bytes || s.files > 0 && s.entries > s.files {
				return fs.SkipAll
			}
			return nil
		})
	}
}

// count returns the size of a file that was not counted before.
func (s *scratch) count(info fs.FileInfo) int64 {
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return info.Size()
	}
	of := inode{stat.Dev, stat.Ino}
	before, counted := s.found[of]
	s.found[of] = info.Size()
	if counted {
		return max(info.Size()-before, 0)
	}
	return info.Size()
}

// removed counts the files that have no name any more and that processes hold. hides: one does not show what it holds,
// now and at the last look: at an exec, that may be so for a moment.
func (s *scratch) removed(processes []string) (bytes int64, files int, hides bool) {
	held, hidden := map[inode]int64{}, map[string]bool{}
	for _, process := range processes {
		folder := filepath.Join(process, "fd")
		entries, err := os.ReadDir(folder)
		if errors.Is(err, fs.ErrPermission) && running(process) {
			hidden[process] = true
			hides = hides || s.hidden[process]
		}

		for _, entry := range entries {
			info, err := os.Stat(filepath.Join(folder, entry.Name()))
			if err != nil || !info.Mode().IsRegular() {
				continue
			}
			if stat, ok := info.Sys().(*syscall.Stat_t); ok && stat.Nlink == 0 {
				held[inode{stat.Dev, stat.Ino}] = info.Size()
			}
		}
		s.addMapped(process, held)
	}

	s.hidden = hidden
	for of, size := range held {
		bytes += max(size-s.found[of], 0) // one that the walk counted before it was removed is not counted again
		if _, counted := s.found[of]; !counted {
			files++
		}
	}
	return bytes, files, hides
}

// addMapped adds the removed files that a process has mapped. One that it does not hold open as well is as large as it
// was when it was last seen, or as the part of it that is mapped.
func (s *scratch) addMapped(process string, held map[inode]int64) {
	text, _ := os.ReadFile(filepath.Join(process, "maps")) // it may have ended
	for line := range bytes.Lines(text) {
		// from-to rights offset major:minor inode path (deleted): proc(5)
		fields := bytes.Fields(line)
		if len(fields) < 7 || !bytes.Equal(fields[len(fields)-1], []byte("(deleted)")) || !s.below(string(fields[5])) {
			continue
		}
		from, to, _ := bytes.Cut(fields[0], []byte("-"))
		begins, err1 := strconv.ParseInt(string(from), 16, 64)
		ends, err2 := strconv.ParseInt(string(to), 16, 64)
		offset, err3 := strconv.ParseInt(string(fields[2]), 16, 64)
		of, err4 := inodeOf(string(fields[3]), string(fields[4]))
		if errors.Join(err1, err2, err3, err4) == nil {
			held[of] = max(held[of], s.found[of], offset+ends-begins)
		}
	}
}

// below reports whether a path is below one of the folders, as the supervisor or the program sees them.
func (s *scratch) below(path string) bool {
	return slices.ContainsFunc(append([]string{"/task", "/tmp"}, s.folders...), func(dir string) bool {
		return len(path) > len(dir) && path[:len(dir)] == dir && path[len(dir)] == '/'
	})
}

func inodeOf(device, number string) (inode, error) {
	major, minor, _ := bytes.Cut([]byte(device), []byte(":"))
	ma, err1 := strconv.ParseUint(string(major), 16, 32)
	mi, err2 := strconv.ParseUint(string(minor), 16, 32)
	n, err3 := strconv.ParseUint(number, 10, 64)
	return inode{(ma&0xfffff000)<<32 | (ma&0xfff)<<8 | (mi&0xffffff00)<<12 | mi&0xff, n}, errors.Join(err1, err2, err3)
}

// running reports whether a process has not ended: one that waits to be reaped shows nothing to anybody.
func running(process string) bool {
	text, err := os.ReadFile(filepath.Join(process, "stat"))
	if err != nil {
		return false
	}
	at := bytes.LastIndex(text, []byte(") "))
	return at >= 0 && at+2 < len(text) && text[at+2] != 'Z' && text[at+2] != 'X'
}
