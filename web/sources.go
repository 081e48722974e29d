package web

import (
	"fmt"
	"html/template"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/dispatcher/views"
)

// sourcePath returns the path of a source's page.
func sourcePath(dagName, job string) string {
	return "/sources/" + url.PathEscape(dagName) + "/" + url.PathEscape(job)
}

// clockTime formats a time as the clocks of a zone show it; of UTC where the zone is unknown.
func clockTime(t time.Time, zone string) string {
	location, err := time.LoadLocation(zone)
	if err != nil {
		location = time.UTC
	}
	return t.In(location).Format("Mon 2 Jan 2006 15:04:05 MST")
}

type sourcesView struct {
	DAG     string
	Failing int // how many have an error
	Sources []views.SourceStatus
	Next    template.URL // query of the next page; empty on the last page
}

func (s *Site) sources(w http.ResponseWriter, r *http.Request, caller authz.Caller) error {
	q := r.URL.Query()
	v := sourcesView{DAG: q.Get("dag")}
	all, err := s.Dispatcher.Views.Sources(r.Context(), caller)
	if err != nil {
		return err
	}
	for _, source := range all {
		if source.Error != "" {
			v.Failing++
		}
	}

	after := q.Get("after")
	all = slices.DeleteFunc(all, func(s views.SourceStatus) bool {
		return v.DAG != "" && s.DAG != v.DAG || s.DAG+"/"+s.Job <= after
	})
	slices.SortFunc(all, func(a, b views.SourceStatus) int {
		return strings.Compare(a.DAG+"/"+a.Job, b.DAG+"/"+b.Job)
	})
	if v.Sources = all; len(all) > pageSize {
		v.Sources = all[:pageSize]
		last := v.Sources[pageSize-1]
		q.Set("after", last.DAG+"/"+last.Job)
		v.Next = template.URL(q.Encode())
	}
	return render(w, http.StatusOK, "sources.html", layout{Title: "Sources", Tab: "sources", Caller: caller, View: v})
}

type sourceView struct {
	views.SourceDetail
	Path       string
	JobPath    string
	When       string // what makes it fire, in words
	Zone       string
	Hook       string // where deliveries go
	MayOperate bool
}

// Own reports whether the source is paused by itself, and not with its DAG or org.
func (v sourceView) Own() bool { return v.Paused != nil && v.Paused.Job == v.Job }

func (s *Site) source(w http.ResponseWriter, r *http.Request, caller authz.Caller) error {
	detail, err := s.Dispatcher.Views.Source(r.Context(), caller, r.PathValue("dag"), r.PathValue("job"))
	if err != nil {
		return err
	}
	v := sourceView{SourceDetail: detail, Path: sourcePath(detail.DAG, detail.Job),
		JobPath: jobPath(detail.DAG, detail.Job), When: fires[detail.Kind], Zone: "UTC",
		MayOperate: caller.May(authz.Operate, authz.OnDAG(detail.DAG))}

	if d := detail.Schedule; d != nil {
		switch detail.Kind {
		case "cron":
			v.When, v.Zone = fmt.Sprintf("at %s in %s", d.Cron, d.Timezone), d.Timezone
			if d.Catchup && d.Start == "" {
				v.When += "; missed times are made up for"
			}
		case "poll":
			v.When = "looks for new data every " + seconds(d.Every)
		case "webhook":
			v.Hook = "/v1/hooks/" + caller.OrgSlug + "/" + d.HookPath
		}
	}
	if v.Task != nil {
		if t, err := s.Dispatcher.Views.TaskByID(r.Context(), caller, *v.Task); err == nil && t.CompletedAt != nil {
			v.Task = nil
		}
	}
	return render(w, http.StatusOK, "source.html", layout{Title: "Source " + detail.DAG + "/" + detail.Job,
		Tab: "sources", Caller: caller, View: v})
}

// fires says what makes a source of each kind fire.
var fires = map[string]string{
	"cron": "by a schedule", "poll": "by looking for new data", "webhook": "for each delivery",
	"manual": "when somebody asks for it", "timer": "when a timer is due", "always_on": "always: one long task",
}
