package web

import (
	"net/http"
	"net/url"
	"time"

	"github.com/google/uuid"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/dispatcher"
	"github.com/dagctl/dagctl/internal/fault"
)

// deadView is what waits for a person, by what went wrong.
type deadView struct {
	Filter  dispatcher.TaskSelection
	Groups  []dispatcher.ErrorGroup
	Actions []dispatcher.BulkAction // the latest, for writers
	MayAct  bool
}

// deadSelection reads which dead tasks a request is about.
func deadSelection(q url.Values) dispatcher.TaskSelection {
	return dispatcher.TaskSelection{Dead: true, DAG: q.Get("dag"), Job: q.Get("job"), ErrorGroup: q.Get("error_group")}
}

func (s *Site) dead(w http.ResponseWriter, r *http.Request, caller authz.Caller) error {
	v := deadView{Filter: deadSelection(r.URL.Query()), MayAct: caller.Is(authz.RoleWriter)}
	var err error
	if v.Groups, err = s.Dispatcher.ErrorGroups(r.Context(), caller, v.Filter); err != nil {
		return err
	}
	if v.MayAct {
		const latest = 5
		if v.Actions, err = s.Dispatcher.Bulks(r.Context(), caller, uuid.Nil, latest); err != nil {
			return err
		}
	}
	return render(w, http.StatusOK, "dead.html", layout{Title: "Dead letters", Tab: "dead", Caller: caller, View: v})
}

// actOnDead does a verb to the dead tasks of one group of errors, and goes back to where it was asked for.
func (s *Site) actOnDead(verb string) func(http.ResponseWriter, *http.Request, authz.Caller) error {
	return func(w http.ResponseWriter, r *http.Request, caller authz.Caller) error {
		if err := r.ParseForm(); err != nil {
			return err
		}
		request := dispatcher.BulkRequest{Filter: deadSelection(r.PostForm)}
		if request.Filter.ErrorGroup == "" {
			return fault.New(fault.Invalid, "which group of errors?").WithHint("use the buttons of the page")
		}
		if verb == "skip" {
			request.Reason = r.PostForm.Get("reason")
		}
		if _, err := s.Dispatcher.StartBulk(r.Context(), caller, verb, request, time.Now()); err != nil {
			return err
		}
		back := url.Values{}
		for _, name := range []string{"dag", "job"} {
			if value := r.PostForm.Get(name); value != "" {
				back.Set(name, value)
			}
		}
		http.Redirect(w, r, "/dead?"+back.Encode(), http.StatusSeeOther)
		return nil
	}
}
