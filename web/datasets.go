package web

import (
	"context"
	"html/template"
	"net/http"
	"net/url"
	"slices"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/dispatcher/why"
	"github.com/dagctl/dagctl/internal/atonce"
	"github.com/dagctl/dagctl/internal/clock"
	"github.com/dagctl/dagctl/internal/rest"
	"github.com/dagctl/dagctl/query"
	"github.com/dagctl/dagctl/registry"
	"github.com/dagctl/dagctl/registry/catalog"
)

type datasetsView struct {
	Filter   registry.DatasetFilter
	Datasets []registry.Dataset
	Writer   bool
	Next     template.URL // query of the next page; empty on the last page
}

func (s *Site) datasets(w http.ResponseWriter, r *http.Request, caller authz.Caller) error {
	q := r.URL.Query()
	f := registry.DatasetFilter{
		Search: q.Get("search"), Tag: q.Get("tag"), DAG: q.Get("dag"), Unpublished: q.Get("unpublished") != "",
		Limit: pageSize + 1,
	}
	if err := f.ReadCursor(rest.PageInput{Cursor: q.Get("cursor")}); err != nil {
		return err
	}

	datasets, err := s.Registry.Datasets(r.Context(), caller, f)
	if err != nil {
		return err
	}
	v := datasetsView{Filter: f, Datasets: datasets, Writer: caller.MaySomewhere(authz.Inspect)}
	if len(datasets) > pageSize {
		v.Datasets = datasets[:pageSize]
		next, err := rest.Cursor(f.Position(datasets[pageSize-1]))
		if err != nil {
			return err
		}
		q.Set("cursor", next)
		v.Next = template.URL(q.Encode())
	}

	return render(w, http.StatusOK, "datasets.html",
		layout{Title: "Datasets", Tab: "datasets", Caller: caller, View: v})
}

type datasetView struct {
	registry.Dataset
	Profile    catalog.Profile
	Versions   []registry.Generation
	Sparks     []spark
	SQL        string // a statement to start from
	Partition  string // whose rows are shown; empty: all partitions
	Preview    query.Rows
	PreviewErr string
	States     []stateCount
	Grid       []cellRow
	Later      bool         // the grid does not begin with the last partition
	Earlier    template.URL // query of the grid of earlier partitions; empty: there are none
	Why        []why.Reason
	WhyHeading string

	Checks      []catalog.Check // those that a person should see first
	OtherChecks []catalog.Check // further ones, which pass
}

// HasPositions reports whether partitions of a version are ranges or segments of a cursor.
func (v datasetView) HasPositions() bool {
	return slices.ContainsFunc(v.Versions, func(g registry.Generation) bool { return g.EndPosition != nil })
}

// checksShown is how many checks a page shows at once; those that did not pass are always shown.
const checksShown = 10

// addChecks puts the checks first that did not pass.
func (v *datasetView) addChecks() {
	all := slices.Clone(v.Profile.Checks)
	slices.SortStableFunc(all, func(a, b catalog.Check) int {
		switch {
		case a.Outcome != "pass" && b.Outcome == "pass":
			return -1
		case a.Outcome == "pass" && b.Outcome != "pass":
			return 1
		}
		return 0
	})

	shown := slices.IndexFunc(all, func(c catalog.Check) bool { return c.Outcome == "pass" })
	if shown = max(shown, checksShown); shown > len(all) || len(all) <= checksShown {
		shown = len(all)
	}
	v.Checks, v.OtherChecks = all[:shown], all[shown:]
}

func (s *Site) dataset(w http.ResponseWriter, r *http.Request, caller authz.Caller) error {
	name, q := r.PathValue("name"), r.URL.Query()
	if of, is := lineageOf(name); is {
		return s.lineage(w, r, caller, of)
	}
	d, err := s.Registry.Dataset(r.Context(), caller, name)
	if err != nil {
		return err
	}
	v := datasetView{Dataset: d, SQL: query.FirstStatement(d), Partition: q.Get("partition"),
		Later: q.Get("before") != ""}

	id := d.ID.String()
	err = atonce.Do(r.Context(), 3,
		func(ctx context.Context) error { return s.addWhy(ctx, caller, &v) },
		func(ctx context.Context) (err error) {
			v.Profile, err = catalog.New(s.Registry).Profile(ctx, caller, id)
			return err
		},
		func(ctx context.Context) (err error) {
			v.Versions, err = s.Registry.Generations(ctx, caller, id)
			return err
		},
		func(ctx context.Context) (err error) {
			// The page is useful without rows, so an error takes their place.
			if v.Preview, err = s.Query.Preview(ctx, caller, id, v.Partition, 20, 0); err != nil {
				v.PreviewErr = rowsError(err)
			}
			return nil
		},
		func(ctx context.Context) error { return s.addGrid(ctx, caller, &v, q.Get("before")) })
	if err != nil {
		return err
	}
	v.Sparks = sparks(v.Profile.Trend)
	v.addChecks()
	return render(w, http.StatusOK, "dataset.html", layout{Title: d.Name, Tab: "datasets",
		Live: follow("dataset", d.Name), Caller: caller, View: v})
}

// addGrid adds the states of partitions, beginning before a key.
func (s *Site) addGrid(ctx context.Context, caller authz.Caller, v *datasetView, before string) error {
	cells, err := s.Dispatcher.Views.Grid(ctx, caller, v.ID.String(), before, cellsShown+1, clock.Now())
	if err != nil {
		return err
	}
	if len(cells) > cellsShown {
		cells = cells[:cellsShown]
		v.Earlier = template.URL(url.Values{"before": {cells[cellsShown-1].Partition}}.Encode())
	}

	p, err := catalog.Partitioning(v.Dataset)
	v.States, v.Grid = countStates(cells), cellRows(p, cells)
	return err
}

// settled are the reasons that a dataset has which nothing holds up.
var settled = []why.Code{"up_to_date", "published", "source_waits", "source_manual", "source_idle", "bad_rows",
	"unchanged", "completed"}

// addWhy adds what holds a dataset up, where something does.
func (s *Site) addWhy(ctx context.Context, caller authz.Caller, v *datasetView) error {
	found, err := s.Dispatcher.Why.DatasetWhy(ctx, caller, v.ID.String(), clock.Now())
	if err != nil {
		return err
	}

	holds := func(r why.Reason) bool {
		return !slices.Contains(settled, r.Code) || r.Code == "up_to_date" && len(r.Because) > 0
	}
	if !slices.ContainsFunc(found.Reasons, holds) {
		return nil
	}
	for _, r := range found.Reasons {
		if holds(r) {
			v.Why = append(v.Why, r)
		}
	}

	switch {
	case v.Late != nil:
		v.WhyHeading = "Why it is late"
	case v.Version == nil:
		v.WhyHeading = "Why there is nothing yet"
	default:
		v.WhyHeading = "What is on its way or held up"
	}
	return nil
}

// rowsError returns the text of an error that a reader may see within a page.
func rowsError(err error) string {
	p := rest.ProblemOf(err)
	if p.Hint != "" {
		return p.Detail + "; " + p.Hint
	}
	return p.Detail
}
