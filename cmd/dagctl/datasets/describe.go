package datasets

import (
	"cmp"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/dagctl/dagctl/cmd/dagctl/cli"
	"github.com/dagctl/dagctl/registry"
	"github.com/dagctl/dagctl/registry/catalog"
	"github.com/dagctl/dagctl/web"
)

func datasetsGetCommand(c *cli.CLI) *cobra.Command {
	return &cobra.Command{
		Use:   "get NAME",
		Short: "Show a dataset: columns, figures, checks, where it comes from, who reads it",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			api, err := c.Connect()
			if err != nil {
				return err
			}
			var d described
			if err := api.Get(cmd.Context(), cli.DatasetPath(args[0]), nil, &d.Dataset); err != nil {
				return err
			}
			if err := api.Get(cmd.Context(), cli.DatasetPath(args[0])+"/profile", nil, &d.Profile); err != nil {
				return err
			}

			return c.Print(d, func(w io.Writer) { writeDataset(c, w, d) })
		},
	}
}

// described is a dataset with what is known about it.
type described struct {
	registry.Dataset
	Profile catalog.Profile `json:"profile"`
}

// writeDataset writes what is known about a dataset.
func writeDataset(c *cli.CLI, w io.Writer, d described) {
	style, now := c.Style(c.Out), c.Now()
	field := func(name, value string) {
		if value != "" {
			fmt.Fprintf(w, "%-12s %s\n", name, value)
		}
	}
	field("Dataset", style.Bold(d.Name))
	field("Description", cli.OneLine(d.Description, 300))
	field("Owner", cli.OneLine(d.Owner, 100))
	field("Tags", cli.OneLine(strings.Join(d.Tags, ", "), 100))
	field("Made by", fmt.Sprintf("%s/%s, output %d", d.DAG, d.Job, d.Output))
	field("Made from", cli.OneLine(strings.Join(inputNames(d.Profile.Producer.Inputs), ", "), 300))
	field("Consumers", cli.OneLine(strings.Join(consumerNames(d.Profile.Consumers), ", "), 300))
	field("Storage", d.Storage)
	field("Readers", strings.Join(d.ReadRoles, ", "))
	if d.Version == nil {
		field("Served", "nothing yet")
	} else {
		field("Served", d.Version.String())
	}
	field("Partitions", fmt.Sprint(d.Partitions))
	field("Rows", fmt.Sprint(d.Rows))
	field("Size", web.Size(d.Bytes))
	field("Updated", cli.Ago(d.UpdatedAt, now))
	field("Late", LateSince(d.Late, now))
	if d.Reading != nil {
		field("Read as", cli.OneLine(d.Reading.String(), 200))
	}
	if d.BadRows != nil {
		field("Bad rows", cli.OneLine(d.BadRows.String(), 200))
	}

	if len(d.Columns) > 0 {
		fmt.Fprintln(w)
		t := cli.Table{Style: style, Header: []string{"COLUMN", "TYPE", "DESCRIPTION"}}
		for _, column := range d.Columns {
			t.Add(column.Name, column.Type, cli.OneLine(column.Description, 100))
		}
		t.Write(w)
	}

	writeProfile(w, style, d.Profile, now)
	writeWithheld(c, w, d.Withheld)
}

// hidden stands for what the caller may not see.
const hidden = "(hidden)"

func inputNames(inputs []catalog.Input) (names []string) {
	for _, in := range inputs {
		names = append(names, cmp.Or(in.Dataset, hidden))
	}
	return names
}

func consumerNames(consumers []catalog.Consumer) (names []string) {
	for _, c := range consumers {
		if c.Hidden {
			names = append(names, hidden)
			continue
		}
		names = append(names, c.DAG+"/"+c.Job)
	}
	return names
}

// writeProfile writes checks, deploys and readers.
func writeProfile(w io.Writer, style cli.Style, p catalog.Profile, now time.Time) {
	if len(p.Checks) > 0 {
		fmt.Fprintln(w)
		t := cli.Table{Style: style, Header: []string{"CHECK", "SEVERITY", "LAST", "WHEN", "PASSED", "FAILED"},
			Paint: map[int]func(string) string{2: style.Status}}
		for _, k := range p.Checks {
			t.Add(cli.OneLine(k.Name, 40), k.Severity, k.Outcome, cli.Ago(&k.At, now), fmt.Sprint(k.Passed),
				fmt.Sprint(k.Failed))
		}
		t.Write(w)
	}

	if len(p.Deploys) > 0 {
		fmt.Fprintln(w)
		t := cli.Table{Style: style, Header: []string{
			"DEPLOYED", "VERSION", "BEFORE", "REASON", "BY", "DATASET VERSION",
		}}
		for _, d := range p.Deploys {
			before := ""
			if d.From != nil {
				before = fmt.Sprintf("v%d", *d.From)
			}
			t.Add(cli.Ago(&d.At, now), fmt.Sprintf("v%d", d.Version), before, d.Reason, d.Actor, d.Generation.String())
		}
		t.Write(w)
	}

	if len(p.Readers) > 0 {
		fmt.Fprintln(w)
		t := cli.Table{Style: style, Header: []string{"READ BY", "READS, 30 DAYS", "ROWS", "LAST"}}
		for _, r := range p.Readers {
			t.Add(r.Actor, fmt.Sprint(r.Reads), fmt.Sprint(r.Rows), cli.Ago(&r.Last, now))
		}
		t.Write(w)
	}
}
