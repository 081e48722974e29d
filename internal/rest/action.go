package rest

import (
	"fmt"
	"net/http"
	"strings"
)

// actionMux is a mux for paths that end in an action on the resource that they name: "POST /v1/tasks/{id}:retry". The
// wildcards of net/http are whole segments, so the actions on a resource share a pattern, and the end of the segment
// selects one.
type actionMux struct {
	*http.ServeMux
	actions map[string]map[string]http.HandlerFunc // by pattern, then by action
}

// HandleFunc registers a handler for an action, or for a pattern like net/http's.
func (m *actionMux) HandleFunc(pattern string, handler func(http.ResponseWriter, *http.Request)) {
	thing, action, found := strings.Cut(pattern, "}:")
	if !found {
		m.ServeMux.HandleFunc(pattern, handler)
		return
	}
	thing += "}"
	if m.actions[thing] == nil {
		m.actions[thing] = map[string]http.HandlerFunc{}
		name := strings.TrimSuffix(thing[strings.LastIndex(thing, "{")+1:], "}")
		m.ServeMux.HandleFunc(thing, func(w http.ResponseWriter, r *http.Request) { m.act(w, r, thing, name) })
	}
	m.actions[thing][action] = handler
}

func (m *actionMux) act(w http.ResponseWriter, r *http.Request, thing, name string) {
	value := r.PathValue(name)
	end := strings.LastIndexByte(value, ':')
	handler := m.actions[thing][value[end+1:]]
	if end < 0 || handler == nil {
		WriteProblem(w, r, &Problem{Status: http.StatusNotFound,
			Detail: fmt.Sprintf("%s %s: there is no such route", r.Method, r.URL.Path)})
		return
	}
	r.SetPathValue(name, value[:end])
	r.Pattern = thing + value[end:] // so that metrics distinguish the actions
	handler(w, r)
}
