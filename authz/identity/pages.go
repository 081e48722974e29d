package identity

import (
	"bytes"
	"embed"
	"fmt"
	"html/template"
	"net/http"
	"time"
)

//go:embed templates
var files embed.FS

// pages are the parsed templates by name. They are part of the binary, so parsing panics on a broken one.
var pages = func() map[string]*template.Template {
	functions := template.FuncMap{"at": func(t time.Time) string { return t.UTC().Format("2006-01-02 15:04 UTC") }}
	base := template.Must(template.New("layout.html").Funcs(functions).ParseFS(files, "templates/layout.html"))
	parsed := map[string]*template.Template{}
	for _, page := range []string{"signin.html", "link.html", "cli.html", "cli_done.html", "device.html",
		"device_done.html", "account.html"} {
		parsed[page] = template.Must(template.Must(base.Clone()).ParseFS(files, "templates/"+page))
	}
	return parsed
}()

// render writes a page whole or not at all. Nobody else's copy of it is of use: it is about one person.
func render(w http.ResponseWriter, page, title string, view map[string]any) error {
	var b bytes.Buffer
	if err := pages[page].ExecuteTemplate(&b, "layout.html", map[string]any{"Title": title, "View": view}); err != nil {
		return fmt.Errorf("render %s: %w", page, err)
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.Header().Set("Cache-Control", "no-store")
	_, _ = b.WriteTo(w) // a reader that is gone would not see the error
	return nil
}
