// Command go-worker is a worker with functions of its own, in Go: `email:send` for jobs without data, `rows:upper` for
// jobs that read rows and write rows. docs/workers.md has the DAG file that calls them.
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/dagctl/dagctl/worker"
)

func main() {
	w, err := worker.New(worker.Config{URL: os.Getenv("DAGCTL_URL"), Token: os.Getenv("DAGCTL_TOKEN"),
		Runtime: "ecs_platform"})
	if err != nil {
		log.Fatal(err)
	}
	worker.Handle(w, "email:send", sendEmail)
	worker.Handle(w, "rows:upper", upper)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := w.Run(ctx); err != nil {
		log.Fatal(err)
	}
}

type email struct {
	To      string `json:"to"`
	Subject string `json:"subject"`
}

type receipt struct {
	Sent string `json:"sent"`
}

func sendEmail(_ context.Context, t *worker.Task, e email) (receipt, error) {
	if !strings.Contains(e.To, "@") {
		return receipt{}, worker.NotRetryable(fmt.Errorf("%q is not an address", e.To))
	}
	t.Log.Info("sending", "to", e.To, "subject", e.Subject)
	return receipt{Sent: e.To}, nil
}

// upper copies the rows of input `names`, with their names in capitals.
func upper(ctx context.Context, t *worker.Task, _ struct{}) (map[string]int, error) {
	in, err := t.Input("names")
	if err != nil {
		return nil, err
	}
	out, err := t.Output("")
	if err != nil {
		return nil, err
	}

	file, err := out.Create(ctx, "names.ndjson", worker.NDJSON)
	if err != nil {
		return nil, err
	}
	rows := 0
	for row, err := range worker.Rows[map[string]any](ctx, in) {
		if err != nil {
			return nil, err
		}
		row["name"] = strings.ToUpper(fmt.Sprint(row["name"]))
		if err := file.Row(row); err != nil {
			return nil, err
		}
		if rows++; rows%1000 == 0 {
			t.Progress(0, fmt.Sprintf("%d rows", rows))
		}
	}
	return map[string]int{"rows": rows}, file.Close()
}
