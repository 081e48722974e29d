package web

import (
	"context"
	"html/template"
	"net/http"
	"net/url"

	"github.com/google/uuid"

	"github.com/dagctl/dagctl/authz"
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
	Tasks    []views.Task
	Next     template.URL // query of the next page; empty on the last page
}

var statuses = []string{"Queued", "Running", "Completed", "Failed", "Canceled"}

func (s *Site) tasks(w http.ResponseWriter, r *http.Request, caller authz.Caller) error {
	q := r.URL.Query()
	f := views.TaskFilter{
		TaskSelection: views.TaskSelection{DAG: q.Get("dag"), Job: q.Get("job"), Status: q.Get("status"),
			Partition: q.Get("partition"), Dead: q.Get("dead") != "", ErrorGroup: q.Get("error_group")},
		Limit: pageSize + 1,
	}

	if before := q.Get("before"); before != "" {
		id, err := uuid.Parse(before)
		if err != nil {
			return fault.New(fault.Invalid, "`before` is not the id of a task")
		}
		f.Before = id
	}

	tasks, err := s.Dispatcher.Views.Tasks(r.Context(), caller, f)
	if err != nil {
		return err
	}
	v := tasksView{Filter: f, Statuses: statuses, Tasks: tasks}
	if len(tasks) > pageSize {
		v.Tasks = tasks[:pageSize]
		q.Set("before", tasks[pageSize-1].ID.String())
		v.Next = template.URL(q.Encode())
	}
	return render(w, http.StatusOK, "tasks.html", layout{Title: "Tasks", Tab: "tasks", Live: follow("dag", f.DAG),
		Caller: caller, View: v})
}

type taskView struct {
	views.TaskDetail
	MayRetry  bool
	MayCancel bool
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
	v := taskView{
		TaskDetail: detail,
		MayRetry:   may && tasks.Retryable(tasks.Status(detail.Status), tasks.Reason(detail.Reason)),
		MayCancel:  may && (detail.Status == "Queued" || detail.Status == "Running" || detail.Status == "Failed"),
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
	return render(w, http.StatusOK, "task.html", layout{Title: "Task " + detail.DAG + "/" + detail.Job, Tab: "tasks",
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

func (s *Site) retryTask(w http.ResponseWriter, r *http.Request, caller authz.Caller) error {
	return act(w, r, caller, s.Dispatcher.Control.Retry)
}

func (s *Site) cancelTask(w http.ResponseWriter, r *http.Request, caller authz.Caller) error {
	return act(w, r, caller, s.Dispatcher.Control.Cancel)
}

// act applies a change to a task and redirects to the task's page.
func act(
	w http.ResponseWriter, r *http.Request, caller authz.Caller,
	do func(context.Context, authz.Caller, uuid.UUID) (views.Task, error),
) error {
	id, err := taskID(r)
	if err != nil {
		return err
	}
	if _, err := do(r.Context(), caller, id); err != nil {
		return err
	}
	http.Redirect(w, r, "/tasks/"+url.PathEscape(id.String()), http.StatusSeeOther)
	return nil
}

func taskID(r *http.Request) (uuid.UUID, error) {
	id, err := uuid.Parse(r.PathValue("id"))
	if err != nil {
		return id, fault.New(fault.NotFound, "%q is not the id of a task", r.PathValue("id"))
	}
	return id, nil
}
