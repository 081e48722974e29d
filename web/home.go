package web

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"time"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/dispatcher/attention"
	"github.com/dagctl/dagctl/dispatcher/usage"
	"github.com/dagctl/dagctl/internal/atonce"
	"github.com/dagctl/dagctl/internal/clock"
)

// homeView is what needs a person now.
type homeView struct {
	Needs []need
	More  bool
	Empty bool // the org has no DAG yet
	Facts []homeFact
	Next  usage.Forecast
}

// homeFact is a figure of the row above what needs somebody.
type homeFact struct {
	Says, Value, Note string
	Path              string
	Spark             *spark
}

// need is an item with the ways that lead on from it.
type need struct {
	attention.Item
	Says   string // its kind, for people
	Path   string // of what it is about
	Help   string // what the button says
	Helper string // where it leads
}

// sorts say for each kind what it is called, how grave it is as a class of status, and what the button says.
var sorts = map[attention.Kind]struct{ says, class, help string }{
	attention.Dead:         {"Out of attempts", "dead", "Retry or skip"},
	attention.BuildFailed:  {"Build failed", "failed", "Look at the version"},
	attention.Blocked:      {"Blocked", "failed", "Why"},
	attention.SourceError:  {"Source in error", "failed", "Look at the source"},
	attention.ServerUnfit:  {"Server idle", "failed", "Workers"},
	attention.KeyMissing:   {"Key missing", "failed", "Secrets"},
	attention.NoWorker:     {"No worker", "failed", "Workers"},
	attention.Late:         {"Late", "failed", "Why"},
	attention.Withheld:     {"Withheld", "running", "Decide"},
	attention.BuildWaits:   {"Deploy waits", "running", "Look at the version"},
	attention.Backpressure: {"Held back", "running", "Queued tasks"},
	attention.Quota:        {"Quota", "running", "Usage"},
	attention.Paused:       {"Paused", "running", "Resume"},
}

// Class returns the class of its status.
func (n need) Class() string { return sorts[n.Kind].class }

// needOf returns an item with the ways that lead on from it.
func needOf(i attention.Item) need {
	n := need{Item: i, Says: sorts[i.Kind].says, Help: sorts[i.Kind].help}
	switch {
	case i.Dataset != "":
		n.Path = datasetPath(i.Dataset)
	case i.Job != "":
		n.Path = jobPath(i.DAG, i.Job)
	case i.Version > 0:
		n.Path = dagPath(i.DAG, "versions", i.Version)
	case i.DAG != "":
		n.Path = dagPath(i.DAG)
	}

	n.Helper = n.Path
	switch i.Kind {
	case attention.Dead:
		n.Helper = "/dead?" + url.Values{"error_group": {i.Group}}.Encode()
		if i.Retryable == 0 {
			n.Help = "Skip"
		}
	case attention.Withheld:
		if i.Dataset != "" {
			n.Helper += "#withheld"
		}
	case attention.NoWorker, attention.ServerUnfit:
		n.Helper = "/workers"
	case attention.KeyMissing:
		n.Helper = "/secrets"
	case attention.Late:
		n.Helper += "#why"
	case attention.Backpressure:
		n.Helper = "/tasks?status=Queued"
	case attention.Quota:
		n.Helper = "/usage"
	case attention.SourceError:
		n.Helper = sourcePath(i.DAG, i.Job)
	case attention.Paused:
		switch {
		case i.DAG == "":
			n.Help = "" // `dagctl resume --org` does it
		case i.Job == "":
			n.Helper = dagPath(i.DAG, "resume")
		default:
			n.Helper = dagPath(i.DAG, "jobs", i.Job, "resume")
		}
	case attention.BuildFailed, attention.BuildWaits:
		n.Helper = dagPath(i.DAG, "versions", i.Version)
	}
	return n
}

// home asks for its three parts at once.
func (s *Site) home(w http.ResponseWriter, r *http.Request, caller authz.Caller) error {
	var v homeView

	err := atonce.Do(r.Context(), 3,
		func(ctx context.Context) error { return s.homeNeeds(ctx, caller, &v) },
		func(ctx context.Context) (err error) {
			v.Facts, err = s.homeFacts(ctx, caller, clock.Now())
			return err
		},
		func(ctx context.Context) (err error) {
			v.Next, err = s.Dispatcher.Usage.Forecast(ctx, caller, clock.Now())
			return err
		})
	if err != nil {
		return err
	}
	return render(w, http.StatusOK, "home.html", layout{Title: "Home", Tab: "home", Live: follow(), Caller: caller,
		View: v})
}

// homeNeeds takes in what needs somebody, or that there is nothing yet that could.
func (s *Site) homeNeeds(ctx context.Context, caller authz.Caller, v *homeView) error {
	found, err := s.Dispatcher.Desk.Of(ctx, caller)
	if err != nil {
		return err
	}
	v.More = found.More
	for _, i := range found.Items {
		v.Needs = append(v.Needs, needOf(i))
	}

	if len(v.Needs) == 0 {
		dags, err := s.Dispatcher.Views.DAGs(ctx, caller, "", 1)
		if err != nil {
			return err
		}
		v.Empty = len(dags) == 0
	}
	return nil
}

// homeFacts returns what there is now, what was done and failed within a day, and what a week costs, against the one
// before.
func (s *Site) homeFacts(ctx context.Context, caller authz.Caller, now time.Time) ([]homeFact, error) {
	us := s.Dispatcher.Usage
	there, err := us.Now(ctx, caller)
	if err != nil {
		return nil, err
	}
	day, weeks, err := us.Lately(ctx, caller, now)
	if err != nil {
		return nil, err
	}

	var done, failed []float64
	for _, p := range day.Points {
		done, failed = append(done, float64(p.Tasks)), append(failed, float64(p.Failed))
	}
	whole := func(v float64) string { return number(int64(v)) }
	return []homeFact{
		{Says: "DAGs", Value: number(there.DAGs), Path: "/dags"},
		{Says: "Running", Value: upTo(there.Running), Note: upTo(there.Queued) + " queued",
			Path: "/tasks?status=Running"},
		{Says: "Done in 24 h", Value: number(day.Total.Tasks), Note: "counted within a minute",
			Path:  "/tasks?status=Completed",
			Spark: tinySpark("Tasks done by the hour", done, whole)},
		{Says: "Failed in 24 h", Value: number(day.Total.Failed), Note: "attempts", Path: "/tasks?status=Failed",
			Spark: tinySpark("Attempts failed by the hour", failed, whole)},
		weekFact(weeks),
	}, nil
}

// upTo formats a count that ends at a bound.
func upTo(n int64) string {
	if n >= usage.MostCounted {
		return number(usage.MostCounted) + " or more"
	}
	return number(n)
}

// weekFact compares the last seven days with the seven before.
func weekFact(c usage.Costs) homeFact {
	var values []float64
	for _, p := range c.Points {
		value := p.Seconds
		if p.Money != nil {
			value = *p.Money
		}
		values = append(values, value)
	}
	half, before, last := len(values)/2, 0.0, 0.0
	for i, v := range values {
		if i < half {
			before += v
		} else {
			last += v
		}
	}

	format := amountFormat(c.Currency)
	f := homeFact{Says: "Cost of 7 days", Value: format(last), Path: "/costs",
		Spark: tinySpark("Cost of 14 days by the day", values, format)}
	if c.Currency == "" {
		f.Says = "Work of 7 days"
	}
	switch {
	case before == 0:
		f.Note = "nothing in the 7 before"
	case last >= before:
		f.Note = fmt.Sprintf("%.0f %% more than the 7 before", (last/before-1)*100)
	default:
		f.Note = fmt.Sprintf("%.0f %% less than the 7 before", (1-last/before)*100)
	}
	return f
}
