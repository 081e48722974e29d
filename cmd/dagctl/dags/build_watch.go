package dags

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"golang.org/x/term"

	"github.com/dagctl/dagctl/cmd/dagctl/cli"
	"github.com/dagctl/dagctl/dispatcher/views"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/plural"
	"github.com/dagctl/dagctl/registry"
)

// buildEvent is something that happened to a build. With --output json, deploy prints one object per line; scripts rely
// on its fields.
type buildEvent struct {
	Event   string                 `json:"event"` // status or progress
	At      time.Time              `json:"at"`
	DAG     string                 `json:"dag"`
	Version int                    `json:"version"`
	Status  registry.Status        `json:"status"`
	Error   string                 `json:"error,omitempty"`
	Dataset *views.DatasetProgress `json:"dataset,omitempty"` // of progress

	CriticalPath     []string `json:"critical_path,omitempty"`
	RemainingSeconds float64  `json:"remaining_seconds,omitempty"`
}

// buildEvents returns what has happened between two looks at a version: its status changed, or one of its datasets
// began, advanced by another tenth, had a failure, or was finished. before is nil at the first look.
func buildEvents(before *views.VersionDetail, v views.VersionDetail, now time.Time) []buildEvent {
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
	last := map[output]views.DatasetProgress{}
	if before != nil && before.Build != nil {
		for _, d := range before.Build.Datasets {
			last[output{d.Job, d.Output}] = d
		}
	}

	for i, d := range v.Build.Datasets {
		if advanced(last[output{d.Job, d.Output}], d) {
			e := event
			e.Event, e.Dataset = "progress", &v.Build.Datasets[i]
			events = append(events, e)
		}
	}

	return events
}

// advanced reports whether a dataset has changed enough for an event.
func advanced(was, d views.DatasetProgress) bool {
	begun, wasBegun := d.Done > 0 || d.Running > 0, was.Done > 0 || was.Running > 0
	return begun != wasBegun || was.Done != d.Done && tenths(was) != tenths(d) || was.Failed != d.Failed
}

// tenths returns how many tenths of a dataset are done. While the total is unknown, every partition counts as one.
func tenths(d views.DatasetProgress) int {
	if d.Total == nil || *d.Total == 0 {
		return d.Done
	}
	return 10 * d.Done / *d.Total
}

// buildWatch prints the progress of a build, for people or for programs.
type buildWatch struct {
	c    *cli.CLI
	w    io.Writer
	last *views.VersionDetail
	rows int // lines on the terminal that the next look overwrites
}

func watchBuild(c *cli.CLI) *buildWatch { return &buildWatch{c: c, w: c.Err} }

func (b *buildWatch) show(v views.VersionDetail, now time.Time) {
	events := buildEvents(b.last, v, now)
	b.last = &v

	switch {
	case b.c.Output == "json":
		for _, e := range events {
			if line, err := json.Marshal(e); err == nil {
				fmt.Fprintf(b.w, "%s\n", line)
			}
		}
	case cli.IsTerminal(b.w):
		b.redraw(v)
	default:
		for _, e := range events {
			fmt.Fprintln(b.w, e.line())
		}
	}
}

// line returns an event as a line of a log.
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

func datasetLine(d views.DatasetProgress) string {
	return strings.Join(strings.Fields(datasetLabel(d)+": "+strings.Join(datasetCells(d), " ")), " ")
}

// datasetLabel returns the published name of a dataset, or else its job and output.
func datasetLabel(d views.DatasetProgress) string {
	switch {
	case d.Dataset != "" && !strings.Contains(d.Dataset, "/"):
		return d.Dataset
	case d.Output > 0:
		return fmt.Sprintf("%s/%d", d.Job, d.Output)
	}
	return d.Job
}

// datasetCells returns a dataset's figures: done, failed or skipped, rate, time left.
func datasetCells(d views.DatasetProgress) []string {
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

// redraw overwrites what it drew before. Where the terminal is too small, datasets in progress come first.
func (b *buildWatch) redraw(v views.VersionDetail) {
	width, height := terminalSize(b.w)
	lines := buildLines(v.Version, v.Build, b.c.Style(b.w), width, height-1)
	b.erase()
	for _, line := range lines {
		fmt.Fprintln(b.w, line)
	}
	b.rows = len(lines)
}

// terminalSize returns how many characters fit, or a common size if w is no terminal.
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

// end erases the bars, for the output that follows.
func (b *buildWatch) end() { b.erase() }

const barWidth = 20

// buildLines returns a build as text: a bar for each dataset and the critical path, at most height lines.
func buildLines(v registry.Version, build *views.BuildProgress, style cli.Style, width, height int) []string {
	head := fmt.Sprintf("%s v%d is %s", v.DAG, v.Number, v.Status)
	if build == nil {
		return []string{style.Bold(head)}
	}
	head += fmt.Sprintf(": %s done, %d to go, %d running", plural.Of(build.Completed, "task"), build.Open(),
		build.Running)
	shown, hidden := foremost(build.Datasets, max(height-3, 1))
	label, columns := 0, make([]int, 4)

	for _, d := range shown {
		label = max(label, cli.Width(cli.OneLine(datasetLabel(d), 40)))
		for i, cell := range datasetCells(d) {
			columns[i] = max(columns[i], cli.Width(cell))
		}
	}

	lines := []string{style.Bold(cli.OneLine(head, width))}
	for _, d := range shown {
		name := cli.OneLine(datasetLabel(d), 40)
		text := name + strings.Repeat(" ", label-cli.Width(name)) + "  " + bar(d)
		for i, cell := range datasetCells(d) {
			if columns[i] > 0 {
				text += "  " + strings.Repeat(" ", columns[i]-cli.Width(cell)) + cell
			}
		}

		text = strings.TrimRight(cli.OneLine(text, width), " ")
		switch {
		case d.Failed > 0:
			text = style.Bad(text)
		case d.Total != nil && d.Done >= *d.Total:
			text = style.Good(text)
		case d.Running == 0:
			text = style.Dim(text)
		}

		lines = append(lines, text)
	}

	if hidden > 0 {
		lines = append(lines, style.Dim(fmt.Sprintf("and %s", plural.Of(hidden, "more dataset"))))
	}
	if build.Seconds > 0 {
		lines = append(lines, cli.OneLine(cli.UpperFirst(remaining(build.CriticalPath, build.Seconds)), width))
	}
	return lines
}

// foremost returns as many datasets as fit, in their order, and counts the others. It prefers datasets that run or
// have failures, then unfinished ones, then finished ones.
func foremost(all []views.DatasetProgress, fit int) (shown []views.DatasetProgress, hidden int) {
	if len(all) <= fit {
		return all, 0
	}
	rank := func(d views.DatasetProgress) int {
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

func bar(d views.DatasetProgress) string {
	filled := 0
	if d.Total != nil {
		filled = barWidth
		if *d.Total > 0 {
			filled = min(barWidth*d.Done / *d.Total, barWidth)
		}
	}
	return "[" + strings.Repeat("#", filled) + strings.Repeat(".", barWidth-filled) + "]"
}

// waitForVersion shows progress until the version serves or, without activate, is ready. If ctx ends before, it says
// that the build goes on.
func waitForVersion(ctx context.Context, c *cli.CLI, api *cli.Client, v registry.Version, activate bool) (
	registry.Version, error,
) {
	watch := watchBuild(c)
	waited, err := watch.wait(ctx, api, v, activate)
	watch.end()
	if err != nil && ctx.Err() != nil && c.Output != "json" {
		fmt.Fprintf(c.Err, "The build of %s v%d goes on without this command: `dagctl status %s --watch` shows it.\n",
			v.DAG, v.Number, v.DAG)
	}
	return waited, err
}

// wait is waitForVersion without the last word.
func (b *buildWatch) wait(
	ctx context.Context, api *cli.Client, v registry.Version, activate bool,
) (registry.Version, error) {
	follow := cli.Follower{CLI: b.c, API: api, Before: b.erase,
		GoesOn: fmt.Sprintf("the build of %s v%d", v.DAG, v.Number),
		Hint: fmt.Sprintf("`dagctl status %s --watch` follows it, and `dagctl history %s` says how it ended",
			v.DAG, v.DAG)}
	for {
		asked := time.Now()
		var detail views.VersionDetail
		if err := follow.Get(ctx, cli.VersionPath(v.DAG, v.Number), nil, &detail); err != nil {
			return v, err
		}

		v = detail.Version
		b.show(detail, b.c.Now())
		switch {
		case v.Status == registry.Active, v.Status == registry.Ready && !activate:
			return v, nil
		case v.HeldBecause != "" && activate:
			return v, fault.New(fault.Conflict, "%s v%d waits to be promoted: %s", v.DAG, v.Number, v.HeldBecause).
				WithHint("`dagctl promote %s %d` lets it serve once it is ready", v.DAG, v.Number)
		case v.Status == registry.Superseded:
			return v, fault.New(fault.Conflict, "%s v%d was replaced by a later version", v.DAG, v.Number)
		case v.Status == registry.Failed, v.Status == registry.Abandoned:
			return v, fault.New(fault.Invalid, "%s v%d is %s: %s", v.DAG, v.Number, v.Status, v.Error).
				WithHint("`dagctl status %s` shows what failed; live data was not touched", v.DAG)
		}

		if err := follow.Pause(ctx, asked); err != nil {
			return v, err
		}
	}
}
