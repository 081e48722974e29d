package web

import (
	"net/http"
	"net/url"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/dispatcher/control"
	"github.com/dagctl/dagctl/dispatcher/views"
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
	if v.Actions, err = s.latestBulks(r, caller, 5); err != nil {
		return err
	}
	return render(w, http.StatusOK, "dead.html", layout{Title: "Dead letters", Tab: "dead",
		Live: follow("dag", v.Filter.DAG), Caller: caller, View: v})
}

// askDead counts the dead tasks of an error group, and asks whether to apply a verb to them.
func (s *Site) askDead(verb string) ask {
	return func(r *http.Request, caller authz.Caller) (q question, err error) {
		selection := deadSelection(r.Form)
		if selection.ErrorGroup == "" {
			return q, fault.New(fault.Invalid, "the form names no error group").WithHint("use the buttons on the page")
		}
		q.done = new(string)
		matched, do, err := s.toAll(r, caller, verb, selection, q.done)
		if err != nil {
			return q, err
		}

		list := selection
		list.ErrorGroup, list.Dead = "", false
		q.title, q.view = deadQuestion(verb, matched)
		q.view.Action, q.view.Back = "/dead/"+verb, "/dead?"+selectionQuery(list)
		q.view.Hidden, q.do = allFields(selection, matched), do
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
		Says:    "Each is queued again with all its attempts. What fails again is back on the page of dead letters.",
		Effects: []string{whatRetryFits},
		Button:  "Retry " + count(n, "task"), Command: "dagctl tasks retry" + which}
}
