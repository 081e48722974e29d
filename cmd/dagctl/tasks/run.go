package tasks

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/dagctl/dagctl/cmd/dagctl/cli"
	"github.com/dagctl/dagctl/dispatcher"
	"github.com/dagctl/dagctl/dispatcher/httpapi"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/plural"
	"github.com/dagctl/dagctl/internal/rest"
)

// runFlags are the flags of `dagctl run`: those of one task, or a batch.
type runFlags struct {
	payload, metadata string
	runAt             string
	priority          int
	item              dispatcher.EnqueueItem // the fields that flags set as they are
	batch             string
	watch             bool
}

// RunCommand returns `dagctl run`.
func RunCommand(c *cli.CLI) *cobra.Command {
	var flags runFlags
	cmd := &cobra.Command{
		Use:   "run DAG/JOB",
		Short: "Run a job now",
		Long: `Run a job now: create a task of a manual job, or a batch of them; read a source of the kinds poll and cron at
once; or compute one partition of a job that has inputs, or of a source that is asked for its partitions.

--watch follows what that set off to its end: the task, or all of a batch, the tasks that consumers make of their
events, over all DAGs, and so on. It prints a line for each change, with -o json an object a line, and says if a pause
holds all that is open. The exit code is 0 if all ended well, and 1 if a task failed for good or was canceled. An
interrupt ends the watching alone.`,
		Example: `  dagctl run sales/landing --watch
  dagctl run sales/daily --partition 2026-01-31
  dagctl run mail/send --payload '{"to": "a@example.com"}' --idempotency-key welcome-17
  dagctl run mail/send --payload @mail.json --run-at 2026-01-31T09:00:00Z --max-attempts 5
  dagctl run mail/send --batch mails.ndjson`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			dag, job, ok := strings.Cut(args[0], "/")
			if !ok || dag == "" || job == "" {
				return fault.New(fault.Invalid, "%q is not DAG/JOB", args[0]).
					WithHint("`dagctl status DAG` lists a DAG's jobs")
			}
			items, err := flags.items(c, cmd.Flags().Changed("priority"))
			if err == nil && flags.watch {
				err = checkWatched(c)
			}
			if err != nil {
				return err
			}
			api, err := c.Connect()
			if err != nil {
				return err
			}
			if flags.plain(items) {
				done, err := runNow(cmd.Context(), c, api, dag, job, flags.item.Partition, flags.watch)
				if done || err != nil {
					return err
				}
			}

			path := "/v1/jobs/" + url.PathEscape(dag) + "/" + url.PathEscape(job) + "/tasks"
			enqueued, err := enqueue(cmd.Context(), c, api, path, items)
			if err != nil && flags.batch == "" {
				return ofTheOnly(err)
			}
			if err != nil {
				return err
			}
			if flags.watch {
				paths := make([]string, len(enqueued))
				for i, e := range enqueued {
					paths[i] = "/v1/tasks/" + e.ID.String() + "/caused"
				}
				return watchCaused(cmd.Context(), c, api, nil, paths...)
			}
			return c.Print(enqueued, func(w io.Writer) {
				for _, e := range enqueued {
					note := ""
					if !e.Created {
						note = "  (made before)"
					}
					fmt.Fprintln(w, e.ID.String()+note)
				}
			})
		},
	}
	flags.add(cmd)
	return cmd
}

func (r *runFlags) add(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&r.payload, "payload", "", "JSON for the task; @FILE reads a file, @- standard input")
	flags.StringVar(&r.metadata, "metadata", "",
		"a JSON object that is kept with the task and shown, but not passed to its operator; @FILE reads a file")
	flags.StringVar(&r.item.IdempotencyKey, "idempotency-key", "",
		"if a task has this key that was not canceled, answer with it and create none")
	flags.StringVar(&r.item.Partition, "partition", "", "key of the output partition that the task writes")
	flags.IntVar(&r.priority, "priority", 0, "tasks of higher priority run first")
	flags.StringVar(&r.runAt, "run-at", "", "do not run it before then: a date, or an RFC 3339 time")
	flags.IntVar(&r.item.MaxAttempts, "max-attempts", 0, "limit of attempts (default: that of the job)")
	flags.StringVar(&r.item.ConcurrencyKey, "concurrency-key", "",
		"run at most one task of this key at a time in the org (default: that of the job)")
	flags.StringVar(&r.batch, "batch", "",
		"file with one task a line, {\"payload\": …, \"partition\": …, \"idempotency_key\": …}; - reads standard input")

	flags.BoolVar(&r.watch, "watch", false, "follow what the run sets off to its end, over all DAGs")

	for _, flag := range []string{
		"payload", "metadata", "idempotency-key", "partition", "priority", "run-at", "max-attempts", "concurrency-key",
	} {
		cmd.MarkFlagsMutuallyExclusive(flag, "batch")
	}
}

// items returns the tasks that the flags ask for.
func (r *runFlags) items(c *cli.CLI, hasPriority bool) ([]dispatcher.EnqueueItem, error) {
	if r.batch != "" {
		return readBatch(c, r.batch, dispatcher.EnqueueItem{}, "tasks")
	}

	item := r.item
	if hasPriority {
		item.Priority = &r.priority
	}
	if r.runAt != "" {
		at, err := parseTime(r.runAt)
		if err != nil {
			return nil, err
		}
		item.RunAt = &at
	}
	var err error
	if item.Metadata, err = readPayload(c, r.metadata); err != nil {
		return nil, err
	}
	if item.Payload, err = readPayload(c, r.payload); err != nil {
		return nil, err
	}
	return []dispatcher.EnqueueItem{item}, nil
}

// plain reports whether nothing is said of the task but its partition, so that the job need not be a manual one.
func (r *runFlags) plain(items []dispatcher.EnqueueItem) bool {
	if r.batch != "" || len(items) != 1 || items[0].ConcurrencyKey != "" {
		return false
	}
	item := items[0]
	item.Partition = ""
	return item.Empty()
}

// batchSize is how many tasks one request may create, in one transaction; the API sets the limit.
const batchSize = 1000

// enqueue creates tasks.
func enqueue(ctx context.Context, c *cli.CLI, api *cli.Client, path string, items []dispatcher.EnqueueItem) (
	[]dispatcher.Enqueued, error,
) {
	return inBatches(c, items, "task", func(part []dispatcher.EnqueueItem) ([]dispatcher.Enqueued, error) {
		var enqueued rest.List[dispatcher.Enqueued]
		err := api.Post(ctx, path, httpapi.EnqueueRequest{Items: part}, &enqueued)
		return enqueued.Items, err
	})
}

// inBatches creates things in as few requests as possible. Where one fails, those of the requests before it remain.
func inBatches[I, O any](c *cli.CLI, items []I, what string, create func(part []I) ([]O, error)) ([]O, error) {
	progress := c.NewProgress()
	defer progress.End()
	all := []O{}

	for part := range slices.Chunk(items, batchSize) {
		made, err := create(part)
		if err != nil {
			if progress.End(); len(all) > 0 {
				fmt.Fprintf(c.Err, "%s created before the error; "+
					"where %ss have idempotency keys, it is safe to run the batch again.\n",
					plural.Of(len(all), what), what)
			}
			return nil, err
		}
		if all = append(all, made...); len(items) > batchSize {
			progress.Show(len(all), len(items), fmt.Sprintf("%d of %d %ss", len(all), len(items), what))
		}
	}
	return all, nil
}

// ofTheOnly returns the error of a request with one item without the item's number, which nobody has written.
func ofTheOnly(err error) error {
	var wrong *fault.Error
	if !errors.As(err, &wrong) || len(wrong.Problems) == 0 || wrong.Problems[0].Location != "body.items[0]" {
		return err
	}
	only := *wrong
	only.Message = wrong.Problems[0].Message
	only.Problems = nil
	for _, p := range wrong.Problems[1:] {
		only.Problems = append(only.Problems, fault.Problem{Message: p.Message, Suggestion: p.Suggestion})
	}
	return &only
}

// open opens a file, or standard input where the path is "-".
func open(c *cli.CLI, path string) (io.ReadCloser, error) {
	if path == "-" {
		return io.NopCloser(c.In), nil
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, fault.New(fault.NotFound, "%w", err).
			WithHint("name a file that you may read, or - for standard input")
	}
	return f, nil
}

// readPayload returns the JSON of a flag, which is the flag's text or, after an @, the name of a file.
func readPayload(c *cli.CLI, payload string) (json.RawMessage, error) {
	text := []byte(payload)
	if path, ok := strings.CutPrefix(payload, "@"); ok {
		f, err := open(c, path)
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
		return nil, fault.New(fault.Invalid, "the payload is not JSON").
			WithHint("quote it for the shell, or pass @FILE")
	}
	return text, nil
}

// readBatch reads a file with one item a line, and skips empty lines. Fields that a line lacks are those of the given
// item.
func readBatch[T any](c *cli.CLI, path string, given T, what string) ([]T, error) {
	f, err := open(c, path)
	if err != nil {
		return nil, err
	}
	defer f.Close()

	var items []T
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 16<<20)
	for n := 1; lines.Scan(); n++ {
		if len(bytes.TrimSpace(lines.Bytes())) == 0 {
			continue
		}
		decoder := json.NewDecoder(bytes.NewReader(lines.Bytes()))
		decoder.DisallowUnknownFields()
		item := given
		if err := decoder.Decode(&item); err != nil {
			return nil, fault.New(fault.Invalid, "%s:%d: %w", path, n, err).
				WithHint("a line is one JSON object, such as {\"payload\": {}}")
		}
		items = append(items, item)
	}

	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	if len(items) == 0 {
		return nil, errors.New(path + " has no " + what + " in it")
	}
	return items, nil
}
