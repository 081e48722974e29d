// Package tasklogs keeps the logs of tasks, line by line, and shows them to people.
//
// Vocabulary: a line has a number within its attempt, from 1 without gaps. Lines may be sent again, because numbers
// that are stored already are skipped; acknowledged lines are stored. An attempt may log up to a cap: lines beyond it
// are dropped, and one line states that. It owns task_logs.
package tasklogs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/dispatcher"
	"github.com/dagctl/dagctl/dispatcher/views"
	"github.com/dagctl/dagctl/internal/clock"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/internal/secret"
	"github.com/dagctl/dagctl/worker/protocol"
)

// Config has the settings of Logs.
type Config struct {
	Pool       *pgxpool.Pool // the owner's, for the retention of all orgs
	Requests   *pgxpool.Pool // under row-level security
	Dispatcher *dispatcher.Dispatcher
	Views      *views.Views
	MaxBytes   int64         // of text that an attempt may log; default 8 MiB
	Keep       time.Duration // how long lines stay; default 30 days
	Log        *slog.Logger
}

// Logs keeps the logs of tasks.
type Logs struct {
	Config
}

// The defaults of Config.
const (
	DefaultMaxBytes = 8 << 20
	DefaultKeep     = 30 * 24 * time.Hour
)

// New returns Logs. It returns an error if the config is not complete.
func New(c Config) (*Logs, error) {
	if c.Pool == nil || c.Requests == nil || c.Dispatcher == nil || c.Views == nil {
		return nil, errors.New("tasklogs: both pools and a dispatcher are needed")
	}
	c.MaxBytes = cmp.Or(c.MaxBytes, DefaultMaxBytes)
	c.Keep = cmp.Or(c.Keep, DefaultKeep)
	if c.Log == nil {
		c.Log = slog.Default()
	}
	return &Logs{Config: c}, nil
}

// longest is the most bytes of one line; longer lines are cut.
const longest = 16 << 10

// Append stores lines of a running attempt whose fence holds. It ignores lines that would leave a gap after the stored
// ones. The answer has the number of the last stored line; the client must send the lines after it again. Secrets of
// the job are removed, because a worker's function may print what it was given.
func (l *Logs) Append(ctx context.Context, c authz.Capability, f protocol.Fence,
	lines []protocol.LogLine) (answer protocol.LogsAnswer, err error) {
	if lines, err = l.redacted(ctx, c, f, lines); err != nil {
		return answer, err
	}
	err = l.Dispatcher.InAttempt(ctx, c, f, func(ctx context.Context, tx pgx.Tx) error {
		answer, err = l.store(ctx, tx, c.OrgID, f.TaskID, f.Attempt, lines)
		return err
	})
	return answer, err
}

// redacted returns the lines without the secrets of the attempt's job.
func (l *Logs) redacted(
	ctx context.Context, c authz.Capability, f protocol.Fence, lines []protocol.LogLine,
) ([]protocol.LogLine, error) {
	if len(lines) == 0 {
		return lines, nil
	}
	redactor, err := l.Dispatcher.RedactorFor(ctx, c, f)
	if err != nil || redactor == nil {
		return lines, err
	}

	texts := make([]string, len(lines))
	for i, line := range lines {
		texts[i] = line.Text
	}
	clean := slices.Clone(lines)
	for i, text := range redactor.RedactLines(texts, longest) {
		clean[i].Text = text
	}
	return clean, nil
}

// store adds lines after the stored ones. No two calls for the same attempt may run at the same time.
func (l *Logs) store(ctx context.Context, tx pgx.Tx, org, task uuid.UUID, attempt int,
	lines []protocol.LogLine) (protocol.LogsAnswer, error) {
	var last, stored int64
	err := tx.QueryRow(ctx, `SELECT seq, bytes_so_far FROM task_logs WHERE task_id = $1 AND attempt = $2 AND org_id = $3
		ORDER BY seq DESC LIMIT 1`,
		task, attempt, org).Scan(&last, &stored)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return protocol.LogsAnswer{}, fmt.Errorf("log of task %s: %w", task, err)
	}
	fresh, answer := accept(last, stored, l.MaxBytes, lines)
	if len(fresh) == 0 {
		return answer, nil
	}

	n := len(fresh)
	numbers, sums := make([]int64, n), make([]int64, n)
	times, levels, texts := make([]time.Time, n), make([]string, n), make([]string, n)
	for i, line := range fresh {
		stored += int64(len(line.Text))
		numbers[i], sums[i], times[i], levels[i], texts[i] = line.Seq, stored, line.At, line.Level, line.Text
	}
	_, err = tx.Exec(ctx, `
		INSERT INTO task_logs (org_id, task_id, attempt, seq, at, level, text, bytes_so_far)
		SELECT $1, $2, $3, w.* FROM unnest($4::bigint[], $5::timestamptz[], $6::text[], $7::text[], $8::bigint[])
			AS w(seq, at, level, text, sum)
		ON CONFLICT (task_id, attempt, seq) DO NOTHING`, org, task, attempt, numbers, times, levels, texts, sums)
	if err != nil {
		return protocol.LogsAnswer{}, fmt.Errorf("log of task %s: %w", task, err)
	}
	return answer, nil
}

// accept returns the lines to store and the answer. It is pure. last is the number of the last stored line, stored the
// bytes of all stored lines, and most the bytes that an attempt may log.
func accept(last, stored, most int64, lines []protocol.LogLine) (fresh []protocol.LogLine, answer protocol.LogsAnswer) {
	answer.Accepted = last
	full := stored >= most
	for _, line := range lines {
		switch {
		case line.Seq <= answer.Accepted:
			continue
		case full: // dropped lines count as stored, so that they leave no gap
			answer.Accepted = line.Seq
			answer.Dropped++
			continue
		case line.Seq > answer.Accepted+1:
			return fresh, answer
		}

		line.Text = clean(line.Text)
		line.Level = cmp.Or(line.Level, "info")
		answer.Accepted = line.Seq
		if stored += int64(len(line.Text)); stored >= most {
			full = true
			line.Level = "warn"
			line.Text = fmt.Sprintf("The attempt has logged more than %d bytes: this line and those that follow are "+
				"not kept.", most)
			answer.Dropped++
			fresh = append(fresh, line)
			continue
		}
		fresh = append(fresh, line)
	}
	return fresh, answer
}

// clean returns a line that is safe to store and show: valid text, without terminal control, not too long.
func clean(text string) string {
	if len(text) > longest {
		text = text[:longest] + "…"
	}
	return strings.Map(func(r rune) rune {
		if secret.IsControl(r) {
			return -1
		}
		return r
	}, strings.ToValidUTF8(text, "\uFFFD"))
}

// Line is a line of a task's log.
type Line struct {
	Attempt int       `json:"attempt"`
	Seq     int64     `json:"seq" doc:"Within the attempt, from 1"`
	At      time.Time `json:"at"`
	Level   string    `json:"level" enum:"debug,info,warn,error"`
	Text    string    `json:"text"`
}

// Position is the position of a line in a task's log, in which attempts follow each other.
type Position struct {
	Attempt int32 `json:"a"`
	Seq     int64 `json:"s"`
}

// Position returns the position of the line.
func (l Line) Position() Position { return Position{int32(l.Attempt), l.Seq} }

// Selection selects the lines to read.
type Selection struct {
	Attempt int // 0: of all
	After   Position
	Limit   int
	Last    bool // the last lines instead of the first
}

// Read returns lines of a task, in order, and reports whether the task has ended, so that no more follow unless it is
// retried. To a caller who may not read the task's outputs, the task does not exist.
func (l *Logs) Read(ctx context.Context, caller authz.Caller, task uuid.UUID,
	s Selection) (lines []Line, ended bool, err error) {
	// Read the state first: once it is ended, all lines are stored.
	if ended, err = l.Views.ReadableTask(ctx, caller, task); err != nil {
		return nil, false, err
	}
	order := "ASC"
	if s.Last {
		order = "DESC"
	}

	err = pg.InOrgTx(ctx, l.Requests, caller.OrgID, func(ctx context.Context, tx pgx.Tx) error {
		rows, err := tx.Query(ctx, `
			SELECT attempt, seq, at, level, text FROM task_logs
			WHERE task_id = $1 AND org_id = $2 AND (attempt, seq) > ($3, $4) AND ($5 = 0 OR attempt = $5)
			ORDER BY attempt `+order+`, seq `+order+` LIMIT $6`, // task_logs_pkey
			task, caller.OrgID, s.After.Attempt, s.After.Seq, s.Attempt, s.Limit)
		if err != nil {
			return err
		}
		lines, err = pgx.CollectRows(rows, pgx.RowToStructByPos[Line])
		return err
	})
	if err != nil {
		return nil, false, fmt.Errorf("log of task %s: %w", task, err)
	}
	if s.Last {
		for i, j := 0, len(lines)-1; i < j; i, j = i+1, j-1 {
			lines[i], lines[j] = lines[j], lines[i]
		}
	}
	return lines, ended, nil
}

// look is the interval at which Follow reads a log.
const look = 250 * time.Millisecond

// Follow is like Read, but waits for a first line until the task has ended or the time is over.
func (l *Logs) Follow(ctx context.Context, caller authz.Caller, task uuid.UUID, s Selection,
	wait time.Duration) (lines []Line, ended bool, err error) {
	until := time.Now().Add(wait)
	lines, ended, err = l.Read(ctx, caller, task, s)
	for err == nil && len(lines) == 0 && !ended && time.Now().Before(until) {
		select {
		case <-ctx.Done():
			return nil, false, context.Cause(ctx)
		case <-time.After(look):
		}
		var news bool
		if news, err = l.news(ctx, caller.OrgID, task, s); news {
			lines, ended, err = l.Read(ctx, caller, task, s)
		}
	}
	return lines, ended, err
}

// news reports whether Read, which is far more expensive, would find a new line or the end of the task.
func (l *Logs) news(ctx context.Context, org, task uuid.UUID, s Selection) (news bool, err error) {
	err = pg.InOrgTx(ctx, l.Requests, org, func(ctx context.Context, tx pgx.Tx) error {
		if news, err = views.HasEnded(ctx, tx, org, task); err != nil || news {
			return err
		}
		return tx.QueryRow(ctx, `
			SELECT EXISTS (SELECT FROM task_logs WHERE task_id = $1 AND org_id = $2 AND (attempt, seq) > ($3, $4)
				AND ($5 = 0 OR attempt = $5))`,
			task, org, s.After.Attempt, s.After.Seq, s.Attempt).Scan(&news) // task_logs_pkey
	})
	if err != nil {
		return false, fmt.Errorf("log of task %s: %w", task, err)
	}
	return news, nil
}

// sweepEvery is the interval at which Run removes old lines.
const sweepEvery = time.Hour

// Run removes old lines until ctx ends.
func (l *Logs) Run(ctx context.Context) error {
	for {
		if err := l.Sweep(ctx, clock.Now()); err != nil && ctx.Err() == nil {
			l.Log.Error("old task logs could not be removed, will try again", "error", err)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(sweepEvery):
		}
	}
}

// Sweep removes lines older than Keep, in batches that hold no lock for long.
func (l *Logs) Sweep(ctx context.Context, now time.Time) error {
	const batch = 10_000
	for {
		tag, err := l.Pool.Exec(ctx, `
			DELETE FROM task_logs WHERE ctid = ANY(ARRAY(SELECT ctid FROM task_logs WHERE at < $1
				LIMIT $2))`, // idx_task_logs_at
			now.Add(-l.Keep), batch)
		if err != nil {
			return fmt.Errorf("remove old task logs: %w", err)
		}
		if tag.RowsAffected() < batch {
			return nil
		}
	}
}
