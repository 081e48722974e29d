package processtest

import (
	"bytes"
	"net/http"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// Serve starts `dagctl serve` on a free port and returns its URL and process when it is ready. It ends with the test.
func Serve(t testing.TB, databaseURL string, args ...string) (url string, pid int) {
	t.Helper()
	address := FreeAddress(t)
	var said bytes.Buffer
	args = append([]string{"serve", "--database-url", databaseURL, "--listen", address}, args...)
	cmd := command(t, t.TempDir(), args...)
	cmd.Stderr = &said
	require.NoError(t, cmd.Start())

	ended := make(chan struct{})
	go func() {
		_ = cmd.Wait() // how it ended is in ProcessState
		close(ended)
	}()

	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM) // it may have ended by itself
		<-ended
	})
	Eventually(t, "dagctl serve is ready", func() bool {
		select {
		case <-ended:
			require.Fail(t, "dagctl serve has ended", said.String())
		default:
		}
		answer, err := http.Get("http://" + address + "/readyz")
		if err != nil {
			return false
		}
		_ = answer.Body.Close()
		return answer.StatusCode == http.StatusOK
	})
	return "http://" + address, cmd.Process.Pid
}
