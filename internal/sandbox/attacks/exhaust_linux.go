//go:build linux && (amd64 || arm64)

package attacks

import (
	"fmt"
	"os"
	"os/exec"
	"time"

	"golang.org/x/sys/unix"
)

// Exhaustions are what Exhaust knows.
var Exhaustions = []string{"memory", "shared-memory", "file", "files", "removed", "mapped", "hidden", "entries", "fork",
	"wait", "spin", "crowd"}

// Exhaust takes as much of one thing as it gets, in the working folder, and waits to be ended for that.
func Exhaust(what string) error {
	switch what {
	case "memory":
		held := [][]byte{}
		for range 4096 {
			page := make([]byte, 1<<20)
			for i := range page {
				page[i] = byte(i)
			}
			held = append(held, page)
		}
		fmt.Println(len(held))
	case "shared-memory":
		all, err := unix.Mmap(-1, 0, 4<<30, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_ANONYMOUS)
		if err != nil {
			return err
		}
		for i := 0; i < len(all); i += 4096 {
			all[i] = 1
		}
	case "file":
		f, err := os.Create("large")
		for i := 0; err == nil && i < 4096; i++ {
			_, err = f.Write(make([]byte, 1<<20))
		}
		return err
	case "files":
		return repeat(func(i int) error { return os.WriteFile(fmt.Sprint("f", i), make([]byte, 1<<20), 0o644) })
	case "entries":
		return repeat(func(i int) error { return os.Mkdir(fmt.Sprint("d", i), 0o755) })
	case "removed", "mapped":
		return hold(what == "mapped", 60, 10<<20)
	case "hidden":
		if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
			return err
		}
		return hold(false, 60, 10<<20)
	case "fork":
		for range 2000 {
			if err := exec.Command("/bin/sleep", "60").Start(); err != nil {
				return err
			}
		}
	case "wait":
		time.Sleep(time.Hour)
	case "spin":
		for !time.Now().IsZero() {
		}
	case "crowd":
		for range 1000 {
			_ = exec.Command("/bin/sh", "-c", "while :; do :; done").Start() // as many as it gets
		}
		time.Sleep(time.Hour)
	default:
		return fmt.Errorf("unknown exhaustion %s: %w", what, ErrUnknown)
	}
	return nil
}

func repeat(f func(i int) error) error {
	for i := range 1 << 20 {
		if err := f(i); err != nil {
			return err
		}
	}
	return nil
}

// hold fills files that it removes and still holds, open or mapped, and waits to be ended for that.
func hold(mapped bool, files, size int) error {
	kept := []*os.File{}
	for i := range files {
		f, err := os.Create(fmt.Sprintf("held%d", i))
		if err != nil {
			return err
		}
		if err := unix.Fallocate(int(f.Fd()), 0, 0, int64(size)); err != nil {
			return err
		}

		if mapped {
			if _, err := unix.Mmap(int(f.Fd()), 0, size, unix.PROT_READ, unix.MAP_SHARED); err != nil {
				return err
			}
			unix.Close(int(f.Fd())) // the file itself stays reachable, so that it is not closed again
		}

		kept = append(kept, f)
		if err := os.Remove(f.Name()); err != nil {
			return err
		}
	}
	time.Sleep(time.Hour)
	return fmt.Errorf("%d files were held for an hour", len(kept))
}
