// Package web shows DAGs, tasks and datasets to people as HTML pages, and lets them act on what they see: admins also
// decide who may use the server. Every page reads, and every form sends, without JavaScript; scripts make pages follow
// what happens. Pages load nothing from other hosts, and show a caller what the API would return to the same caller.
//
// Vocabulary: a page is a template within the layout; a view is the data that a page shows; an asset is a file that
// pages load. It owns no tables.
package web

import (
	"bytes"
	"cmp"
	"embed"
	"errors"
	"fmt"
	"html/template"
	"io/fs"
	"net/http"
	"net/url"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/dispatcher/control"
	"github.com/dagctl/dagctl/dispatcher/service"
	"github.com/dagctl/dagctl/internal/clock"
	"github.com/dagctl/dagctl/internal/rest"
	"github.com/dagctl/dagctl/lineage"
	"github.com/dagctl/dagctl/query"
	"github.com/dagctl/dagctl/registry"
	"github.com/dagctl/dagctl/registry/deploy"
	"github.com/dagctl/dagctl/tasklogs"
	"github.com/dagctl/dagctl/timers"
	"github.com/dagctl/dagctl/web/layered"
)

//go:embed templates static
var files embed.FS

// Config has the slices that the pages read.
type Config struct {
	Registry   *registry.Registry
	Deployer   *deploy.Deployer
	Dispatcher *service.Service
	Query      *query.Query
	Lineage    *lineage.Lineage
	Logs       *tasklogs.Logs
	Timers     *timers.Timers
}

// Site is the set of pages.
type Site struct {
	Config
	layouts layered.Cache // of the graphs that were shown last
}

// New validates the config.
func New(c Config) (*Site, error) {
	if c.Registry == nil || c.Deployer == nil || c.Dispatcher == nil || c.Query == nil || c.Lineage == nil ||
		c.Timers == nil {
		return nil, errors.New("web: registry, deployer, dispatcher, query, lineage and timers are needed")
	}
	return &Site{Config: c}, nil
}

// AddRoutes adds the pages to an API.
func (s *Site) AddRoutes(all *authz.API) {
	api := routes{all}
	api.HandlePage(authz.Reader, "GET /{$}", s.home)
	api.HandlePage(authz.Reader, "GET /costs", s.costs)
	api.HandlePage(authz.Reader, "GET /dags", s.dags)
	api.HandlePage(authz.Reader, "GET /dags/{dag}", s.dag)
	s.addVersionPages(api)
	s.addPlanPages(api)
	s.addDAGActions(api)
	s.addBackfillPages(api)
	api.HandlePage(authz.Reader, "GET /tasks", s.tasks)
	api.HandlePage(authz.Reader, "GET /tasks/{id}", s.task)
	s.addJobRoutes(api)
	api.HandlePage(authz.Reader, "GET /dead", s.dead)
	action(api, authz.To(authz.Operate, authz.InBody), "/dead/retry", "dead", s.askDead("retry"))
	action(api, authz.To(authz.Operate, authz.InBody), "/dead/skip", "dead", s.askDead("skip"))
	api.HandlePage(authz.Reader, "GET /late", s.late)
	api.HandlePage(authz.Reader, "GET /datasets", s.datasets)

	// An unpublished dataset has slashes in its name. NAME/lineage is the page of its lineage.
	api.HandlePage(authz.Reader, "GET /datasets/{name...}", s.dataset)
	api.HandlePage(authz.Reader, "GET /palette", s.palette)
	api.HandlePage(authz.Reader, "GET /query", s.queryForm)
	api.HandlePageWithin(authz.Reader, s.Query.RequestTime(), "POST /query", s.query)
	api.HandlePage(authz.Admin, "GET /workers", s.workers)
	action(api, authz.Admin, "/workers/{id}/drain", "workers", s.askDrain)
	api.HandlePage(authz.Public, "GET /static/{version}/{file}", asset)
}

// addJobRoutes adds the pages of what runs: jobs, tasks, sources and timers.
func (s *Site) addJobRoutes(api routes) {
	onJob, inBody := authz.To(authz.Operate, authz.TheJobs), authz.To(authz.Operate, authz.InBody)

	api.HandlePage(authz.Reader, "GET /dags/{dag}/jobs/{job}", s.job)
	action(api, onJob, "/dags/{dag}/jobs/{job}/run", "dags", s.askRun)
	action(api, onJob, "/dags/{dag}/jobs/{job}/pause", "dags", s.askPauseJob)
	action(api, onJob, "/dags/{dag}/jobs/{job}/resume", "dags", s.askResumeJob)

	for _, verb := range []string{control.VerbRetry, control.VerbCancel, control.VerbSkip} {
		action(api, authz.To(authz.Operate, authz.TheTasks), "/tasks/{id}/"+verb, "tasks", s.askTask(verb))
	}
	action(api, inBody, "/bulk/{verb}", "tasks", s.askBulk)
	action(api, authz.Admin, "/accept/{name...}", "datasets", s.askToDecide("accept"))
	action(api, authz.Admin, "/reject/{name...}", "datasets", s.askToDecide("reject"))

	api.HandlePage(authz.Reader, "GET /sources", s.sources)
	api.HandlePage(authz.Reader, "GET /sources/{dag}/{job}", s.source)
	action(api, onJob, "/sources/{dag}/{job}/read", "sources", s.askRead)
	api.HandlePage(authz.Reader, "GET /timers", s.timers)
	api.HandlePage(inBody, "POST /timers", s.createTimer)
	action(api, authz.To(authz.Operate, authz.TheTimers), "/timers/{id}/delete", "timers", s.askDeleteTimer)
}

// layout is the data of the frame that every page has around its view.
type layout struct {
	Title  string
	Tab    string // of the navigation
	Subtab string // of access: users, roles, trust, tokens or audit
	Bare   bool   // without navigation: nobody has signed in
	Caller authz.Caller
	Now    time.Time
	Done   string        // what the form before it did
	Live   string        // what it follows, see follow; empty: nothing
	Head   template.HTML // what the page adds to the HTML's head
	View   any
}

// follow returns what a page follows: the query of /v1/stream, of pairs of names and values that may be empty; all of
// the org's changes if all are.
func follow(pairs ...string) string {
	q := url.Values{}
	for i := 0; i+1 < len(pairs); i += 2 {
		if pairs[i+1] != "" {
			q.Set(pairs[i], pairs[i+1])
		}
	}
	return cmp.Or(q.Encode(), "all")
}

// Who names the caller for people.
func (l layout) Who() string { return cmp.Or(l.Caller.Name, l.Caller.Actor) }

// Asset returns the path of a file of static/.
func (l layout) Asset(file string) string { return assetPath() + "/" + file }

// more are the tabs that the navigation keeps under one word, with their names.
var more = map[string]string{"dead": "Dead letters", "late": "Late", "timers": "Timers", "usage": "Usage",
	"workers": "Workers", "secrets": "Secrets", "access": "Access"}

// More returns the name of the page's tab if the navigation keeps it under "More".
func (l layout) More() string { return more[l.Tab] }

// SignsOut reports whether the caller is a user who came by the cookie of a browser.
func (l layout) SignsOut() bool {
	return l.Caller.CSRFToken() != "" && strings.HasPrefix(l.Caller.Actor, "user:")
}

// pages returns the parsed templates by name. The templates are part of the binary, so parsing panics on a broken one;
// a test executes each. Only servers need them: they are parsed at the first page, as each command and each engine is
// a start of the same binary.
var pages = sync.OnceValue(parsePages)

func parsePages() map[string]*template.Template {
	shared := []string{"layout.html", "forms.html", "graph.html", "timeline.html", "chart.html"}
	base := template.Must(template.New("layout.html").Funcs(functions).ParseFS(files, "templates/layout.html",
		"templates/forms.html", "templates/graph.html", "templates/timeline.html", "templates/chart.html"))
	names, err := fs.Glob(files, "templates/*.html")
	if err != nil {
		panic(err)
	}
	parsed := map[string]*template.Template{}
	for _, name := range names {
		if page := path.Base(name); !slices.Contains(shared, page) {
			parsed[page] = template.Must(template.Must(base.Clone()).ParseFS(files, name))
		}
	}
	return parsed
}

// render writes a page whole or not at all: a template that fails halfway must not look like a page.
func render(w http.ResponseWriter, status int, page string, l layout) error {
	l.Now, l.Done = clock.Now(), doneBy(w)
	var b bytes.Buffer
	if err := pages()[page].ExecuteTemplate(&b, "layout.html", l); err != nil {
		return fmt.Errorf("render %s: %w", page, err)
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(status)
	_, err := b.WriteTo(w)
	if err != nil {
		return nil // the reader is gone, and nobody would see the error
	}
	return nil
}

// Frame writes a page of authz/identity within the layout.
func Frame(w http.ResponseWriter, caller authz.Caller, title string, head, content template.HTML) error {
	return render(w, http.StatusOK, "frame.html",
		layout{Title: title, Bare: caller.Actor == "", Caller: caller, Head: head, View: content})
}

// RenderError writes a page that shows a problem.
func RenderError(w http.ResponseWriter, _ *http.Request, p *rest.Problem) {
	if err := render(w, p.Status, "error.html", layout{Title: p.Title, View: p}); err != nil {
		http.Error(w, p.Detail, p.Status)
	}
}
