package identity

import (
	"embed"
	"fmt"
	"html/template"
	"net/http"
	"strings"
	"time"

	"github.com/dagctl/dagctl/authz"
)

//go:embed templates
var files embed.FS

// pages are the parsed templates by name: main is the content of a page, and head what it adds to the HTML's head. They
// are part of the binary, so parsing panics on a broken one.
var pages = func() map[string]*template.Template {
	functions := template.FuncMap{"at": func(t time.Time) string { return t.UTC().Format("2006-01-02 15:04 UTC") }}
	base := template.Must(template.New("base").Funcs(functions).Parse(`{{define "head"}}{{end}}`))
	parsed := map[string]*template.Template{}
	for _, page := range []string{"signin.html", "link.html", "cli.html", "cli_done.html", "device.html",
		"device_done.html", "account.html", "choose.html"} {
		parsed[page] = template.Must(template.Must(base.Clone()).ParseFS(files, "templates/"+page))
	}
	return parsed
}()

// render writes a page whole or not at all. Its template sees the caller as .Caller.
func (id *Identity) render(w http.ResponseWriter, caller authz.Caller, page, title string, view map[string]any) error {
	if view == nil {
		view = map[string]any{}
	}
	view["Caller"] = caller

	var head, content strings.Builder
	for name, to := range map[string]*strings.Builder{"head": &head, "main": &content} {
		if err := pages[page].ExecuteTemplate(to, name, view); err != nil {
			return fmt.Errorf("render %s: %w", page, err)
		}
	}
	return id.Frame(w, caller, title, template.HTML(head.String()), template.HTML(content.String()))
}
