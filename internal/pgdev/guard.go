package pgdev

import (
	"fmt"
	"io"
	"os/exec"
	"strconv"
)

// guard is a shell that waits for our process to end and then stops the server. Its standard input is a pipe from our
// process, which the kernel closes on exit, panic and kill -9. (A parent-death signal works only on Linux, and follows
// the thread, not the process.)
type guard struct {
	cmd   *exec.Cmd
	stdin io.WriteCloser
}

// The arguments are pg_ctl, the cluster, the server's process id, the shutdown mode, the folder of sockets, and the
// throwaway folder or nothing. The script checks the cluster's pid file first: the server may be gone, and another one
// may serve the cluster.
const guardScript = `
read -r word
[ "$word" = released ] && exit 0
read -r pid <"$2/postmaster.pid" && [ "$pid" = "$3" ] && "$1" -D "$2" -m "$4" -t 60 stop
rm -rf "$5" ${6:+"$6"}
`

func startGuard(bin binaries, s *Server) (*guard, error) {
	mode, throwaway := "fast", ""
	if s.folder.throwaway {
		mode, throwaway = "immediate", s.folder.dir
	}
	cmd := s.account.command(exec.Command("/bin/sh", "-c", guardScript, "dagctl-pg-guard",
		bin.path("pg_ctl"), s.folder.cluster, strconv.Itoa(s.cmd.Process.Pid), mode, s.sockets, throwaway), "/")
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("guard PostgreSQL: %w", err)
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("guard PostgreSQL: %w", err)
	}
	return &guard{cmd: cmd, stdin: stdin}, nil
}

// release ends the guard without stopping the server.
func (g *guard) release() {
	_, _ = io.WriteString(g.stdin, "released\n") // an error means that it is already gone
	_ = g.stdin.Close()
	_ = g.cmd.Wait()
}
