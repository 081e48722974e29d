package dags

import (
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/dagctl/dagctl/cmd/dagctl/cli"
	"github.com/dagctl/dagctl/dispatcher/httpapi"
	"github.com/dagctl/dagctl/dispatcher/tasks"
	"github.com/dagctl/dagctl/internal/fault"
)

const pauseHelp = `A pause belongs to a name: it stays through deploys and rollbacks, whichever version serves. Running
tasks run to their end, queued tasks wait, and sources do not fire. The server still records the work that arises, so
nothing is missing later: after "resume" it runs by itself, and a schedule catches up on missed times where the file
says catchup. Only an admin may pause the whole org.`

// PauseCommand returns `dagctl pause`.
func PauseCommand(c *cli.CLI) *cobra.Command {
	var (
		org     bool
		request httpapi.PauseRequest
	)
	cmd := &cobra.Command{
		Use:   "pause DAG[/JOB]",
		Short: "Let no task of a job, a DAG or the org begin",
		Long:  pauseHelp,
		Example: "  dagctl pause us-flights --reason \"the warehouse moves\"\n  dagctl pause us-flights/landing\n" +
			"  dagctl pause --org",
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			path, err := pausePath(args, org)
			if err != nil {
				return err
			}
			api, err := c.Connect()
			if err != nil {
				return err
			}
			var p tasks.Pause
			if err := api.Post(cmd.Context(), path, request, &p); err != nil {
				return err
			}
			return c.Print(p, func(w io.Writer) { fmt.Fprintf(w, "%s is paused\n", pausedName(args)) })
		},
	}

	cmd.Flags().BoolVar(&org, "org", false, "everything in the org")
	cmd.Flags().StringVar(&request.Reason, "reason", "", "why; shown to people who ask why nothing runs")
	return cmd
}

// ResumeCommand returns `dagctl resume`.
func ResumeCommand(c *cli.CLI) *cobra.Command {
	var org bool
	cmd := &cobra.Command{
		Use:   "resume DAG[/JOB]",
		Short: "End the pause of a job, a DAG or the org",
		Long:  pauseHelp,
		Args:  cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			path, err := pausePath(args, org)
			if err != nil {
				return err
			}
			api, err := c.Connect()
			if err != nil {
				return err
			}
			if err := api.Do(cmd.Context(), http.MethodDelete, path, nil, nil); err != nil {
				return err
			}
			return c.Print(struct{}{}, func(w io.Writer) { fmt.Fprintf(w, "%s is resumed\n", pausedName(args)) })
		},
	}

	cmd.Flags().BoolVar(&org, "org", false, "everything in the org")
	return cmd
}

// pausePath returns the path of the pause of a DAG, a job or the org.
func pausePath(args []string, org bool) (string, error) {
	if org == (len(args) == 1) {
		return "", fault.New(fault.Invalid, "give DAG, DAG/JOB or --org")
	}
	if org {
		return "/v1/org/pause", nil
	}
	dag, job, isJob := strings.Cut(args[0], "/")
	if dag == "" || isJob && job == "" {
		return "", fault.New(fault.Invalid, "%q is neither DAG nor DAG/JOB", args[0]).
			WithHint("`dagctl status DAG` lists a DAG's jobs")
	}
	if !isJob {
		return cli.DAGPath(dag) + "/pause", nil
	}
	return "/v1/jobs/" + url.PathEscape(dag) + "/" + url.PathEscape(job) + "/pause", nil
}

func pausedName(args []string) string {
	if len(args) == 0 {
		return "the org"
	}
	return args[0]
}

// pausedSince returns the time and reason of a pause, for a cell.
func pausedSince(p *tasks.Pause, now time.Time) string {
	if p == nil {
		return ""
	}
	return strings.TrimSpace(cli.Ago(&p.At, now) + cli.OneLine(because(p.Reason), 60))
}

func because(reason string) string {
	if reason == "" {
		return ""
	}
	return ": " + reason
}
