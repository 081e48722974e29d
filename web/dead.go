package web

import (
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

// actOnDead starts a bulk action on the dead tasks of one error group and redirects to the page it came from.
func (s *Site) actOnDead(verb string) func(http.ResponseWriter, *http.Request, authz.Caller) error {
	return func(w http.ResponseWriter, r *http.Request, caller authz.Caller) error {
		f, err := readForm(r)
		if err != nil {
			return err
		}
		request := control.BulkRequest{Filter: deadSelection(f.Values)}
		if request.Filter.ErrorGroup == "" {
			return fault.New(fault.Invalid, "the form names no error group").WithHint("use the buttons on the page")
		}

		if verb == "skip" {
			request.Reason = f.Get("reason")
		}
		if _, err := s.Dispatcher.Control.StartBulk(r.Context(), caller, verb, request, clock.Now()); err != nil {
			return err
		}

		back := url.Values{}
		for _, name := range []string{"dag", "job"} {
			if value := f.Get(name); value != "" {
				back.Set(name, value)
			}
		}
		http.Redirect(w, r, "/dead?"+back.Encode(), http.StatusSeeOther)
		return nil
	}
}
