package web

import (
	"bytes"
	"encoding/json"
	"fmt"
	"html/template"
	"net/url"
	"strings"
	"time"

	"github.com/dagctl/dagctl/dispatcher/control"
	"github.com/dagctl/dagctl/dispatcher/views"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/rest"
	"github.com/dagctl/dagctl/query"
	"github.com/dagctl/dagctl/registry"
	"github.com/dagctl/dagctl/registry/catalog"
	"github.com/dagctl/dagctl/registry/deploy"
	"github.com/dagctl/dagctl/web/markdown"
)

// functions are the functions that templates may call; all of them format values.
var functions = template.FuncMap{
	"ago": ago, "between": between, "size": Size, "join": strings.Join, "json": indent, "cell": cell,
	"datasetPath": datasetPath, "number": number, "class": class,
	"called": called, "actorPath": actorPath, "stamp": stamp, "markdown": markdown.HTML, "summary": markdown.Summary,
	"changes": Changes, "positions": Positions,
	"jobPath": jobPath, "taskTitle": taskTitle, "capital": capital, "clockTime": clockTime,
	"sourcePath": sourcePath, "tasksOf": tasksOf, "bulksOf": bulksOf, "checksOf": checksOf, "took": took,
	"tookTask": tookTask,
	"dagPath":  dagPath, "sentence": sentence, "estimated": estimated, "toCompute": toCompute,
	"estimatedSize": estimatedSize, "meeting": meeting, "number64": func(n int) string { return number(int64(n)) },
	"differs": func(action string) bool {
		return action != deploy.Reuse && action != deploy.Create && action != deploy.Remove
	},
	"backfillSize": func(b control.Backfill) int { return max(b.Pending+b.Open+b.Done+b.Skipped+b.Failed, 1) },
	"fromName":     query.NameOf, "columnName": query.QuoteName,
	"listsErrors": listsErrors, "headline": fault.Headline, "traceback": traceback,
	"add":   func(a, b float64) float64 { return a + b },
	"money": func(v *float64, currency string) string { return Money(*v, currency) }, "percent": percent,
	"seconds": seconds, "options": func(texts ...string) []string { return texts },
}

// traceback returns the traceback of an error; empty: it has none.
func traceback(text string) string {
	_, trace := fault.CutTraceback(text)
	return trace
}

// listsErrors reports whether the errors of a problem say more than its text does.
func listsErrors(p *rest.Problem) bool {
	return len(p.Errors) > 1 || len(p.Errors) == 1 && p.Errors[0].Location != ""
}

// stamp formats a time as logs have it.
func stamp(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05") }

// What templates that others share are given.
type (
	taskTable struct {
		Now   time.Time
		Tasks []views.Task
		Job   bool // all of one job
	}
	bulkTable struct {
		Now     time.Time
		Actions []control.BulkAction
	}
	checkTable struct {
		Now    time.Time
		Checks []catalog.Check
	}
)

func tasksOf(now time.Time, tasks []views.Task, job bool) taskTable {
	return taskTable{now, tasks, job}
}

func bulksOf(now time.Time, actions []control.BulkAction) bulkTable { return bulkTable{now, actions} }

func checksOf(now time.Time, checks []catalog.Check) checkTable { return checkTable{now, checks} }

// took returns how long an attempt took; "" while it runs.
func took(a views.Attempt) string { return between(&a.StartedAt, a.EndedAt) }

// tookTask returns how long the last attempt at a task ran; "" where the task does not tell.
func tookTask(t views.Task) string {
	d, ended := t.Took()
	if !ended {
		return ""
	}
	return rough(d)
}

// actorPath returns the path of an actor's page; empty for what has none.
func actorPath(actor string) string {
	if user, ok := strings.CutPrefix(actor, "user:"); ok {
		return userPath(user)
	}
	return ""
}

// ago returns how long before now a time is. It returns "" for a zero or missing time.
func ago(now time.Time, at any) string {
	var t time.Time
	switch v := at.(type) {
	case time.Time:
		t = v
	case *time.Time:
		if v == nil {
			return ""
		}
		t = *v
	}

	switch d := now.Sub(t); {
	case t.IsZero():
		return ""
	case d < 0:
		return "in " + rough(-d)
	default:
		return rough(d) + " ago"
	}
}

// between returns how long something took.
func between(from, to *time.Time) string {
	if from == nil || to == nil {
		return ""
	}
	return rough(to.Sub(*from))
}

func rough(d time.Duration) string {
	switch {
	case d < time.Second:
		return fmt.Sprintf("%d ms", d.Milliseconds())
	case d < time.Minute:
		return fmt.Sprintf("%d s", int(d.Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%d min", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%d h", int(d.Hours()))
	}
	return fmt.Sprintf("%d days", int(d.Hours())/24)
}

// Size formats a number of bytes for people.
func Size(n int64) string {
	const unit = 1024
	if n < unit {
		return fmt.Sprintf("%d B", n)
	}
	value, names := float64(n)/unit, "kMGTPE"
	for len(names) > 1 && value >= unit {
		value, names = value/unit, names[1:]
	}
	return fmt.Sprintf("%.1f %cB", value, names[0])
}

// class returns the CSS class of a state of any type.
func class(state any) string { return strings.ToLower(fmt.Sprint(state)) }

// seconds formats a sum of seconds.
func seconds(s float64) string { return rough(time.Duration(s * float64(time.Second))) }

// percent formats a share of a whole.
func percent(share float64) string {
	if share > 0 && share < 0.01 {
		return "< 1 %"
	}
	return fmt.Sprintf("%.0f %%", share*100)
}

// capital returns a word as it begins a heading.
func capital(word string) string { return strings.ToUpper(word[:1]) + word[1:] }

// number groups the digits of a number, for columns that people compare.
func number(n int64) string {
	text := fmt.Sprint(n)
	for i := len(text) - 3; i > 0 && text[i-1] != '-'; i -= 3 {
		text = text[:i] + "\u202f" + text[i:]
	}
	return text
}

// indent returns indented JSON, or "" for a missing or null value.
func indent(v json.RawMessage) string {
	var b bytes.Buffer
	if len(v) == 0 || string(v) == "null" || json.Indent(&b, v, "", "  ") != nil {
		return ""
	}
	return b.String()
}

// cell formats one value of a dataset's row.
func cell(v any) string {
	switch v := v.(type) {
	case nil:
		return ""
	case string:
		return v
	case json.RawMessage:
		return string(v)
	}
	text, err := json.Marshal(v)
	if err != nil {
		return fmt.Sprint(v)
	}
	return string(text)
}

// datasetPath returns the path of a dataset's page. Slashes in the name of an unpublished dataset stay slashes.
func datasetPath(name string) string {
	parts := strings.Split(name, "/")
	for i, p := range parts {
		parts[i] = url.PathEscape(p)
	}
	return "/datasets/" + strings.Join(parts, "/")
}

// Positions writes a half-open range of positions; nothing where there is none.
func Positions(start, end *int64) string {
	if start == nil || end == nil {
		return ""
	}
	return fmt.Sprintf("[%d, %d)", *start, *end)
}

// Changes says in words what became of columns.
func Changes(changes []registry.ColumnChange) string {
	words := make([]string, len(changes))
	for i, c := range changes {
		switch c.Change {
		case "added":
			words[i] = fmt.Sprintf("+ %s %s", c.Column, c.To)
		case "removed":
			words[i] = fmt.Sprintf("− %s", c.Column)
		default:
			words[i] = fmt.Sprintf("%s %s → %s", c.Column, c.From, c.To)
		}
	}
	return strings.Join(words, ", ")
}
