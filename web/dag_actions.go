package web

import (
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/dispatcher/builds"
	"github.com/dagctl/dagctl/dispatcher/notices"
	"github.com/dagctl/dagctl/internal/clock"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/plural"
	"github.com/dagctl/dagctl/registry"
	"github.com/dagctl/dagctl/registry/contract"
	"github.com/dagctl/dagctl/registry/deploy"
)

// addDAGActions adds what one can do to a DAG and its versions.
func (s *Site) addDAGActions(api routes) {
	deploys, operates := authz.To(authz.Deploy, authz.TheDAG), authz.To(authz.Operate, authz.TheDAG)
	const version = "/dags/{dag}/versions/{version}"

	action(api, deploys, version+"/promote", "dags", s.askPromote)
	action(api, deploys, version+"/rollback", "dags", s.askRollback)
	action(api, deploys, version+"/pin", "dags", s.askPin)
	action(api, deploys, version+"/unpin", "dags", s.askUnpin)
	action(api, deploys, "/dags/{dag}/abandon", "dags", s.askAbandon)
	action(api, deploys, "/dags/{dag}/delete", "dags", s.askDelete)
	action(api, deploys, "/dags/{dag}/rematerialize", "dags", s.askRematerialize)
	action(api, operates, "/dags/{dag}/invalidate", "dags", s.askInvalidate)
	action(api, operates, "/dags/{dag}/pause", "dags", s.askPause)
	action(api, operates, "/dags/{dag}/resume", "dags", s.askResume)
	action(api, operates, "/dags/{dag}/notify/test", "dags", s.askTestNotice)
}

// dagPath returns the path of a DAG's page, or of something below it.
func dagPath(dag string, below ...any) string {
	path := "/dags/" + url.PathEscape(dag)
	for _, part := range below {
		if n, ok := part.(*int); ok { // templates pass on what they have
			part = *n
		}
		path += "/" + fmt.Sprint(part)
	}
	return path
}

// versionIn returns the number of the version that a path names.
func versionIn(r *http.Request) (int, error) {
	n, err := strconv.ParseInt(r.PathValue("version"), 10, 32)
	if err != nil || n < 1 {
		return 0, fault.New(fault.NotFound, "%q is not the number of a version", r.PathValue("version"))
	}
	return int(n), nil
}

// count returns a number of things in words.
func count(n int64, noun string) string { return number(n) + " " + plural.Word(n, noun, noun+"s") }

// The fields of consents, as the API names them.
const (
	allowRemovals, allowMoves, allowBreaking = "allow_removals", "allow_moves", "allow_breaking"
	cancelTasks                              = "cancel_tasks"
)

// agreement returns the boxes for what somebody has to agree to, and what is refused whatever they agree to.
func agreement(findings []contract.Finding, cancels []registry.CanceledQueue) (boxes []agreedBox, says []string) {
	names := map[contract.Consent]string{contract.AllowRemovals: allowRemovals, contract.AllowMoves: allowMoves,
		contract.AllowBreaking: allowBreaking}
	for _, f := range findings {
		text := sentence(f.Text)
		switch name := names[f.Consent]; {
		case f.Level == contract.Refuses:
			says = append(says, text+" This is refused. "+f.Hint)
		case f.Level != contract.Asks || name == "":
			says = append(says, text)
		default:
			i := slices.IndexFunc(boxes, func(b agreedBox) bool { return b.Name == name })
			if i < 0 {
				boxes = append(boxes, agreedBox{Label: "I agree: " + text, Name: name})
			} else {
				boxes[i].Label += " " + text
			}
		}
	}

	var lost []string
	for _, c := range cancels {
		lost = append(lost, fmt.Sprintf("%s of %s (%s)", count(c.Tasks, "open task"), c.Job, c.Reason))
	}
	if len(lost) > 0 {
		boxes = append(boxes, agreedBox{Label: "I agree: this cancels " + strings.Join(lost, ", ") + ".",
			Name: cancelTasks})
	}
	return boxes, says
}

// sentence makes a finding's text a sentence.
func sentence(text string) string {
	if strings.HasPrefix(text, "dataset ") || strings.HasPrefix(text, "the ") {
		text = strings.ToUpper(text[:1]) + text[1:]
	}
	return strings.TrimSuffix(text, ".") + "."
}

// swapTables shows what readers would see change.
func swapTables(p deploy.SwapPreview) (tables []effectTable, moved int64) {
	table := effectTable{Title: "What readers see", Numbers: 2,
		Head: []string{"Dataset", "Change", "Rows now", "Rows then", "Partitions now", "Partitions then"}}
	words := map[string]string{deploy.Create: "appears", deploy.Remove: "goes", deploy.SwapOnly: "is swapped"}
	same := int64(0)
	for _, d := range p.Datasets {
		if d.Action == deploy.Reuse {
			same++
			continue
		}
		moved++
		row := []string{d.Dataset, words[d.Action], "", "", "", ""}
		for i, held := range []*deploy.Holdings{d.Before, d.After} {
			if held != nil {
				row[2+i], row[4+i] = number(held.Rows), number(held.Partitions)
			}
		}
		if len(table.Rows) < pageSize {
			table.Rows = append(table.Rows, row)
		}
	}

	if moved > int64(len(table.Rows)) {
		table.Title += fmt.Sprintf(", the first %d of %d datasets", len(table.Rows), moved)
	}
	if len(table.Rows) > 0 {
		tables = append(tables, table)
	}
	return tables, moved
}

// swapQuestion asks whether to swap to a version; what both ways to do it have in common.
func (s *Site) swapQuestion(r *http.Request, caller authz.Caller, verb string) (q question, err error) {
	dag := r.PathValue("dag")
	to, err := versionIn(r)
	if err != nil {
		return q, err
	}
	p, err := s.Deployer.PreviewSwap(r.Context(), caller, dag, &to, clock.Now())
	if err != nil {
		return q, err
	}

	from := 0
	if p.From != nil {
		from = *p.From
	}
	q.title = fmt.Sprintf("%s %s to v%d", verb, dag, to)
	tables, moved := swapTables(p)
	boxes, says := agreement(p.Findings, p.Cancels)
	v := confirmView{Tables: tables, Agree: boxes, Typed: dag, Danger: true, Back: dagPath(dag),
		Hidden: []hiddenField{{"from", strconv.Itoa(from)}}}
	v.Effects = append(v.Effects, fmt.Sprintf("Datasets whose readers see other data: %s; as they are: %s.",
		number(moved), number(int64(len(p.Datasets))-moved)))
	v.Says = fmt.Sprintf("v%d serves after this, for all datasets at once.", to)
	if from > 0 {
		v.Says = fmt.Sprintf("v%d serves after this in place of v%d, for all datasets at once.", to, from)
		v.Effects = append(v.Effects, fmt.Sprintf("v%d stays stored: going back to it is instant until %s UTC.", from,
			stamp(p.KeptUntil)))
	}
	v.Effects = append(v.Effects, says...)
	q.view = v

	// What the form was about may be another thing by now.
	if seen := r.PostFormValue("from"); seen != "" && seen != strconv.Itoa(from) {
		q.do = func(form) error {
			return fault.New(fault.Conflict, "v%s served when this page was made, and v%d serves by now", seen, from).
				WithHint("look again at what it would do, and send the form again")
		}
	}
	return q, nil
}

func (s *Site) askPromote(r *http.Request, caller authz.Caller) (question, error) {
	q, err := s.swapQuestion(r, caller, "Promote")
	if err != nil {
		return q, err
	}
	dag := r.PathValue("dag")
	to, _ := versionIn(r)
	said := fmt.Sprintf("v%d serves.", to)
	q.done = &said
	q.view.Action, q.view.Button = dagPath(dag, "versions", to, "promote"), fmt.Sprintf("Promote v%d", to)
	q.view.Command = fmt.Sprintf("dagctl promote %s v%d", dag, to)
	q.view.Effects = append(q.view.Effects, "Data that has arrived since it was ready is caught up with first. "+
		"A version that is still being built serves as soon as it is ready.")

	if q.do == nil {
		q.do = func(f form) error {
			v, err := s.Dispatcher.Builds.Promote(r.Context(), caller, dag, to, agreed(f).Consents()...)
			if err == nil && v.Status != registry.Active {
				*q.done = fmt.Sprintf("v%d is promoted: it serves as soon as it has caught up.", to)
			}
			return err
		}
	}
	return q, nil
}

// agreed returns what the boxes of a form agree to.
func agreed(f form) contract.Agreed {
	return contract.Agreed{CancelTasks: f.Has(cancelTasks), AllowRemovals: f.Has(allowRemovals),
		AllowMoves: f.Has(allowMoves), AllowBreaking: f.Has(allowBreaking)}
}

func (s *Site) askRollback(r *http.Request, caller authz.Caller) (question, error) {
	q, err := s.swapQuestion(r, caller, "Roll back")
	if err != nil {
		return q, err
	}
	dag := r.PathValue("dag")
	to, _ := versionIn(r)
	q.view.Action, q.view.Button = dagPath(dag, "versions", to, "rollback"), fmt.Sprintf("Roll back to v%d", to)
	q.view.Command = fmt.Sprintf("dagctl rollback %s --to v%d", dag, to)
	q.view.Effects = append(q.view.Effects, "Nothing is computed before the swap. Afterwards the data of v"+
		strconv.Itoa(to)+" catches up with what has arrived since.")

	if q.do == nil {
		q.do = func(f form) error {
			a := agreed(f)
			_, err := s.Dispatcher.Builds.Rollback(r.Context(), caller, dag, builds.RollbackRequest{To: &to,
				CancelTasks: a.CancelTasks, AllowBreaking: a.AllowBreaking, AllowRemovals: a.AllowRemovals,
				AllowMoves: a.AllowMoves})
			return err
		}
	}
	return q, nil
}

func (s *Site) askAbandon(r *http.Request, caller authz.Caller) (q question, err error) {
	dag := r.PathValue("dag")
	detail, err := s.Dispatcher.Views.DAG(r.Context(), caller, dag)
	if err != nil {
		return q, err
	}
	if detail.Building == nil || detail.Build == nil {
		return q, fault.New(fault.Conflict, "no version of %s is being built", dag).
			WithHint("%s lists its versions", dagPath(dag))
	}

	n, b := detail.Building.Number, detail.Build
	q.title = fmt.Sprintf("Abandon v%d of %s", n, dag)
	q.view = confirmView{Says: fmt.Sprintf("The build of v%d stops. What serves stays as it is.", n),
		Effects: []string{
			fmt.Sprintf("Tasks that are canceled, but for those that the version that serves wants, too: %s.",
				number(b.Open()+b.Dead)),
			fmt.Sprintf("Tasks that are done: %s. What they made stays, and deploying the same document goes on "+
				"from there.", number(b.Completed)),
		},
		Action: dagPath(dag, "abandon"), Hidden: []hiddenField{{"version", strconv.Itoa(n)}}, Typed: dag, Danger: true,
		Button: fmt.Sprintf("Abandon v%d", n), Back: dagPath(dag), Command: "dagctl abandon " + dag}
	q.do = func(f form) error {
		if seen := f.Get("version"); seen != strconv.Itoa(n) {
			return fault.New(fault.Conflict, "v%d is being built by now, not v%s", n, seen).
				WithHint("look again at what it would do, and send the form again")
		}
		_, err := s.Dispatcher.Builds.Abandon(r.Context(), caller, dag)
		return err
	}
	return q, nil
}

func (s *Site) askDelete(r *http.Request, caller authz.Caller) (q question, err error) {
	dag := r.PathValue("dag")
	plan, err := s.Dispatcher.Upkeep.PlanDeletion(r.Context(), caller, dag, clock.Now())
	if err != nil {
		return q, err
	}

	table := effectTable{Title: "Datasets that go", Numbers: 2,
		Head: []string{"Dataset", "Read by", "Partitions", "Size"}}
	for _, d := range plan.Datasets[:min(len(plan.Datasets), pageSize)] {
		table.Rows = append(table.Rows, []string{d.Name, strings.Join(d.Consumers, ", "), number(d.Partitions),
			Size(d.Bytes)})
	}
	boxes, says := agreement(plan.Findings, nil)
	q.title = "Delete " + dag
	q.view = confirmView{Says: "Readers no longer find its datasets, and its sources and timers end.",
		Effects: append([]string{fmt.Sprintf("Datasets that go out of service: %s.", number(int64(len(plan.Datasets)))),
			fmt.Sprintf("Open tasks that are canceled: %s.", number(int64(plan.OpenTasks))),
			fmt.Sprintf("Its data stays stored until %s UTC: until then `dagctl rollback %s --to VERSION` brings all "+
				"of it back.", stamp(plan.KeptUntil), dag)}, says...),
		Agree: boxes, Action: dagPath(dag, "delete"), Typed: dag, Danger: true, Button: "Delete the DAG",
		Back: "/dags", Command: "dagctl delete " + dag}
	if plan.Building > 0 {
		q.view.Effects = append(q.view.Effects, fmt.Sprintf("The build of v%d is abandoned.", plan.Building))
	}
	if len(table.Rows) > 0 {
		q.view.Tables = []effectTable{table}
	}
	q.view.Hidden = []hiddenField{{"datasets", fmt.Sprint(len(plan.Datasets))}}
	q.do = func(f form) error {
		if f.Get("datasets") != fmt.Sprint(len(plan.Datasets)) {
			return fault.New(fault.Conflict, "%s has %s now, and the page that was sent named another number",
				dag, plural.Of(len(plan.Datasets), "dataset")).WithHint("look at what would go now")
		}
		_, err := s.Dispatcher.Upkeep.DeleteDAG(r.Context(), caller, dag, agreed(f).Consents(), clock.Now())
		return err
	}
	return q, nil
}

func (s *Site) askPin(r *http.Request, caller authz.Caller) (q question, err error) {
	dag := r.PathValue("dag")
	n, err := versionIn(r)
	if err != nil {
		return q, err
	}
	if _, err := s.Registry.Version(r.Context(), caller, dag, n); err != nil {
		return q, err
	}

	q.title = fmt.Sprintf("Pin v%d of %s", n, dag)
	q.view = confirmView{
		Says:   "Garbage collection leaves the data of this version, so that going back to it stays instant.",
		Fields: []askedField{{Label: "Reason", Name: "reason", Placeholder: "before the migration"}},
		Action: dagPath(dag, "versions", n, "pin"), Button: fmt.Sprintf("Pin v%d", n),
		Back: dagPath(dag, "versions", n), Command: fmt.Sprintf("dagctl pin %s v%d", dag, n)}
	q.do = func(f form) error {
		_, err := s.Registry.Pin(r.Context(), caller, dag, n, nil, f.Get("reason"))
		return err
	}
	return q, nil
}

func (s *Site) askUnpin(r *http.Request, caller authz.Caller) (q question, err error) {
	dag := r.PathValue("dag")
	n, err := versionIn(r)
	if err != nil {
		return q, err
	}
	pin, err := s.pinOf(r, caller, dag, n)
	if err == nil && pin == nil {
		err = fault.New(fault.Conflict, "version %d of %s is not pinned", n, dag)
	}
	if err != nil {
		return q, err
	}

	q.title = fmt.Sprintf("Unpin v%d of %s", n, dag)
	q.view = confirmView{Says: "Garbage collection may remove the data of this version again.",
		Effects: []string{fmt.Sprintf("%s pinned it at %s UTC. %s", pin.Actor, stamp(pin.At), pin.Reason)},
		Action:  dagPath(dag, "versions", n, "unpin"), Button: fmt.Sprintf("Unpin v%d", n), Danger: true,
		Back: dagPath(dag, "versions", n), Command: fmt.Sprintf("dagctl unpin %s v%d", dag, n)}
	q.do = func(form) error { return s.Registry.Unpin(r.Context(), caller, dag, n) }
	return q, nil
}

// pinOf returns the pin of a version; nil if it has none.
func (s *Site) pinOf(r *http.Request, caller authz.Caller, dag string, version int) (*registry.VersionPin, error) {
	pins, err := s.Registry.Pins(r.Context(), caller, dag)
	if err != nil {
		return nil, err
	}
	if i := slices.IndexFunc(pins, func(p registry.VersionPin) bool { return p.Number == version }); i >= 0 {
		return &pins[i], nil
	}
	return nil, nil
}

func (s *Site) askPause(r *http.Request, caller authz.Caller) (q question, err error) {
	dag := r.PathValue("dag")
	detail, err := s.Dispatcher.Views.DAG(r.Context(), caller, dag)
	if err != nil {
		return q, err
	}

	q.title = "Pause " + dag
	q.view = confirmView{Says: "None of its tasks begins until it is resumed, also across deploys and rollbacks.",
		Effects: []string{fmt.Sprintf("Running tasks, which finish: %s.", number(detail.Tasks.Running)),
			fmt.Sprintf("Open tasks, which wait: %s.", number(detail.Tasks.Queued+detail.Tasks.Retrying)),
			fmt.Sprintf("Sources, which do not fire: %s.", number(int64(len(detail.Sources))))},
		Fields: []askedField{{Label: "Reason, which everybody sees who asks why nothing runs", Name: "reason"}},
		Action: dagPath(dag, "pause"), Button: "Pause the DAG", Back: dagPath(dag), Command: "dagctl pause " + dag}
	q.do = func(f form) error {
		_, err := s.Dispatcher.Control.Pause(r.Context(), caller, dag, "", f.Get("reason"), clock.Now())
		return err
	}
	return q, nil
}

func (s *Site) askResume(r *http.Request, caller authz.Caller) (q question, err error) {
	dag := r.PathValue("dag")
	detail, err := s.Dispatcher.Views.DAG(r.Context(), caller, dag)
	if err != nil {
		return q, err
	}
	p := detail.Paused
	if p == nil || p.DAG == "" {
		return q, fault.New(fault.Conflict, "%s is not paused by itself", dag).
			WithHint("%s says what is paused", dagPath(dag))
	}

	q.title = "Resume " + dag
	q.view = confirmView{Says: fmt.Sprintf("%s paused it at %s UTC. %s", p.Actor, stamp(p.At), p.Reason),
		Effects: []string{fmt.Sprintf("Tasks that wait, and may begin: %s.",
			number(detail.Tasks.Queued+detail.Tasks.Retrying)),
			"Its sources fire again."},
		Action: dagPath(dag, "resume"), Button: "Resume the DAG", Back: dagPath(dag), Command: "dagctl resume " + dag}
	q.do = func(form) error { return s.Dispatcher.Control.Resume(r.Context(), caller, dag, "", clock.Now()) }
	return q, nil
}

func (s *Site) askTestNotice(r *http.Request, caller authz.Caller) (q question, err error) {
	dag := r.PathValue("dag")
	if _, err := s.Dispatcher.Views.DAG(r.Context(), caller, dag); err != nil {
		return q, err
	}
	receivers, err := s.Dispatcher.Notices.Receivers(r.Context(), caller.OrgID, dag)
	if err != nil {
		return q, err
	}
	if len(receivers) == 0 {
		return q, fault.New(fault.Conflict, "%s notifies nobody", dag).
			WithHint("name receivers under `notify` in its DAG file")
	}

	q.title = "Send a test notice of " + dag
	q.view = confirmView{Says: fmt.Sprintf("This sends a test message to %s, once. PagerDuty opens no incident for it.",
		count(int64(len(receivers)), "receiver")), Action: dagPath(dag, "notify", "test"), Button: "Send a test notice",
		Back: dagPath(dag), Command: "dagctl notify test " + dag}
	for _, receiver := range receivers {
		q.view.Effects = append(q.view.Effects, sentence(receiver.Name()))
	}
	q.done = new(string)
	q.do = func(form) error {
		answers, err := s.Dispatcher.Notices.TryFor(r.Context(), caller, dag)
		if err == nil {
			*q.done, err = noticesSent(answers)
		}
		return err
	}
	return q, nil
}

// noticesSent says what receivers did with a test message. It is an error if one did not get it.
func noticesSent(answers []notices.ReceiverAnswer) (string, error) {
	var arrived, lost []string
	for _, a := range answers {
		whom := registry.Receiver{Secret: a.Secret, Format: a.Format, To: a.To}.Name()
		if a.Arrived {
			arrived = append(arrived, whom+" "+a.Said)
		} else {
			lost = append(lost, "it did not reach "+whom+": "+strings.TrimPrefix(a.Said, whom+": "))
		}
	}
	if len(lost) == 0 {
		return "The test notice arrived: " + strings.Join(arrived, "; ") + ".", nil
	}

	said := strings.Join(lost, "; ")
	if len(arrived) > 0 {
		said += ". It arrived elsewhere: " + strings.Join(arrived, "; ")
	}
	return "", fault.New(fault.Conflict, "%s", said)
}
