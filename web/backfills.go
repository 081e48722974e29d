package web

import (
	"cmp"
	"fmt"
	"html/template"
	"net/http"
	"net/url"
	"strconv"

	"github.com/google/uuid"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/dispatcher/control"
	"github.com/dagctl/dagctl/internal/clock"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/rest"
)

// backfillsView is the page of a DAG's backfills, with the form that leads to another one.
type backfillsView struct {
	DAG    string
	Jobs   []string     // that may be backfilled, for the form
	Asked  backfillForm // what the form holds: what a link chose, or what somebody asked for that cannot be
	List   []control.Backfill
	Next   template.URL // query of the next page; empty on the last page
	MayAct bool

	Problem *rest.Problem // why what is asked for cannot be
}

// backfillForm is the fields of the form for a backfill.
type backfillForm struct{ Job, From, To, Existing, Propagate, Concurrency string }

// addBackfillPages adds the pages of backfills.
func (s *Site) addBackfillPages(api routes) {
	operates := authz.To(authz.Operate, authz.TheDAG)
	api.HandlePage(authz.Reader, "GET /dags/{dag}/backfills", s.backfills)
	action(api, operates, "/dags/{dag}/backfill", "dags", s.askBackfill)
	action(api, authz.To(authz.Operate, authz.TheBackfills), "/dags/{dag}/backfills/{id}/cancel", "dags",
		s.askCancelBackfill)
}

func (s *Site) backfills(w http.ResponseWriter, r *http.Request, caller authz.Caller) error {
	dag, q := r.PathValue("dag"), r.URL.Query()
	detail, err := s.Dispatcher.Views.DAG(r.Context(), caller, dag)
	if err != nil {
		return err
	}
	var before uuid.UUID
	if text := q.Get("before"); text != "" {
		if before, err = uuid.Parse(text); err != nil {
			return fault.New(fault.Invalid, "`before` is not the id of a backfill")
		}
	}

	v := backfillsView{DAG: dag, MayAct: caller.May(authz.Operate, authz.OnDAG(dag)), Asked: backfillForm{q.Get("job"),
		q.Get("from"), q.Get("to"), q.Get("existing"), q.Get("propagate"), cmp.Or(q.Get("concurrency"), "4")}}
	status := http.StatusOK
	if q.Has("count") && v.MayAct { // the form was sent
		_, err := s.askBackfill(r, caller)
		if err == nil {
			q.Del("count")
			http.Redirect(w, r, dagPath(dag, "backfill")+"?"+q.Encode(), http.StatusSeeOther)
			return nil
		}
		if v.Problem = wrongWith(err); v.Problem == nil {
			return err
		}
		status = v.Problem.Status
	}

	if v.List, err = s.Dispatcher.Control.Backfills(r.Context(), caller, dag, before, pageSize+1); err != nil {
		return err
	}
	if len(v.List) > pageSize {
		v.List = v.List[:pageSize]
		v.Next = template.URL(url.Values{"before": {v.List[pageSize-1].ID.String()}}.Encode())
	}
	for _, job := range detail.Jobs {
		if len(job.Outputs) > 0 {
			v.Jobs = append(v.Jobs, job.Name)
		}
	}
	return render(w, status, "backfills.html",
		layout{Title: "Backfills of " + dag, Tab: "dags", Live: follow("dag", dag), Caller: caller, View: v})
}

// askBackfill counts what a backfill would compute, and asks whether to.
func (s *Site) askBackfill(r *http.Request, caller authz.Caller) (q question, err error) {
	dag := r.PathValue("dag")
	request := control.BackfillRequest{Job: r.FormValue("job"), From: r.FormValue("from"), To: r.FormValue("to"),
		Existing: r.FormValue("existing"), Propagate: r.FormValue("propagate"), DryRun: true}
	if request.To == "" {
		request.To = request.From
	}
	if request.Concurrency, err = strconv.Atoi(r.FormValue("concurrency")); err != nil || request.Concurrency < 1 ||
		request.Concurrency > 1000 {
		return q, fault.New(fault.Invalid, "%q is not a number of tasks from 1 to 1000", r.FormValue("concurrency")).
			WithHint("start from %s", dagPath(dag, "backfills"))
	}
	if !oneOf(request.Existing, "skip", "failed", "all") || !oneOf(request.Propagate, "none", "once", "each") {
		return q, fault.New(fault.Invalid, "the form does not say which partitions, or when consumers follow").
			WithHint("start from %s", dagPath(dag, "backfills"))
	}
	dry, err := s.Dispatcher.Control.StartBackfill(r.Context(), caller, dag, request, clock.Now())
	if err != nil {
		return q, err
	}

	existing := map[string]string{"skip": "Partitions that exist stay as they are.",
		"failed": "Partitions that exist stay as they are; those that failed for good are tried again.",
		"all":    "Partitions that exist are computed again, too."}
	propagate := map[string]string{"none": "Consumers do not follow.", "once": "Consumers follow once, at the end.",
		"each": "Consumers follow each partition."}
	q.title, q.done = fmt.Sprintf("Backfill %s/%s", dag, request.Job), new(string)
	q.view = confirmView{
		Says: fmt.Sprintf("%s from %s to %s would be computed, %d at once, after live work and builds.",
			count(int64(dry.Pending), "partition"), request.From, request.To, request.Concurrency),
		Effects: []string{existing[request.Existing], propagate[request.Propagate]},
		Action:  dagPath(dag, "backfill"), Button: "Start with " + count(int64(dry.Pending), "task"),
		Back: dagPath(dag, "backfills"),
		Command: fmt.Sprintf("dagctl backfill %s/%s --from %s --to %s --existing %s --propagate %s --concurrency %d",
			dag, request.Job, request.From, request.To, request.Existing, request.Propagate, request.Concurrency)}
	for _, name := range []string{"job", "from", "existing", "propagate", "concurrency"} {
		q.view.Hidden = append(q.view.Hidden, hiddenField{name, r.FormValue(name)})
	}
	q.view.Hidden = append(q.view.Hidden, hiddenField{"to", request.To})
	q.do = func(form) error {
		request.DryRun = false
		b, err := s.Dispatcher.Control.StartBackfill(r.Context(), caller, dag, request, clock.Now())
		*q.done = fmt.Sprintf("The backfill of %s/%s has begun, with %s.", dag, request.Job,
			count(int64(b.Pending), "partition"))
		return err
	}
	return q, nil
}

// oneOf reports whether a text is one of some.
func oneOf(text string, of ...string) bool {
	for _, o := range of {
		if text == o {
			return true
		}
	}
	return false
}

func (s *Site) askCancelBackfill(r *http.Request, caller authz.Caller) (q question, err error) {
	dag := r.PathValue("dag")
	id, err := uuid.Parse(r.PathValue("id"))
	if err != nil {
		return q, fault.New(fault.NotFound, "%s has no backfill %q", dag, r.PathValue("id"))
	}
	b, err := s.Dispatcher.Control.Backfill(r.Context(), caller, dag, id)
	if err != nil {
		return q, err
	}
	if b.Status != "Running" {
		return q, fault.New(fault.Conflict, "this backfill of %s/%s is %s", dag, b.Job, b.Status)
	}

	q.title = fmt.Sprintf("Cancel the backfill of %s/%s", dag, b.Job)
	q.view = confirmView{Says: fmt.Sprintf("It makes no more tasks of the partitions from %s to %s.", b.From, b.To),
		Effects: []string{
			fmt.Sprintf("Partitions without a task, which are not computed: %s.", number(int64(b.Pending))),
			fmt.Sprintf("Tasks that are open, and go on: %s.", number(int64(b.Open))),
			fmt.Sprintf("Partitions that are done, and stay: %s.", number(int64(b.Done)))},
		Action: dagPath(dag, "backfills", id, "cancel"), Danger: true, Button: "Cancel the backfill",
		Back: dagPath(dag, "backfills"), Command: fmt.Sprintf("dagctl backfill cancel %s %s", dag, id)}
	q.do = func(form) error {
		_, err := s.Dispatcher.Control.CancelBackfill(r.Context(), caller, dag, id, clock.Now())
		return err
	}
	return q, nil
}
