package worker

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/dagctl/dagctl/worker/protocol"
)

// How lines are sent, and how many are kept while the server does not answer.
const (
	shipEvery   = time.Second
	shipLines   = 500     // at most this many lines in a batch
	shipBytes   = 1 << 20 // about this much text in a batch
	keptLines   = 20_000
	longestLine = 16 << 10 // bytes
	flushFor    = 20 * time.Second
)

// logShipper sends a task's lines in batches. It repeats a batch until the server acknowledges it.
type logShipper struct {
	task *Task
	full chan struct{} // signaled when a batch is full

	sending sync.Mutex // held while a batch is sent, so that lines arrive in order

	mu      sync.Mutex
	lines   []protocol.LogLine // not acknowledged yet
	seq     int64              // of the last line
	dropped int64              // lines dropped since the last one kept
	refused bool               // the server accepts no more lines

	text   bytes.Buffer // under mu
	render slog.Handler // writes a record's attributes to text
}

func newLogShipper(t *Task) *logShipper {
	s := &logShipper{task: t, full: make(chan struct{}, 1)}
	s.render = slog.NewTextHandler(&s.text, &slog.HandlerOptions{
		Level: slog.LevelDebug,
		ReplaceAttr: func(groups []string, a slog.Attr) slog.Attr {
			if len(groups) == 0 && (a.Key == slog.TimeKey || a.Key == slog.LevelKey || a.Key == slog.MessageKey) {
				return slog.Attr{} // the line has them as fields of its own
			}
			return a
		},
	})
	return s
}

// add queues a line.
func (s *logShipper) add(ctx context.Context, render slog.Handler, r slog.Record) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.refused {
		return nil
	}
	if len(s.lines) >= keptLines {
		s.dropped++
		return nil
	}
	s.text.Reset()
	if err := render.Handle(ctx, r); err != nil {
		return err
	}

	text := strings.TrimSpace(r.Message + " " + strings.TrimSpace(s.text.String()))
	if s.dropped > 0 {
		s.append(r.Time, slog.LevelWarn, fmt.Sprintf("%d lines are missing here: the server was away for too "+
			"long", s.dropped))
		s.dropped = 0
	}

	s.append(r.Time, r.Level, text)
	if len(s.lines) >= shipLines {
		select {
		case s.full <- struct{}{}:
		default:
		}
	}
	return nil
}

func (s *logShipper) append(at time.Time, level slog.Level, text string) {
	if at.IsZero() {
		at = time.Now()
	}
	s.seq++
	s.lines = append(s.lines, protocol.LogLine{Seq: s.seq, At: at.UTC(), Level: levelName(level),
		Text: cut(storable(text), longestLine)})
}

func levelName(l slog.Level) string {
	switch {
	case l < slog.LevelInfo:
		return "debug"
	case l < slog.LevelWarn:
		return "info"
	case l < slog.LevelError:
		return "warn"
	}
	return "error"
}

// ship sends queued lines every second, and at once when a batch is full, until ctx ends.
func (s *logShipper) ship(ctx context.Context) {
	tick := time.NewTicker(shipEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		case <-s.full:
		}
		_ = s.send(ctx) // lines that were not sent stay queued; a final refusal is logged
	}
}

// flush sends the remaining lines before the run's end is reported: lines of an ended attempt are refused.
func (s *logShipper) flush(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, flushFor)
	defer cancel()
	if err := s.send(ctx); err != nil {
		s.task.worker.cfg.Log.WarnContext(ctx, "the last lines of a task could not be sent", "task", s.task.TaskID,
			"attempt", s.task.fence.Attempt, "error", err)
	}
}

// send sends all lines that were queued when it was called.
func (s *logShipper) send(ctx context.Context) error {
	s.sending.Lock()
	defer s.sending.Unlock()

	s.mu.Lock()
	last := s.seq
	s.mu.Unlock()

	for {
		batch := s.batch(last)
		if len(batch) == 0 {
			return nil
		}

		var answer protocol.LogsAnswer
		err := Repeat(ctx, func(ctx context.Context) (err error) {
			answer, err = s.task.client.Logs(ctx, s.task.capability(), protocol.Logs{Fence: s.task.fence, Lines: batch})
			if err == nil && answer.Accepted < batch[0].Seq {
				return errors.New("the server acknowledged no line")
			}
			return err
		})
		if refused(err) {
			s.refuse(err)
			return nil
		}
		if err != nil {
			return err
		}
		s.acknowledged(answer.Accepted)
	}
}

func (s *logShipper) batch(last int64) []protocol.LogLine {
	s.mu.Lock()
	defer s.mu.Unlock()
	n, size := 0, 0
	for n < len(s.lines) && n < shipLines && s.lines[n].Seq <= last && size < shipBytes {
		size += len(s.lines[n].Text)
		n++
	}
	return append([]protocol.LogLine(nil), s.lines[:n]...)
}

func (s *logShipper) acknowledged(upTo int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for n < len(s.lines) && s.lines[n].Seq <= upTo {
		n++
	}
	s.lines = append([]protocol.LogLine(nil), s.lines[n:]...)
}

func (s *logShipper) refuse(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refused, s.lines = true, nil
	s.task.worker.cfg.Log.Warn("the server accepts no lines of this task", "task", s.task.TaskID, "attempt",
		s.task.fence.Attempt, "error", err)
}

// logHandler passes records to the server and to the worker's own log.
type logHandler struct {
	ship *logShipper
	line slog.Handler // renders the attributes, with those of the logger
	own  slog.Handler
}

// Enabled returns true: a record that the worker's own log drops is still sent to the server.
func (h *logHandler) Enabled(context.Context, slog.Level) bool { return true }

func (h *logHandler) Handle(ctx context.Context, r slog.Record) error {
	err := h.ship.add(ctx, h.line, r)
	if h.own.Enabled(ctx, r.Level) {
		err = errors.Join(err, h.own.Handle(ctx, r))
	}
	return err
}

func (h *logHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &logHandler{h.ship, h.line.WithAttrs(attrs), h.own.WithAttrs(attrs)}
}

func (h *logHandler) WithGroup(name string) slog.Handler {
	return &logHandler{h.ship, h.line.WithGroup(name), h.own.WithGroup(name)}
}
