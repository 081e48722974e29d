package web

import (
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/google/uuid"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/dispatcher/control"
	"github.com/dagctl/dagctl/dispatcher/tasks"
	"github.com/dagctl/dagctl/dispatcher/views"
	"github.com/dagctl/dagctl/internal/clock"
	"github.com/dagctl/dagctl/internal/fault"
)

// What people decide over tasks and partitions. An action leads back to where it was begun: the address is in the
// field `back`.

// safeBack reports whether an address is one of a page here, so that no link leads anybody elsewhere.
func safeBack(path string) bool {
	u, err := url.Parse(path)
	return err == nil && u.Host == "" && u.Scheme == "" && strings.HasPrefix(path, "/") &&
		!strings.HasPrefix(path, "//") && !strings.ContainsAny(path, "\\\r\n\t")
}

// backTo returns the page to which a form leads back.
func backTo(f form, otherwise string) string {
	if back := f.Get("back"); safeBack(back) {
		return back
	}
	return otherwise
}

// backOf returns the page from which a request came.
func backOf(r *http.Request, otherwise string) string { return backTo(form{r.Form}, otherwise) }

// hiddenBack keeps the page from which a request came in a form.
func hiddenBack(r *http.Request) []hiddenField {
	if back := backOf(r, ""); back != "" {
		return []hiddenField{{"back", back}}
	}
	return nil
}

// verbDoes says what a verb does to one task.
var verbDoes = map[string]string{
	control.VerbRetry:  "It becomes claimable again, with all its attempts.",
	control.VerbCancel: "It ends now or, if it runs, as soon as its worker reports.",
	control.VerbSkip: "It is given up: a build that waits for its partition goes on without it. The same work does " +
		"not get another task; new input does.",
}

// needsReason returns what is missing where a verb needs a reason.
func needsReason(verb, reason string) error {
	if verb == control.VerbSkip && reason == "" {
		return fault.New(fault.Invalid, "a reason is needed to skip tasks").WithHint("it is kept in the audit log")
	}
	return nil
}

// reasonFields returns the field for the reason, where a verb takes one.
func reasonFields(verb string, f form) []askedField {
	if verb != control.VerbSkip {
		return nil
	}
	return []askedField{{Label: "Reason", Name: "reason", Value: f.Get("reason"), Required: true}}
}

// actOnTask returns the page that does a verb to a task.
func (s *Site) actOnTask(verb string) func(http.ResponseWriter, *http.Request, authz.Caller) error {
	return func(w http.ResponseWriter, r *http.Request, caller authz.Caller) error {
		id, err := taskID(r)
		if err != nil {
			return err
		}
		f, err := readForm(r)
		if err != nil {
			return err
		}

		page := "/tasks/" + id.String()
		if r.Method == http.MethodPost {
			act := control.Act{Verb: verb}
			if verb == control.VerbSkip {
				act.Reason = strings.TrimSpace(f.Get("reason"))
			}
			if err = needsReason(verb, act.Reason); err == nil {
				_, err = s.Dispatcher.Control.Do(r.Context(), caller, id, act, "")
			}
			if err == nil {
				http.Redirect(w, r, backTo(f, page), http.StatusSeeOther)
				return nil
			}
		}

		t, failed := s.Dispatcher.Views.TaskByID(r.Context(), caller, id)
		if failed != nil {
			return failed
		}
		return confirm(w, caller, "tasks", capital(verb)+" "+taskTitle(t), err, confirmView{
			Says: verbDoes[verb], Effects: standing(t), Action: r.URL.Path, Fields: reasonFields(verb, f),
			Hidden: hiddenBack(r), Button: capital(verb), Danger: verb != control.VerbRetry, Back: backOf(r, page),
			Command: "dagctl tasks " + verb + " " + id.String()})
	}
}

// standing says how a task stands.
func standing(t views.Task) []string {
	text := "It is " + strings.ToLower(t.Status)
	if t.Status == string(tasks.Running) {
		text = fmt.Sprintf("It runs on %s, %d %% done", t.Worker, t.Progress)
	}
	effects := []string{fmt.Sprintf("%s; %d of %d attempts have failed.", text, t.Failures, t.MaxAttempts)}
	if t.Error != "" {
		effects = append(effects, "Its last error: "+shorten(t.Error, 300))
	}
	return effects
}

// selectionOf returns the selection of tasks that a query or a form names.
func selectionOf(q url.Values) views.TaskSelection {
	return views.TaskSelection{DAG: q.Get("dag"), Job: q.Get("job"), Status: q.Get("status"), Kind: q.Get("kind"),
		Partition: q.Get("partition"), Dead: q.Get("dead") != "", Error: q.Get("error"),
		ErrorGroup: q.Get("error_group")}
}

// selectionFields are the fields of a selection with their values, without the empty ones.
func selectionFields(s views.TaskSelection) (fields []hiddenField) {
	dead := ""
	if s.Dead {
		dead = "1"
	}
	for _, f := range []hiddenField{{"dag", s.DAG}, {"job", s.Job}, {"status", s.Status}, {"kind", s.Kind},
		{"partition", s.Partition}, {"dead", dead}, {"error", s.Error}, {"error_group", s.ErrorGroup}} {
		if f.Value != "" {
			fields = append(fields, f)
		}
	}
	return fields
}

// selectionQuery returns a selection as the query of an address.
func selectionQuery(s views.TaskSelection) string {
	q := url.Values{}
	for _, f := range selectionFields(s) {
		q.Set(f.Name, f.Value)
	}
	return q.Encode()
}

// selectionFlags returns a selection as the flags of a command.
func selectionFlags(s views.TaskSelection) (flags string) {
	for _, f := range selectionFields(s) {
		if f.Name == "dead" {
			flags += " --dead"
		} else {
			flags += fmt.Sprintf(" --%s %q", strings.ReplaceAll(f.Name, "_", "-"), f.Value)
		}
	}
	return flags
}

// bulk asks whether to do a verb to all tasks of a selection, with their number, and does it.
func (s *Site) bulk(w http.ResponseWriter, r *http.Request, caller authz.Caller) error {
	verb := r.PathValue("verb")
	if verbDoes[verb] == "" {
		return fault.New(fault.NotFound, "tasks can be retried, canceled and skipped, and not %q", verb)
	}
	f, err := readForm(r)
	if err != nil {
		return err
	}
	request := control.BulkRequest{Filter: selectionOf(r.Form)}
	list := "/tasks?" + selectionQuery(request.Filter)

	if r.Method == http.MethodPost {
		if verb == control.VerbSkip {
			request.Reason = strings.TrimSpace(f.Get("reason"))
		}
		if err = needsReason(verb, request.Reason); err == nil {
			err = s.stillMatched(r, caller, verb, request)
		}
		if err == nil {
			_, err = s.Dispatcher.Control.StartBulk(r.Context(), caller, verb, request, clock.Now())
		}
		if err == nil {
			http.Redirect(w, r, backTo(f, list), http.StatusSeeOther)
			return nil
		}
	}

	found, failed := s.matched(r, caller, verb, request)
	if failed != nil {
		return failed
	}
	title := fmt.Sprintf("%s %s tasks", capital(verb), number(found.Matched))
	return confirm(w, caller, "tasks", title, err, confirmView{
		Says: "Each: " + verbDoes[verb],
		Effects: []string{fmt.Sprintf("%s tasks match the filter now, and the verb fits them.", number(found.Matched)),
			"Tasks that change before their turn are left out."},
		Action: r.URL.Path, Hidden: append(append(selectionFields(request.Filter), hiddenBack(r)...),
			hiddenField{"matched", fmt.Sprint(found.Matched)}),
		Fields: reasonFields(verb, f), Button: title,
		Danger: verb != control.VerbRetry, Back: backOf(r, list),
		Command: "dagctl tasks " + verb + selectionFlags(request.Filter)})
}

// matched counts the tasks that a bulk action would be about.
func (s *Site) matched(r *http.Request, caller authz.Caller, verb string,
	request control.BulkRequest) (control.BulkAction, error) {
	request.DryRun = true
	if verb == control.VerbSkip {
		request.Reason = "only counted"
	}
	return s.Dispatcher.Control.StartBulk(r.Context(), caller, verb, request, clock.Now())
}

// stillMatched refuses a form whose page said that fewer tasks match than do now.
func (s *Site) stillMatched(r *http.Request, caller authz.Caller, verb string, request control.BulkRequest) error {
	said, err := strconv.ParseInt(r.PostFormValue("matched"), 10, 64)
	if err != nil {
		return fault.New(fault.Invalid, "the form does not say how many tasks its page named").
			WithHint("load the page again, and send its form whole")
	}
	found, err := s.matched(r, caller, verb, request)
	if err == nil && found.Matched > said {
		err = fault.New(fault.Conflict, "%d tasks match now, and the page said %d", found.Matched, said).
			WithHint("look at them, and decide again")
	}
	return err
}

// latestBulks returns the last bulk actions, for those who may begin one.
func (s *Site) latestBulks(r *http.Request, caller authz.Caller, n int) ([]control.BulkAction, error) {
	if !caller.MaySomewhere(authz.Operate) {
		return nil, nil
	}
	return s.Dispatcher.Control.Bulks(r.Context(), caller, uuid.Nil, n)
}

// decide returns the page that accepts or rejects the newest revision of a partition.
func (s *Site) decide(verb string) func(http.ResponseWriter, *http.Request, authz.Caller) error {
	return func(w http.ResponseWriter, r *http.Request, caller authz.Caller) error {
		name := r.PathValue("name")
		f, err := readForm(r)
		if err != nil {
			return err
		}
		request := control.DecideRequest{Partition: r.Form.Get("partition"), Version: r.Form.Get("version"),
			Reason: strings.TrimSpace(f.Get("reason"))}

		if r.Method == http.MethodPost {
			act := s.Dispatcher.Control.Accept
			if verb == "reject" {
				act = s.Dispatcher.Control.Reject
			}
			if request.Partition == "" || request.Reason == "" {
				err = fault.New(fault.Invalid, "a partition and a reason are needed").
					WithHint("the reason is kept in the audit log")
			} else {
				_, err = act(r.Context(), caller, name, request)
			}
			if err == nil {
				http.Redirect(w, r, backTo(f, datasetPath(name)), http.StatusSeeOther)
				return nil
			}
		}
		return s.askToDecide(w, r, caller, verb, request, err)
	}
}

// askToDecide says what it would mean to accept or reject a revision.
func (s *Site) askToDecide(
	w http.ResponseWriter, r *http.Request, caller authz.Caller, verb string, request control.DecideRequest,
	wrong error,
) error {
	d, err := s.Registry.Dataset(r.Context(), caller, r.PathValue("name"))
	if err != nil {
		return err
	}
	path := datasetPath(d.Name)
	v := confirmView{Action: r.URL.Path, Button: capital(verb), Danger: verb == "reject", Back: backOf(r, path),
		Hidden: append(hiddenBack(r), hiddenField{"partition", request.Partition},
			hiddenField{"version", request.Version}),
		Fields: []askedField{{Label: "Reason", Name: "reason", Value: request.Reason, Required: true}},
		Says:   "Readers see the revision although its checks have not passed it, and its consumers run.",
		Command: fmt.Sprintf("dagctl datasets %s %s --partition %s --reason %q", verb, d.Name, request.Partition,
			"…")}
	if verb == "reject" {
		v.Says = "Readers never see this revision. They keep what they have."
	}

	for _, p := range d.Withheld {
		if p.Partition == request.Partition && p.Candidate == (request.Version == "candidate") {
			v.Effects = append(v.Effects, fmt.Sprintf("Revision %d of %s is %s, with %s rows.", p.Revision, p.Partition,
				strings.ToLower(p.State), number(p.Rows)))
			if p.Why != "" {
				v.Effects = append(v.Effects, "Its checks found: "+p.Why)
			}
		}
	}
	return confirm(w, caller, "datasets", capital(verb)+" "+request.Partition+" of "+d.Name, wrong, v)
}
