package web

import (
	"net/http"
	"net/url"
	"strings"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/rest"
)

// confirmView asks whether to do something, and says what it will do. The page of an action answers GET with it and
// does the action on POST.
type confirmView struct {
	Says    string        // what would happen
	Effects []string      // one by one
	Tables  []effectTable // what does not fit into a sentence
	Action  string        // address of the form
	Hidden  []hiddenField // what the form sends besides
	Fields  []askedField  // what the person may say about it
	Agree   []agreedBox   // what the person has to agree to
	Typed   string        // has to be typed before it is done; empty where a click is enough
	Button  string
	Danger  bool // it takes something away
	Back    string
	Command string // the same by command

	Problem *rest.Problem // why it was not done
}

// hiddenField is a field of a form that is not shown.
type hiddenField struct{ Name, Value string }

// askedField is a field of a form with a line of text.
type askedField struct {
	Label, Name, Value, Placeholder string
	Required                        bool
	Area                            bool // it has several lines
}

// agreedBox is a box to tick.
type agreedBox struct {
	Label, Name string
	Ticked      bool
}

// effectTable shows what an action does to many things. The cells of the first column name them; those from the
// column Numbers on are numbers.
type effectTable struct {
	Title   string
	Head    []string
	Numbers int
	Rows    [][]string
}

// confirm shows the page of an action, with what was wrong with the form that was sent; wrong is nil on GET.
func confirm(w http.ResponseWriter, caller authz.Caller, tab, title string, wrong error, v confirmView) error {
	status := http.StatusOK
	if wrong != nil {
		if v.Problem = wrongWith(wrong); v.Problem == nil {
			return wrong
		}
		status = v.Problem.Status
	}
	return render(w, status, "confirm.html", layout{Title: title, Tab: tab, Caller: caller, View: v})
}

// typed refuses a form in which somebody did not type what the page asks for.
func (v confirmView) typed(f form) error {
	if f.Get("typed") != v.Typed {
		return fault.New(fault.Invalid, "the text typed is not %q", v.Typed).WithHint("type it to confirm")
	}
	return nil
}

// filled returns the page with what a form that was refused has in its fields.
func (v confirmView) filled(f form) confirmView {
	fields, boxes := append([]askedField{}, v.Fields...), append([]agreedBox{}, v.Agree...)
	for i := range fields {
		fields[i].Value = f.Get(fields[i].Name)
	}
	for i := range boxes {
		boxes[i].Ticked = f.Has(boxes[i].Name)
	}
	v.Fields, v.Agree = fields, boxes
	return v
}

// question is the page of an action before it is done, and how it is done.
type question struct {
	title string
	view  confirmView
	do    func(f form) error
	to    *string // where it leads, which do sets; nil: back
	done  *string // what was done, which do sets; nil: what the title says
}

// ask finds out what an action would do.
type ask func(r *http.Request, caller authz.Caller) (question, error)

// action adds the two routes of an action: GET asks, POST does it and goes back to where the person was, which the
// field `back` says, or else the question. What ask finds out is found out again on POST, so that what has
// become impossible meanwhile is refused.
func action(api routes, rule authz.Rule, path, tab string, ask ask) {
	page := func(w http.ResponseWriter, r *http.Request, caller authz.Caller) error {
		f, err := readForm(r)
		if err != nil {
			return err
		}
		q, err := ask(r, caller)
		if err != nil {
			return err
		}
		if back := r.Form.Get("back"); safeBack(back) {
			q.view.Back, q.view.Hidden = back, append(q.view.Hidden, hiddenField{"back", back})
		}
		if r.Method != http.MethodPost {
			return confirm(w, caller, tab, q.title, nil, q.view)
		}

		if err = q.view.typed(f); err == nil {
			err = q.do(f)
		}
		if err != nil {
			return confirm(w, caller, tab, q.title, err, q.view.filled(f))
		}
		done := "Done: " + strings.ToLower(q.title[:1]) + q.title[1:] + "."
		if q.done != nil {
			done = *q.done
		}
		tell(w, r, caller, done)
		to := q.view.Back
		if q.to != nil {
			to = *q.to
		}
		http.Redirect(w, r, to, http.StatusSeeOther)
		return nil
	}
	api.HandlePage(rule, "GET "+path, page)
	api.HandlePage(rule, "POST "+path, page)
}

// safeBack reports whether an address is one of a page here, so that no link leads anybody elsewhere.
func safeBack(path string) bool {
	u, err := url.Parse(path)
	return err == nil && u.Host == "" && u.Scheme == "" && strings.HasPrefix(path, "/") &&
		!strings.HasPrefix(path, "//") && !strings.ContainsAny(path, "\\\r\n\t")
}
