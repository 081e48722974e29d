package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/dagctl/dagctl/dispatcher"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/rest"
)

func (c *cli) runCommand() *cobra.Command {
	var (
		payload, batch string
		metadata       string
		runAt          string
		item           dispatcher.EnqueueItem
		priority       int
	)
	cmd := &cobra.Command{
		Use:   "run DAG/JOB",
		Short: "Make a task of a manual job, or a batch of them",
		Example: `  dagctl run mail/send --payload '{"to": "a@example.com"}' --idempotency-key welcome-17
  dagctl run mail/send --payload @mail.json --run-at 2026-01-31T09:00:00Z --max-attempts 5
  dagctl run mail/send --batch mails.ndjson`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			dag, job, ok := strings.Cut(args[0], "/")
			if !ok || dag == "" || job == "" {
				return fault.New(fault.Invalid, "%q is not DAG/JOB", args[0]).WithHint("`dagctl status DAG` lists a DAG's jobs")
			}
			if cmd.Flags().Changed("priority") {
				item.Priority = &priority
			}
			var err error
			if runAt != "" {
				at, err := parseTime(runAt)
				if err != nil {
					return err
				}
				item.RunAt = &at
			}
			if item.Metadata, err = c.readPayload(metadata); err != nil {
				return err
			}
			items := []dispatcher.EnqueueItem{item}
			if batch != "" {
				items, err = c.readBatch(batch)
			} else {
				items[0].Payload, err = c.readPayload(payload)
			}
			if err != nil {
				return err
			}
			api, err := c.connect()
			if err != nil {
				return err
			}
			path := "/v1/jobs/" + url.PathEscape(dag) + "/" + url.PathEscape(job) + "/tasks"
			all := []dispatcher.Enqueued{}
			for len(items) > 0 {
				n := min(len(items), batchSize)
				var made rest.List[dispatcher.Enqueued]
				if err := api.post(cmd.Context(), path, dispatcher.EnqueueRequest{Items: items[:n]}, &made); err != nil {
					if len(all) > 0 {
						fmt.Fprintf(c.err, "%s made before the error; idempotency keys make it safe to run the batch again.\n", count(len(all), "task"))
					}
					return err
				}
				all, items = append(all, made.Items...), items[n:]
			}
			return c.print(all, func(w io.Writer) {
				for _, e := range all {
					note := ""
					if !e.Created {
						note = "  (known idempotency key)"
					}
					fmt.Fprintln(w, e.ID.String()+note)
				}
			})
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&payload, "payload", "", "JSON for the task; @FILE reads a file, @- standard input")
	flags.StringVar(&batch, "batch", "", "file with one task a line: {\"payload\": …, \"idempotency_key\": …}; - reads standard input")
	flags.StringVar(&item.IdempotencyKey, "idempotency-key", "", "a task made with this key before is answered, not made again")
	flags.StringVar(&item.Partition, "partition", "", "key of the output partition to make")
	flags.IntVar(&priority, "priority", 0, "higher first")
	flags.StringVar(&runAt, "run-at", "", "not before then: a date, or an RFC 3339 time")
	flags.IntVar(&item.MaxAttempts, "max-attempts", 0, "how often it is tried (default: as the job says)")
	flags.StringVar(&metadata, "metadata", "", "JSON kept with the task and shown, not given to its operator; @FILE reads a file")
	flags.StringVar(&item.ConcurrencyKey, "concurrency-key", "", "one running task per key in the org (default: as the job says)")
	for _, flag := range []string{"run-at", "max-attempts", "metadata", "concurrency-key"} {
		cmd.MarkFlagsMutuallyExclusive(flag, "batch")
	}
	cmd.MarkFlagsMutuallyExclusive("payload", "batch")
	cmd.MarkFlagsMutuallyExclusive("idempotency-key", "batch")
	cmd.MarkFlagsMutuallyExclusive("partition", "batch")
	cmd.MarkFlagsMutuallyExclusive("priority", "batch")
	return cmd
}

// batchSize is how many tasks go over in one transaction, the API's limit.
const batchSize = 1000

func (c *cli) open(path string) (io.ReadCloser, error) {
	if path == "-" {
		return io.NopCloser(c.in), nil
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, fault.New(fault.NotFound, "%w", err)
	}
	return f, nil
}

func (c *cli) readPayload(payload string) (json.RawMessage, error) {
	text := []byte(payload)
	if path, ok := strings.CutPrefix(payload, "@"); ok {
		f, err := c.open(path)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		if text, err = io.ReadAll(f); err != nil {
			return nil, fmt.Errorf("read the payload: %w", err)
		}
	}
	if len(text) == 0 {
		return nil, nil
	}
	if !json.Valid(text) {
		return nil, fault.New(fault.Invalid, "the payload is not JSON").WithHint("quote it for the shell, or pass @FILE")
	}
	return text, nil
}

func (c *cli) readBatch(path string) ([]dispatcher.EnqueueItem, error) {
	f, err := c.open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var items []dispatcher.EnqueueItem
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 16<<20)
	for n := 1; lines.Scan(); n++ {
		if len(bytes.TrimSpace(lines.Bytes())) == 0 {
			continue
		}
		decoder := json.NewDecoder(bytes.NewReader(lines.Bytes()))
		decoder.DisallowUnknownFields()
		var item dispatcher.EnqueueItem
		if err := decoder.Decode(&item); err != nil {
			return nil, fault.New(fault.Invalid, "%s:%d: %w", path, n, err)
		}
		items = append(items, item)
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	if len(items) == 0 {
		return nil, errors.New(path + " holds no tasks")
	}
	return items, nil
}
