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
	"github.com/dagctl/dagctl/internal/plural"
)

// verbDoes says what a verb does to one task.
var verbDoes = map[string]string{
	control.VerbRetry:  "It becomes claimable again, with all its attempts.",
	control.VerbCancel: "It ends now or, if it runs, as soon as its worker reports.",
	control.VerbSkip: "It is given up: a build that waits for its partition goes on without it. The same work does " +
		"not get another task; new input does.",
}

// verbDone says what was done to tasks.
var verbDone = map[string]string{control.VerbRetry: "retried", control.VerbCancel: "canceled, or asked to end",
	control.VerbSkip: "skipped"}

// reasonFields returns the field for the reason, where a verb takes one.
func reasonFields(verb string) []askedField {
	if verb != control.VerbSkip {
		return nil
	}
	return []askedField{{Label: "Reason", Name: "reason", Required: true}}
}

// reasonOf returns the reason that a form gives, where a verb takes one.
func reasonOf(verb string, f form) (string, error) {
	if verb != control.VerbSkip {
		return "", nil
	}
	reason := strings.TrimSpace(f.Get("reason"))
	if reason == "" {
		return "", fault.New(fault.Invalid, "a reason is needed to skip tasks").WithHint("it is kept in the audit log")
	}
	return reason, nil
}

// askTask asks whether to do a verb to a task.
func (s *Site) askTask(verb string) ask {
	return func(r *http.Request, caller authz.Caller) (q question, err error) {
		id, err := taskID(r)
		if err != nil {
			return q, err
		}
		t, err := s.Dispatcher.Views.TaskByID(r.Context(), caller, id)
		if err != nil {
			return q, err
		}

		q.title, q.done = capital(verb)+" "+taskTitle(t), new(string)
		q.view = confirmView{Says: verbDoes[verb], Effects: standing(t), Action: r.URL.Path,
			Fields: reasonFields(verb), Button: capital(verb), Danger: verb != control.VerbRetry,
			Back: "/tasks/" + id.String(), Command: "dagctl tasks " + verb + " " + id.String()}
		q.do = func(f form) error {
			reason, err := reasonOf(verb, f)
			if err != nil {
				return err
			}
			after, err := s.Dispatcher.Control.Do(r.Context(), caller, id, control.Act{Verb: verb, Reason: reason}, "")
			*q.done = taskDone(verb, after)
			return err
		}
		return q, nil
	}
}

// taskDone says what a verb has made of a task.
func taskDone(verb string, t views.Task) string {
	switch {
	case verb == control.VerbRetry && tasks.Reason(t.Reason) == tasks.ReasonMerged:
		return "Another task of the same work is queued already, and does it."
	case verb == control.VerbRetry:
		return "The task is queued again, with all its attempts."
	case verb == control.VerbSkip:
		return "The task is skipped."
	case t.Status == string(tasks.Running):
		return "The task was asked to end: it does as soon as its worker reports."
	}
	return "The task is canceled."
}

// standing says how a task stands.
func standing(t views.Task) []string {
	text := "It is " + strings.ToLower(t.Status)
	if t.Status == string(tasks.Running) {
		text = fmt.Sprintf("It runs on %s, %d %% done", t.Worker, t.Progress)
	}
	effects := []string{fmt.Sprintf("%s; %d of %d attempts have failed.", text, t.Failures, t.MaxAttempts)}
	if t.Error != "" {
		effects = append(effects, "Its last error: "+shorten(fault.Headline(t.Error), 300))
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

// askBulk asks whether to do a verb to all tasks of a selection.
func (s *Site) askBulk(r *http.Request, caller authz.Caller) (q question, err error) {
	verb := r.PathValue("verb")
	if verbDoes[verb] == "" {
		return q, fault.New(fault.NotFound, "tasks can be retried, canceled and skipped, and not %q", verb)
	}
	selection := selectionOf(r.Form)
	q.done = new(string)
	matched, do, err := s.toAll(r, caller, verb, selection, q.done)
	if err != nil {
		return q, err
	}

	q.do, q.title = do, capital(verb)+" "+count(matched, "task")
	q.view = confirmView{Says: "Each: " + verbDoes[verb],
		Effects: []string{number(matched) + " " + plural.Word(matched,
			"task matches the filter now, and the verb fits it.",
			"tasks match the filter now, and the verb fits them."),
			"Tasks that change before their turn are left out."},
		Action: r.URL.Path, Hidden: allFields(selection, matched), Fields: reasonFields(verb), Button: q.title,
		Danger: verb != control.VerbRetry, Back: "/tasks?" + selectionQuery(selection),
		Command: "dagctl tasks " + verb + selectionFlags(selection)}
	if verb == control.VerbRetry {
		q.view.Effects = append(q.view.Effects, whatRetryFits)
	}
	return q, nil
}

// whatRetryFits says which tasks are retried.
const whatRetryFits = "Only tasks that have failed, or that somebody canceled, are retried. What is left of a " +
	"version that failed or was abandoned is tried again when its document is deployed again."

// allFields keep in a form which tasks its page was about, and how many they were.
func allFields(s views.TaskSelection, matched int64) []hiddenField {
	return append(selectionFields(s), hiddenField{"matched", fmt.Sprint(matched)})
}

// toAll counts the tasks of a selection that a verb fits, and returns what does it to them and says so in done. That
// refuses a form whose page said that fewer tasks match than do now.
func (s *Site) toAll(r *http.Request, caller authz.Caller, verb string, selection views.TaskSelection,
	done *string) (matched int64, do func(form) error, err error) {
	start := func(request control.BulkRequest) (control.BulkAction, error) {
		request.Filter = selection
		return s.Dispatcher.Control.StartBulk(r.Context(), caller, verb, request, clock.Now())
	}
	count := control.BulkRequest{DryRun: true}
	if verb == control.VerbSkip {
		count.Reason = "only counted"
	}
	found, err := start(count)
	if err != nil {
		return 0, nil, err
	}

	return found.Matched, func(f form) error {
		if found.Matched == 0 && verb == control.VerbRetry {
			return fault.New(fault.Conflict, "none of these tasks can be retried").WithHint(whatRetryFits)
		}
		reason, err := reasonOf(verb, f)
		if err != nil {
			return err
		}
		said, err := strconv.ParseInt(f.Get("matched"), 10, 64)
		if err != nil {
			return fault.New(fault.Invalid, "the form does not say how many tasks its page named").
				WithHint("load the page again, and send its form whole")
		}
		if found.Matched > said {
			return fault.New(fault.Conflict, "%s now, and the page said %d",
				plural.Or(found.Matched, "task matches", "tasks match"), said).
				WithHint("look at them, and decide again")
		}
		b, err := start(control.BulkRequest{Reason: reason})
		*done = bulkDone(b)
		return err
	}, nil
}

// bulkDone says how far a bulk action is.
func bulkDone(b control.BulkAction) string {
	text := fmt.Sprintf("%s %s.", count(b.Done, "task"), verbDone[b.Verb])
	if b.Refused > 0 {
		text += fmt.Sprintf(" %s changed before, and left as found.", count(b.Refused, "task"))
	}
	if left := b.Matched - b.Done - b.Refused; left > 0 {
		text += fmt.Sprintf(" %s to go: the server goes on.", count(left, "task"))
	}
	return text
}

// latestBulks returns the last bulk actions, for those who may begin one.
func (s *Site) latestBulks(r *http.Request, caller authz.Caller, n int) ([]control.BulkAction, error) {
	if !caller.MaySomewhere(authz.Operate) {
		return nil, nil
	}
	return s.Dispatcher.Control.Bulks(r.Context(), caller, uuid.Nil, n)
}

// askToDecide says what it would mean to accept or reject the newest revision of a partition.
func (s *Site) askToDecide(verb string) ask {
	return func(r *http.Request, caller authz.Caller) (q question, err error) {
		d, err := s.Registry.Dataset(r.Context(), caller, r.PathValue("name"))
		if err != nil {
			return q, err
		}
		partition, version := r.Form.Get("partition"), r.Form.Get("version")

		q.title = capital(verb) + " " + partition + " of " + d.Name
		q.view = confirmView{Action: r.URL.Path, Button: capital(verb), Danger: verb == "reject",
			Back: datasetPath(d.Name), Hidden: []hiddenField{{"partition", partition}, {"version", version}},
			Fields: []askedField{{Label: "Reason", Name: "reason", Required: true}},
			Says:   "Readers see the revision although its checks have not passed it, and its consumers run.",
			Command: fmt.Sprintf("dagctl datasets %s %s --partition %s --reason %q", verb, d.Name, partition,
				"…")}
		if version != "" {
			q.view.Command += " --version " + version
		}
		if verb == "reject" {
			q.view.Says = "Readers never see this revision. They keep what they have."
		}
		for _, p := range d.Withheld {
			if p.Partition != partition || p.Candidate != (version == "candidate") {
				continue
			}
			q.view.Effects = append(q.view.Effects, fmt.Sprintf("Revision %d of %s is %s, with %s rows.", p.Revision,
				p.Partition, strings.ToLower(p.State), number(p.Rows)))
			if p.Why != "" {
				q.view.Effects = append(q.view.Effects, "Its checks found: "+p.Why)
			}
		}

		q.do = func(f form) error {
			act := s.Dispatcher.Control.Accept
			if verb == "reject" {
				act = s.Dispatcher.Control.Reject
			}
			reason := strings.TrimSpace(f.Get("reason"))
			if partition == "" || reason == "" {
				return fault.New(fault.Invalid, "a partition and a reason are needed").
					WithHint("the reason is kept in the audit log")
			}
			_, err := act(r.Context(), caller, r.PathValue("name"), control.DecideRequest{Partition: partition,
				Version: version, Reason: reason})
			return err
		}
		return q, nil
	}
}
