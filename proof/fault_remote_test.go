package proof_test

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/aws/aws-lambda-go/lambda"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/examples/processtest"
	"github.com/dagctl/dagctl/internal/testaws"
	"github.com/dagctl/dagctl/worker"
	"github.com/dagctl/dagctl/worker/function"
)

// The runtimes outside the servers, by their names in DAG files.
const (
	polled = "polled" // workers ask for tasks
	queued = "queued" // workers get messages from SQS
	called = "called" // a Lambda function
)

// calledAtOnce is the concurrency of the function, and the number of bootstraps.
const calledAtOnce = 3

// remote is all that runs tasks outside the servers, with the proxies before it.
type remote struct {
	door             *door
	config           string // of servers
	queue, functions *front
	fleet            *fleet // workers and bootstraps; nil until started
	address          string // of the queue
	bootstraps       *testaws.Bootstraps
}

// startRemote creates the queue, the function and a config for servers.
func startRemote(t *testing.T) *remote {
	t.Helper()
	queues := testaws.SQS(t)
	r := &remote{door: startDoor(t), bootstraps: testaws.NewBootstraps(t)}
	r.address, _ = queues.NewWithDLQ(t, 5, nil)
	r.queue = startFront(t, queues.Endpoint, garbleQueue)
	r.functions = startFront(t, testaws.Lambda(t, map[string]testaws.Function{"proof": r.bootstraps.Function()}),
		garbleFunction)
	key := filepath.Join(t.TempDir(), "task.pem")
	_, err := authz.EnsureTaskKey(key)
	require.NoError(t, err)

	r.config = filepath.Join(t.TempDir(), "config.yaml")
	require.NoError(t, os.WriteFile(r.config, fmt.Appendf(nil, `
limits: { requests_per_second: 100000, burst: 100000, worker_requests_per_second: 100000, worker_burst: 100000 }
base_url: %s
tasks: { key_files: [%q] }
operators: { command_shared: [`+os.TempDir()+`] }
runtimes:
  %s: poll
  %s: { kind: sqs, queue_url: %q, endpoint: %q, region: %s, resend_seconds: 1 }
  %s: { kind: lambda, function: proof, endpoint: %q, region: %[7]s, concurrency: %[10]d }
`, r.door.url(), key, polled, queued, r.address, r.queue.URL, testaws.Region, called, r.functions.URL,
		calledAtOnce), 0o600))
	return r
}

// awsSettings returns environment variables that AWS's own tools read.
var awsSettings = []string{"AWS_ACCESS_KEY_ID=AKIATEST", "AWS_SECRET_ACCESS_KEY=secret", "AWS_REGION=" + testaws.Region}

// start starts n workers that poll, n behind the queue, and the bootstraps of the function.
func (r *remote) start(w *world, n int) {
	w.t.Helper()
	path, err := binary()
	require.NoError(w.t, err)

	secret, _, err := authz.CreateToken(w.t.Context(), w.pool, w.caller,
		authz.NewToken{Name: "workers", Kind: authz.KindWorker, Runtimes: []string{polled, queued}})
	require.NoError(w.t, err)

	var members []*member
	for i := range 2 * n {
		health := processtest.FreeAddress(w.t)
		args := []string{path, "worker", "--runtime", polled, "--url", r.door.url(), "--pool-size", "4", "--threads",
			"1", "--health-address", health,
			"--allow-command", "acme", "--command-shared", os.TempDir(), "--file-root",
			"acme=" + w.landing, "--scratch-dir", w.scratch, "--log-format", "text"}
		if i >= n {
			args[3] = queued
			args = append(args, "--queue", r.address, "--endpoint", r.queue.URL, "--region", testaws.Region)
		}
		members = append(members, &member{address: health, ready: "/healthz", args: args,
			env: append([]string{"DAGCTL_TOKEN=" + secret}, awsSettings...)})
	}

	itself, err := os.Executable()
	require.NoError(w.t, err)
	for range calledAtOnce {
		members = append(members, &member{args: []string{itself},
			env: []string{"AWS_LAMBDA_RUNTIME_API=" + r.bootstraps.Address(w.t)}})
	}
	r.fleet = startFleet(w.t, members)
}

// misbehave sets the share of messages and of invocations for each kind of garbling.
func (r *remote) misbehave(messages, calls float64) {
	r.queue.misbehave(messages)
	r.functions.misbehave(calls)
}

// bootstrap makes this program the bootstrap of a Lambda function if it was started as one. Its handlers do what the
// programs of faultPrograms do elsewhere.
func bootstrap() {
	if os.Getenv("AWS_LAMBDA_RUNTIME_API") == "" {
		return
	}
	w, err := worker.New(worker.Config{PoolSize: 1, ScratchDir: os.TempDir()})
	if err != nil {
		panic(err)
	}
	worker.Handle(w, "count", count)
	worker.Handle(w, "copy", copyRows)
	lambda.Start(function.Handler(w))
}

func count(ctx context.Context, t *worker.Task, _ any) (any, error) {
	marks, _ := t.Config["marks"].(string)
	nap, _ := t.Config["nap"].(float64)
	mark := func(what string) error {
		return os.WriteFile(filepath.Join(marks, fmt.Sprintf("%s.%d.%s", t.TaskID, t.Attempt, what)), nil, 0o600)
	}
	if err := mark("begin"); err != nil {
		return nil, err
	}
	select {
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	case <-time.After(time.Duration(nap * float64(time.Second))):
		return nil, mark("end")
	}
}

func copyRows(ctx context.Context, t *worker.Task, _ any) (any, error) {
	in, err := t.Input("input")
	if err != nil {
		return nil, err
	}
	out, err := t.Output("")
	if err != nil {
		return nil, err
	}

	var rows []map[string]any
	for row, err := range worker.Rows[map[string]any](ctx, in) {
		if err != nil {
			return nil, err
		}
		rows = append(rows, row)
	}

	return len(rows), worker.Write(ctx, out, func(yield func(map[string]any) bool) {
		for _, row := range rows {
			if !yield(row) {
				return
			}
		}
	})
}

// door is the common address of all servers. Each connection goes to a working server, in turn.
type door struct {
	listener net.Listener
	servers  atomic.Pointer[fleet]
}

func startDoor(t *testing.T) *door {
	t.Helper()
	d := &door{}
	d.listener = listen(t, d.serve)
	return d
}

func (d *door) url() string { return "http://" + d.listener.Addr().String() }

func (d *door) serve(client net.Conn) {
	defer client.Close()
	fleet := d.servers.Load()
	if fleet == nil {
		return
	}

	at := rand.IntN(len(fleet.members))
	for i := range fleet.members {
		m := fleet.members[(at+i)%len(fleet.members)]
		if m.since().IsZero() {
			continue
		}
		server, err := net.Dial("tcp", m.address)
		if err != nil {
			continue
		}
		defer server.Close()

		var both sync.WaitGroup
		for from, to := range map[net.Conn]net.Conn{client: server, server: client} {
			both.Go(func() {
				_, _ = io.Copy(to, from) // the connection ends in any case
				_, _ = client.Close(), server.Close()
			})
		}
		both.Wait()
		return
	}
}

// report logs the faults of messages and calls.
func (r *remote) report(t *testing.T) {
	q, f := r.queue, r.functions
	t.Logf("%d messages sent, %d received and %d deleted: lost %d, twice %d, late %d, %d times mixed up, %d answers "+
		"lost; %d invocations, refused %d, throttled %d, answered wrongly %d, never %d",
		q.sent.Load(), q.received.Load(), q.deleted.Load(), q.lost.Load(), q.doubled.Load(), q.late.Load(),
		q.mixed.Load(), q.unheard.Load(),
		f.calls.Load(), f.refused.Load(), f.throttled.Load(), f.unheard.Load(), f.late.Load())
	for _, m := range r.fleet.members {
		require.Zero(t, m.deaths, "%s ended by itself: %s", strings.Join(m.args[:min(len(m.args), 4)], " "), m.last)
	}
}
