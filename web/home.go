package web

import (
	"net/http"
	"net/url"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/dispatcher/attention"
)

// homeView is what needs a person now.
type homeView struct {
	Needs []need
	More  bool
	Empty bool // the org has no DAG yet
}

// need is an item with the ways that lead on from it.
type need struct {
	attention.Item
	Says   string // its kind, for people
	Path   string // of what it is about
	Help   string // what the button says
	Helper string // where it leads
}

// sorts say for each kind what it is called, how grave it is as a class of status, and what the button says.
var sorts = map[attention.Kind]struct{ says, class, help string }{
	attention.Dead:         {"Out of attempts", "dead", "Retry or skip"},
	attention.BuildFailed:  {"Build failed", "failed", "Look at the version"},
	attention.Blocked:      {"Blocked", "failed", "Why"},
	attention.SourceError:  {"Source in error", "failed", "Look at the source"},
	attention.NoWorker:     {"No worker", "failed", "Workers"},
	attention.Late:         {"Late", "failed", "Why"},
	attention.Withheld:     {"Withheld", "running", "Accept or reject"},
	attention.BuildWaits:   {"Deploy waits", "running", "Look at the version"},
	attention.Backpressure: {"Held back", "running", "Queued tasks"},
	attention.Quota:        {"Quota", "running", "Usage"},
	attention.Paused:       {"Paused", "running", "Resume"},
}

// Class returns the class of its status.
func (n need) Class() string { return sorts[n.Kind].class }

// needOf returns an item with the ways that lead on from it.
func needOf(i attention.Item) need {
	n := need{Item: i, Says: sorts[i.Kind].says, Help: sorts[i.Kind].help}
	switch {
	case i.Dataset != "":
		n.Path = datasetPath(i.Dataset)
	case i.DAG != "":
		n.Path = "/dags/" + url.PathEscape(i.DAG)
	}

	n.Helper = n.Path
	switch i.Kind {
	case attention.Dead:
		n.Helper = "/dead?" + url.Values{"error_group": {i.Group}}.Encode()
	case attention.NoWorker:
		n.Helper = "/workers"
	case attention.Late:
		n.Helper += "#why"
	case attention.Backpressure:
		n.Helper = "/tasks?status=Queued"
	}
	return n
}

func (s *Site) home(w http.ResponseWriter, r *http.Request, caller authz.Caller) error {
	found, err := s.Dispatcher.Desk.Of(r.Context(), caller)
	if err != nil {
		return err
	}
	v := homeView{More: found.More}
	for _, i := range found.Items {
		v.Needs = append(v.Needs, needOf(i))
	}

	if len(v.Needs) == 0 {
		dags, err := s.Dispatcher.Views.DAGs(r.Context(), caller, "", 1)
		if err != nil {
			return err
		}
		v.Empty = len(dags) == 0
	}
	return render(w, http.StatusOK, "home.html", layout{Title: "Home", Tab: "home", Caller: caller, View: v})
}
