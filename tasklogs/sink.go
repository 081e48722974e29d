package tasklogs

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/worker/protocol"
)

// A task that runs in this process logs through a slog.Logger, whose lines become the task's log. They are stored twice
// a second and at the end. Where they cannot be stored they wait in memory, up to a bound, and are tried again. If the
// process dies, the last half second is lost; nobody was promised that it is kept. The
// process's own log gets only the errors: what a user's program prints may quote rows.

const storeEvery = 500 * time.Millisecond

// Logger returns a logger that writes to the attempt's log, with redact applied, and to base. The caller must call end,
// which stores the remaining lines.
func (l *Logs) Logger(base *slog.Logger, org, task uuid.UUID, attempt int,
	redact func(string) string) (log *slog.Logger, end func()) {
	s := &sink{logs: l, org: org, task: task, attempt: attempt, redact: redact}
	return slog.New(&tee{base.Handler(), s, ""}), s.end
}

// sink collects lines of one attempt.
type sink struct {
	logs      *Logs
	org, task uuid.UUID
	attempt   int
	redact    func(string) string

	mu      sync.Mutex
	seq     int64
	waiting []protocol.LogLine // with those that are being stored
	held    int                // bytes of waiting
	dropped int                // lines since the last one that is kept
	failing bool
	away    bool // the last store failed because the database is away
	ended   bool
	lastTry bool
	timer   *time.Timer
	storing sync.Mutex // one batch at a time, in order
}

// maxHeld is how many bytes of lines wait in memory while they cannot be stored.
const maxHeld = 1 << 20

// add keeps a line, without secrets, until it is stored. Lines beyond maxHeld are dropped, and get no number, so that
// they leave no gap.
func (s *sink) add(at time.Time, level, text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.held+len(text) > maxHeld {
		s.dropped++
		return
	}
	s.tellDropped(at)
	s.keep(at, level, text)
}

// tellDropped adds the line that stands for those that were dropped. The caller holds mu.
func (s *sink) tellDropped(at time.Time) {
	if s.dropped > 0 {
		s.keep(at, "warn", fmt.Sprintf("%d lines are missing here: they could not be stored in time.", s.dropped))
		s.dropped = 0
	}
}

func (s *sink) keep(at time.Time, level, text string) {
	s.seq++
	s.waiting = append(s.waiting, protocol.LogLine{Seq: s.seq, At: at, Level: level, Text: text})
	s.held += len(text)
	s.wait()
}

// wait has the lines stored soon. The caller holds mu.
func (s *sink) wait() {
	if s.timer == nil && !s.ended {
		s.timer = time.AfterFunc(storeEvery, s.store)
	}
}

func (s *sink) store() {
	s.storing.Lock()
	defer s.storing.Unlock()
	s.mu.Lock()
	lines := s.waiting
	s.timer = nil
	s.mu.Unlock()
	if len(lines) == 0 {
		return
	}

	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	err := pg.InOrgTxByKey(ctx, s.logs.Requests, s.org, func(ctx context.Context, tx pgx.Tx) error {
		_, err := s.logs.store(ctx, tx, s.org, s.task, s.attempt, lines)
		return err
	})
	s.stored(lines, err)
}

// stored takes lines off those that wait, or has them stored later: their numbers make it safe to send them again.
func (s *sink) stored(lines []protocol.LogLine, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	log := s.logs.Log.With("task", s.task, "attempt", s.attempt, "lines", len(s.waiting))
	switch {
	case err != nil && s.ended && (s.lastTry || !pg.Away(err)):
		log.Warn("lines of a task's log are lost", "error", err)
	case err != nil && !s.failing:
		log.Warn("lines of a task's log wait to be stored", "error", err)
	}

	s.failing, s.away = err != nil, pg.Away(err)
	if err == nil {
		for _, line := range lines {
			s.held -= len(line.Text)
		}
		s.waiting = append([]protocol.LogLine(nil), s.waiting[len(lines):]...)
	}
	if len(s.waiting) > 0 {
		s.wait()
	}
}

func (s *sink) end() {
	s.mu.Lock()
	s.ended = true
	if s.timer != nil {
		s.timer.Stop()
	}
	s.tellDropped(time.Now())
	s.mu.Unlock()

	for n := range endTries {
		s.mu.Lock()
		s.lastTry = n == endTries-1
		s.mu.Unlock()
		if s.store(); s.settled() {
			return
		}
		time.Sleep(firstPause << n)
	}
}

// The last lines of a task are those that say why it ended: while the database is away they are tried again for some
// three seconds, in which nothing else of the task could be told either.
const (
	endTries   = 6
	firstPause = 50 * time.Millisecond
)

// settled reports whether nothing waits to be stored that may be stored in a moment.
func (s *sink) settled() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.waiting) == 0 || s.lastTry || !s.away
}

// tee passes records to another handler and to a sink.
type tee struct {
	slog.Handler
	to    *sink
	attrs string // those of the operator's own With, as text
}

// Enabled applies the level of the task's log, which the process's own level does not affect.
func (t *tee) Enabled(_ context.Context, level slog.Level) bool { return level >= slog.LevelInfo }

func (t *tee) Handle(ctx context.Context, r slog.Record) error {
	var text strings.Builder
	text.WriteString(r.Message)
	text.WriteString(t.attrs)
	r.Attrs(func(a slog.Attr) bool {
		fmt.Fprintf(&text, " %s=%v", a.Key, a.Value.Resolve())
		return true
	})

	line := t.to.redact(text.String())
	t.to.add(r.Time, levelOf(r.Level), line)
	if r.Level < slog.LevelError || !t.Handler.Enabled(ctx, r.Level) {
		return nil
	}
	if line != text.String() {
		r = slog.NewRecord(r.Time, r.Level, line, r.PC) // its attributes show a secret, or its message does
	}
	return t.Handler.Handle(ctx, r)
}

func levelOf(level slog.Level) string {
	switch {
	case level >= slog.LevelError:
		return "error"
	case level >= slog.LevelWarn:
		return "warn"
	case level >= slog.LevelInfo:
		return "info"
	}
	return "debug"
}

func (t *tee) WithAttrs(attrs []slog.Attr) slog.Handler {
	var text strings.Builder
	text.WriteString(t.attrs)
	for _, a := range attrs {
		fmt.Fprintf(&text, " %s=%v", a.Key, a.Value.Resolve())
	}
	return &tee{t.Handler.WithAttrs(attrs), t.to, text.String()}
}

func (t *tee) WithGroup(name string) slog.Handler {
	return &tee{t.Handler.WithGroup(name), t.to, t.attrs}
}
