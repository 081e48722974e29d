package dags

import (
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/dagctl/dagctl/cmd/dagctl/cli"
	"github.com/dagctl/dagctl/registry"
	"github.com/dagctl/dagctl/registry/deploy"
)

// HistoryCommand returns `dagctl history`.
func HistoryCommand(c *cli.CLI) *cobra.Command {
	page := cli.Page{}
	cmd := &cobra.Command{
		Use:   "history DAG",
		Short: "List the versions of a DAG",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			api, err := c.Connect()
			if err != nil {
				return err
			}
			path := cli.DAGPath(args[0]) + "/versions"
			versions, err := cli.Fetch[deploy.PastVersion](cmd.Context(), api, path, nil, page)
			if err != nil {
				return err
			}

			return c.Print(versions, func(w io.Writer) {
				style, now := c.Style(c.Out), c.Now()
				t := cli.Table{Style: style, Header: []string{
					"VERSION", "STATUS", "HASH", "DEPLOYED", "BY", "SERVED", "INSTANT UNTIL", "SOURCE", "ERROR",
				}, Paint: map[int]func(string) string{1: style.Status}}
				for _, v := range versions {
					t.Add(fmt.Sprintf("v%d", v.Number), string(v.Status)+terms(v.Version), short(v.Hash),
						cli.Ago(&v.CreatedAt, now), cli.OneLine(v.CreatedBy, 30), served(v, now), instantUntil(v),
						cli.OneLine(v.SourceRef, 20), cli.OneLine(v.Error, 80))
				}
				t.Write(w)
			})
		},
	}

	page.AddFlags(cmd)
	return cmd
}

// terms returns a note on how a version was deployed: forward-only, with the first partition that it computed, and what
// its deploy agreed to.
func terms(v registry.Version) string {
	note := ""
	switch {
	case v.ForwardFrom != "":
		note = ", forward-only from " + v.ForwardFrom
	case v.ForwardOnly:
		note = ", forward-only"
	}
	for _, c := range v.Consents {
		note += ", " + string(c)
	}
	return note
}

// served returns when a version was last activated, why and by whom.
func served(v deploy.PastVersion, now time.Time) string {
	if len(v.Activations) == 0 {
		return ""
	}
	last := v.Activations[0]
	return fmt.Sprintf("%s, %s by %s", cli.Ago(&last.At, now), last.Reason, cli.OneLine(last.Actor, 30))
}

// instantUntil returns until when a rollback to the version is certain to be instant.
func instantUntil(v deploy.PastVersion) string {
	switch {
	case v.ShrunkAt != nil:
		return "record only"
	case v.Pinned:
		return "pinned"
	case v.Purged:
		return "purged"
	case v.InstantUntil == nil:
		return ""
	}
	return v.InstantUntil.Local().Format("2006-01-02 15:04")
}
