package tasks

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/dagctl/dagctl/cmd/dagctl/cli"
	"github.com/dagctl/dagctl/dispatcher/tasks"
	"github.com/dagctl/dagctl/dispatcher/views"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/plural"
)

// taskChange is a task that began to be followed, or whose state changed. With --output json, `run --watch` prints one
// object per line; scripts rely on its fields.
type taskChange struct {
	Event     string     `json:"event"` // task, source or end
	At        time.Time  `json:"at"`
	Task      *uuid.UUID `json:"task_id,omitempty"`
	CausedBy  *uuid.UUID `json:"caused_by,omitempty"`
	DAG       string     `json:"dag,omitempty"`
	Job       string     `json:"job,omitempty"`
	Partition string     `json:"partition,omitempty"`
	Kind      string     `json:"kind,omitempty"`
	Status    string     `json:"status,omitempty"`
	Waiting   string     `json:"waiting,omitempty"`
	Reason    string     `json:"reason,omitempty"`
	Attempt   int        `json:"attempt,omitempty"`
	Seconds   float64    `json:"seconds,omitempty"` // of the last attempt, once it has ended
	Error     string     `json:"error,omitempty"`
	Rejected  bool       `json:"rejected,omitempty"` // checks rejected what it made

	Summary *watchSummary `json:"summary,omitempty"` // of the end
}

// watchSummary says how all ended.
type watchSummary struct {
	Tasks     int  `json:"tasks"`
	Completed int  `json:"completed"`
	Failed    int  `json:"failed"`
	Canceled  int  `json:"canceled"`
	More      bool `json:"more,omitempty"` // there were more than could be followed
}

// well reports whether nothing failed, and nothing was given up.
func (s watchSummary) well() bool { return s.Failed == 0 && s.Canceled == 0 }

// text returns the last line for people.
func (s watchSummary) text() string {
	if s.Tasks == 0 {
		return "Nothing was set off."
	}
	parts := []string{plural.Of(s.Completed, "task") + " completed"}
	if s.Failed > 0 {
		parts = append(parts, fmt.Sprintf("%d failed", s.Failed))
	}
	if s.Canceled > 0 {
		parts = append(parts, fmt.Sprintf("%d canceled", s.Canceled))
	}
	text := strings.Join(parts, ", ") + "."
	if s.More {
		text += fmt.Sprintf(" There are more: only %d were followed.", s.Tasks)
	}
	return text
}

// causedWatch follows what a run set off, and prints each change once.
type causedWatch struct {
	c       *cli.CLI
	last    map[uuid.UUID]string // what was printed of each task
	trouble string               // of the source
	paused  bool                 // whether it was said that a pause holds all that is open

	over  []views.CausedTask // of what was followed to its end, each once
	found map[uuid.UUID]bool // the tasks in over
	more  bool
}

// watchCaused follows what something set off, by the paths that tell, until nothing of it is open. It fails if
// something of it did. An interrupt ends the watching, and nothing else.
func watchCaused(ctx context.Context, c *cli.CLI, api *cli.Client, query url.Values, paths ...string) error {
	w := causedWatch{c: c, last: map[uuid.UUID]string{}, found: map[uuid.UUID]bool{}}
	for _, path := range paths {
		if err := w.follow(ctx, api, path, query); err != nil {
			if ctx.Err() != nil {
				fmt.Fprintln(c.Err, "Not watched any longer; what was set off goes on. `dagctl tasks list` shows it.")
			}
			return err
		}
	}
	return w.end()
}

// follow watches what one thing set off, by its path, until nothing of it is open.
func (w *causedWatch) follow(ctx context.Context, api *cli.Client, path string, query url.Values) error {
	progress := w.c.NewProgress()
	defer progress.End()
	again := cli.Follower{CLI: w.c, API: api, Before: progress.End, GoesOn: "what was set off",
		Hint: "`dagctl tasks list` shows it"}
	for {
		asked := time.Now()
		var found views.Caused
		if err := again.Get(ctx, path, query, &found); err != nil {
			return err
		}
		progress.End()
		w.show(found, w.c.Now())
		if !found.Open {
			w.keep(found)
			return nil
		}

		if cli.IsTerminal(w.c.Err) {
			s := summaryOf(found)
			ended := s.Completed + s.Failed + s.Canceled
			progress.Show(ended, s.Tasks, fmt.Sprintf("%d of %s ended", ended, plural.Of(s.Tasks, "task")))
		}
		if found.Until != nil {
			query.Set("until", found.Until.Format(time.RFC3339Nano))
		}
		if err := again.Pause(ctx, asked); err != nil {
			return err
		}
	}
}

// keep notes how what was followed has ended. Tasks that several things set off count once.
func (w *causedWatch) keep(found views.Caused) {
	w.more = w.more || found.More
	for _, t := range found.Tasks {
		if !w.found[t.ID] {
			w.found[t.ID] = true
			w.over = append(w.over, t)
		}
	}
}

// sayPaused says once that nothing goes on before somebody ends a pause.
func (w *causedWatch) sayPaused(found views.Caused) {
	held := ""
	for _, t := range found.Tasks {
		if t.IsOpen() && t.Waiting != string(tasks.WaitPaused) {
			return
		}
		if t.IsOpen() {
			held = t.DAG + "/" + t.Job
		}
	}
	if held != "" && !w.paused {
		w.paused = true
		fmt.Fprintf(w.c.Err, "All that is open waits for the end of a pause: `dagctl resume %s`, or the pause of its "+
			"DAG or org. Ctrl-C ends the watching alone.\n", held)
	}
}

// show prints what has changed since the last look.
func (w *causedWatch) show(found views.Caused, now time.Time) {
	if found.Error != "" && found.Error != w.trouble {
		w.print(taskChange{Event: "source", At: now.UTC(), Error: found.Error})
		w.trouble = found.Error
	}
	for _, t := range found.Tasks {
		change := changeOf(t, now)
		if text := fmt.Sprint(change.Status, change.Waiting, change.Attempt, change.Error); w.last[t.ID] != text {
			w.last[t.ID] = text
			w.print(change)
		}
	}
	w.sayPaused(found)
}

// end prints how all ended, and returns an error where something did not end well.
func (w *causedWatch) end() error {
	s := summaryOf(views.Caused{Tasks: w.over, More: w.more})
	w.print(taskChange{Event: "end", At: w.c.Now().UTC(), Summary: &s})
	if !s.well() || w.trouble != "" {
		return cli.ErrReported
	}
	return nil
}

func (w *causedWatch) print(change taskChange) {
	if w.c.Output != "json" {
		fmt.Fprintln(w.c.Out, change.line(w.c.Style(w.c.Out)))
		return
	}
	if line, err := json.Marshal(change); err == nil {
		fmt.Fprintf(w.c.Out, "%s\n", line)
	}
}

func changeOf(t views.CausedTask, now time.Time) taskChange {
	change := taskChange{Event: "task", At: now.UTC(), Task: &t.ID, CausedBy: t.By, DAG: t.DAG, Job: t.Job,
		Partition: t.Partition, Kind: t.Kind, Status: t.Status, Waiting: t.Waiting, Reason: t.Reason,
		Attempt: t.Attempt, Rejected: t.Rejected}
	if took, ended := t.Took(); ended {
		change.Seconds = took.Seconds()
	}
	if t.Status == string(tasks.Failed) {
		change.Error = t.Error
	}
	return change
}

// line returns a change as a line for people.
func (change taskChange) line(style cli.Style) string {
	switch {
	case change.Summary != nil && !change.Summary.well():
		return style.Bad(change.Summary.text())
	case change.Summary != nil:
		return style.Good(change.Summary.text())
	case change.Event == "source":
		return style.Bad("The source could not be read: " + cli.OneLine(change.Error, 500))
	}

	name := change.DAG + "/" + change.Job
	if change.Partition != "" {
		name += "@" + cli.Whole(change.Partition)
	}
	if change.Kind == string(tasks.KindCheck) {
		name += " (checks)"
	}
	text := name + " " + style.Status(change.Status)
	switch {
	case change.Rejected:
		text += ", but checks rejected what it made"
	case change.Status == string(tasks.Completed):
		text += " in " + cli.Duration(time.Duration(change.Seconds*float64(time.Second)))
	case change.Status == string(tasks.Canceled) && change.Reason != "":
		text += ": " + change.Reason
	case change.Waiting == string(tasks.WaitBackoff):
		text += fmt.Sprintf(" in attempt %d, and is tried again", change.Attempt)
	case change.Waiting != "" && change.Waiting != string(tasks.WaitDead):
		text += ", waits: " + change.Waiting
	}
	if change.Error != "" {
		text += ": " + cli.OneLine(change.Error, 500)
	}
	return text
}

func summaryOf(found views.Caused) watchSummary {
	s := watchSummary{Tasks: len(found.Tasks), More: found.More}
	for _, t := range found.Tasks {
		switch {
		case t.EndedWell():
			s.Completed++
		case t.IsOpen():
		case t.Status == string(tasks.Canceled):
			s.Canceled++
		default:
			s.Failed++
		}
	}
	return s
}

// checkWatched refuses forms of output that have no lines.
func checkWatched(c *cli.CLI) error {
	if c.Output == "yaml" {
		return fault.New(fault.Invalid, "--watch prints a line for each change, and YAML has none").
			WithHint("use --output json or table")
	}
	return nil
}
