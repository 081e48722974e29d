package stream

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/internal/fault"
)

// AddRoutes adds the stream to an API.
func (s *Stream) AddRoutes(api *authz.API) {
	api.HandleStream(authz.Reader, "GET /v1/stream", s.serve)
}

const (
	beat    = 15 * time.Second // between comments, which keep proxies from closing a quiet stream
	longest = time.Hour        // of one stream; a browser opens the next by itself
)

// serve sends server-sent events until the listener goes, may not listen any more, or its time is over: `ready` once
// everything from then on is heard, and `change` events with a News each, at most one a second for each DAG.
func (s *Stream) serve(w http.ResponseWriter, r *http.Request, caller authz.Caller) error {
	filter, lasts, err := asked(r)
	if err != nil {
		return err
	}
	l, err := s.Listen(r.Context(), caller, filter)
	if err != nil {
		return err
	}
	defer l.End()

	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("X-Accel-Buffering", "no")
	out := http.NewResponseController(w)
	over, beats := time.After(lasts), time.NewTicker(beat)
	defer beats.Stop()
	text, said := "retry: 2000\n\n", false
	for {
		if _, err := fmt.Fprint(w, text); err != nil || out.Flush() != nil {
			return nil // the client went away
		}

		select {
		case <-r.Context().Done():
			return nil // the answer has begun, so an error cannot be sent; the next request gets it
		case <-s.Ended():
			return nil
		case <-over:
			return nil
		case <-beats.C:
			text = ": still here\n\n"
		case <-l.Came():
			news, ready := l.Take()
			text = events(news, ready && !said)
			said = said || ready
		}
	}
}

// events writes news as server-sent events.
func events(news []News, ready bool) (text string) {
	if ready {
		text = "event: ready\ndata: {}\n\n"
	}
	for _, n := range news {
		data, err := json.Marshal(n)
		if err == nil {
			text += fmt.Sprintf("event: change\ndata: %s\n\n", data)
		}
	}
	return text
}

// asked returns what a request wants to hear of, and for how long.
func asked(r *http.Request) (f Filter, lasts time.Duration, err error) {
	if !strings.Contains(r.Header.Get("Accept"), "text/event-stream") {
		return f, lasts, fault.New(fault.Invalid, "this is a stream, which lasts").
			WithHint("send Accept: text/event-stream")
	}
	q := r.URL.Query()
	f, lasts = Filter{DAG: q.Get("dag"), Dataset: q.Get("dataset")}, longest
	if text := q.Get("task"); text != "" {
		if f.Task, err = uuid.Parse(text); err != nil {
			return f, lasts, fault.New(fault.Invalid, "`task` is not the id of a task")
		}
	}

	if text := q.Get("seconds"); text != "" {
		seconds, err := strconv.Atoi(text)
		if lasts = time.Duration(seconds) * time.Second; err != nil || seconds < 1 || lasts > longest {
			return f, lasts, fault.New(fault.Invalid, "%q is no number of seconds", text).
				WithHint("between 1 and %d", int(longest.Seconds()))
		}
	}
	return f, lasts, nil
}
