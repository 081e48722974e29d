package web

import (
	"html/template"
	"net/http"
	"time"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/dispatcher/why"
	"github.com/dagctl/dagctl/internal/clock"
	"github.com/dagctl/dagctl/internal/rest"
	"github.com/dagctl/dagctl/query"
	"github.com/dagctl/dagctl/registry"
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
	SQL        string // a statement to start from
	Partition  string // whose rows are shown; empty: all partitions
	Preview    query.Rows
	PreviewErr string
	Revisions  []registry.Revision
	More       bool // some partitions are not shown
	Calendar   []month
	Why        []why.Reason
}

func (s *Site) dataset(w http.ResponseWriter, r *http.Request, caller authz.Caller) error {
	name := r.PathValue("name")
	d, err := s.Registry.Dataset(r.Context(), caller, name)
	if err != nil {
		return err
	}

	v := datasetView{Dataset: d, SQL: query.FirstStatement(d), Partition: r.URL.Query().Get("partition")}
	const shown = 400 // more than a year of days
	if v.Revisions, err = s.Registry.Partitions(r.Context(), caller, d.ID.String(), "", shown+1); err != nil {
		return err
	}
	if len(v.Revisions) > shown {
		v.Revisions, v.More = v.Revisions[:shown], true
	}
	v.Calendar = calendar(v.Revisions)

	// The page is useful without rows, so an error takes their place.
	if v.Preview, err = s.Query.Preview(r.Context(), caller, d.ID.String(), v.Partition, 20, 0); err != nil {
		v.PreviewErr = rowsError(err)
	}
	why, err := s.Dispatcher.Why.DatasetWhy(r.Context(), caller, d.ID.String(), clock.Now())
	if err != nil {
		return err
	}

	v.Why = why.Reasons
	return render(w, http.StatusOK, "dataset.html", layout{Title: d.Name, Tab: "datasets", Caller: caller, View: v})
}

// month is one month of a dataset that is partitioned by day.
type month struct {
	Name  string
	Weeks [][7]day // Monday first
}

type day struct {
	Number int // 0: outside the month
	Key    string
	Rows   int64
	There  bool
}

// calendar lays out a dataset's partitions by day. It returns nil unless the dataset is partitioned by day.
func calendar(revisions []registry.Revision) []month {
	rows := map[string]int64{}
	for _, r := range revisions {
		if _, err := time.Parse(time.DateOnly, r.Key); err != nil {
			return nil
		}
		rows[r.Key] = r.Rows
	}

	if len(revisions) == 0 {
		return nil
	}
	first, _ := time.Parse(time.DateOnly, revisions[0].Key) // parsed above
	last, _ := time.Parse(time.DateOnly, revisions[len(revisions)-1].Key)
	var months []month
	const most = 24 // a gap of decades is no calendar
	at := time.Date(first.Year(), first.Month(), 1, 0, 0, 0, 0, time.UTC)
	for ; !at.After(last) && len(months) < most; at = at.AddDate(0, 1, 0) {
		months = append(months, monthOf(at, rows))
	}
	return months
}

func monthOf(first time.Time, rows map[string]int64) month {
	m := month{Name: first.Format("January 2006")}
	var week [7]day
	for at := first; at.Month() == first.Month(); at = at.AddDate(0, 0, 1) {
		weekday := (int(at.Weekday()) + 6) % 7
		if weekday == 0 && at.Day() > 1 {
			m.Weeks, week = append(m.Weeks, week), [7]day{}
		}
		key := at.Format(time.DateOnly)
		n, there := rows[key]
		week[weekday] = day{at.Day(), key, n, there}
	}
	m.Weeks = append(m.Weeks, week)
	return m
}
