package storage

import "golang.org/x/sys/unix"

// sizeBeneath returns a file's size by one system call that follows no link and does not leave the folder. ok reports
// whether it could.
func sizeBeneath(folder int, name string) (bytes int64, regular, ok bool) {
	fd, err := unix.Openat2(folder, name, &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS})
	if err != nil {
		return 0, false, false
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return 0, false, false
	}
	return st.Size, st.Mode&unix.S_IFMT == unix.S_IFREG, true
}
