package web

import (
	"net/http"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/rest"
)

// confirmView asks whether to do something, and says what it will do. The page of an action answers GET with it and
// does the action on POST.
type confirmView struct {
	Says    string        // what would happen
	Effects []string      // one by one
	Action  string        // address of the form
	Hidden  []hiddenField // what the form sends besides
	Fields  []askedField  // what the person may say about it
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
