package web

import (
	"html/template"
	"net/http"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/registry"
)

// lateView is the overdue datasets that the caller may see.
type lateView struct {
	DAG      string
	Datasets []registry.Dataset
	Next     template.URL // query of the next page; empty on the last page
}

func (s *Site) late(w http.ResponseWriter, r *http.Request, caller authz.Caller) error {
	q := r.URL.Query()
	v := lateView{DAG: q.Get("dag")}
	var err error
	v.Datasets, err = s.Registry.Datasets(r.Context(), caller,
		registry.DatasetFilter{Late: true, DAG: v.DAG, After: q.Get("after"), Limit: pageSize + 1})
	if err != nil {
		return err
	}
	if len(v.Datasets) > pageSize {
		v.Datasets = v.Datasets[:pageSize]
		q.Set("after", v.Datasets[pageSize-1].Name)
		v.Next = template.URL(q.Encode())
	}
	return render(w, http.StatusOK, "late.html", layout{Title: "Late", Tab: "late", Live: follow("dag", v.DAG),
		Caller: caller, View: v})
}
