package dags

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net/url"
	"time"

	"github.com/spf13/cobra"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/cmd/dagctl/cli"
	"github.com/dagctl/dagctl/cmd/dagctl/datasets"
	"github.com/dagctl/dagctl/dispatcher/pressure"
	"github.com/dagctl/dagctl/dispatcher/views"
	"github.com/dagctl/dagctl/internal/plural"
	"github.com/dagctl/dagctl/registry"
)

// StatusCommand returns `dagctl status`.
func StatusCommand(c *cli.CLI) *cobra.Command {
	var watch bool
	page := cli.Page{}
	cmd := &cobra.Command{
		Use:   "status [DAG]",
		Short: "Show the state of all DAGs, or of one DAG with its jobs",
		Args:  cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			api, err := c.Connect()
			if err != nil {
				return err
			}

			show := func() error { return showDAGs(cmd.Context(), c, api, page) }
			if len(args) == 1 {
				show = func() error { return showDAG(cmd.Context(), c, api, args[0]) }
			}
			if !watch {
				return show()
			}
			again := cli.Follower{CLI: c, API: api}
			for {
				if cli.IsTerminal(c.Out) {
					fmt.Fprint(c.Out, "\x1b[H\x1b[2J")
				}
				if err := again.Do(cmd.Context(), show); err != nil {
					return err
				}
				if err := cli.Sleep(cmd.Context(), 2*time.Second); err != nil {
					return err
				}
			}
		},
	}

	cmd.Flags().BoolVar(&watch, "watch", false, "show it again every two seconds until interrupted")
	page.AddFlags(cmd)
	return cmd
}

func showDAGs(ctx context.Context, c *cli.CLI, api *cli.Client, page cli.Page) error {
	dags, err := cli.Fetch[views.DAGStatus](ctx, api, "/v1/dags", nil, page)
	if err != nil {
		return err
	}

	var late []registry.Dataset
	if c.Output == "table" {
		if late, err = lateDatasets(ctx, api, ""); err != nil {
			return err
		}
	}
	var pressure pressure.Pressure
	if c.Output == "table" {
		if err := api.Get(ctx, "/v1/backpressure", nil, &pressure); err != nil {
			return err
		}
	}
	var usage authz.OrgUsage
	if c.Output == "table" {
		if err := api.Get(ctx, "/v1/org/usage", nil, &usage); err != nil {
			return err
		}
	}
	return c.Print(dags, func(w io.Writer) {
		writePressure(c, w, pressure)
		writeQuotas(c, w, usage)
		if len(dags) == 0 {
			fmt.Fprintln(w, "No DAGs yet. `dagctl deploy FILE` creates the first one.")
			return
		}
		style, now := c.Style(c.Out), c.Now()
		t := cli.Table{Style: style, Header: []string{
			"DAG", "ACTIVE", "BUILDING", "FAILED", "QUEUED", "RUNNING", "RETRYING", "DEAD", "WITHHELD",
			"FRESH", "PAUSED",
		}}
		for _, d := range dags {
			t.Add(d.Name, versionName(d.Active), versionName(d.Building), versionName(d.Failed),
				fmt.Sprint(d.Tasks.Queued), fmt.Sprint(d.Tasks.Running), fmt.Sprint(d.Tasks.Retrying),
				fmt.Sprint(d.Tasks.Dead), fmt.Sprint(d.Withheld),
				fresh(d, now), paused(d, now))
		}
		t.Write(w)
		writeLate(c, w, late)
	})
}

// paused returns since when a DAG is paused, or how many of its jobs are.
func paused(d views.DAGStatus, now time.Time) string {
	if d.Paused == nil && d.PausedJobs > 0 {
		return plural.Of(d.PausedJobs, "job")
	}
	return pausedSince(d.Paused, now)
}

// fresh returns when a DAG was last updated, unless jobs of it cannot be.
func fresh(d views.DAGStatus, now time.Time) string {
	if len(d.Blocked) > 0 {
		return "blocked"
	}
	return cli.Ago(d.UpdatedAt, now)
}

// writePressure writes a note if backpressure holds new work back. Only people see it; programs ask /v1/backpressure.
func writePressure(c *cli.CLI, w io.Writer, p pressure.Pressure) {
	for _, q := range p.Runtimes {
		if q.On() {
			fmt.Fprintf(w, "%s %s: sources, backfills and builds of DAGs with jobs of runtime %s wait, because %d "+
				"tasks are queued\n\n",
				c.Style(c.Out).Busy("Backpressure"), cli.Ago(q.Since, c.Now()), q.Runtime, q.Queued)
		}
	}
}

// writeQuotas writes a note for each quota of the org for whose room new work waits.
func writeQuotas(c *cli.CLI, w io.Writer, usage authz.OrgUsage) {
	for _, u := range usage.Items {
		if u.Holds() {
			fmt.Fprintf(w, "%s: sources, backfills and builds wait; %s\n\n",
				c.Style(c.Out).Busy("Quota "+string(u.Quota)), u.Text)
		}
	}
}

// lateDatasets returns the late datasets of a DAG, or of all DAGs. Only people see them; programs ask for
// /v1/datasets?late=true.
func lateDatasets(ctx context.Context, api *cli.Client, dag string) ([]registry.Dataset, error) {
	query := url.Values{"late": {"true"}}
	if dag != "" {
		query.Set("dag", dag)
	}
	return cli.Fetch[registry.Dataset](ctx, api, "/v1/datasets", query, cli.Page{Limit: 100})
}

func writeLate(c *cli.CLI, w io.Writer, late []registry.Dataset) {
	if len(late) == 0 {
		return
	}
	fmt.Fprintln(w)
	t := cli.Table{Style: c.Style(c.Out), Header: []string{"LATE DATASET", "MADE BY", "WHAT", "UPDATED"}}
	for _, d := range late {
		t.Add(d.Name, d.DAG+"/"+d.Job, datasets.LateSince(d.Late, c.Now()), cli.Ago(d.UpdatedAt, c.Now()))
	}
	t.Write(w)
}

func showDAG(ctx context.Context, c *cli.CLI, api *cli.Client, name string) error {
	var d views.DAGDetail
	if err := api.Get(ctx, cli.DAGPath(name), nil, &d); err != nil {
		return err
	}

	var late []registry.Dataset
	if c.Output == "table" {
		var err error
		if late, err = lateDatasets(ctx, api, name); err != nil {
			return err
		}
	}
	return c.Print(d, func(w io.Writer) {
		style, now := c.Style(c.Out), c.Now()
		fmt.Fprintf(w, "%s  active %s  building %s  fresh %s\n", style.Bold(d.Name), orDash(versionName(d.Active)),
			orDash(versionName(d.Building)), orDash(fresh(d.DAGStatus, now)))
		for _, b := range d.Blocked {
			fmt.Fprintf(w, "%s %s: %s\n", style.Bad("Blocked"), b.Job, b.Text)
		}
		if d.Failed != nil {
			fmt.Fprintf(w, "%s v%d: %s\n", style.Bad("Failed"), d.Failed.Number, cli.OneLine(d.Failed.Error, 200))
		}
		if d.Building != nil && d.Building.Error != "" {
			fmt.Fprintf(w, "%s v%d: %s\n", style.Busy("Waiting"), d.Building.Number, cli.OneLine(d.Building.Error, 200))
		}
		if d.Building != nil && d.Building.HeldBecause != "" {
			fmt.Fprintf(w, "%s v%d is to be promoted: %s\n", style.Busy("Waiting"), d.Building.Number,
				d.Building.HeldBecause)
		}
		if d.Paused != nil {
			fmt.Fprintf(w, "%s %s by %s%s\n", style.Busy("Paused"), cli.Ago(&d.Paused.At, now), d.Paused.Actor,
				because(d.Paused.Reason))
		}
		if d.Building != nil && d.Build != nil {
			width, _ := terminalSize(c.Out)
			for _, line := range buildLines(*d.Building, d.Build, style, width, len(d.Build.Datasets)+3) {
				fmt.Fprintln(w, line)
			}
		}
		fmt.Fprintln(w)
		if d.Active != nil && d.Building != nil {
			fmt.Fprintf(w, "The jobs of v%d, which serves, with their tasks; those of the build are above.\n",
				d.Active.Number)
		}
		t := cli.Table{Style: style, Header: []string{
			"JOB", "OPERATOR", "RUNTIME", "QUEUED", "RUNNING", "RETRYING", "DEAD", "WITHHELD", "DONE 24H", "PAUSED",
		}}
		for _, j := range d.Jobs {
			t.Add(j.Name, j.Operator, j.Runtime,
				fmt.Sprint(j.Tasks.Queued), fmt.Sprint(j.Tasks.Running), fmt.Sprint(j.Tasks.Retrying),
				fmt.Sprint(j.Tasks.Dead), fmt.Sprint(j.Withheld),
				completed(j.Tasks), pausedSince(j.Paused, now))
		}

		t.Write(w)
		if len(d.Sources) > 0 {
			fmt.Fprintln(w)
			writeSources(c, w, d.Sources)
		}
		writeLate(c, w, late)
	})
}

// completed returns the number of completed tasks, which the server counts up to a limit.
func completed(c views.Counts) string {
	if c.Completed >= views.CompletedAtMost {
		return fmt.Sprintf("%d+", views.CompletedAtMost)
	}
	return fmt.Sprint(c.Completed)
}

func versionName(v *registry.Version) string {
	if v == nil {
		return ""
	}
	return fmt.Sprintf("v%d", v.Number)
}

func orDash(text string) string {
	if text == "" {
		return "-"
	}
	return text
}

// SourcesCommand returns `dagctl sources`.
func SourcesCommand(c *cli.CLI) *cobra.Command {
	return &cobra.Command{
		Use:   "sources",
		Short: "Show the sources and when they fire next",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			api, err := c.Connect()
			if err != nil {
				return err
			}
			sources, err := cli.FetchWhole[views.SourceStatus](cmd.Context(), api, "/v1/sources")
			if err != nil {
				return err
			}

			return c.Print(sources, func(w io.Writer) { writeSources(c, w, sources) })
		},
	}
}

func writeSources(c *cli.CLI, w io.Writer, sources []views.SourceStatus) {
	style, now := c.Style(c.Out), c.Now()
	t := cli.Table{
		Style: style, Header: []string{"SOURCE", "KIND", "STATE", "LAST", "NEXT", "ERROR"},
		Paint: map[int]func(string) string{2: style.Status},
	}
	for _, s := range sources {
		state := s.State
		if s.Paused != nil {
			state = "Paused"
		}
		t.Add(s.DAG+"/"+s.Job, s.Kind, state, cli.Ago(s.LastFireAt, now), cli.Ago(s.NextFireAt, now),
			cli.OneLine(cmp.Or(s.Error, s.Failing, s.LeftOut), 80))
	}
	t.Write(w)
}
