// Command goworker offers the functions of the conformance suite with the Go SDK: the suite is run against it, and it
// shows how each part of the SDK is used.
package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/google/uuid"

	"github.com/dagctl/dagctl/worker"
	"github.com/dagctl/dagctl/worker/protocol"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	w, err := worker.New(worker.Config{URL: os.Getenv("DAGCTL_URL"), Token: os.Getenv("DAGCTL_TOKEN"),
		TokenFile: os.Getenv("DAGCTL_TOKEN_FILE"),
		Runtime:   os.Getenv("DAGCTL_RUNTIME"),
		Log:       slog.New(slog.NewTextHandler(os.Stderr, nil))})
	if err != nil {
		return err
	}

	worker.Handle(w, "conformance:echo", func(_ context.Context, _ *worker.Task, payload any) (any, error) {
		return payload, nil
	})
	worker.Handle(w, "conformance:fail", fail)
	worker.Handle(w, "conformance:sleep", sleep)
	worker.Handle(w, "conformance:log", log)
	worker.Handle(w, "conformance:copy", copyRows)
	worker.Handle(w, "conformance:norows", writeNothing)
	worker.Handle(w, "conformance:commit", commit)
	worker.Handle(w, "conformance:secrets", secrets)
	worker.Handle(w, "conformance:query", query)
	worker.Handle(w, "conformance:hold", hold)
	return w.Run(ctx)
}

type failure struct {
	Message   string `json:"message"`
	Retryable bool   `json:"retryable"`
	Crash     bool   `json:"crash"`
}

func fail(_ context.Context, _ *worker.Task, f failure) (any, error) {
	switch err := errors.New(f.Message); {
	case f.Crash:
		panic("on purpose")
	case f.Retryable:
		return nil, err
	default:
		return nil, worker.NotRetryable(err)
	}
}

type nap struct {
	Seconds  float64 `json:"seconds"`
	Progress int     `json:"progress"`
	State    string  `json:"state"`
}

func sleep(ctx context.Context, t *worker.Task, n nap) (map[string]float64, error) {
	t.Progress(n.Progress, n.State)
	select {
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	case <-time.After(time.Duration(n.Seconds * float64(time.Second))):
		return map[string]float64{"slept": n.Seconds}, nil
	}
}

// hold computes without a pause, and calls nothing.
func hold(_ context.Context, _ *worker.Task, p struct {
	Seconds float64 `json:"seconds"`
}) (any, error) {
	for until := time.Now().Add(time.Duration(p.Seconds * float64(time.Second))); time.Now().Before(until); {
	}
	return map[string]float64{"held": p.Seconds}, nil
}

func log(_ context.Context, t *worker.Task, p struct {
	Lines int `json:"lines"`
}) (any, error) {
	for i := range p.Lines {
		t.Log.Info(fmt.Sprintf("line %d", i+1))
	}
	return p, nil
}

type row struct {
	N int64  `json:"n"`
	S string `json:"s"`
}

func copyRows(ctx context.Context, t *worker.Task, _ any) (any, error) {
	in, err := t.Input("rows")
	if err != nil {
		return nil, err
	}
	out, err := t.Output("")
	if err != nil {
		return nil, err
	}

	file, err := out.Create(ctx, "rows.ndjson", worker.NDJSON)
	if err != nil {
		return nil, err
	}
	rows := 0
	for r, err := range worker.Rows[row](ctx, in) {
		if err != nil {
			return nil, err
		}
		if err := file.Row(r); err != nil {
			return nil, err
		}
		rows++
	}
	return map[string]int{"rows": rows}, file.Close()
}

func writeNothing(_ context.Context, t *worker.Task, p struct {
	Unchanged bool `json:"unchanged"`
}) (any, error) {
	if p.Unchanged {
		t.Unchanged()
	}
	return nil, nil
}

type wanted struct {
	State any                     `json:"state"`
	Tasks []protocol.EnqueuedTask `json:"tasks"`
}

func commit(ctx context.Context, t *worker.Task, p wanted) (map[string][]uuid.UUID, error) {
	if err := t.SetState(p.State); err != nil {
		return nil, err
	}
	t.Enqueue(p.Tasks...)
	answer, err := t.Commit(ctx)
	return map[string][]uuid.UUID{"tasks": answer.Tasks}, err
}

func secrets(ctx context.Context, t *worker.Task, _ any) (map[string]int, error) {
	values, err := t.Secrets(ctx)
	lengths := map[string]int{}
	for name, value := range values {
		lengths[name] = len(value)
	}
	return lengths, err
}

func query(ctx context.Context, t *worker.Task, _ any) (any, error) {
	answer, err := t.Query(ctx, "SELECT count(*) AS rows, sum(n)::BIGINT AS total FROM rows", 0)
	return map[string]any{"rows": answer.Rows}, err
}
