package web

import (
	"fmt"
	"net/http"
	"net/url"

	"github.com/google/uuid"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/dispatcher/control"
	"github.com/dagctl/dagctl/dispatcher/views"
	"github.com/dagctl/dagctl/internal/clock"
	"github.com/dagctl/dagctl/internal/fault"
)

// deadView is the tasks that wait for somebody to decide, grouped by error.
type deadView struct {
	Filter  views.TaskSelection
	Groups  []views.ErrorGroup
	Actions []control.BulkAction // the latest, for writers
	MayAct  bool
}

// deadSelection returns the selection of dead tasks that a request names.
func deadSelection(q url.Values) views.TaskSelection {
	return views.TaskSelection{Dead: true, DAG: q.Get("dag"), Job: q.Get("job"), ErrorGroup: q.Get("error_group")}
}

func (s *Site) dead(w http.ResponseWriter, r *http.Request, caller authz.Caller) error {
	v := deadView{Filter: deadSelection(r.URL.Query()), MayAct: caller.MaySomewhere(authz.Operate)}
	var err error
	if v.Groups, err = s.Dispatcher.Views.ErrorGroups(r.Context(), caller, v.Filter); err != nil {
		return err
	}
	if v.MayAct {
		const latest = 5
		if v.Actions, err = s.Dispatcher.Control.Bulks(r.Context(), caller, uuid.Nil, latest); err != nil {
			return err
		}
	}
	return render(w, http.StatusOK, "dead.html", layout{Title: "Dead letters", Tab: "dead",
		Live: follow("dag", v.Filter.DAG), Caller: caller, View: v})
}

// askDead counts the dead tasks of an error group, and asks whether to apply a verb to them.
func (s *Site) askDead(verb string) func(*http.Request, authz.Caller) (question, error) {
	return func(r *http.Request, caller authz.Caller) (q question, err error) {
		if err := r.ParseForm(); err != nil {
			return q, fault.New(fault.Invalid, "the form cannot be read: %w", err)
		}
		request := control.BulkRequest{Filter: deadSelection(r.Form), DryRun: true}
		if request.Filter.ErrorGroup == "" {
			return q, fault.New(fault.Invalid, "the form names no error group").WithHint("use the buttons on the page")
		}
		if verb == control.VerbSkip {
			request.Reason = "counting"
		}
		matched, err := s.Dispatcher.Control.StartBulk(r.Context(), caller, verb, request, clock.Now())
		if err != nil {
			return q, err
		}

		back := url.Values{}
		for _, name := range []string{"dag", "job"} {
			if value := r.FormValue(name); value != "" {
				back.Set(name, value)
			}
		}
		q.title, q.view = deadQuestion(verb, matched.Matched)
		q.view.Action, q.view.Back = "/dead/"+verb, "/dead?"+back.Encode()
		q.view.Hidden = []hiddenField{{"matched", fmt.Sprint(matched.Matched)}}
		for _, name := range []string{"error_group", "dag", "job"} {
			q.view.Hidden = append(q.view.Hidden, hiddenField{name, r.FormValue(name)})
		}
		q.do = func(f form) error {
			request.DryRun, request.Reason = false, f.Get("reason")
			if err := s.stillMatched(r, caller, verb, request); err != nil {
				return err
			}
			_, err := s.Dispatcher.Control.StartBulk(r.Context(), caller, verb, request, clock.Now())
			return err
		}
		return q, nil
	}
}

// deadQuestion asks whether to apply a verb to a number of dead tasks.
func deadQuestion(verb string, n int64) (title string, v confirmView) {
	const which = " --dead --error-group GROUP"

	if verb == control.VerbSkip {
		return "Skip " + count(n, "dead task"), confirmView{
			Says: "They are given up: nothing computes their partitions until their inputs change. " +
				"Builds go on without them.",
			Fields: []askedField{{Label: "Reason, which the audit log keeps", Name: "reason", Required: true}},
			Button: "Skip " + count(n, "task"), Danger: true,
			Command: "dagctl tasks skip" + which + " --reason REASON"}
	}
	return "Retry " + count(n, "dead task"), confirmView{
		Says:   "Each is queued again with all its attempts. What fails again is back on the page of dead letters.",
		Button: "Retry " + count(n, "task"), Command: "dagctl tasks retry" + which}
}
