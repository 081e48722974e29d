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
	"path"
	"slices"
	"strings"
	"time"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/dispatcher/service"
	"github.com/dagctl/dagctl/internal/clock"
	"github.com/dagctl/dagctl/internal/rest"
	"github.com/dagctl/dagctl/lineage"
	"github.com/dagctl/dagctl/query"
	"github.com/dagctl/dagctl/registry"
	"github.com/dagctl/dagctl/tasklogs"
)

//go:embed templates static
var files embed.FS

// Config has the slices that the pages read.
type Config struct {
	Registry   *registry.Registry
	Dispatcher *service.Service
	Query      *query.Query
	Lineage    *lineage.Lineage
	Logs       *tasklogs.Logs
}

// Site is the set of pages.
type Site struct {
	Config
}

// New validates the config.
func New(c Config) (*Site, error) {
	if c.Registry == nil || c.Dispatcher == nil || c.Query == nil || c.Lineage == nil {
		return nil, errors.New("web: registry, dispatcher, query and lineage are needed")
	}
	return &Site{c}, nil
}

// AddRoutes adds the pages to an API.
func (s *Site) AddRoutes(api *authz.API) {
	api.HandlePage(authz.Reader, "GET /{$}", s.home)
	api.HandlePage(authz.Reader, "GET /costs", s.costs)
	api.HandlePage(authz.Reader, "GET /dags", s.dags)
	api.HandlePage(authz.Reader, "GET /dags/{dag}", s.dag)
	api.HandlePage(authz.Reader, "GET /tasks", s.tasks)
	api.HandlePage(authz.Reader, "GET /tasks/{id}", s.task)
	api.HandlePage(authz.To(authz.Operate, authz.TheTasks), "POST /tasks/{id}/retry", s.retryTask)
	api.HandlePage(authz.To(authz.Operate, authz.TheTasks), "POST /tasks/{id}/cancel", s.cancelTask)
	api.HandlePage(authz.Reader, "GET /dead", s.dead)
	api.HandlePage(authz.To(authz.Operate, authz.InBody), "POST /dead/retry", s.actOnDead("retry"))
	api.HandlePage(authz.To(authz.Operate, authz.InBody), "POST /dead/skip", s.actOnDead("skip"))
	api.HandlePage(authz.Reader, "GET /late", s.late)
	api.HandlePage(authz.Reader, "GET /datasets", s.datasets)

	// An unpublished dataset has slashes in its name. NAME/lineage is the page of its lineage.
	api.HandlePage(authz.Reader, "GET /datasets/{name...}", s.dataset)
	api.HandlePage(authz.Reader, "GET /query", s.queryForm)
	api.HandlePageWithin(authz.Reader, s.Query.RequestTime(), "POST /query", s.query)
	api.HandlePage(authz.Admin, "GET /workers", s.workers)
	api.HandlePage(authz.Admin, "POST /workers/{id}/drain", s.drainWorker)
	api.HandlePage(authz.Public, "GET /static/{version}/{file}", asset)
}

// layout is the data of the frame that every page has around its view.
type layout struct {
	Title  string
	Tab    string // home, dags, tasks, dead, late, datasets, query, costs, workers or access
	Subtab string // of access: users, roles, trust, tokens or audit
	Bare   bool   // without navigation: nobody has signed in
	Caller authz.Caller
	Now    time.Time
	Head   template.HTML // what the page adds to the HTML's head
	View   any
}

// Who names the caller for people.
func (l layout) Who() string { return cmp.Or(l.Caller.Name, l.Caller.Actor) }

// Asset returns the path of a file of static/.
func (l layout) Asset(file string) string { return assetPath + "/" + file }

// SignsOut reports whether the caller is a user who came by the cookie of a browser.
func (l layout) SignsOut() bool {
	return l.Caller.CSRFToken() != "" && strings.HasPrefix(l.Caller.Actor, "user:")
}

// pages are the parsed templates by name. The templates are part of the binary, so parsing panics on a broken one; a
// test executes each.
var pages = parsePages()

func parsePages() map[string]*template.Template {
	shared := []string{"layout.html", "forms.html", "graph.html"}
	base := template.Must(template.New("layout.html").Funcs(functions).ParseFS(files, "templates/layout.html",
		"templates/forms.html", "templates/graph.html"))
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
	l.Now = clock.Now()
	var b bytes.Buffer
	if err := pages[page].ExecuteTemplate(&b, "layout.html", l); err != nil {
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
