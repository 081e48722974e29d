package main

import (
	"context"
	"fmt"
	"io"
	"net/url"
	"time"

	"github.com/spf13/cobra"

	"github.com/dagctl/dagctl/dispatcher"
	"github.com/dagctl/dagctl/registry"
)

func (c *cli) statusCommand() *cobra.Command {
	var watch bool
	page := pageFlags{}
	cmd := &cobra.Command{
		Use:   "status [DAG]",
		Short: "Show the DAGs as they stand, or one of them with its jobs",
		Args:  cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			api, err := c.connect()
			if err != nil {
				return err
			}
			show := func() error { return c.showDAGs(cmd.Context(), api, page) }
			if len(args) == 1 {
				show = func() error { return c.showDAG(cmd.Context(), api, args[0]) }
			}
			for {
				if watch && isTerminal(c.out) {
					fmt.Fprint(c.out, "\x1b[H\x1b[2J")
				}
				if err := show(); err != nil || !watch {
					return err
				}
				if err := pause(cmd.Context(), 2*time.Second); err != nil {
					return err
				}
			}
		},
	}
	cmd.Flags().BoolVar(&watch, "watch", false, "show again every two seconds until interrupted")
	page.add(cmd)
	return cmd
}

func (c *cli) showDAGs(ctx context.Context, api *client, page pageFlags) error {
	dags, err := fetch[dispatcher.DAGStatus](ctx, api, "/v1/dags", nil, page)
	if err != nil {
		return err
	}
	var late []registry.Dataset
	if c.output == "table" {
		if late, err = lateDatasets(ctx, api, ""); err != nil {
			return err
		}
	}
	var pressure dispatcher.Pressure
	if c.output == "table" {
		if err := api.get(ctx, "/v1/backpressure", nil, &pressure); err != nil {
			return err
		}
	}
	return c.print(dags, func(w io.Writer) {
		c.writePressure(w, pressure)
		if len(dags) == 0 {
			fmt.Fprintln(w, "No DAGs yet. `dagctl deploy FILE` makes the first one.")
			return
		}
		style, now := c.style(c.out), time.Now()
		t := table{style: style, header: []string{"DAG", "ACTIVE", "BUILDING", "FAILED", "QUEUED", "RUNNING", "RETRYING", "DEAD", "FRESH", "PAUSED"}}
		for _, d := range dags {
			t.add(d.Name, versionName(d.Active), versionName(d.Building), versionName(d.Failed), fmt.Sprint(d.Tasks.Queued),
				fmt.Sprint(d.Tasks.Running), fmt.Sprint(d.Tasks.Retrying), fmt.Sprint(d.Tasks.Dead), ago(d.UpdatedAt, now), pausedSince(d.Paused, now))
		}
		t.write(w)
		c.writeLate(w, late)
	})
}

// writePressure says at the head of all that nothing new begins. A program asks for it by itself: /v1/backpressure.
func (c *cli) writePressure(w io.Writer, p dispatcher.Pressure) {
	if p.Since != nil {
		fmt.Fprintf(w, "%s %s: sources, backfills and builds wait, because %d tasks of all orgs are queued\n\n",
			c.style(c.out).busy("Backpressure"), ago(p.Since, time.Now()), p.Queued)
	}
}

// lateDatasets are the late ones of a DAG, or of all. A program asks for them by itself: /v1/datasets?late=true.
func lateDatasets(ctx context.Context, api *client, dag string) ([]registry.Dataset, error) {
	query := url.Values{"late": {"true"}}
	if dag != "" {
		query.Set("dag", dag)
	}
	return fetch[registry.Dataset](ctx, api, "/v1/datasets", query, pageFlags{limit: 100})
}

func (c *cli) writeLate(w io.Writer, late []registry.Dataset) {
	if len(late) == 0 {
		return
	}
	fmt.Fprintln(w)
	t := table{style: c.style(c.out), header: []string{"LATE DATASET", "MADE BY", "WHAT", "UPDATED"}}
	for _, d := range late {
		t.add(d.Name, d.DAG+"/"+d.Job, lateSince(d.Late, time.Now()), ago(d.UpdatedAt, time.Now()))
	}
	t.write(w)
}

func (c *cli) showDAG(ctx context.Context, api *client, name string) error {
	var d dispatcher.DAGDetail
	if err := api.get(ctx, "/v1/dags/"+url.PathEscape(name), nil, &d); err != nil {
		return err
	}
	var late []registry.Dataset
	if c.output == "table" {
		var err error
		if late, err = lateDatasets(ctx, api, name); err != nil {
			return err
		}
	}
	return c.print(d, func(w io.Writer) {
		style, now := c.style(c.out), time.Now()
		fmt.Fprintf(w, "%s  active %s  building %s  fresh %s\n", style.bold(d.Name), orDash(versionName(d.Active)),
			orDash(versionName(d.Building)), orDash(ago(d.UpdatedAt, now)))
		if d.Failed != nil {
			fmt.Fprintf(w, "%s v%d: %s\n", style.bad("Failed"), d.Failed.Number, oneLine(d.Failed.Error, 200))
		}
		if d.Paused != nil {
			fmt.Fprintf(w, "%s %s by %s%s\n", style.busy("Paused"), ago(&d.Paused.At, now), d.Paused.Actor, because(d.Paused.Reason))
		}
		if d.Building != nil && d.Build != nil {
			width, _ := terminalSize(c.out)
			for _, line := range buildLines(*d.Building, d.Build, style, width, len(d.Build.Datasets)+3) {
				fmt.Fprintln(w, line)
			}
		}
		fmt.Fprintln(w)
		t := table{style: style, header: []string{"JOB", "OPERATOR", "RUNTIME", "QUEUED", "RUNNING", "RETRYING", "DEAD", "DONE 24H", "PAUSED"}}
		for _, j := range d.Jobs {
			t.add(j.Name, j.Operator, j.Runtime, fmt.Sprint(j.Tasks.Queued), fmt.Sprint(j.Tasks.Running), fmt.Sprint(j.Tasks.Retrying),
				fmt.Sprint(j.Tasks.Dead), completed(j.Tasks), pausedSince(j.Paused, now))
		}
		t.write(w)
		if len(d.Sources) > 0 {
			fmt.Fprintln(w)
			c.writeSources(w, d.Sources)
		}
		c.writeLate(w, late)
	})
}

// completed is counted no further than somebody would read.
func completed(c dispatcher.Counts) string {
	if c.Completed >= dispatcher.CompletedAtMost {
		return fmt.Sprintf("%d+", dispatcher.CompletedAtMost)
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

func (c *cli) sourcesCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "sources",
		Short: "Show the sources and when they fire next",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			api, err := c.connect()
			if err != nil {
				return err
			}
			sources, err := fetch[dispatcher.SourceStatus](cmd.Context(), api, "/v1/sources", nil, pageFlags{limit: 500})
			if err != nil {
				return err
			}
			return c.print(sources, func(w io.Writer) { c.writeSources(w, sources) })
		},
	}
}

func (c *cli) writeSources(w io.Writer, sources []dispatcher.SourceStatus) {
	style, now := c.style(c.out), time.Now()
	t := table{style: style, header: []string{"SOURCE", "KIND", "STATE", "LAST", "NEXT", "ERROR"}, paint: map[int]func(string) string{2: style.status}}
	for _, s := range sources {
		t.add(s.DAG+"/"+s.Job, s.Kind, s.State, ago(s.LastFireAt, now), ago(s.NextFireAt, now), oneLine(s.Error, 80))
	}
	t.write(w)
}
