package dags

import (
	"fmt"
	"io"
	"net/url"

	"github.com/spf13/cobra"

	"github.com/dagctl/dagctl/cmd/dagctl/cli"
	"github.com/dagctl/dagctl/dispatcher/notices"
	"github.com/dagctl/dagctl/dispatcher/views"
	"github.com/dagctl/dagctl/internal/plural"
	"github.com/dagctl/dagctl/internal/rest"
)

// NotifyCommand returns `dagctl notify` with its subcommand.
func NotifyCommand(c *cli.CLI) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "notify",
		Short: "Try whether notices of trouble arrive",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(&cobra.Command{
		Use:   "test [DAG]",
		Short: "Send a test message to each receiver that DAGs name under notify",
		Long: `Sends a test message to each receiver that a DAG names under notify, or that all DAGs name, and prints what
each of them answers. PagerDuty opens no incident for it. The exit code is 0 only if every message arrived.`,
		Example: "  dagctl notify test us-flights",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			api, err := c.Connect()
			if err != nil {
				return err
			}
			names := args
			if len(args) == 0 {
				all, err := cli.Fetch[views.DAGStatus](cmd.Context(), api, "/v1/dags", nil, cli.Page{Limit: 500})
				if err != nil {
					return err
				}
				for _, d := range all {
					names = append(names, d.Name)
				}
			} else if err := cli.RequireDAG(cmd.Context(), api, args[0]); err != nil {
				return err
			}

			answers := []notices.ReceiverAnswer{}
			for _, name := range names {
				var found rest.List[notices.ReceiverAnswer]
				path := "/v1/dags/" + url.PathEscape(name) + "/notify/test"
				if err := api.Post(cmd.Context(), path, nil, &found); err != nil {
					return err
				}
				answers = append(answers, found.Items...)
			}
			return printAnswers(c, args, answers)
		},
	})
	return cmd
}

// printAnswers prints what the receivers of a DAG, or of all of them, have said.
func printAnswers(c *cli.CLI, of []string, answers []notices.ReceiverAnswer) error {
	var lost int
	for _, a := range answers {
		if !a.Arrived {
			lost++
		}
	}

	err := c.Print(answers, func(w io.Writer) {
		switch {
		case len(answers) == 0 && len(of) > 0:
			fmt.Fprintf(w, "%s notifies nobody: its DAG file names no receiver under `notify`.\n", of[0])
			return
		case len(answers) == 0:
			fmt.Fprintln(w, "Nobody is notified: no DAG file names a receiver under `notify`.")
			return
		}
		style := c.Style(w)
		t := cli.Table{Style: style, Header: []string{"DAG", "FORMAT", "SECRET", "ARRIVED", "ANSWER"}}
		for _, a := range answers {
			arrived := map[bool]string{true: "yes", false: "no"}[a.Arrived]
			t.Add(a.DAG, a.Format, a.Secret, arrived, cli.OneLine(a.Said, 400))
		}
		t.Write(w)
	})
	if err == nil && lost > 0 {
		fmt.Fprintf(c.Err, "%s %s did not arrive\n", c.Style(c.Err).Bad("Error:"), plural.Of(lost, "message"))
		return cli.ErrReported
	}
	return err
}
