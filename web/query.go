package web

import (
	"cmp"
	"net/http"
	"net/url"
	"strings"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/internal/clock"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/rest"
	"github.com/dagctl/dagctl/query"
	"github.com/dagctl/dagctl/registry"
)

const (
	// shownRows is how many rows of an answer a page shows; a download has more.
	shownRows = 500
	// shownColumns and shownText bound a row: its columns, and the characters of a cell.
	shownColumns, shownText = 200, 2000
	// listedDatasets is how many datasets the page lists beside the statement; a search finds others.
	listedDatasets = 30
	// maxLink is how long a statement may be to have a link, in bytes.
	maxLink = 4000
)

type queryView struct {
	SQL, At, DAG string
	Find         string // of the list of datasets
	Writer       bool
	Key          string // of the history in the browser: nobody else has the same
	Limits       query.Limits
	Datasets     []registry.Dataset
	More         bool // there are more datasets

	Result  *resultView
	Plan    string
	Problem *rest.Problem
}

// Rows64 is the most rows of a download, and Shown64 of the page.
func (v queryView) Rows64() int64  { return int64(v.Limits.Rows) }
func (v queryView) Shown64() int64 { return int64(min(shownRows, v.Limits.Rows)) }

// Seconds returns a limit on time for people.
func (v queryView) Seconds() string { return rough(v.Limits.Timeout) }

// Link returns the address of the page with the statement; empty for one that is too long.
func (v queryView) Link() string { return QueryLink(v.SQL, v.At, v.DAG) }

// QueryLink returns the path of the query page with a statement, which it does not run; empty for one that is too long.
func QueryLink(sql, at, dag string) string {
	if sql == "" || len(sql) > maxLink {
		return ""
	}
	q := url.Values{"sql": {sql}}
	for name, value := range map[string]string{"at": at, "dag": dag} {
		if value != "" {
			q.Set(name, value)
		}
	}
	return "/query?" + q.Encode()
}

// Command returns the command that does what the page does.
func (v queryView) Command() string {
	command := "dagctl query " + shellQuote(cmp.Or(v.SQL, "SELECT 42"))
	if v.At != "" {
		command += " --at " + shellQuote(v.At)
	}
	if v.DAG != "" {
		command += " --dag " + shellQuote(v.DAG)
	}
	if v.Plan != "" {
		command += " --explain"
	}
	return command
}

// shellQuote returns a text as one word of a shell.
func shellQuote(text string) string {
	plain := func(c rune) bool {
		return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.ContainsRune("-_.:", c)
	}
	if text != "" && strings.TrimFunc(text, plain) == "" {
		return text
	}
	return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'"
}

// queryForm shows the form. It fills in a statement from the address but does not run it: following a link must run
// nothing.
func (s *Site) queryForm(w http.ResponseWriter, r *http.Request, caller authz.Caller) error {
	q := r.URL.Query()
	return s.renderQuery(w, r, http.StatusOK, caller,
		queryView{SQL: q.Get("sql"), At: q.Get("at"), DAG: q.Get("dag"), Find: q.Get("find")})
}

// query runs the statement of the form, or answers with its plan or with its rows as a file, as the button says.
func (s *Site) query(w http.ResponseWriter, r *http.Request, caller authz.Caller) error {
	v := queryView{SQL: r.PostFormValue("sql"), At: strings.TrimSpace(r.PostFormValue("at")),
		DAG: strings.TrimSpace(r.PostFormValue("dag"))}
	statement := query.Statement{SQL: v.SQL, At: registry.Moment{Which: v.At, DAG: v.DAG},
		Limit: min(shownRows, s.Query.Limits.Rows)}

	var err error
	switch do := r.PostFormValue("do"); do {
	case "", "run":
		var answer query.Answer
		if answer, err = s.Query.Run(r.Context(), caller, statement); err == nil {
			v.Result = viewResult(answer, chartAsked(r))
		}
	case "explain":
		statement.Explain = true
		var answer query.Answer
		answer, err = s.Query.Run(r.Context(), caller, statement)
		v.Plan = answer.Plan
	default:
		statement.Limit = s.Query.Limits.Rows
		err = s.download(w, r, caller, statement, do)
		if err == nil {
			return nil
		}
	}

	// An error in the statement is shown beside it; an error of the server gets its own page.
	if p := rest.ProblemOf(err); err != nil && p.Status < 500 && p.Status != http.StatusTooManyRequests {
		v.Problem = p
		return s.renderQuery(w, r, p.Status, caller, v)
	}
	if err != nil {
		return err
	}
	return s.renderQuery(w, r, http.StatusOK, caller, v)
}

// download answers with the rows as a file.
func (s *Site) download(w http.ResponseWriter, r *http.Request, caller authz.Caller, statement query.Statement,
	format string) error {
	as, err := query.ParseFormat(format)
	if err != nil {
		return err
	}
	stream, err := s.Query.Download(r.Context(), caller, statement, as)
	if err != nil {
		return err
	}
	stream.Save(w, "query-"+clock.Now().UTC().Format("2006-01-02T150405Z"))
	return nil
}

func (s *Site) renderQuery(w http.ResponseWriter, r *http.Request, status int, caller authz.Caller,
	v queryView) error {
	v.Writer, v.Limits = caller.MaySomewhere(authz.Inspect), s.Query.Limits
	v.Key = caller.OrgSlug + " " + caller.Actor
	filter := registry.DatasetFilter{Search: v.Find, Limit: listedDatasets + 1, Unpublished: v.Writer}
	found, err := s.Registry.Datasets(r.Context(), caller, filter)
	if fault.Is(err, fault.Invalid) {
		found, err = nil, nil // a search that cannot be: nothing is found
	}
	if err != nil {
		return err
	}

	v.More = len(found) > listedDatasets
	v.Datasets = found[:min(len(found), listedDatasets)]
	return render(w, status, "query.html", layout{Title: "Query", Tab: "query", Caller: caller, View: v})
}
