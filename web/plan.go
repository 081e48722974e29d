package web

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/late"
	"github.com/dagctl/dagctl/internal/rest"
	"github.com/dagctl/dagctl/registry"
	"github.com/dagctl/dagctl/registry/contract"
	"github.com/dagctl/dagctl/registry/deploy"
)

// planView is the page of a plan: the document, what deploying it would do, and the form that deploys just that.
type planView struct {
	DAG     string // empty on the page for a new DAG
	From    int    // the version whose document the form begins with; 0: none
	Hides   bool   // that document is not for the caller
	YAML    string
	Files   []deploy.DefinitionFile
	Vars    string // NAME=VALUE, one a line
	Problem *rest.Problem

	Plan      *registry.Plan
	Actions   []actionCount
	Agree     []agreedBox
	Says      []string
	Refused   bool
	MayDeploy bool
	New       bool // deploying it makes a version, or builds one again
}

// actionCount is how many datasets of a plan have one action.
type actionCount struct {
	Action string
	N      int
}

// addPlanPages adds the pages of plans.
func (s *Site) addPlanPages(api routes) {
	plans := authz.To(authz.Plan, authz.TheDAG)
	api.HandlePage(authz.To(authz.Plan, authz.InBody), "GET /plan", s.planForm)
	api.HandlePage(authz.To(authz.Plan, authz.InBody), "POST /plan", s.plan)
	api.HandlePage(plans, "GET /dags/{dag}/plan", s.planForm)
	api.HandlePage(plans, "POST /dags/{dag}/plan", s.plan)
	api.HandlePage(authz.To(authz.Deploy, authz.TheDAG), "POST /dags/{dag}/deploy", s.deploy)
}

// planForm shows the document that serves, or that of another version, to change and plan.
func (s *Site) planForm(w http.ResponseWriter, r *http.Request, caller authz.Caller) error {
	v := planView{DAG: r.PathValue("dag")}
	if v.DAG == "" {
		return renderPlan(w, caller, http.StatusOK, v)
	}
	from, err := s.documentToChange(r, caller, v.DAG)
	if err != nil {
		return err
	}

	text, err := s.Registry.Version(r.Context(), caller, v.DAG, from)
	if err != nil {
		return err
	}
	definition, err := s.Deployer.Definition(r.Context(), caller, v.DAG, from)
	if err != nil {
		return err
	}
	v.From, v.Hides, v.YAML, v.Files = from, text.Redacted, text.YAML, definition.Files
	for _, name := range slices.Sorted(maps.Keys(text.Vars)) {
		v.Vars += name + "=" + text.Vars[name] + "\n"
	}
	return renderPlan(w, caller, http.StatusOK, v)
}

// documentToChange returns the version that the query names, or the one that the DAG shows.
func (s *Site) documentToChange(r *http.Request, caller authz.Caller, dag string) (int, error) {
	if asked := r.URL.Query().Get("version"); asked != "" {
		n, err := strconv.ParseInt(asked, 10, 32)
		if err != nil || n < 1 {
			return 0, fault.New(fault.Invalid, "`version` is not the number of a version")
		}
		return int(n), nil
	}
	detail, err := s.Dispatcher.Views.DAG(r.Context(), caller, dag)
	if err != nil {
		return 0, err
	}
	return detail.Shown().Number, nil
}

func renderPlan(w http.ResponseWriter, caller authz.Caller, status int, v planView) error {
	title := "Plan a new DAG"
	if v.DAG != "" {
		title = "Plan " + v.DAG
	}
	return render(w, status, "plan.html", layout{Title: title, Tab: "dags", Caller: caller, View: v})
}

// nameOf finds the DAG's name in a document that may have problems.
var nameOf = late.Pattern(`(?m)^name:[ \t]*["']?([a-z0-9][a-z0-9_-]*)`)

// plan shows what deploying the form's document would do. What is wrong with the document is shown beside it.
func (s *Site) plan(w http.ResponseWriter, r *http.Request, caller authz.Caller) error {
	f, err := readDocument(r)
	if err != nil {
		return err
	}
	v := planView{DAG: r.PathValue("dag")}
	return s.showPlan(w, r, caller, v, f, nil)
}

// showPlan shows the plan of a form's document, with why it was not deployed.
func (s *Site) showPlan(w http.ResponseWriter, r *http.Request, caller authz.Caller, v planView, f form,
	wrong error) error {
	request, err := f.request()
	v.YAML, v.Vars = request.YAML, f.Get("vars")
	v.Files = s.filesOf(caller, &request)
	name := v.DAG
	if name == "" {
		if found := nameOf.FindStringSubmatch(request.YAML); found != nil {
			name = found[1]
		}
	}

	if err == nil && name == "" {
		err = fault.New(fault.Invalid, "the document does not say the name of its DAG").
			WithHint("begin it with `name: NAME`")
	}
	if err == nil {
		err = authz.Authorize(caller, authz.Plan, authz.OnDAG(name))
	}
	if err == nil {
		var plan registry.Plan
		if plan, err = s.Dispatcher.Views.Plan(r.Context(), caller, name, request); err == nil {
			v.planned(plan, caller, f)
		}
	}

	status := http.StatusOK
	if err == nil {
		err = wrong // it was deployed, and refused
	}
	if err != nil {
		if v.Problem = wrongWith(err); v.Problem == nil {
			return err
		}
		status = v.Problem.Status
	}
	return renderPlan(w, caller, status, v)
}

// planned adds a plan to its page.
func (v *planView) planned(p registry.Plan, caller authz.Caller, f form) {
	v.DAG, v.Plan = p.DAG, &p
	v.Agree, v.Says = agreement(p.Findings, p.Cancels)
	for i := range v.Agree {
		v.Agree[i].Ticked = f.Has(v.Agree[i].Name)
	}
	v.Refused = slices.ContainsFunc(p.Findings, func(f contract.Finding) bool { return f.Level == contract.Refuses })
	v.MayDeploy = caller.May(authz.Deploy, authz.OnDAG(p.DAG))
	v.New = p.Status != registry.Active

	for _, action := range []string{deploy.Create, deploy.Rebuild, deploy.ForwardOnly, deploy.SwapOnly, deploy.Reuse,
		deploy.Remove} {
		n := 0
		for _, c := range p.Changes {
			if c.Action == action {
				n++
			}
		}
		if n > 0 {
			v.Actions = append(v.Actions, actionCount{action, n})
		}
	}
}

// deploy deploys the plan that the form is about: with its base, it is refused where another version serves by now.
func (s *Site) deploy(w http.ResponseWriter, r *http.Request, caller authz.Caller) error {
	f, err := readDocument(r)
	if err != nil {
		return err
	}
	v := planView{DAG: r.PathValue("dag")}
	request, err := f.request()
	if err != nil {
		return s.showPlan(w, r, caller, v, f, err)
	}
	s.filesOf(caller, &request)

	base, err := strconv.ParseInt(f.Get("base"), 10, 32)
	if err != nil || base < 0 {
		err = fault.New(fault.Invalid, "the form does not say what it was planned against").WithHint("plan it again")
		return s.showPlan(w, r, caller, v, f, err)
	}
	planned, activate, a := int(base), f.Get("when") != "promoted", agreed(f)
	request.Base, request.Activate, request.SourceRef = &planned, &activate, f.Get("source_ref")
	request.Supersede, request.CancelTasks = f.Has("supersede"), a.CancelTasks
	request.AllowMoves, request.AllowBreaking, request.AllowRemovals = a.AllowMoves, a.AllowBreaking, a.AllowRemovals

	deployed, err := s.Deployer.Deploy(r.Context(), caller, v.DAG, request)
	if err != nil {
		return s.showPlan(w, r, caller, v, f, err)
	}
	tell(w, r, caller, fmt.Sprintf("Deployed as v%d.", deployed.Version.Number))
	http.Redirect(w, r, dagPath(v.DAG, "versions", deployed.Version.Number), http.StatusSeeOther)
	return nil
}

// fileField begins the names of the fields with files; the file's path follows.
const fileField = "file:"

// readDocument returns the fields of a form with a document. Its size is limited by that of requests.
func readDocument(r *http.Request) (form, error) {
	tooLarge := (*http.MaxBytesError)(nil)
	if err := r.ParseForm(); errors.As(err, &tooLarge) {
		return form{}, fault.New(fault.TooLarge, "the form has more than %s", Size(tooLarge.Limit)).
			WithHint("`dagctl plan` and `dagctl deploy` take larger documents")
	} else if err != nil {
		return form{}, fault.New(fault.Invalid, "the form cannot be read: %w", err)
	}
	for name, values := range r.PostForm {
		for _, value := range values {
			if !utf8.ValidString(name+value) || strings.ContainsRune(name+value, 0) {
				return form{}, fault.New(fault.Invalid, "a field is not valid UTF-8 text")
			}
		}
	}
	return form{r.PostForm}, nil
}

// lines returns a text as it was before a browser sent it: forms end lines with \r\n.
func lines(text string) string { return strings.ReplaceAll(text, "\r\n", "\n") }

// request returns the deploy that a form describes.
func (f form) request() (registry.DeployRequest, error) {
	request := registry.DeployRequest{YAML: lines(f.Get("yaml")), Files: map[string][]byte{}}
	for name := range f.Values {
		if path, ok := strings.CutPrefix(name, fileField); ok && path != "" && f.Get(name) != "" {
			request.Files[path] = []byte(lines(f.Get(name)))
		}
	}

	for line := range strings.Lines(lines(f.Get("vars"))) {
		if line = strings.TrimSpace(line); line == "" {
			continue
		}
		name, value, ok := strings.Cut(line, "=")
		if !ok {
			return request, fault.New(fault.Invalid, "%q is not a variable", line).
				WithHint("write NAME=VALUE, one a line")
		}
		if request.Vars == nil {
			request.Vars = map[string]string{}
		}
		request.Vars[strings.TrimSpace(name)] = strings.TrimSpace(value)
	}
	if strings.TrimSpace(request.YAML) == "" {
		return request, fault.New(fault.Invalid, "the document is empty").WithHint("paste or choose a dag.yaml")
	}
	return request, nil
}

// asked is a file system that notes which files a document names. A file that somebody chose in a browser has no path
// there: it is found by its last part.
type asked struct {
	files map[string][]byte
	names map[string]bool
}

func (a asked) Open(name string) (fs.File, error) {
	a.names[name] = true
	if _, there := a.files[name]; !there {
		if data, ok := a.files[name[strings.LastIndex(name, "/")+1:]]; ok {
			a.files[name] = data
		}
	}
	return dag.InMemory(a.files).Open(name)
}

// filesOf returns the files that a request's document names, also those that are missing, and leaves in the request
// only these.
func (s *Site) filesOf(caller authz.Caller, request *registry.DeployRequest) (list []deploy.DefinitionFile) {
	fsys := asked{files: request.Files, names: map[string]bool{}}
	if fsys.files == nil {
		fsys.files = map[string][]byte{}
	}
	catalog := s.Registry.Catalog.For(dag.Org{ID: caller.OrgID.String(), Slug: caller.OrgSlug})
	catalog.Names = nil // only what it asks for counts
	dag.Parse(dag.File{Name: "dag.yaml", Text: []byte(request.YAML), Files: fsys, Vars: request.Vars}, catalog)

	kept := map[string][]byte{}
	for _, name := range slices.Sorted(maps.Keys(fsys.names)) {
		if !fs.ValidPath(name) || name == "." {
			continue
		}
		data, there := fsys.files[name]
		if there {
			kept[name] = data
		}
		list = append(list, deploy.DefinitionFile{Path: name, Bytes: int64(len(data)), Text: string(data)})
	}
	request.Files = kept
	return list
}

// planTable shows the changes of a plan on the page of an action.
func planTable(changes []registry.Change) effectTable {
	t := effectTable{Title: "What is computed", Numbers: 3,
		Head: []string{"Dataset", "Action", "Why", "Partitions", "Time", "Size"}}
	for _, c := range changes[:min(len(changes), pageSize)] {
		t.Rows = append(t.Rows, []string{c.Dataset, c.Action, c.Reason, toCompute(c), estimated(c.Seconds),
			estimatedSize(c.Bytes)})
	}
	return t
}

// toCompute says how many partitions a change computes.
func toCompute(c registry.Change) string {
	switch {
	case c.Action == deploy.Reuse || c.Action == deploy.Remove:
		return ""
	case c.Partitions == nil:
		return "as many as its source has"
	case c.Kept > 0:
		return fmt.Sprintf("%s, %s stay", number(int64(*c.Partitions)), number(int64(c.Kept)))
	case c.Skipped > 0:
		return fmt.Sprintf("%s, %s skipped", number(int64(*c.Partitions)), number(c.Skipped))
	}
	return number(int64(*c.Partitions))
}

// estimated returns an estimated time in words; empty where there is none.
func estimated(seconds float64) string {
	switch {
	case seconds <= 0:
		return ""
	case seconds < 1:
		return "< 1 s"
	}
	return "~ " + rough(time.Duration(seconds*float64(time.Second)))
}

func estimatedSize(bytes int64) string {
	if bytes <= 0 {
		return ""
	}
	return Size(bytes)
}

// meeting says what becomes of a build of the same DAG that is on its way.
func meeting(m *registry.Meeting) string {
	switch m.Outcome {
	case deploy.BuildPassed:
		return fmt.Sprintf("v%d is %s. This rebuilds nothing, so it passes; v%d goes on on top of it.", m.Version,
			m.Status, m.Version)
	case deploy.BuildSuperseded:
		return fmt.Sprintf("v%d is %s. This abandons it, and keeps what it built.", m.Version, m.Status)
	}
	return fmt.Sprintf("v%d is %s. This is refused until that has ended, or is abandoned.", m.Version, m.Status)
}
