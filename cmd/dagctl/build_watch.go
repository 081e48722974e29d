package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"time"
	"unicode/utf8"

	"golang.org/x/term"

	"github.com/dagctl/dagctl/dispatcher"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/registry"
)

// buildEvent is what happened to a build, as scripts read it with --output json: one object a line. The fields are stable.
type buildEvent struct {
	Event   string                      `json:"event"` // status or progress
	At      time.Time                   `json:"at"`
	DAG     string                      `json:"dag"`
	Version int                         `json:"version"`
	Status  registry.Status             `json:"status"`
	Error   string                      `json:"error,omitempty"`
	Dataset *dispatcher.DatasetProgress `json:"dataset,omitempty"` // of progress

	CriticalPath     []string `json:"critical_path,omitempty"`
	RemainingSeconds float64  `json:"remaining_seconds,omitempty"`
}

// buildEvents is what has happened between two looks at a version: its status has changed, or a dataset has been begun,
// has come another tenth of its way, lost a task or been finished. It is pure; before is nil at the first look.
func buildEvents(before *dispatcher.VersionDetail, v dispatcher.VersionDetail, now time.Time) []buildEvent {
	event := buildEvent{At: now.UTC(), DAG: v.DAG, Version: v.Number, Status: v.Status, Error: v.Error}
	if v.Build != nil {
		event.CriticalPath, event.RemainingSeconds = v.Build.CriticalPath, v.Build.Seconds
	}
	var events []buildEvent
	if before == nil || before.Status != v.Status {
		e := event
		e.Event = "status"
		events = append(events, e)
	}
	if v.Build == nil {
		return events
	}
	type output struct {
		job   string
		index int
	}
	last := map[output]dispatcher.DatasetProgress{}
	if before != nil && before.Build != nil {
		for _, d := range before.Build.Datasets {
			last[output{d.Job, d.Output}] = d
		}
	}
	for i, d := range v.Build.Datasets {
		was := last[output{d.Job, d.Output}]
		begun := d.Done > 0 || d.Running > 0
		wasBegun := was.Done > 0 || was.Running > 0
		if begun != wasBegun || was.Done != d.Done && tenths(was) != tenths(d) || was.Failed != d.Failed {
			e := event
			e.Event, e.Dataset = "progress", &v.Build.Datasets[i]
			events = append(events, e)
		}
	}
	return events
}

// tenths is how much of a dataset is there; with an unknown total every partition counts.
func tenths(d dispatcher.DatasetProgress) int {
	if d.Total == nil || *d.Total == 0 {
		return d.Done
	}
	return 10 * d.Done / *d.Total
}

// buildWatch tells people and programs how a build goes on.
type buildWatch struct {
	c    *cli
	w    io.Writer
	last *dispatcher.VersionDetail
	rows int // lines on the terminal that the next look writes over
}

func (c *cli) watchBuild() *buildWatch { return &buildWatch{c: c, w: c.err} }

func (b *buildWatch) show(v dispatcher.VersionDetail, now time.Time) {
	events := buildEvents(b.last, v, now)
	b.last = &v
	switch {
	case b.c.output == "json":
		for _, e := range events {
			if line, err := json.Marshal(e); err == nil {
				fmt.Fprintf(b.w, "%s\n", line)
			}
		}
	case isTerminal(b.w):
		b.redraw(v)
	default:
		for _, e := range events {
			fmt.Fprintln(b.w, e.line())
		}
	}
}

// line is an event for a log.
func (e buildEvent) line() string {
	if e.Dataset == nil {
		text := fmt.Sprintf("%s v%d is %s", e.DAG, e.Version, e.Status)
		if e.RemainingSeconds > 0 {
			text += ", " + remaining(e.CriticalPath, e.RemainingSeconds)
		}
		return text
	}
	return fmt.Sprintf("%s v%d %s", e.DAG, e.Version, datasetLine(*e.Dataset))
}

func datasetLine(d dispatcher.DatasetProgress) string {
	return strings.Join(strings.Fields(datasetLabel(d)+": "+strings.Join(datasetCells(d), " ")), " ")
}

// datasetLabel is the published name, or where it comes from.
func datasetLabel(d dispatcher.DatasetProgress) string {
	switch {
	case d.Dataset != "" && !strings.Contains(d.Dataset, "/"):
		return d.Dataset
	case d.Output > 0:
		return fmt.Sprintf("%s/%d", d.Job, d.Output)
	}
	return d.Job
}

// datasetCells are a dataset's figures: done, failed, rate, what is left.
func datasetCells(d dispatcher.DatasetProgress) []string {
	done := fmt.Sprintf("%d/?", d.Done)
	if d.Total != nil {
		done = fmt.Sprintf("%d/%d", d.Done, *d.Total)
	}
	cells := []string{done, "", "", ""}
	if d.Failed > 0 {
		cells[1] = fmt.Sprintf("%d failed", d.Failed)
	} else if d.Skipped > 0 {
		cells[1] = fmt.Sprintf("%d skipped", d.Skipped)
	}
	if d.Rate > 0 {
		cells[2] = fmt.Sprintf("%.1f/s", d.Rate)
	}
	if left := estimate(d.Seconds); left != "" {
		cells[3] = left
	}
	return cells
}

func remaining(path []string, seconds float64) string {
	return fmt.Sprintf("critical path %s left (%s)", estimate(seconds), strings.Join(path, " → "))
}

// redraw writes over what it drew before, never more than the terminal is high: what is at work comes first then.
func (b *buildWatch) redraw(v dispatcher.VersionDetail) {
	width, height := terminalSize(b.w)
	lines := buildLines(v.Version, v.Build, b.c.style(b.w), width, height-1)
	b.erase()
	for _, line := range lines {
		fmt.Fprintln(b.w, line)
	}
	b.rows = len(lines)
}

// terminalSize is how many characters fit; a common size where nobody can tell.
func terminalSize(w io.Writer) (width, height int) {
	if f, ok := w.(*os.File); ok {
		if width, height, err := term.GetSize(int(f.Fd())); err == nil && width > 0 && height > 0 {
			return width, height
		}
	}
	return 120, 40
}

func (b *buildWatch) erase() {
	if b.rows > 0 {
		fmt.Fprintf(b.w, "\x1b[%dA\r\x1b[J", b.rows)
		b.rows = 0
	}
}

// end leaves the terminal to what is told next.
func (b *buildWatch) end() { b.erase() }

const barWidth = 20

// buildLines is a build as text: a bar for each dataset, the critical path, at most as many lines as fit.
func buildLines(v registry.Version, build *dispatcher.BuildProgress, style style, width, height int) []string {
	head := fmt.Sprintf("%s v%d is %s", v.DAG, v.Number, v.Status)
	if build == nil {
		return []string{style.bold(head)}
	}
	head += fmt.Sprintf(": %d tasks done, %d to go, %d running", build.Completed, build.Open(), build.Running)
	shown, hidden := foremost(build.Datasets, max(height-3, 1))
	label, columns := 0, make([]int, 4)
	for _, d := range shown {
		label = max(label, utf8.RuneCountInString(oneLine(datasetLabel(d), 40)))
		for i, cell := range datasetCells(d) {
			columns[i] = max(columns[i], utf8.RuneCountInString(cell))
		}
	}
	lines := []string{style.bold(oneLine(head, width))}
	for _, d := range shown {
		name := oneLine(datasetLabel(d), 40)
		text := name + strings.Repeat(" ", label-utf8.RuneCountInString(name)) + "  " + bar(d)
		for i, cell := range datasetCells(d) {
			if columns[i] > 0 {
				text += "  " + strings.Repeat(" ", columns[i]-utf8.RuneCountInString(cell)) + cell
			}
		}
		text = strings.TrimRight(oneLine(text, width), " ")
		switch {
		case d.Failed > 0:
			text = style.bad(text)
		case d.Total != nil && d.Done >= *d.Total:
			text = style.good(text)
		case d.Running == 0:
			text = style.dim(text)
		}
		lines = append(lines, text)
	}
	if hidden > 0 {
		lines = append(lines, style.dim(fmt.Sprintf("and %s", count(hidden, "more dataset"))))
	}
	if build.Seconds > 0 {
		lines = append(lines, oneLine(upperFirst(remaining(build.CriticalPath, build.Seconds)), width))
	}
	return lines
}

func upperFirst(s string) string { return strings.ToUpper(s[:1]) + s[1:] }

// foremost keeps the datasets that fit, in their order: those at work or in trouble, then those to come, then the finished.
func foremost(all []dispatcher.DatasetProgress, fit int) (shown []dispatcher.DatasetProgress, hidden int) {
	if len(all) <= fit {
		return all, 0
	}
	rank := func(d dispatcher.DatasetProgress) int {
		switch {
		case d.Failed > 0 || d.Running > 0:
			return 0
		case d.Total == nil || d.Done < *d.Total:
			return 1
		}
		return 2
	}
	keep := map[int]bool{}
	for want := 0; want <= 2; want++ {
		for i, d := range all {
			if rank(d) == want && len(keep) < fit {
				keep[i] = true
			}
		}
	}
	for i, d := range all {
		if keep[i] {
			shown = append(shown, d)
		}
	}
	return shown, len(all) - len(shown)
}

func bar(d dispatcher.DatasetProgress) string {
	filled := 0
	if d.Total != nil {
		filled = barWidth
		if *d.Total > 0 {
			filled = min(barWidth*d.Done / *d.Total, barWidth)
		}
	}
	return "[" + strings.Repeat("#", filled) + strings.Repeat(".", barWidth-filled) + "]"
}

// waitForVersion shows progress until the version serves (or is ready, where it is not to be activated).
func (c *cli) waitForVersion(ctx context.Context, api *client, v registry.Version, activate bool) (registry.Version, error) {
	watch := c.watchBuild()
	defer watch.end()
	for {
		asked := time.Now()
		var detail dispatcher.VersionDetail
		if err := api.get(ctx, versionPath(v.DAG, v.Number), nil, &detail); err != nil {
			return v, err
		}
		v = detail.Version
		watch.show(detail, time.Now())
		switch {
		case v.Status == registry.Active, v.Status == registry.Ready && !activate:
			return v, nil
		case v.Status == registry.Superseded:
			return v, fault.New(fault.Conflict, "%s v%d was replaced by a later version", v.DAG, v.Number)
		case v.Status == registry.Failed, v.Status == registry.Abandoned:
			return v, fault.New(fault.Invalid, "%s v%d is %s: %s", v.DAG, v.Number, v.Status, v.Error).
				WithHint("`dagctl tasks list --dag %s --dead` shows what failed; live data was not touched", v.DAG)
		}
		// A large build is asked about less often: the answer costs the server what it takes.
		if err := pause(ctx, max(300*time.Millisecond, 4*time.Since(asked))); err != nil {
			return v, err
		}
	}
}
