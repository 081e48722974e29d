package web

import (
	"net/http"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/dispatcher/views"
	"github.com/dagctl/dagctl/registry"
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

type dagView struct {
	views.DAGDetail
	Graph    graph
	Versions []registry.Version
}

func (s *Site) dag(w http.ResponseWriter, r *http.Request, caller authz.Caller) error {
	name := r.PathValue("dag")
	detail, err := s.Dispatcher.Views.DAG(r.Context(), caller, name)
	if err != nil {
		return err
	}
	versions, err := s.Registry.Versions(r.Context(), caller, name, 0, 50)
	if err != nil {
		return err
	}
	v := dagView{DAGDetail: detail, Graph: draw(detail), Versions: versions}
	return render(w, http.StatusOK, "dag.html", layout{Title: name, Tab: "dags", Live: follow("dag", name),
		Caller: caller, View: v})
}
