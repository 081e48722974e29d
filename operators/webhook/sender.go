package webhook

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/operators"
)

// Message is what is to be delivered for one key.
type Message struct {
	Key    string
	Target *Target
	Body   json.RawMessage
	Marks  []operators.Mark // that are noted with the delivery, once it is made

	id string
}

// Sender is one run that delivers messages.
type Sender struct {
	Sending
	// RefusedAgain lets each attempt of a task send what was refused in one before.
	RefusedAgain bool

	task   *operators.Task
	client *http.Client
	ledger operators.Deliveries

	mu      sync.Mutex
	waiting int    // deliveries that are left to another attempt
	last    string // why the last of these is
	done    Summary
}

// Summary is the result of a run for people.
type Summary struct {
	Delivered int `json:"delivered"`
	Before    int `json:"delivered_before,omitempty"` // by other runs, among these
	Failed    int `json:"failed,omitempty"`
}

const (
	pageRows     = 1000 // rows whose deliveries are looked up together
	longestWait  = 10 * time.Minute
	longestTaken = time.Minute // to wait for another task that sends the same
)

// NewSender returns a Sender.
func NewSender(t *operators.Task, client *http.Client, s Sending) (*Sender, error) {
	if t.Deliveries == nil {
		return nil, operators.Permanent(fault.New(fault.Invalid, "%s runs in the server's own processes only, "+
			"where it remembers what it has delivered", t.Operator).WithHint("leave out the job's `runtime`"))
	}
	return &Sender{Sending: s, task: t, client: client, ledger: t.Deliveries}, nil
}

// columns are those of the output.
var columns = []dag.Column{{Name: "key", Type: "VARCHAR"}, {Name: "status", Type: "VARCHAR"},
	{Name: "attempts", Type: "BIGINT"}, {Name: "delivered_at", Type: "TIMESTAMP WITH TIME ZONE"},
	{Name: "http_status", Type: "INTEGER"}, {Name: "error", Type: "VARCHAR"},
	{Name: "idempotency_key", Type: "VARCHAR"}}

// shape says what a job reads and writes, and refuses columns that its input does not have.
func shape(job *dag.Job, inputs [][]dag.Column) (s dag.Shape, err error) {
	if len(job.Outputs) == 0 {
		return s, nil
	}
	s.Writes = [][]dag.Column{columns}
	c, wrong := parse(job.Config)
	if wrong != nil || len(inputs) != 1 || inputs[0] == nil {
		return s, nil
	}

	if len(c.Columns) > 0 {
		s.Reads = [][]string{slices.Compact(slices.Sorted(slices.Values(slices.Concat(c.Key, c.Columns))))}
	}
	has := func(name string) bool {
		return slices.ContainsFunc(inputs[0], func(column dag.Column) bool { return column.Name == name })
	}
	for _, field := range []struct {
		key   string
		names []string
	}{{"key", c.Key}, {"columns", c.Columns}} {
		for _, name := range field.names {
			if !has(name) {
				s.Refused = append(s.Refused, dag.ConfigError{Key: field.key,
					Message: fmt.Sprintf("the input has no column %q", name)})
			}
		}
	}
	return s, nil
}

// outcome is a row of the output.
type outcome struct {
	Key         string     `json:"key"`
	Status      string     `json:"status"`
	Attempts    int        `json:"attempts"`
	DeliveredAt *time.Time `json:"delivered_at"`
	HTTPStatus  *int       `json:"http_status"`
	Error       *string    `json:"error"`
	ID          string     `json:"idempotency_key"`
}

// Run delivers what messages returns for each row of the task's only input, and writes a row for each delivery that has
// ended. It fails, and another attempt goes on, if some have not.
func (s *Sender) Run(ctx context.Context, messages func(Row) ([]Message, error)) (r operators.Result, err error) {
	if err := ctx.Err(); err != nil {
		return r, err
	}
	s.task.Progress(0, "reading the rows")
	input, err := s.task.RowsAsJSON(ctx, 0)
	if err != nil {
		return r, err
	}

	path := filepath.Join(s.task.Scratch, "deliveries.ndjson")
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return r, err
	}
	out := json.NewEncoder(file)
	if input != "" {
		err = s.pages(ctx, input, messages, out)
	}
	if err := errors.Join(err, file.Close()); err != nil {
		return r, err
	}
	if err := s.Unfinished(); err != nil {
		return r, err
	}

	s.task.Progress(100, "writing what was delivered")
	if err := s.task.WriteJSON(ctx, 0, columns, path); err != nil {
		return r, err
	}
	r.Result, err = json.Marshal(s.done)
	return r, err
}

// Unfinished returns an error if deliveries are left to another attempt.
func (s *Sender) Unfinished() error {
	if s.waiting == 0 {
		return nil
	}
	return fault.New(fault.Unavailable, "%d are delivered, %d have failed for good, and at least %d are to be tried "+
		"again: %s", s.done.Delivered, s.done.Failed, s.waiting, s.last).
		WithHint("the next attempt sends only what is not delivered yet; let `retry` wait long enough")
}

// pages delivers the messages of an input page by page.
func (s *Sender) pages(
	ctx context.Context, input string, messages func(Row) ([]Message, error), out *json.Encoder,
) error {
	file, err := os.Open(input)
	if err != nil {
		return err
	}
	defer file.Close()

	zoned := map[string]bool{}
	for _, c := range s.task.Inputs[0].Schema {
		zoned[c.Name] = c.Type == "TIMESTAMP WITH TIME ZONE"
	}
	lines := bufio.NewReaderSize(file, 1<<16)
	for number, end := int64(0), false; !end; {
		var page []Message
		for n := 0; n < pageRows && !end; n++ {
			line, err := lines.ReadBytes('\n')
			if end = errors.Is(err, io.EOF); err != nil && !end {
				return err
			}
			if len(bytes.TrimSpace(line)) == 0 {
				continue
			}

			number++
			row, err := readRow(number, line, zoned)
			if err != nil {
				return fmt.Errorf("row %d: %w", number, err)
			}
			more, err := messages(row)
			if err != nil {
				return err
			}
			page = append(page, more...)
		}

		if useless, err := s.page(ctx, page, out); err != nil || useless {
			return err
		}
	}
	return nil
}

// page delivers messages and writes a row for each that has ended, in their order. useless reports that nothing was
// sent, because the targets are left alone.
func (s *Sender) page(ctx context.Context, page []Message, out *json.Encoder) (useless bool, err error) {
	sent, useless, err := s.Send(ctx, page)
	if err != nil {
		return false, err
	}
	for _, one := range sent {
		if one.Status != operators.Delivered && one.Status != operators.Refused {
			continue
		}
		if err := out.Encode(rowOf(one.Key, one.Delivery)); err != nil {
			return false, err
		}
	}
	return useless, nil
}

// Sent is a message and what has become of it.
type Sent struct {
	Message
	operators.Delivery
}

// Send delivers messages, and returns them in their order. Of several with one key, the first counts. useless reports
// that nothing was sent, because the targets are left alone. Unfinished says whether all have ended.
func (s *Sender) Send(ctx context.Context, messages []Message) (all []Sent, useless bool, err error) {
	seen := map[string]bool{}
	var ids []string
	for _, m := range messages {
		m.id = s.ledger.ID(m.Key)
		if !seen[m.id] {
			seen[m.id] = true
			ids, all = append(ids, m.id), append(all, Sent{Message: m})
		}
	}
	known, err := s.ledger.Known(ctx, ids)
	if err != nil {
		return nil, false, err
	}

	var sent, skipped atomic.Int64
	group, groupCtx := errgroup.WithContext(ctx)
	group.SetLimit(s.Concurrency)
	for i := range all {
		m, end := all[i].Message, &all[i].Delivery
		if d := known[m.id]; s.final(d) {
			*end = d
			s.note(d, true)
			continue
		}
		group.Go(func() (err error) {
			if over := m.Target.stopped(); over != nil {
				skipped.Add(1)
				s.note(operators.Delivery{Error: over.Error()}, false)
				return nil
			}
			sent.Add(1)
			*end, err = s.deliver(groupCtx, m)
			return err
		})
	}
	if err := group.Wait(); err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return nil, false, err
	}
	return all, skipped.Load() > 0 && sent.Load() == 0, nil
}

// final reports whether a delivery is not to be sent by this task any more. What failed in another task is tried again:
// the receiver may be mended, or the row.
func (s *Sender) final(d operators.Delivery) bool {
	return d.Status == operators.Delivered || d.Status == operators.Refused && d.Own && !s.RefusedAgain
}

func rowOf(key string, d operators.Delivery) outcome {
	o := outcome{Key: key, Status: string(d.Status), Attempts: d.Requests, ID: d.ID}
	if d.HTTPStatus != 0 {
		o.HTTPStatus = &d.HTTPStatus
	}
	if d.Error != "" {
		o.Error = &d.Error
	}
	if !d.DeliveredAt.IsZero() {
		o.DeliveredAt = &d.DeliveredAt
	}
	return o
}

// Done returns what has become of the deliveries so far.
func (s *Sender) Done() Summary {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.done
}

// note counts a delivery of which this run has heard.
func (s *Sender) note(d operators.Delivery, before bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch d.Status {
	case operators.Delivered:
		s.done.Delivered++
		if before {
			s.done.Before++
		}
	case operators.Refused:
		s.done.Failed++
	default:
		s.waiting++
		s.last = d.Error
	}

	if n := s.done.Delivered + s.done.Failed; n%50 == 1 || !before {
		s.task.Progress(50, fmt.Sprintf("%d delivered, %d failed, %d to be tried again", s.done.Delivered,
			s.done.Failed, s.waiting))
	}
}
