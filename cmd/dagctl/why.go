package main

import (
	"context"
	"fmt"
	"io"
	"net/url"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"github.com/dagctl/dagctl/dispatcher"
	"github.com/dagctl/dagctl/internal/fault"
)

func (c *cli) whyCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "why TASK|DATASET|JOB",
		Short: "Say why a task does not run, or a dataset or job is not further than it is",
		Long: `Says why a task is where it is, why a dataset is not further than it is, or what a job (DAG/JOB) does: what it waits for,
down to the missing input, the running task, the limit and who holds it, the pause, the next attempt, the build and what keeps
it from serving. With --output json each reason has a code that keeps its meaning.`,
		Example: "  dagctl why 0199a2f4-5c1e-7b0c-9a3e-1f2d3c4b5a69\n  dagctl why daily_delays\n  dagctl why us-flights/landing",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			api, err := c.connect()
			if err != nil {
				return err
			}
			why, err := askWhy(cmd.Context(), api, args[0])
			if err != nil {
				return err
			}
			return c.print(why, func(w io.Writer) { c.writeWhy(w, why) })
		},
	}
}

func (c *cli) whyNotCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "why-not DATASET PARTITION",
		Short: "Say why readers do not see a partition, or not a newer one",
		Long: `Says why a partition of a dataset is not there, or is not made from what its inputs have by now: what it waits for,
upstream as far as it goes. With --output json each reason has a code that keeps its meaning.`,
		Example: "  dagctl why-not daily_delays 2026-01-03",
		Args:    cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			api, err := c.connect()
			if err != nil {
				return err
			}
			var why dispatcher.Why
			if err := api.get(cmd.Context(), datasetPath(args[0])+"/partitions/"+url.PathEscape(args[1])+"/why-not", nil, &why); err != nil {
				return err
			}
			return c.print(why, func(w io.Writer) { c.writeWhy(w, why) })
		},
	}
}

// askWhy tells by its form what a name is of: an id is a task's, or a dataset's; DAG/JOB is a job's, and otherwise it is a
// dataset's.
func askWhy(ctx context.Context, api *client, name string) (why dispatcher.Why, err error) {
	if _, notID := uuid.Parse(name); notID == nil {
		if err = api.get(ctx, "/v1/tasks/"+url.PathEscape(name)+"/why", nil, &why); !fault.Is(err, fault.NotFound) {
			return why, err
		}
		if api.get(ctx, datasetPath(name)+"/why", nil, &why) == nil {
			return why, nil
		}
		return why, err
	}
	if dag, job, ok := strings.Cut(name, "/"); ok && !strings.Contains(job, "/") {
		err = api.get(ctx, "/v1/jobs/"+url.PathEscape(dag)+"/"+url.PathEscape(job)+"/why", nil, &why)
		return why, err
	}
	err = api.get(ctx, datasetPath(name)+"/why", nil, &why)
	return why, err
}

// writeWhy draws the tree.
func (c *cli) writeWhy(w io.Writer, why dispatcher.Why) {
	style := c.style(c.out)
	name := why.Dataset
	if name == "" {
		name = why.DAG + "/" + why.Job
	}
	if why.Task != nil {
		name = "task " + why.Task.String() + " of " + name
	}
	fmt.Fprintln(w, strings.TrimSpace(style.bold(oneLine(name, 300))+" "+oneLine(why.Partition, 200)+" "+style.status(why.State)))
	if len(why.Reasons) == 0 {
		fmt.Fprintln(w, "└─ nothing holds it up")
	}
	c.writeReasons(w, why.Reasons, "", why.At)
}

func (c *cli) writeReasons(w io.Writer, reasons []dispatcher.Reason, indent string, now time.Time) {
	style := c.style(c.out)
	for i, r := range reasons {
		branch, below := "├─ ", "│  "
		if i == len(reasons)-1 {
			branch, below = "└─ ", "   "
		}
		text := oneLine(r.Text, 400)
		if r.Until != nil {
			text += style.dim(" (" + ago(r.Until, now) + ")")
		}
		if r.Task != nil {
			text += style.dim(" task " + r.Task.String())
		}
		fmt.Fprintln(w, indent+branch+text)
		c.writeReasons(w, r.Because, indent+below, now)
	}
}
