//go:build soak

package proof_test

import (
	"context"
	"errors"
	"flag"
	"math/rand/v2"
	"os"
	"os/exec"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/examples/processtest"
	"github.com/dagctl/dagctl/internal/pg"
)

var (
	soakSwaps   = flag.Int("swaps", 1000, "how often the soak test of readers swaps")
	soakReaders = flag.Int("readers", 64, "how many readers it has")
	soakKills   = flag.Float64("kills", 0.5, "the share of swaps during which the server is killed")
	soakThink   = flag.Duration("think", 100*time.Millisecond,
		"how long a reader of views thinks between two answers; one of files ten times as long")
	soakSeed = flag.Uint64("seed", uint64(time.Now().UnixNano()), "of what is left to chance")
)

// process is the server in a process of its own, which can be killed and restarted.
type process struct {
	t    *testing.T
	path string
	args []string
	mu   sync.Mutex
	cmd  *exec.Cmd
}

func startProcess(w *world) (p *process, address string) {
	w.t.Helper()
	path, err := binary()
	require.NoError(w.t, err)
	address = processtest.FreeAddress(w.t)
	p = &process{t: w.t, path: path, args: []string{"serve", "--config", unlimited(w.t), "--database-url", w.url,
		"--listen", address,
		"--storage-root", w.root, "--file-root", "acme=" + w.landing}}
	p.start()
	w.t.Cleanup(p.kill)
	return p, address
}

func (p *process) start() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cmd = exec.Command(p.path, p.args...)
	p.cmd.Env = append(os.Environ(), "HOME="+os.TempDir())
	require.NoError(p.t, p.cmd.Start())
}

// kill ends the process as a power cut would.
func (p *process) kill() {
	p.mu.Lock()
	defer p.mu.Unlock()
	_ = p.cmd.Process.Kill()
	_ = p.cmd.Wait() // the error says that it was killed
}

// TestSoakReadersNeverSeeTwoDeploys swaps a thousand times, with kill -9 of the server at random moments.
func TestSoakReadersNeverSeeTwoDeploys(t *testing.T) {
	t.Logf("seed %d", *soakSeed)
	random := rand.New(rand.NewPCG(*soakSeed, 0))
	w := newWorld(t)
	for name, content := range swapFiles {
		w.drop(name, content)
	}

	secret, _, err := authz.CreateToken(t.Context(), w.pool, w.caller,
		authz.NewToken{Name: "proof", Role: authz.RoleAdmin})
	require.NoError(t, err)

	server, address := startProcess(w)
	api := newServer("http://"+address, secret)
	s := &swapper{server: api, versions: map[string]int{}}

	// move swaps, and repeats it if the server was killed meanwhile.
	move := func(back bool) time.Duration {
		t.Helper()
		began := time.Now()
		for {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			err := s.other(ctx, back)
			cancel()
			if err == nil {
				return time.Since(began)
			}
			var torn errTorn
			require.False(t, errors.As(err, &torn) || time.Since(began) > 5*time.Minute, "%v", err)
			select {
			case <-time.After(20 * time.Millisecond): // a starting server must not be flooded
			case <-t.Context().Done():
			}
		}
	}

	move(false)
	move(false)

	// No reader waits for a connection
	r := &readers{server: api, sql: w.open(pg.Open, int32(*soakReaders)),
		asked:    w.open(pg.OpenRequests, int32(*soakReaders)),
		registry: w.registry, storage: w.storage, caller: w.caller, datasets: swapped,
		deployOf: generationsOf(t, w.pool, "swap", s.versions), tolerant: true, pause: *soakThink}

	ctx, stop := context.WithCancel(t.Context())
	var watch lockWatch
	var all sync.WaitGroup
	all.Go(func() { watch.run(ctx, w.pool) })
	all.Go(func() { r.read(ctx, *soakReaders) })
	kills, start, usual := 0, time.Now(), time.Second
	for i := range *soakSwaps {
		if random.Float64() >= *soakKills {
			usual = (4*usual + move(i%2 == 1)) / 5
		} else { // at any moment of the swap, however long that takes on this machine, and sometimes after it
			var killed sync.WaitGroup
			after := time.Duration(random.Int64N(int64(usual) * 5 / 4))
			killed.Go(func() {
				select {
				case <-time.After(after):
				case <-t.Context().Done():
				}
				server.kill()
				server.start()
			})
			move(i%2 == 1)
			killed.Wait()
			kills++
		}

		if (i+1)%50 == 0 {
			t.Logf("%d swaps, %d kills, %v, a swap takes about %v", i+1, kills, time.Since(start).Round(time.Second),
				usual.Round(time.Millisecond))
		}
	}

	took := time.Since(start)
	stop()
	all.Wait()
	r.report(t)
	t.Logf("%d swaps and %d kills in %v under %d readers; a rollback as its caller saw it: median %v, 99 of 100 "+
		"within %v; the longest wait of a reader for a lock %v",
		*soakSwaps, kills, took.Round(time.Second), *soakReaders, median(s.times).Round(time.Millisecond),
		quantile(s.times, 0.99).Round(time.Millisecond), watch.longest.Round(time.Millisecond))
	require.GreaterOrEqual(t, w.count(`SELECT FROM dag_activations`), *soakSwaps)
	require.Equal(t, 2, w.count(`SELECT FROM dag_versions`))
}
