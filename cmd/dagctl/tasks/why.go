package tasks

import (
	"context"
	"fmt"
	"io"
	"net/url"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"github.com/dagctl/dagctl/cmd/dagctl/cli"
	"github.com/dagctl/dagctl/dispatcher/why"
	"github.com/dagctl/dagctl/internal/fault"
)

// WhyCommand returns `dagctl why`.
func WhyCommand(c *cli.CLI) *cobra.Command {
	return &cobra.Command{
		Use:   "why TASK|DATASET|DATASET@PARTITION|JOB",
		Short: "Explain why a task, a dataset or a job makes no progress",
		Long: `Explains what a task, a dataset or a job (DAG/JOB) waits for: a missing input, a running task, a limit
and the tasks that hold it, a pause, the next attempt, or a build and what keeps it from serving. DATASET@PARTITION is
what why-not takes. With --output json each reason has a code whose meaning does not change.`,
		Example: `  dagctl why 0199a2f4-5c1e-7b0c-9a3e-1f2d3c4b5a69
  dagctl why daily_delays
  dagctl why daily_delays@2026-01-03
  dagctl why us-flights/landing`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			api, err := c.Connect()
			if err != nil {
				return err
			}
			why, err := askWhy(cmd.Context(), api, args[0])
			if err != nil {
				return err
			}

			return c.Print(why, func(w io.Writer) { writeWhy(c, w, why) })
		},
	}
}

// WhyNotCommand returns `dagctl why-not`.
func WhyNotCommand(c *cli.CLI) *cobra.Command {
	return &cobra.Command{
		Use:   "why-not DATASET PARTITION",
		Short: "Explain why readers do not see a partition, or not a newer revision of it",
		Long: `Explains why a partition of a dataset does not exist, or was not made from the latest revisions of its
inputs: what it waits for, as far upstream as that goes. Of one that exists it says so too if its file is gone or cannot
be read, and how to mend that. With --output json each reason has a code whose meaning does not change.`,
		Example: "  dagctl why-not daily_delays 2026-01-03",
		Args:    cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			api, err := c.Connect()
			if err != nil {
				return err
			}
			why, err := askWhyNot(cmd.Context(), api, args[0], args[1])
			if err != nil {
				return err
			}

			return c.Print(why, func(w io.Writer) { writeWhy(c, w, why) })
		},
	}
}

// askWhyNot asks about a partition of a dataset.
func askWhyNot(ctx context.Context, api *cli.Client, dataset, partition string) (why why.Why, err error) {
	switch {
	case dataset == "":
		return why, fault.New(fault.Invalid, "@%s names no dataset", partition).
			WithHint("write DATASET@PARTITION; `dagctl datasets list` lists the datasets")
	case partition == "":
		return why, fault.New(fault.Invalid, "no partition of %s is named", dataset).
			WithHint("`dagctl datasets partitions %[1]s` lists them; `dagctl why %[1]s` is about all of it", dataset)
	}
	err = api.Get(ctx, cli.DatasetPath(dataset)+"/partitions/"+url.PathEscape(partition)+"/why-not", nil, &why)
	return why, err
}

// askWhy asks about a task, a job or a dataset, according to the form of the name: an id is that of a task or of a
// dataset, DAG/JOB that of a job, DATASET@PARTITION that of a partition, and anything else that of a dataset.
func askWhy(ctx context.Context, api *cli.Client, name string) (why why.Why, err error) {
	if _, notID := uuid.Parse(name); notID == nil {
		if err = api.Get(ctx, "/v1/tasks/"+url.PathEscape(name)+"/why", nil, &why); !fault.Is(err, fault.NotFound) {
			return why, err
		}
		if api.Get(ctx, cli.DatasetPath(name)+"/why", nil, &why) == nil {
			return why, nil
		}
		return why, err
	}

	if dataset, partition, ok := strings.Cut(name, "@"); ok && strings.Count(dataset, "/") != 1 {
		return askWhyNot(ctx, api, dataset, partition)
	}
	if dag, job, ok := strings.Cut(name, "/"); ok && strings.Contains(job, "@") {
		id, err := newestTask(ctx, api, dag, job)
		if err == nil {
			err = api.Get(ctx, "/v1/tasks/"+id.String()+"/why", nil, &why)
		}
		return why, err
	}
	if dag, job, ok := strings.Cut(name, "/"); ok && !strings.Contains(job, "/") {
		err = api.Get(ctx, "/v1/jobs/"+url.PathEscape(dag)+"/"+url.PathEscape(job)+"/why", nil, &why)
		return why, err
	}
	err = api.Get(ctx, cli.DatasetPath(name)+"/why", nil, &why)
	if fault.Is(err, fault.NotFound) && startOfID.MatchString(name) && len(name) >= fewest {
		id, notTask := findTask(ctx, api, name)
		if fault.Is(notTask, fault.NotFound) {
			return why, err
		}
		if err = notTask; err == nil {
			err = api.Get(ctx, "/v1/tasks/"+id.String()+"/why", nil, &why)
		}
	}
	return why, err
}

// writeWhy writes the reasons as a tree.
func writeWhy(c *cli.CLI, w io.Writer, why why.Why) {
	style := c.Style(c.Out)
	name := why.Dataset
	if name == "" {
		name = why.DAG + "/" + why.Job
	}
	if why.Task != nil {
		name = "task " + why.Task.String() + " of " + name
	}
	head := style.Bold(cli.OneLine(name, 300)) + " " + cli.Whole(why.Partition) + " " + style.Status(why.State)
	fmt.Fprintln(w, strings.TrimSpace(head))
	if len(why.Reasons) == 0 {
		fmt.Fprintln(w, "└─ nothing holds it up")
	}
	writeReasons(c, w, why.Reasons, "", why.At)
}

// writeReasons writes one level of the tree, and the levels below it.
func writeReasons(c *cli.CLI, w io.Writer, reasons []why.Reason, indent string, now time.Time) {
	style := c.Style(c.Out)
	for i, r := range reasons {
		branch, below := "├─ ", "│  "
		if i == len(reasons)-1 {
			branch, below = "└─ ", "   "
		}

		text := cli.OneLine(r.Text, 400)
		if r.Until != nil && r.Code != why.WhyRunning { // of one that runs, only the lease ends then
			text += style.Dim(" (" + cli.Ago(r.Until, now) + ")")
		}
		if r.Task != nil {
			text += style.Dim(" task " + r.Task.String())
		}

		fmt.Fprintln(w, indent+branch+text)
		cli.WriteTraceback(w, indent+below, r.Text)
		writeReasons(c, w, r.Because, indent+below, now)
	}
}
