package main

import (
	"fmt"
	"io"
	"net/url"
	"time"

	"github.com/spf13/cobra"

	"github.com/dagctl/dagctl/registry"
)

func (c *cli) historyCommand() *cobra.Command {
	page := pageFlags{}
	cmd := &cobra.Command{
		Use:   "history DAG",
		Short: "List the versions of a DAG",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			api, err := c.connect()
			if err != nil {
				return err
			}
			versions, err := fetch[registry.PastVersion](cmd.Context(), api, "/v1/dags/"+url.PathEscape(args[0])+"/versions", nil, page)
			if err != nil {
				return err
			}
			return c.print(versions, func(w io.Writer) {
				style, now := c.style(c.out), time.Now()
				t := table{style: style, header: []string{"VERSION", "STATUS", "HASH", "DEPLOYED", "BY", "SERVED", "INSTANT UNTIL", "SOURCE", "ERROR"},
					paint: map[int]func(string) string{1: style.status}}
				for _, v := range versions {
					t.add(fmt.Sprintf("v%d", v.Number), string(v.Status)+boundOf(v.Version), short(v.Hash), ago(&v.CreatedAt, now),
						oneLine(v.CreatedBy, 30), served(v, now), instantUntil(v), oneLine(v.SourceRef, 20), oneLine(v.Error, 80))
				}
				t.write(w)
			})
		},
	}
	page.add(cmd)
	return cmd
}

// boundOf says what a forward-only version has left as it was.
func boundOf(v registry.Version) string {
	switch {
	case v.ForwardFrom != "":
		return ", forward-only from " + v.ForwardFrom
	case v.ForwardOnly:
		return ", forward-only"
	}
	return ""
}

// served tells when a version was last cut over to, why and by whom.
func served(v registry.PastVersion, now time.Time) string {
	if len(v.Activations) == 0 {
		return ""
	}
	last := v.Activations[0]
	return fmt.Sprintf("%s, %s by %s", ago(&last.At, now), last.Reason, oneLine(last.Actor, 30))
}

// instantUntil tells how long a rollback to the version is promised to be instant.
func instantUntil(v registry.PastVersion) string {
	switch {
	case v.Pinned:
		return "pinned"
	case v.InstantUntil == nil:
		return ""
	}
	return v.InstantUntil.Local().Format("2006-01-02 15:04")
}
