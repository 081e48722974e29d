package dags

import (
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/dagctl/dagctl/cmd/dagctl/cli"
	"github.com/dagctl/dagctl/dispatcher/attention"
)

// AttentionCommand returns `dagctl attention`.
func AttentionCommand(c *cli.CLI) *cobra.Command {
	return &cobra.Command{
		Use:   "attention",
		Short: "Show what needs a person now, and the command that helps",
		Long: `Lists what is late, out of attempts, withheld, blocked, in error or paused, queued without a worker, or waits to
be promoted: the most urgent first, with its owner and since when. The home page shows the same.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			api, err := c.Connect()
			if err != nil {
				return err
			}
			var found attention.Attention
			if err := api.Get(cmd.Context(), "/v1/attention", nil, &found); err != nil {
				return err
			}
			return c.Print(found, func(w io.Writer) { writeAttention(c, w, found, c.Now()) })
		},
	}
}

func writeAttention(c *cli.CLI, w io.Writer, found attention.Attention, now time.Time) {
	if len(found.Items) == 0 {
		fmt.Fprintln(w, "Nothing needs you.")
		return
	}
	style := c.Style(c.Out)
	t := cli.Table{Style: style, Header: []string{"WHAT", "KIND", "SINCE", "OWNER", "WHY", "COMMAND"}}
	for _, i := range found.Items {
		t.Add(i.What(), string(i.Kind), cli.Ago(i.Since, now), i.Owner, cli.OneLine(i.Text, 80), i.Command)
	}
	t.Write(w)
	if found.More {
		fmt.Fprintln(w, "There is more: `dagctl status` and `dagctl datasets list --late` list all.")
	}
}
