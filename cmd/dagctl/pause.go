package main

import (
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/dagctl/dagctl/dispatcher"
	"github.com/dagctl/dagctl/internal/fault"
)

const pauseHelp = `A pause is of a name and holds over deploys and rollbacks, whichever version serves. What runs goes on to its end; what is
queued waits; sources do not fire. What is wanted goes on being decided, so nothing is missing afterwards: after "resume"
it goes on by itself, and a schedule makes up for what it missed where the file says catchup. A whole org takes an admin.`

func (c *cli) pauseCommand() *cobra.Command {
	var (
		org     bool
		request dispatcher.PauseRequest
	)
	cmd := &cobra.Command{
		Use:     "pause DAG[/JOB]",
		Short:   "Have no task of a job, a DAG or the org begin",
		Long:    pauseHelp,
		Example: "  dagctl pause us-flights --reason \"the warehouse moves\"\n  dagctl pause us-flights/landing\n  dagctl pause --org",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			path, err := pausePath(args, org)
			if err != nil {
				return err
			}
			api, err := c.connect()
			if err != nil {
				return err
			}
			var p dispatcher.Pause
			if err := api.post(cmd.Context(), path, request, &p); err != nil {
				return err
			}
			return c.print(p, func(w io.Writer) { fmt.Fprintf(w, "%s is paused\n", pausedName(args)) })
		},
	}
	cmd.Flags().BoolVar(&org, "org", false, "everything in the org")
	cmd.Flags().StringVar(&request.Reason, "reason", "", "why; shown to whoever asks why nothing runs")
	return cmd
}

func (c *cli) resumeCommand() *cobra.Command {
	var org bool
	cmd := &cobra.Command{
		Use:   "resume DAG[/JOB]",
		Short: "Let what was paused go on",
		Long:  pauseHelp,
		Args:  cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			path, err := pausePath(args, org)
			if err != nil {
				return err
			}
			api, err := c.connect()
			if err != nil {
				return err
			}
			if err := api.do(cmd.Context(), http.MethodDelete, path, nil, nil); err != nil {
				return err
			}
			return c.print(struct{}{}, func(w io.Writer) { fmt.Fprintf(w, "%s goes on\n", pausedName(args)) })
		},
	}
	cmd.Flags().BoolVar(&org, "org", false, "everything in the org")
	return cmd
}

// pausePath is the address of the pause of a DAG, a job or the org.
func pausePath(args []string, org bool) (string, error) {
	if org == (len(args) == 1) {
		return "", fault.New(fault.Invalid, "give DAG, DAG/JOB or --org")
	}
	if org {
		return "/v1/org/pause", nil
	}
	dag, job, isJob := strings.Cut(args[0], "/")
	if dag == "" || isJob && job == "" {
		return "", fault.New(fault.Invalid, "%q is neither DAG nor DAG/JOB", args[0]).WithHint("`dagctl status DAG` lists a DAG's jobs")
	}
	if !isJob {
		return dagPath(dag) + "/pause", nil
	}
	return "/v1/jobs/" + url.PathEscape(dag) + "/" + url.PathEscape(job) + "/pause", nil
}

func pausedName(args []string) string {
	if len(args) == 0 {
		return "the org"
	}
	return args[0]
}

// pausedSince is a pause, for a cell.
func pausedSince(p *dispatcher.Pause, now time.Time) string {
	if p == nil {
		return ""
	}
	return strings.TrimSpace(ago(&p.At, now) + oneLine(because(p.Reason), 60))
}

func because(reason string) string {
	if reason == "" {
		return ""
	}
	return ": " + reason
}
