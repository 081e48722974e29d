package web

import (
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/dispatcher/views"
	"github.com/dagctl/dagctl/dispatcher/why"
	"github.com/dagctl/dagctl/internal/clock"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/query"
	"github.com/dagctl/dagctl/registry"
	"github.com/dagctl/dagctl/registry/deploy"
)

// versionView is the page of one version: what it is, what it changes, and what it waits for. While it is on its way,
// it is the plan with a link to share.
type versionView struct {
	deploy.PastVersion
	Serves int // the version that serves; 0: none
	With   int // the version to compare with; 0: none
	Pin    *registry.VersionPin

	Inspects bool // the caller may see what is below
	Text     registry.VersionText
	Deploy   deploy.Definition
	Build    *views.BuildProgress
	Done     int // partitions of the build that are there
	Total    int // partitions it will have, as far as is known
	Why      []why.Reason
	Diff     *deploy.VersionDiff // what it changes of what serves, while it is on its way
	Hides    bool                // the difference is not for the caller

	MayPromote, MayRollBack, MayAbandon, MayPin, MayPlan bool
}

// addVersionPages adds the pages of versions.
func (s *Site) addVersionPages(api routes) {
	api.HandlePage(authz.Reader, "GET /dags/{dag}/versions/{version}", s.version)
	api.HandlePage(authz.To(authz.Inspect, authz.TheDAG), "GET /dags/{dag}/versions/{version}/diff", s.versionDiff)
}

// past returns a version with its history.
func (s *Site) past(r *http.Request, caller authz.Caller, dag string, n int) (v deploy.PastVersion, err error) {
	found, err := s.Deployer.History(r.Context(), caller, dag, n+1, 1)
	if err == nil && (len(found) == 0 || found[0].Number != n) {
		err = fault.New(fault.NotFound, "DAG %q has no version %d", dag, n).
			WithHint("`dagctl history %s` lists its versions", dag)
	}
	if err != nil {
		return v, err
	}
	return found[0], nil
}

func (s *Site) version(w http.ResponseWriter, r *http.Request, caller authz.Caller) error {
	ctx, dag := r.Context(), r.PathValue("dag")
	n, err := versionIn(r)
	if err != nil {
		return err
	}
	on := authz.OnDAG(dag)
	v := versionView{Inspects: caller.May(authz.Inspect, on), MayPlan: caller.May(authz.Plan, on)}
	if v.PastVersion, err = s.past(r, caller, dag, n); err != nil {
		return err
	}
	if v.Serves, err = s.serves(r, caller, dag); err != nil {
		return err
	}
	if v.With = v.Serves; v.With == n {
		v.With = servedBefore(v.PastVersion)
	}
	if v.Pin, err = s.pinOf(r, caller, dag, n); err != nil {
		return err
	}

	if v.onItsWay() || v.Status == registry.Failed {
		explained, err := s.Dispatcher.Why.VersionWhy(ctx, caller, dag, n, clock.Now())
		if err != nil {
			return err
		}
		v.Why = explained.Reasons
	}
	if v.Inspects {
		if err := s.inspect(r, caller, &v); err != nil {
			return err
		}
	}
	v.may(caller)
	return render(w, http.StatusOK, "version.html",
		layout{Title: fmt.Sprintf("%s v%d", dag, n), Tab: "dags", Live: follow("dag", dag), Caller: caller, View: v})
}

// onItsWay reports whether the version is being built, or is ready and waits.
func (v versionView) onItsWay() bool {
	return v.Status == registry.Building || v.Status == registry.Ready
}

// servedBefore returns the version that served before the latest cutover to a version; 0 if there is none.
func servedBefore(v deploy.PastVersion) int {
	if len(v.Activations) == 0 || v.Activations[0].From == nil {
		return 0
	}
	return *v.Activations[0].From
}

// serves returns the number of the version that serves; 0 if none does.
func (s *Site) serves(r *http.Request, caller authz.Caller, dag string) (int, error) {
	detail, err := s.Dispatcher.Views.DAG(r.Context(), caller, dag)
	if fault.Is(err, fault.NotFound) {
		return 0, nil // it was deleted: its versions are still there
	}
	if err != nil || detail.Active == nil {
		return 0, err
	}
	return detail.Active.Number, nil
}

// inspect adds what is for those who may inspect the DAG.
func (s *Site) inspect(r *http.Request, caller authz.Caller, v *versionView) (err error) {
	ctx := r.Context()
	detail, err := s.Dispatcher.Views.VersionDetail(ctx, caller, v.DAG, v.Number, clock.Now())
	if err != nil {
		return err
	}
	v.Text, v.Build = detail.VersionText, detail.Build
	if v.Deploy, err = s.Deployer.Definition(ctx, caller, v.DAG, v.Number); err != nil {
		return err
	}
	if v.Build != nil {
		for _, d := range v.Build.Datasets {
			if d.Total != nil {
				v.Done, v.Total = v.Done+d.Done, v.Total+*d.Total
			}
		}
	}

	if !v.onItsWay() || v.Serves == 0 {
		return nil
	}
	diff, err := s.Deployer.DiffVersions(ctx, caller, v.DAG, v.Serves, v.Number)
	if v.Hides = fault.Is(err, fault.Forbidden); v.Hides {
		return nil
	}
	if err != nil {
		return err
	}
	compared := diffView{VersionDiff: diff}
	compared.compareJobs()
	v.Diff = &compared.VersionDiff
	return nil
}

// may sets what the caller may do to the version as it is.
func (v *versionView) may(caller authz.Caller) {
	if !caller.May(authz.Deploy, authz.OnDAG(v.DAG)) || v.ShrunkAt != nil {
		return
	}
	v.MayAbandon = v.onItsWay()
	v.MayPromote = v.Status == registry.Ready || v.Status == registry.Building
	ended := v.Status == registry.Superseded || v.Status == registry.Abandoned || v.Status == registry.Failed
	v.MayRollBack = ended && v.ActivatedAt != nil && !v.Purged
	v.MayPin = !v.Purged
}

// diffView is the page that compares two versions.
type diffView struct {
	deploy.VersionDiff
	Files                   []fileDiff
	Added, Removed, Changed []string // jobs
	Renamed                 []deploy.JobChange
	Versions                []registry.Version
	Rows                    *query.Diff // of one dataset, where asked for
	RowsErr                 string
}

// fileDiff is the difference of one file, line by line.
type fileDiff struct {
	Name  string
	Lines []diffLine
}

// diffLine is one line of a unified diff.
type diffLine struct {
	Kind string // add, del, at or same
	Mark string // what stands before it
	Text string
}

func (s *Site) versionDiff(w http.ResponseWriter, r *http.Request, caller authz.Caller) error {
	ctx, dag, q := r.Context(), r.PathValue("dag"), r.URL.Query()
	n, err := versionIn(r)
	if err != nil {
		return err
	}
	with, err := strconv.ParseInt(strings.TrimPrefix(q.Get("with"), "v"), 10, 32)
	if err != nil || with < 1 {
		return fault.New(fault.Invalid, "`with` is not the number of a version").
			WithHint("choose one on the page of v%d", n)
	}

	v := diffView{}
	if v.VersionDiff, err = s.Deployer.DiffVersions(ctx, caller, dag, int(with), n); err != nil {
		return err
	}
	if v.Versions, err = s.Registry.Versions(ctx, caller, dag, 0, pageSize); err != nil {
		return err
	}
	v.Files = fileDiffs(v.Text)
	v.compareJobs()

	// Rows are compared one dataset at a time, and only where somebody asks: keys cost an engine.
	if name := q.Get("rows"); name != "" {
		if !slices.ContainsFunc(v.Changes, func(c registry.Change) bool { return c.Dataset == name }) {
			return fault.New(fault.NotFound, "neither version has a dataset %q", name)
		}
		diff, err := s.Query.Diff(ctx, caller, name, strconv.Itoa(int(with)), strconv.Itoa(n))
		if p := wrongWith(err); p != nil {
			v.RowsErr = strings.TrimSpace(p.Detail + ". " + p.Hint)
		} else if err != nil {
			return err
		} else {
			v.Rows = &diff
		}
	}
	return render(w, http.StatusOK, "versiondiff.html",
		layout{Title: fmt.Sprintf("%s: v%d and v%d", dag, with, n), Tab: "dags", Caller: caller, View: v})
}

// compareJobs lists the jobs by how they differ, and says of each dataset that is swapped why its job made another one.
func (v *diffView) compareJobs() {
	why := map[string]string{}
	for _, j := range v.Jobs {
		if j.RenamedFrom != "" {
			v.Renamed = append(v.Renamed, j)
		}
		switch j.Change {
		case deploy.JobAdded:
			v.Added = append(v.Added, j.Job)
		case deploy.JobRemoved:
			v.Removed = append(v.Removed, j.Job)
		case deploy.JobChanged:
			v.Changed = append(v.Changed, j.Job)
			why[j.Job] = deploy.DefinitionChanged
		case deploy.JobUpstream:
			why[j.Job] = deploy.UpstreamChanged
		}
	}
	for i, c := range v.Changes {
		if reason, ok := why[c.Job]; ok && c.Action == deploy.SwapOnly {
			v.Changes[i].Reason = reason
		}
	}
}

// fileDiffs splits a unified diff into files and lines.
func fileDiffs(unified string) (files []fileDiff) {
	for line := range strings.Lines(unified) {
		line = strings.TrimRight(line, "\r\n")
		switch {
		case strings.HasPrefix(line, "--- "):
			_, name, _ := strings.Cut(strings.TrimSpace(line[4:]), "/")
			files = append(files, fileDiff{Name: name})
			continue
		case strings.HasPrefix(line, "+++ ") && len(files) > 0 && len(files[len(files)-1].Lines) == 0:
			continue
		}

		l := diffLine{Kind: "same", Text: line}
		if line != "" && strings.ContainsAny(line[:1], "+-@ ") {
			l = diffLine{map[byte]string{'+': "add", '-': "del", '@': "at", ' ': "same"}[line[0]], line[:1], line[1:]}
		}
		if l.Kind == "at" {
			l.Mark, l.Text = "", line
		}
		if len(files) == 0 || l.Mark == "" && l.Kind == "same" {
			files = append(files, fileDiff{Name: line}) // a file that was not compared line by line
			continue
		}
		last := &files[len(files)-1]
		last.Lines = append(last.Lines, l)
	}
	return files
}
