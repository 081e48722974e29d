package web

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/dispatcher"
	"github.com/dagctl/dagctl/dispatcher/sources"
	"github.com/dagctl/dagctl/dispatcher/views"
	"github.com/dagctl/dagctl/dispatcher/why"
	"github.com/dagctl/dagctl/internal/atonce"
	"github.com/dagctl/dagctl/internal/clock"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/plural"
	"github.com/dagctl/dagctl/registry"
	"github.com/dagctl/dagctl/registry/catalog"
)

// jobPath returns the path of a job's page.
func jobPath(dagName, job string) string {
	return "/dags/" + url.PathEscape(dagName) + "/jobs/" + url.PathEscape(job)
}

type jobView struct {
	views.JobDetail
	Path       string
	Query      string    // the SQL that it runs
	Config     string    // the rest of its config, as JSON
	Facts      []setting // its limits, retries and timeouts
	Timeline   *timeline
	Tasks      []views.Task
	Durations  *spark
	Why        []why.Reason
	Calendar   *calendar
	Trend      *jobTrend
	MayOperate bool
}

// setting is one line of what is set.
type setting struct{ Name, Value string }

// calendar is the partitions of a dataset.
type calendar struct {
	Dataset string
	Path    string
	States  []stateCount
	Grid    []cellRow
}

// latestTasks is how many tasks the table has; the drawing has a page of them.
const latestTasks = 10

// Latest returns the newest tasks.
func (v jobView) Latest() []views.Task { return v.Tasks[:min(len(v.Tasks), latestTasks)] }

// Manual reports whether people may ask for its tasks.
func (v jobView) Manual() bool { return v.Source == "manual" }

// Reads reports whether it is a source that can be read now.
func (v jobView) Reads() bool { return v.Live && v.Paused == nil && sources.Readable(v.Source) }

// Own reports whether the job is paused by itself, and not with its DAG or org.
func (v jobView) Own() bool { return v.Paused != nil && v.Paused.Job == v.Name }

func (s *Site) job(w http.ResponseWriter, r *http.Request, caller authz.Caller) error {
	ctx, now := r.Context(), clock.Now()
	detail, err := s.Dispatcher.Views.Job(ctx, caller, r.PathValue("dag"), r.PathValue("job"))
	if fault.Is(err, fault.NotFound) {
		return s.formerJob(w, r, caller, err)
	}
	if err != nil {
		return err
	}
	v := jobView{JobDetail: detail, Path: jobPath(detail.DAG, detail.Name),
		MayOperate: caller.May(authz.Operate, authz.OnDAG(detail.DAG))}
	v.addDefinition()

	dagName, job := detail.DAG, detail.Name
	err = atonce.Do(ctx, 3,
		func(ctx context.Context) (err error) {
			v.Tasks, err = s.Dispatcher.Views.Tasks(ctx, caller, views.TaskFilter{
				TaskSelection: views.TaskSelection{DAG: dagName, Job: job}, Limit: pageSize})
			return err
		},
		func(ctx context.Context) error {
			found, err := s.Dispatcher.Why.JobWhy(ctx, caller, dagName, job, now)
			v.Why = found.Reasons
			return err
		},
		func(ctx context.Context) (err error) {
			v.Calendar, err = s.calendar(ctx, caller, detail.Outputs, now)
			return err
		},
		func(ctx context.Context) (err error) {
			v.Trend, err = s.trend(ctx, caller, dagName, job, now)
			return err
		})
	if err != nil {
		return err
	}
	v.Timeline = drawTimeline("The last tasks over time", taskSpans(v.Tasks, now, false))
	v.Durations = durations(v.Tasks)
	return render(w, http.StatusOK, "job.html",
		layout{Title: detail.DAG + "/" + detail.Name, Tab: "dags", Caller: caller, View: v})
}

// formerJob leads to the tasks of a job that only other versions have than the one shown. Where none has it, it returns
// the error.
func (s *Site) formerJob(w http.ResponseWriter, r *http.Request, caller authz.Caller, none error) error {
	dagName, job := r.PathValue("dag"), r.PathValue("job")
	former, err := s.Dispatcher.Views.FormerJob(r.Context(), caller, dagName, job)
	if err != nil {
		return err
	}
	if !former {
		return none
	}
	http.Redirect(w, r, "/tasks?"+url.Values{"dag": {dagName}, "job": {job}}.Encode(), http.StatusSeeOther)
	return nil
}

// addDefinition adds what the document says, for people.
func (v *jobView) addDefinition() {
	d := v.Definition
	if d == nil {
		return
	}
	rest := dag.Config{}
	for name, value := range d.Config {
		if text, ok := value.(string); ok && name == "query" {
			v.Query = strings.TrimSpace(text)
			continue
		}
		rest[name] = value
	}
	if len(rest) > 0 {
		text, err := json.MarshalIndent(rest, "", "  ")
		if err == nil {
			v.Config = string(text)
		}
	}

	add := func(name, value string) {
		if value != "" {
			v.Facts = append(v.Facts, setting{name, value})
		}
	}
	add("Partitions", d.PartitionBy)
	add("Runs when", triggers[d.Trigger])
	add("Each run makes", d.ExecutionStrategy)
	add("Writes by", d.UpdateStrategy)
	add("Effect", d.Effect)
	add("At once", atOnce(d, v.Limits))
	add("Concurrency key", d.ConcurrencyKey)
	add("State key", d.StateKey)
	if d.Priority != 0 {
		add("Priority", fmt.Sprint(d.Priority))
	}
	add("Attempts", attemptsOf(d))
	add("Timeout", unlessZero(d.Timeout))
	add("Heartbeat timeout", unlessZero(d.HeartbeatTimeout))
	add("Checks", strings.Join(d.Checks, ", "))
	add("Secrets", strings.Join(d.Secrets, ", "))
	add("Code version", d.CodeVersion)
}

// triggers says in words what creates tasks of a job.
var triggers = map[string]string{"all": "all inputs have changed", "any": "any input has changed"}

// atOnce says how many tasks of a job may run at once, and how many do.
func atOnce(d *views.JobDefinition, limits []views.LimitUse) string {
	if d.MaxConcurrency == 0 {
		return "any number of tasks"
	}
	text := fmt.Sprintf("%d at most", d.MaxConcurrency)
	for _, l := range limits {
		text = fmt.Sprintf("%d of %d", l.Held, l.Max)
	}
	return text
}

// attemptsOf says how often and after which time a task is tried again.
func attemptsOf(d *views.JobDefinition) string {
	switch {
	case d.MaxAttempts == 0:
		return ""
	case d.MaxAttempts == 1:
		return "1: a failure is final"
	}
	return fmt.Sprintf("%d: again after %s, then %g times as long, up to %s", d.MaxAttempts, seconds(d.RetryInitial),
		d.RetryMultiplier, seconds(d.RetryMax))
}

// unlessZero formats a number of seconds; "" for none.
func unlessZero(n float64) string {
	if n == 0 {
		return ""
	}
	return seconds(n)
}

// durations returns the curve of how long completed tasks took, the oldest first; nil for fewer than two.
func durations(tasks []views.Task) *spark {
	var took []float64
	for _, t := range slices.Backward(tasks) {
		if t.Status == "Completed" && t.StartedAt != nil && t.CompletedAt != nil && t.Kind != "check" {
			took = append(took, t.CompletedAt.Sub(*t.StartedAt).Seconds())
		}
	}
	if len(took) < 2 {
		return nil
	}
	c := curve("Duration", took, func(v float64) string { return rough(time.Duration(v * float64(time.Second))) })
	return &c
}

// calendar returns the partitions of the first output that the caller may see; nil if there is none.
func (s *Site) calendar(
	ctx context.Context, caller authz.Caller, outputs []registry.OutputView, now time.Time,
) (*calendar, error) {
	at := slices.IndexFunc(outputs, func(o registry.OutputView) bool { return o.Dataset != "" })
	if at < 0 {
		return nil, nil
	}
	d, err := s.Registry.Dataset(ctx, caller, outputs[at].Dataset)
	if fault.Is(err, fault.NotFound) {
		return nil, nil // nothing serves it yet
	}
	if err != nil {
		return nil, err
	}
	cells, err := s.Dispatcher.Views.Grid(ctx, caller, d.ID.String(), "", cellsShown, now)
	if err != nil || len(cells) == 0 {
		return nil, err
	}

	p, err := catalog.Partitioning(d)
	return &calendar{Dataset: d.Name, Path: datasetPath(d.Name), States: countStates(cells),
		Grid: cellRows(p, cells)}, err
}

// askRun asks for the payload of a task of a manual job. It leads to the task.
func (s *Site) askRun(r *http.Request, caller authz.Caller) (q question, err error) {
	detail, err := s.Dispatcher.Views.Job(r.Context(), caller, r.PathValue("dag"), r.PathValue("job"))
	if err != nil {
		return q, err
	}

	name := detail.DAG + "/" + detail.Name
	q.title, q.to = "Run "+name, new(string)
	q.view = confirmView{Says: "One task is made, which runs as soon as a worker of " + detail.Runtime + " is free.",
		Action: r.URL.Path, Button: "Run", Back: jobPath(detail.DAG, detail.Name),
		Fields: []askedField{{Label: "Payload, as JSON", Name: "payload", Placeholder: "{}", Area: true},
			{Label: "Partition, where the job has some", Name: "partition"}},
		Command: "dagctl run " + name + " --payload '{}'"}
	if d := detail.Definition; d != nil && d.FirstPartition != "" { // it is asked for a partition, and reads no payload
		first := d.FirstPartition
		q.view.Fields = []askedField{{Label: "Partition, from " + first + " on", Name: "partition", Placeholder: first,
			Required: true}}
		q.view.Command = "dagctl run " + name + " --partition " + first
	}
	if detail.Paused != nil {
		q.view.Effects = append(q.view.Effects, "It waits: "+detail.Paused.What()+" is paused by "+
			detail.Paused.Actor+".")
	}
	if d := detail.Definition; d != nil && len(d.PayloadSchema) > 0 {
		q.view.Effects = append(q.view.Effects, "The payload has to meet the schema "+string(d.PayloadSchema)+".")
	}

	q.do = func(f form) error {
		payload, err := payloadOf(f)
		if err != nil {
			return err
		}
		item := dispatcher.EnqueueItem{Partition: strings.TrimSpace(f.Get("partition")), Payload: payload}
		made, err := s.Dispatcher.Enqueue(r.Context(), caller, detail.DAG, detail.Name, []dispatcher.EnqueueItem{item})
		if err == nil {
			*q.to = "/tasks/" + made[0].ID.String()
		}
		return err
	}
	return q, nil
}

// payloadOf returns the JSON of a form's field; nil if it is empty. What is no JSON comes with an error.
func payloadOf(f form) (json.RawMessage, error) {
	payload := json.RawMessage(strings.TrimSpace(f.Get("payload")))
	if len(payload) == 0 {
		return nil, nil
	}
	if !json.Valid(payload) {
		return payload, fault.New(fault.Invalid, "the payload is not valid JSON").
			WithHint(`write for example {"text": "hello"}`)
	}
	return payload, nil
}

func (s *Site) askPauseJob(r *http.Request, caller authz.Caller) (q question, err error) {
	dagName, job := r.PathValue("dag"), r.PathValue("job")
	detail, err := s.Dispatcher.Views.Job(r.Context(), caller, dagName, job)
	if err != nil {
		return q, err
	}

	name := dagName + "/" + job
	q.title = "Pause " + name
	q.view = confirmView{Says: "No task of it begins. The pause outlasts deploys and rollbacks.",
		Effects: []string{plural.Or(detail.Tasks.Queued, "queued task waits", "queued tasks wait") +
			" until somebody resumes it.",
			plural.Or(detail.Tasks.Running, "running task finishes.", "running tasks finish.")},
		Action: r.URL.Path, Button: "Pause", Back: jobPath(dagName, job),
		Fields:  []askedField{{Label: "Reason", Name: "reason", Required: true}},
		Command: "dagctl pause " + name + ` --reason "…"`}
	if detail.Source != "" {
		q.view.Effects = append(q.view.Effects, "The source does not fire meanwhile.")
	}

	q.do = func(f form) error {
		reason := strings.TrimSpace(f.Get("reason"))
		if reason == "" {
			return fault.New(fault.Invalid, "a reason is needed").
				WithHint("everybody who asks why nothing runs will read it")
		}
		_, err := s.Dispatcher.Control.Pause(r.Context(), caller, dagName, job, reason, clock.Now())
		return err
	}
	return q, nil
}

func (s *Site) askResumeJob(r *http.Request, caller authz.Caller) (q question, err error) {
	dagName, job := r.PathValue("dag"), r.PathValue("job")
	detail, err := s.Dispatcher.Views.Job(r.Context(), caller, dagName, job)
	if err != nil {
		return q, err
	}

	q.title = "Resume " + dagName + "/" + job
	q.view = confirmView{Says: "Its tasks begin again.", Action: r.URL.Path, Button: "Resume",
		Effects: []string{plural.Or(detail.Tasks.Queued, "queued task goes on.", "queued tasks go on.")},
		Back:    jobPath(dagName, job), Command: "dagctl resume " + dagName + "/" + job}
	if p := detail.Paused; p != nil && p.Job == job {
		q.view.Says = fmt.Sprintf("%s paused it %s: %s", p.Actor, ago(clock.Now(), p.At), p.Reason)
	} else if p != nil {
		q.view.Effects = append(q.view.Effects, "It still waits, because "+p.What()+" is paused.")
	}
	q.do = func(form) error { return s.Dispatcher.Control.Resume(r.Context(), caller, dagName, job, clock.Now()) }
	return q, nil
}
