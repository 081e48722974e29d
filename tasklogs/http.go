package tasklogs

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/google/uuid"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/rest"
	"github.com/dagctl/dagctl/worker/protocol"
)

// AddRoutes adds the operations on logs.
func (l *Logs) AddRoutes(api *authz.API) {
	authz.HandleTask(api, huma.Operation{
		OperationID: "task-logs", Method: http.MethodPost, Path: "/v1/task/logs", Tags: []string{"task protocol"},
		Summary:      "Add lines to the log of a running attempt",
		Description:  "Lines are numbered from 1. Acknowledged lines are stored; a batch may be sent again.",
		MaxBodyBytes: 32 << 20,
	}, l.handleAppend)

	authz.Handle(api, authz.Reader, huma.Operation{
		OperationID: "list-task-logs", Method: http.MethodGet, Path: "/v1/tasks/{id}/logs", Tags: []string{"tasks"},
		Summary: "Read the log of a task, oldest lines first",
		Description: "With wait_seconds, the call waits for a line, so that a client can follow a log from one " +
			"next_cursor to the next. " +
			"GET /v1/tasks/{id}/logs/stream is the same as server-sent events.",
	}, l.handleRead)

	api.HandleStream(authz.Reader, "GET /v1/tasks/{id}/logs/stream", l.stream)
}

type appendInput struct{ Body protocol.Logs }

type appendOutput struct{ Body protocol.LogsAnswer }

func (l *Logs) handleAppend(ctx context.Context, c authz.Capability, in *appendInput) (*appendOutput, error) {
	answer, err := l.Append(ctx, c, in.Body.Fence, in.Body.Lines)
	return &appendOutput{answer}, err
}

type readInput struct {
	ID uuid.UUID `path:"id" format:"uuid"`
	rest.PageInput
	Attempt int  `query:"attempt" minimum:"0" maximum:"2147483647" doc:"Only of this attempt"`
	Tail    bool `query:"tail" doc:"The last lines instead of the first"`
	Wait    int  `query:"wait_seconds" minimum:"0" maximum:"20" doc:"How long to wait if there is no log line yet"`
}

// LogPage is a part of a task's log.
type LogPage struct {
	Items      []Line `json:"items" nullable:"false"`
	NextCursor string `json:"next_cursor" doc:"Continues after these lines"`
	Ended      bool   `json:"ended" doc:"The task has ended; more lines follow only if it is retried"`
}

type readOutput struct{ Body LogPage }

func (l *Logs) handleRead(ctx context.Context, caller authz.Caller, in *readInput) (*readOutput, error) {
	s := Selection{Attempt: in.Attempt, Limit: in.Limit, Last: in.Tail}
	if _, err := in.After(&s.After); err != nil {
		return nil, err
	}
	lines, ended, err := l.Follow(ctx, caller, in.ID, s, time.Duration(in.Wait)*time.Second)
	if err != nil {
		return nil, err
	}
	page := LogPage{Items: append([]Line{}, lines...), NextCursor: in.Cursor, Ended: ended && len(lines) < in.Limit}
	if len(lines) > 0 {
		if page.NextCursor, err = rest.Cursor(lines[len(lines)-1].Position()); err != nil {
			return nil, err
		}
	}
	return &readOutput{page}, nil
}

// stream sends lines as server-sent events: `line` events with a Line each, then `end`. An event's id is the line's
// position, so a browser that reconnects continues where it was.
func (l *Logs) stream(w http.ResponseWriter, r *http.Request, caller authz.Caller) error {
	id, err := uuid.Parse(r.PathValue("id"))
	if err != nil {
		return fault.New(fault.NotFound, "%q is not the id of a task", r.PathValue("id"))
	}

	s := Selection{Limit: 500}
	if s.After, err = eventPosition(r.Header.Get("Last-Event-ID")); err != nil {
		return err
	}
	lines, ended, err := l.Read(r.Context(), caller, id, s)
	if err != nil {
		return err
	}

	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("Cache-Control", "no-store")
	out := http.NewResponseController(w)
	for {
		for _, line := range lines {
			text, err := json.Marshal(line)
			if err != nil {
				return nil
			}
			if _, err := fmt.Fprintf(w, "event: line\nid: %d.%d\ndata: %s\n\n",
				line.Attempt, line.Seq, text); err != nil {
				return nil // the client went away
			}
			s.After = line.Position()
		}

		if ended && len(lines) < s.Limit {
			_, _ = fmt.Fprint(w, "event: end\ndata: {}\n\n")
			_ = out.Flush()
			return nil
		}
		if len(lines) == 0 {
			if _, err := fmt.Fprint(w, ": waiting\n\n"); err != nil {
				return nil
			}
		}
		if out.Flush() != nil {
			return nil
		}
		if lines, ended, err = l.Follow(r.Context(), caller, id, s, 15*time.Second); err != nil {
			return nil // the answer has begun, so an error cannot be sent; the browser reconnects
		}
	}
}

// eventPosition parses an event's id: ATTEMPT.SEQ, or nothing.
func eventPosition(id string) (p Position, err error) {
	if id == "" {
		return p, nil
	}
	attempt, seq, _ := strings.Cut(id, ".")
	number, err := strconv.ParseInt(attempt, 10, 32)
	if p.Attempt = int32(number); err == nil {
		p.Seq, err = strconv.ParseInt(seq, 10, 64)
	}
	if err != nil || p.Attempt < 0 || p.Seq < 0 {
		return p, fault.New(fault.Invalid, "Last-Event-ID %q is not the id of a line", id)
	}
	return p, nil
}
