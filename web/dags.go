package web

import (
	"cmp"
	"net/http"
	"slices"
	"strconv"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/dispatcher/views"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/registry/deploy"
)

// pageSize is how many rows a page shows.
const pageSize = 100

type dagsView struct {
	DAGs []views.DAGStatus
	Next string // name that the next page starts after; empty on the last page
}

func (s *Site) dags(w http.ResponseWriter, r *http.Request, caller authz.Caller) error {
	dags, err := s.Dispatcher.Views.DAGs(r.Context(), caller, r.URL.Query().Get("after"), pageSize+1)
	if err != nil {
		return err
	}
	v := dagsView{DAGs: dags}
	if len(dags) > pageSize {
		v.DAGs, v.Next = dags[:pageSize], dags[pageSize-1].Name
	}
	return render(w, http.StatusOK, "dags.html", layout{Title: "DAGs", Tab: "dags", Live: follow(), Caller: caller,
		View: v})
}

// dagView is the page of a DAG.
type dagView struct {
	views.DAGDetail
	Graph    graph
	Listed   []views.JobStatus // what the table has: all jobs if AllJobs, else not too many
	AllJobs  bool              // the page is about the jobs alone
	Versions []deploy.PastVersion
	Older    int      // the next page of versions begins before this one; 0 on the last page
	Datasets []string // that the DAG makes and the caller may read, for what one does to one of them
	Previous int      // the version that served before the active one; 0: none, or it cannot serve again

	Notifies bool // it names receivers of notices

	MayPlan, MayDeploy, MayOperate, MayInspect bool
}

// How many versions and jobs the page of a DAG lists.
const versionsShown, jobsShown = 25, 50

func (s *Site) dag(w http.ResponseWriter, r *http.Request, caller authz.Caller) error {
	name := r.PathValue("dag")
	detail, err := s.Dispatcher.Views.DAG(r.Context(), caller, name)
	if fault.Is(err, fault.NotFound) {
		return s.lastVersion(w, r, caller, name, err)
	}
	if err != nil {
		return err
	}
	v := dagView{DAGDetail: detail}
	if text := r.URL.Query().Get("jobs"); text == "all" {
		v.Listed, v.AllJobs = detail.Jobs, true
		return renderDAG(w, caller, v)
	} else if text != "" {
		return fault.New(fault.Invalid, "`jobs` is %q", text).WithHint("jobs=all lists all jobs of the DAG")
	}

	before := 0
	if text := r.URL.Query().Get("before"); text != "" {
		n, err := strconv.ParseInt(text, 10, 32)
		if err != nil || n < 1 {
			return fault.New(fault.Invalid, "`before` is not the number of a version")
		}
		before = int(n)
	}
	versions, err := s.Deployer.History(r.Context(), caller, name, before, versionsShown+1)
	if err != nil {
		return err
	}

	on := authz.OnDAG(name)
	v.Graph, v.Versions, v.Listed = draw(&s.layouts, detail), versions, troubledFirst(detail.Jobs)
	v.MayPlan, v.MayDeploy = caller.May(authz.Plan, on), caller.May(authz.Deploy, on)
	v.MayOperate, v.MayInspect = caller.May(authz.Operate, on), caller.May(authz.Inspect, on)
	if len(versions) > versionsShown {
		v.Versions, v.Older = versions[:versionsShown], versions[versionsShown-1].Number
	}
	for _, job := range detail.Jobs {
		for _, out := range job.Outputs {
			if out.Dataset != "" {
				v.Datasets = append(v.Datasets, out.Dataset)
			}
		}
	}
	if v.MayOperate {
		receivers, err := s.Dispatcher.Notices.Receivers(r.Context(), caller.OrgID, name)
		if err != nil {
			return err
		}
		v.Notifies = len(receivers) > 0
	}
	if v.Previous, err = s.previous(r, caller, detail); err != nil {
		return err
	}
	return renderDAG(w, caller, v)
}

func renderDAG(w http.ResponseWriter, caller authz.Caller, v dagView) error {
	return render(w, http.StatusOK, "dag.html", layout{Title: v.Name, Tab: "dags", Live: follow("dag", v.Name),
		Caller: caller, View: v})
}

// troubledFirst returns the jobs that the page of a DAG lists. Of too many it leaves out the last ones, but none with
// trouble before one without.
func troubledFirst(jobs []views.JobStatus) []views.JobStatus {
	if len(jobs) <= jobsShown {
		return jobs
	}
	trouble := func(j views.JobStatus) int {
		switch {
		case j.Tasks.Dead > 0:
			return 0
		case j.Tasks.Retrying > 0 || j.Withheld > 0:
			return 1
		case j.Tasks.Open() > 0:
			return 2
		}
		return 3
	}

	sorted := slices.SortedStableFunc(slices.Values(jobs), func(a, b views.JobStatus) int {
		return cmp.Compare(trouble(a), trouble(b))
	})
	return sorted[:jobsShown]
}

// lastVersion leads to the last version of a DAG that has none to show, because all were abandoned or it was deleted.
// Where there was no version either, it returns the error.
func (s *Site) lastVersion(
	w http.ResponseWriter, r *http.Request, caller authz.Caller, name string, none error,
) error {
	versions, err := s.Deployer.History(r.Context(), caller, name, 0, 1)
	if fault.Is(err, fault.NotFound) || err == nil && len(versions) == 0 {
		return none
	}
	if err != nil {
		return err
	}
	http.Redirect(w, r, dagPath(name, "versions", versions[0].Number), http.StatusSeeOther)
	return nil
}

// previous returns the version that a DAG can be rolled back to at once; 0 if there is none.
func (s *Site) previous(r *http.Request, caller authz.Caller, detail views.DAGDetail) (int, error) {
	if detail.Active == nil || !caller.May(authz.Deploy, authz.OnDAG(detail.Name)) {
		return 0, nil
	}
	active, err := s.past(r, caller, detail.Name, detail.Active.Number)
	if err != nil {
		return 0, err
	}

	from := servedBefore(active)
	if from == 0 {
		return 0, nil
	}
	was, err := s.past(r, caller, detail.Name, from)
	if fault.Is(err, fault.NotFound) || err == nil && (was.Purged || was.ShrunkAt != nil) {
		return 0, nil
	}
	return from, err
}
