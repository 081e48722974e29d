package web

import (
	"context"
	"html/template"
	"net/http"

	"github.com/google/uuid"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/dispatcher/control"
	"github.com/dagctl/dagctl/dispatcher/tasks"
	"github.com/dagctl/dagctl/dispatcher/views"
	"github.com/dagctl/dagctl/dispatcher/why"
	"github.com/dagctl/dagctl/internal/clock"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/tasklogs"
)

type tasksView struct {
	Filter   views.TaskFilter
	Statuses []string
	Kinds    []string
	Tasks    []views.Task
	Timeline *timeline
	Next     template.URL // query of the next page; empty on the last page

	Query    template.URL // the filter as a query
	Flags    string       // and as flags of a command
	MayAct   bool
	Verbs    []string // which may be done to all that match; none without a filter
	Actions  []control.BulkAction
	Filtered bool
}

var (
	statuses = []string{"Queued", "Running", "Completed", "Failed", "Canceled"}
	kinds    = []string{"reactive", "source", "manual", "timer", "build", "backfill", "invalidation", "check"}
)

func (s *Site) tasks(w http.ResponseWriter, r *http.Request, caller authz.Caller) error {
	q := r.URL.Query()
	f := views.TaskFilter{TaskSelection: selectionOf(q), Limit: pageSize + 1}
	if before := q.Get("before"); before != "" {
		id, err := uuid.Parse(before)
		if err != nil {
			return fault.New(fault.Invalid, "`before` is not the id of a task")
		}
		f.Before = id
	}

	list, err := s.Dispatcher.Views.Tasks(r.Context(), caller, f)
	if err != nil {
		return err
	}
	v := tasksView{Filter: f, Statuses: statuses, Kinds: kinds, Tasks: list, Filtered: !f.Empty(),
		Query: template.URL(selectionQuery(f.TaskSelection)), Flags: selectionFlags(f.TaskSelection),
		MayAct: caller.May(authz.Operate, authz.OnDAG(f.DAG))}
	if len(list) > pageSize {
		v.Tasks = list[:pageSize]
		q.Set("before", list[pageSize-1].ID.String())
		v.Next = template.URL(q.Encode())
	}

	v.Timeline = drawTimeline("These tasks over time", taskSpans(v.Tasks, clock.Now(), true))
	if v.MayAct && v.Filtered && len(v.Tasks) > 0 {
		v.Verbs = []string{control.VerbRetry, control.VerbCancel, control.VerbSkip}
	}
	if v.Actions, err = s.latestBulks(r, caller, 3); err != nil {
		return err
	}
	return render(w, http.StatusOK, "tasks.html", layout{Title: "Tasks", Tab: "tasks", Live: follow("dag", f.DAG),
		Caller: caller, View: v})
}

type taskView struct {
	views.TaskDetail
	Title     string
	Timeline  *timeline // of its attempts
	MayRetry  bool
	Stuck     bool // it would be retried, but no version runs its definition
	MayCancel bool
	MaySkip   bool
	MayDecide bool            // over what it made and readers do not see
	Why       []why.Reason    // of an open task, or of one whose output is withheld
	Log       []tasklogs.Line // the last lines
	LogGoesOn bool
}

// logTail is how many of a log's last lines a task's page shows.
const logTail = 200

func (s *Site) task(w http.ResponseWriter, r *http.Request, caller authz.Caller) error {
	id, err := taskID(r)
	if err != nil {
		return err
	}
	detail, err := s.Dispatcher.Views.Task(r.Context(), caller, id)
	if err != nil {
		return err
	}

	may := caller.May(authz.Operate, authz.OnDAG(detail.DAG))
	retryable := tasks.Retryable(tasks.Status(detail.Status), tasks.Reason(detail.Reason))
	v := taskView{
		TaskDetail: detail,
		MayRetry:   may && retryable && !detail.Retired,
		Stuck:      retryable && detail.Retired,
		MayCancel:  may && (detail.Status == "Queued" || detail.Status == "Running" || detail.Status == "Failed"),
		MaySkip:    may && detail.Status == "Failed" && detail.Kind != "check",
		MayDecide:  caller.Administers(),
		Title:      taskTitle(detail.Task),
		Timeline:   drawTimeline("Its attempts over time", attemptSpans(detail, clock.Now())),
	}

	why, err := s.Dispatcher.Why.TaskWhy(r.Context(), caller, id, clock.Now())
	if err != nil {
		return err
	}
	ended := why.State == "Completed" || why.State == "Canceled"
	withheld := len(why.Reasons) > 0 && len(why.Reasons[0].Because) > 0
	if !ended || withheld {
		v.Why = why.Reasons
	}

	v.Log, v.LogGoesOn, err = s.logTail(r.Context(), caller, id)
	if err != nil {
		return err
	}
	return render(w, http.StatusOK, "task.html", layout{Title: v.Title, Tab: "tasks",
		Live: follow("task", id.String()), Caller: caller, View: v})
}

// logTail returns the last lines of a task's log, or none if the caller may not read what the task makes.
func (s *Site) logTail(
	ctx context.Context, caller authz.Caller, id uuid.UUID,
) (lines []tasklogs.Line, goesOn bool, err error) {
	if s.Logs == nil {
		return nil, false, nil
	}
	lines, ended, err := s.Logs.Read(ctx, caller, id, tasklogs.Selection{Limit: logTail, Last: true})
	if fault.Is(err, fault.NotFound) {
		return nil, false, nil
	}
	return lines, !ended, err
}

func taskID(r *http.Request) (uuid.UUID, error) {
	id, err := uuid.Parse(r.PathValue("id"))
	if err != nil {
		return id, fault.New(fault.NotFound, "%q is not the id of a task", r.PathValue("id"))
	}
	return id, nil
}
