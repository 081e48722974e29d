// Command worker runs the five types of tasks of examples/task-queue. It needs DAGCTL_URL and DAGCTL_TOKEN. If
// TASK_QUEUE_JOURNAL names a file, each run adds a line there when it begins and one when it ends, as the systems that
// tasks act on would keep them.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log"
	"log/slog"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"time"

	"github.com/dagctl/dagctl/worker"
)

// order is the payload of every type.
type order struct {
	Subject string `json:"subject"`
	MS      int    `json:"ms"`     // how long the work takes, in milliseconds
	Fail    int    `json:"fail"`   // how many attempts fail before one succeeds
	Broken  bool   `json:"broken"` // no attempt can succeed
}

// receipt is the result of every type.
type receipt struct {
	Done string `json:"done"`
}

func main() {
	slog.SetLogLoggerLevel(slog.LevelWarn)
	pool, err := strconv.Atoi(os.Getenv("TASK_QUEUE_POOL_SIZE"))
	if err != nil {
		pool = worker.DefaultPoolSize
	}
	w, err := worker.New(worker.Config{URL: os.Getenv("DAGCTL_URL"), Token: os.Getenv("DAGCTL_TOKEN"), Runtime: "queue",
		PoolSize: pool})
	if err != nil {
		log.Fatal(err)
	}

	journal, err := openJournal(os.Getenv("TASK_QUEUE_JOURNAL"))
	if err != nil {
		log.Fatal(err)
	}
	for kind, verb := range map[string]string{"service:nextjs": "deployed", "task:backup": "saved",
		"email:send": "sent to", "image:resize": "resized", "report:build": "built"} {
		worker.Handle(w, kind, func(ctx context.Context, t *worker.Task, o order) (receipt, error) {
			journal.write(t, kind, "begin")
			defer journal.write(t, kind, "end")
			return do(ctx, t, verb, o)
		})
	}

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := w.Run(ctx); err != nil {
		log.Fatal(err)
	}
}

// do does the work of an order, or fails as the order says.
func do(ctx context.Context, t *worker.Task, verb string, o order) (receipt, error) {
	select {
	case <-time.After(time.Duration(o.MS) * time.Millisecond):
	case <-ctx.Done():
		return receipt{}, context.Cause(ctx)
	}
	switch {
	case o.Broken:
		return receipt{}, worker.NotRetryable(fmt.Errorf("there is no %s", o.Subject))
	case t.Attempt <= o.Fail:
		return receipt{}, fmt.Errorf("%s is busy", o.Subject)
	}
	return receipt{Done: verb + " " + o.Subject}, nil
}

// journal is a file of lines; nil: there is none.
type journal struct{ file *os.File }

func openJournal(path string) (*journal, error) {
	if path == "" {
		return nil, nil
	}
	file, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	return &journal{file}, err
}

// write adds a line in one call of the system, so that lines of several workers do not mix.
func (j *journal) write(t *worker.Task, kind, event string) {
	if j == nil {
		return
	}
	line, err := json.Marshal(map[string]any{"task": t.TaskID, "attempt": t.Attempt, "of": kind, "event": event,
		"at": time.Now().UnixNano(), "pid": os.Getpid()})
	if err == nil {
		_, err = j.file.Write(append(line, '\n'))
	}
	if err != nil {
		log.Fatal(err)
	}
}
