package web

import (
	"net/http"
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
	Versions []deploy.PastVersion
	Older    int      // the next page of versions begins before this one; 0 on the last page
	Datasets []string // that the DAG makes and the caller may read, for what one does to one of them
	Previous int      // the version that served before the active one; 0: none, or it cannot serve again

	MayPlan, MayDeploy, MayOperate, MayInspect bool
}

// versionsShown is how many versions the page of a DAG lists.
const versionsShown = 25

func (s *Site) dag(w http.ResponseWriter, r *http.Request, caller authz.Caller) error {
	name := r.PathValue("dag")
	detail, err := s.Dispatcher.Views.DAG(r.Context(), caller, name)
	if fault.Is(err, fault.NotFound) {
		return s.lastVersion(w, r, caller, name, err)
	}
	if err != nil {
		return err
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
	v := dagView{DAGDetail: detail, Graph: draw(detail), Versions: versions,
		MayPlan: caller.May(authz.Plan, on), MayDeploy: caller.May(authz.Deploy, on),
		MayOperate: caller.May(authz.Operate, on), MayInspect: caller.May(authz.Inspect, on)}
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
	if v.Previous, err = s.previous(r, caller, detail); err != nil {
		return err
	}
	return render(w, http.StatusOK, "dag.html", layout{Title: name, Tab: "dags", Live: follow("dag", name),
		Caller: caller, View: v})
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
