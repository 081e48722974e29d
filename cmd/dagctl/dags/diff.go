package dags

import (
	"fmt"
	"io"
	"net/url"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/dagctl/dagctl/cmd/dagctl/cli"
	"github.com/dagctl/dagctl/registry/deploy"
)

// DiffCommand returns `dagctl diff`.
func DiffCommand(c *cli.CLI) *cobra.Command {
	return &cobra.Command{
		Use:   "diff DAG V1 V2",
		Short: "Compare the texts and the datasets of two versions of a DAG",
		Long: `Prints a unified diff of the DAG file and the files that it names, and what a change from V1 to V2 does
to each dataset, as a plan shows it. A renamed job is the same one, and what else differs in it is said.`,
		Example: "  dagctl diff us-flights v7 v8",
		Args:    cobra.ExactArgs(3),
		RunE: func(cmd *cobra.Command, args []string) error {
			q := url.Values{}
			for i, name := range []string{"from", "to"} {
				n, err := versionNumber(args[i+1])
				if err != nil {
					return err
				}
				q.Set(name, strconv.Itoa(n))
			}

			api, err := c.Connect()
			if err != nil {
				return err
			}
			var diff deploy.VersionDiff
			if err := api.Get(cmd.Context(), cli.DAGPath(args[0])+"/diff", q, &diff); err != nil {
				return err
			}

			return c.Print(diff, func(w io.Writer) {
				writeUnified(c, w, diff.Text)
				if diff.Text != "" {
					fmt.Fprintln(w)
				}
				if len(diff.Records) > 0 {
					fmt.Fprintf(w, "Only the record of version %d is left, so datasets are not compared.\n",
						diff.Records[0])
					return
				}
				writeChanges(c, w, diff.Changes)
				writeRenames(w, diff.Jobs)
				for _, f := range diff.Findings {
					fmt.Fprintf(w, "%s.\n", sentence(f.Text))
				}
			})
		},
	}
}

// writeRenames says which jobs have other names, and what else is different in them.
func writeRenames(w io.Writer, jobs []deploy.JobChange) {
	for _, j := range jobs {
		if j.RenamedFrom == "" {
			continue
		}
		also := ""
		if len(j.Fields) > 0 {
			also = ", and differs in " + strings.Join(j.Fields, ", ")
		}
		fmt.Fprintf(w, "Job %s is renamed to %s%s.\n", j.RenamedFrom, j.Job, also)
	}
}

// writeUnified writes a unified diff, in color on a terminal. Control characters of the text do not reach the terminal.
func writeUnified(c *cli.CLI, w io.Writer, text string) {
	style := c.Style(w)
	for line := range strings.Lines(text) {
		line = cli.OneLine(strings.TrimRight(line, "\r\n"), 2000)
		switch {
		case strings.HasPrefix(line, "+++"), strings.HasPrefix(line, "---"):
			line = style.Bold(line)
		case strings.HasPrefix(line, "+"):
			line = style.Good(line)
		case strings.HasPrefix(line, "-"):
			line = style.Bad(line)
		}
		fmt.Fprintln(w, line)
	}
}
