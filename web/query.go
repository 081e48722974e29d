package web

import (
	"net/http"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/internal/rest"
	"github.com/dagctl/dagctl/query"
	"github.com/dagctl/dagctl/registry"
)

// shownRows is how many rows of an answer a page shows; the command line exports more.
const shownRows = 500

type queryView struct {
	SQL, At, DAG string
	Writer       bool
	Ran          bool
	Answer       query.Answer
	Problem      *rest.Problem
}

// queryForm shows the form. It fills in a statement from the address but does not run it: following a link must run
// nothing.
func (s *Site) queryForm(w http.ResponseWriter, r *http.Request, caller authz.Caller) error {
	q := r.URL.Query()
	return renderQuery(w, http.StatusOK, caller, queryView{SQL: q.Get("sql"), At: q.Get("at"), DAG: q.Get("dag")})
}

func (s *Site) query(w http.ResponseWriter, r *http.Request, caller authz.Caller) error {
	v := queryView{SQL: r.PostFormValue("sql"), At: r.PostFormValue("at"), DAG: r.PostFormValue("dag")}
	limit := min(shownRows, s.Query.Limits.Rows)
	var err error
	v.Answer, err = s.Query.Run(r.Context(), caller,
		query.Statement{SQL: v.SQL, At: registry.Moment{Which: v.At, DAG: v.DAG}, Limit: limit})

	// An error in the statement is shown beside it; an error of the server gets its own page.
	if p := rest.ProblemOf(err); err != nil && p.Status < 500 && p.Status != http.StatusTooManyRequests {
		v.Problem = p
		return renderQuery(w, p.Status, caller, v)
	}
	if err != nil {
		return err
	}

	v.Ran = true
	return renderQuery(w, http.StatusOK, caller, v)
}

func renderQuery(w http.ResponseWriter, status int, caller authz.Caller, v queryView) error {
	v.Writer = caller.MaySomewhere(authz.Inspect)
	return render(w, status, "query.html", layout{Title: "Query", Tab: "query", Caller: caller, View: v})
}
