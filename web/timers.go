package web

import (
	"fmt"
	"html/template"
	"net/http"
	"strings"

	"github.com/google/uuid"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/internal/clock"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/rest"
	"github.com/dagctl/dagctl/timers"
)

// timersView is a page of the org's timers, with the form that creates another one.
type timersView struct {
	Filter    timers.Filter
	Statuses  []string
	Timers    []timers.Timer
	Next      template.URL // query of the next page; empty on the last page
	MayCreate bool
	New       timers.NewTimer // what the form has
	Wrong     *rest.Problem
}

// MayDelete reports whether the caller may delete a timer of a DAG.
func (v timersView) MayDelete(caller authz.Caller, dagName string) bool {
	return caller.May(authz.Operate, authz.OnDAG(dagName))
}

// Payload returns the payload that the form has.
func (v timersView) Payload() string { return string(v.New.Payload) }

// At returns the local time that the form has.
func (v timersView) At() string { return v.New.Local }

func (s *Site) timers(w http.ResponseWriter, r *http.Request, caller authz.Caller) error {
	return s.showTimers(w, r, caller, timersView{New: timers.NewTimer{Timezone: "UTC"}})
}

func (s *Site) showTimers(w http.ResponseWriter, r *http.Request, caller authz.Caller, v timersView) error {
	q := r.URL.Query()
	v.Filter = timers.Filter{DAG: q.Get("dag"), Job: q.Get("job"), Group: q.Get("group"), Status: q.Get("status")}
	list, err := s.Timers.List(r.Context(), caller, v.Filter, pageOf(r))
	if err != nil {
		return err
	}
	v.Timers, v.Next = list.Items, nextPage(r, list.NextCursor)
	v.Statuses = []string{"PENDING", "PROCESSING", "COMPLETED", "FAILED"}
	v.MayCreate = caller.MaySomewhere(authz.Operate)

	status := http.StatusOK
	if v.Wrong != nil {
		status = v.Wrong.Status
	}
	return render(w, status, "timers.html", layout{Title: "Timers", Tab: "timers", Caller: caller, View: v})
}

func (s *Site) createTimer(w http.ResponseWriter, r *http.Request, caller authz.Caller) error {
	f, err := readForm(r)
	if err != nil {
		return err
	}
	wanted := timers.NewTimer{DAG: f.Get("dag"), Job: f.Get("job"), Local: f.Get("at"),
		Timezone: strings.TrimSpace(f.Get("timezone")), Repeat: f.Get("repeat"), Schedule: f.Get("schedule"),
		Group: f.Get("group")}
	if address := strings.TrimSpace(f.Get("target")); address != "" {
		wanted.DAG, wanted.Job, _ = strings.Cut(address, "/")
	}

	wanted.Payload, err = payloadOf(f)
	switch {
	case wanted.DAG == "" || wanted.Job == "":
		err = fault.New(fault.Invalid, "no job is named").WithHint("write it as DAG/JOB")
	case err == nil:
		_, err = s.Timers.Create(r.Context(), caller, []timers.NewTimer{wanted}, clock.Now())
	}
	if wrong := wrongWith(err); wrong != nil && wrong.Status != http.StatusForbidden {
		return s.showTimers(w, r, caller, timersView{New: wanted, Wrong: wrong})
	}
	if err != nil {
		return err
	}
	tell(w, r, caller, "The timer of "+wanted.DAG+"/"+wanted.Job+" is set.")
	http.Redirect(w, r, "/timers", http.StatusSeeOther)
	return nil
}

// askDeleteTimer asks whether to delete a timer, and refuses it if the timer has changed since somebody was asked.
func (s *Site) askDeleteTimer(r *http.Request, caller authz.Caller) (q question, err error) {
	id, err := uuid.Parse(r.PathValue("id"))
	if err != nil {
		return q, fault.New(fault.NotFound, "%q is not the id of a timer", r.PathValue("id"))
	}
	t, err := s.Timers.Get(r.Context(), caller, id)
	if err != nil {
		return q, err
	}

	version := fmt.Sprint(t.Version)
	q.title = fmt.Sprintf("Delete the timer of %s/%s", t.DAG, t.Job)
	q.view = confirmView{
		Says:   fmt.Sprintf("It does not fire at %s in %s any more. Its tasks stay.", t.Local, t.Timezone),
		Action: r.URL.Path, Hidden: []hiddenField{{"version", version}}, Button: "Delete", Danger: true,
		Back: "/timers", Command: "dagctl timers delete " + t.ID.String()}
	q.do = func(f form) error {
		if err := f.needs("version"); err != nil {
			return err
		}
		if f.Get("version") != version {
			return fault.New(fault.Conflict, "the timer has changed meanwhile").WithHint("look at it again")
		}
		return s.Timers.Delete(r.Context(), caller, id, rest.ETag(version))
	}
	return q, nil
}
