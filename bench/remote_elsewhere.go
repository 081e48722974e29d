package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/dispatcher/backends"
	"github.com/dagctl/dagctl/dispatcher/service"
	"github.com/dagctl/dagctl/internal/rest"
	"github.com/dagctl/dagctl/internal/testaws"
	"github.com/dagctl/dagctl/query"
	"github.com/dagctl/dagctl/worker"
	"github.com/dagctl/dagctl/worker/protocol"
	"github.com/dagctl/dagctl/worker/queue"
	"github.com/dagctl/dagctl/workerapi"
)

// elsewhere is a server on a loopback address with one runtime outside its process.
type elsewhere struct {
	bench *bench
	at    runtimeAt
	token string       // of workers
	calls *tally       // requests to the server, by the end of their path
	aws   *tally       // requests to SQS and Lambda, by the server and by the worker
	ended atomic.Int64 // tasks whose end was reported

	workerCPU time.Duration
}

func newWorkerToken(ctx context.Context, w *world, caller authz.Caller) (string, error) {
	secret, _, err := authz.CreateToken(ctx, w.requests, caller, authz.NewToken{Name: "bench", Kind: authz.KindWorker,
		Runtimes: runtimes[1:2]})
	return secret, err
}

// rounds starts a server, and a worker if the runtime has one, and runs rounds of tasks.
func (e *elsewhere) rounds(ctx context.Context, dsn string, caller authz.Caller, s *speed) (err error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	defer listener.Close() // the server may have closed it already

	base := "http://" + listener.Addr().String()
	key, err := authz.EnsureTaskKey(filepath.Join(e.bench.folder, "task-key.pem"))
	if err != nil {
		return err
	}
	signer, err := authz.NewSigner(authz.SignerConfig{Issuer: base, Keys: []authz.TaskKey{key}})
	if err != nil {
		return err
	}

	w, err := e.bench.worldWith(ctx, dsn, func(c *service.Config) {
		c.Signer, c.BaseURL, c.AWS = signer, base, e.amazon()
		c.Backends = backends.RuntimeMap{runtimes[1]: {e.at.Backend}}
	}, runtimes[0])
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.close()) }()

	handler, err := e.handler(w, signer)
	if err != nil {
		return err
	}
	server := rest.NewServer(listener.Addr().String(), handler)
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	defer func() {
		stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		defer cancel()
		err = errors.Join(err, server.Shutdown(stop))
		if closed := <-served; !errors.Is(closed, http.ErrServerClosed) {
			err = errors.Join(err, closed)
		}
	}()

	if e.at.worker {
		leave, startErr := e.startWorker(ctx, base)
		if startErr != nil {
			return startErr
		}
		defer func() { err = errors.Join(err, leave()) }()
	}
	return e.bench.askedRounds(ctx, w, caller, func() int { return int(e.ended.Load()) }, s)
}

// handler serves the routes of workers and tasks as a server does, and counts each request.
func (e *elsewhere) handler(w *world, signer *authz.Signer) (http.Handler, error) {
	tokens := authz.NewTokens(w.pool)
	limiter, err := rest.NewLimiter(50, 200) // of each task, as a server's default
	if err != nil {
		return nil, err
	}
	api, err := authz.NewAPI(authz.Config{REST: rest.Config{Logger: e.bench.log},
		Authenticators: []authz.Authenticator{tokens}, Workers: tokens, Signer: signer, Limiter: limiter})
	if err != nil {
		return nil, err
	}

	rows, err := query.New(query.Config{Requests: w.requests, Registry: w.registry, Storage: w.storage,
		Engines: w.engines})
	if err != nil {
		return nil, err
	}
	remote, err := workerapi.New(workerapi.Config{Dispatcher: w.dispatcher.Dispatcher, Registry: w.registry,
		Storage: w.storage,
		Runner:  w.runner, Queries: rows})
	if err != nil {
		return nil, err
	}

	remote.AddRoutes(api)
	routes := api.Handler()
	return http.HandlerFunc(func(response http.ResponseWriter, r *http.Request) {
		_, name, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
		ended := 0
		switch name {
		case httpComplete:
			ended = 1
		case httpCompleteMany:
			body, _ := io.ReadAll(r.Body) // the routes see that it was cut short
			ended = bytes.Count(body, []byte(`"capability_token"`))
			r.Body = io.NopCloser(bytes.NewReader(body))
		}
		routes.ServeHTTP(response, r)
		e.calls.add(name)
		e.ended.Add(int64(ended))
	}), nil
}

// tell adds the counts to the cost of the rounds.
func (e *elsewhere) tell(s *speed) {
	s.cost["http_requests_per_task"] = e.calls.perTask(s.tasks)
	if polls := e.calls.of(httpPoll); polls > 0 {
		s.cost["claims_per_poll"] = round(float64(s.tasks) / float64(polls))
	}
	if calls := e.aws.perTask(s.tasks); len(calls) > 0 {
		s.cost["aws_calls_per_task"] = calls
	}
	if e.at.worker {
		s.cost["worker_cpu_s"] = round(e.workerCPU.Seconds())
	}
}

// credentialsOf are credentials for the test servers, which accept any.
var credentialsOf = map[string]string{"AWS_ACCESS_KEY_ID": "AKIABENCH", "AWS_SECRET_ACCESS_KEY": "secret",
	"AWS_REGION": testaws.Region}

func (e *elsewhere) amazon() aws.Config {
	return aws.Config{Region: testaws.Region, HTTPClient: countingClient(e.aws),
		Credentials: credentials.NewStaticCredentialsProvider(credentialsOf["AWS_ACCESS_KEY_ID"],
			credentialsOf["AWS_SECRET_ACCESS_KEY"], "")}
}

// countingClient counts the calls to AWS's services that are made with it.
func countingClient(calls *tally) *http.Client {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.MaxIdleConns, transport.MaxIdleConnsPerHost = 0, 64
	return &http.Client{Transport: counting{transport, calls}}
}

type counting struct {
	next  http.RoundTripper
	calls *tally
}

// RoundTrip implements http.RoundTripper.
func (c counting) RoundTrip(r *http.Request) (*http.Response, error) {
	if _, name, ok := strings.Cut(r.Header.Get("X-Amz-Target"), "."); ok {
		c.calls.add(name)
	} else if strings.HasSuffix(r.URL.Path, "/invocations") {
		c.calls.add(lambdaInvoke)
	}
	return c.next.RoundTrip(r)
}

// workOptions are those of the worker process.
type workOptions struct{ URL, Queue, Endpoint string }

// startWorker starts a worker as a process of its own; leave ends it.
func (e *elsewhere) startWorker(ctx context.Context, base string) (leave func() error, err error) {
	program, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, program, "-work", base, "-queue", e.at.QueueURL, "-endpoint", e.at.Endpoint,
		"-workers", strconv.Itoa(e.bench.workers))
	cmd.Env = append(os.Environ(), "DAGCTL_TOKEN="+e.token, "AWS_CA_BUNDLE=") // nothing here speaks TLS

	for name, value := range credentialsOf {
		cmd.Env = append(cmd.Env, name+"="+value)
	}
	life, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}

	var told strings.Builder
	cmd.Stdout, cmd.Stderr = &told, e.bench.stderr
	if err := cmd.Start(); err != nil {
		return nil, err
	}

	return func() error {
		if err := errors.Join(life.Close(), cmd.Wait()); err != nil {
			return fmt.Errorf("the worker: %w", err)
		}
		e.workerCPU = cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
		var counts map[string]int64
		if err := json.Unmarshal([]byte(told.String()), &counts); err != nil {
			return fmt.Errorf("what the worker counted: %w", err)
		}
		for name, n := range counts {
			e.aws.counts[name].Add(n)
		}
		return nil
	}, nil
}

// work is the worker's process: it runs tasks until stdin ends, and then prints how often it called SQS.
func work(ctx context.Context, o options, stdin io.Reader, stdout, stderr io.Writer) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	log := slog.New(slog.NewTextHandler(stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	w, err := worker.New(worker.Config{URL: o.work.URL, Token: os.Getenv("DAGCTL_TOKEN"), Runtime: runtimes[1],
		PoolSize: o.workers, Log: log})
	if err != nil {
		return err
	}

	w.HandleOperator(protocol.Operator{Name: "noop", Version: noop{}.Spec().Version},
		func(context.Context, *worker.Task) (json.RawMessage, error) {
			return nil, nil
		})
	go func() {
		_, _ = io.Copy(io.Discard, stdin)
		stop()
	}()

	calls := newTally()
	if o.work.Queue == "" {
		err = w.Run(ctx)
	} else {
		var messages *queue.Queue
		messages, err = queue.New(ctx, w, queue.Config{URL: o.work.Queue, Endpoint: o.work.Endpoint,
			Region: testaws.Region, HTTP: countingClient(calls)})
		if err == nil {
			err = w.Serve(ctx, messages)
		}
	}
	if err != nil {
		return err
	}

	counts := map[string]int64{}
	for name, n := range calls.counts {
		counts[name] = n.Load()
	}
	return json.NewEncoder(stdout).Encode(counts)
}
