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
	"github.com/dagctl/dagctl/dispatcher/sources"
	"github.com/dagctl/dagctl/dispatcher/views"
	"github.com/dagctl/dagctl/internal/clock"
	"github.com/dagctl/dagctl/internal/fault"
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

// Reads reports whether the source can be read now.
func (v sourceView) Reads() bool { return v.Paused == nil && sources.Readable(v.Kind) }

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
	"deploy": "with a deploy: its rows are part of the DAG",
}

// askRead asks whether to read a source now.
func (s *Site) askRead(r *http.Request, caller authz.Caller) (q question, err error) {
	detail, err := s.Dispatcher.Views.Source(r.Context(), caller, r.PathValue("dag"), r.PathValue("job"))
	if err != nil {
		return q, err
	}
	name := detail.DAG + "/" + detail.Job
	if !sources.Readable(detail.Kind) {
		return q, fault.New(fault.Invalid, "the source of %s is of kind %s, and is not read at times", name,
			detail.Kind).WithHint("sources of the kinds poll and cron can be read now")
	}

	q.title = "Read " + name + " now"
	q.view = confirmView{Says: "It is due at once. What it finds makes tasks, and what follows from them is computed.",
		Action: r.URL.Path, Button: "Read now", Back: sourcePath(detail.DAG, detail.Job), Command: "dagctl run " + name}
	if detail.Paused != nil {
		q.view.Effects = append(q.view.Effects, "It will be refused: "+detail.Paused.What()+" is paused by "+
			detail.Paused.Actor+".")
	} else if at := detail.NextFireAt; at != nil && at.Before(clock.Now()) {
		q.view.Effects = append(q.view.Effects, "It is due already, and is read once.")
	} else if at != nil {
		q.view.Effects = append(q.view.Effects, "Otherwise it would be due "+ago(clock.Now(), at)+".")
	}
	if detail.Kind == "cron" {
		q.view.Effects = append(q.view.Effects, "The times of its schedule stay: it is read then as well.")
	}
	q.do = func(form) error {
		_, err := s.Dispatcher.Sources.ReadNow(r.Context(), caller, detail.DAG, detail.Job, clock.Now())
		return err
	}
	return q, nil
}
