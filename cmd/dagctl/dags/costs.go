package dags

import (
	"cmp"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"net/url"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/dagctl/dagctl/cmd/dagctl/cli"
	"github.com/dagctl/dagctl/dispatcher/usage"
	"github.com/dagctl/dagctl/web"
)

// CostsCommand returns `dagctl costs`.
func CostsCommand(c *cli.CLI) *cobra.Command {
	var by, since, until, step, dag string
	cmd := &cobra.Command{
		Use:   "costs",
		Short: "Show what jobs used, and what that costs",
		Long: `Sums the seconds of attempts, and the rows and bytes that they wrote, with what is stored now: by job, dataset,
owner, DAG or org, the most expensive first. Money is shown where the server's config has prices. Days are those of UTC.
Besides table, json and yaml, --output can be csv.`,
		Example: `  dagctl costs --by owner --since 2026-11-01
  dagctl costs --by dataset --step week --output csv > costs.csv`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := errors.Join(cli.OneOf("by", by, "job", "dataset", "owner", "dag", "org"),
				cli.OneOf("step", step, "hour", "day", "week")); err != nil {
				return err
			}
			q, times := url.Values{"by": {by}, "step": {step}}, map[string]time.Time{}
			for name, text := range map[string]string{"since": since, "until": until} {
				t, err := usage.ParseTime(text)
				if err != nil {
					return err
				}
				if times[name] = t; !t.IsZero() {
					q.Set(name, t.Format(time.RFC3339))
				}
			}
			if err := cli.InOrder("since", since, times["since"], "until", until, times["until"]); err != nil {
				return err
			}
			if dag != "" {
				q.Set("dag", dag)
			}

			api, err := c.Connect()
			if err != nil {
				return err
			}
			var found usage.Costs
			if err := api.Get(cmd.Context(), "/v1/costs", q, &found); err != nil {
				return cmp.Or(cli.RequireDAG(cmd.Context(), api, dag), err)
			}
			if c.Output == cli.OutputCSV {
				return costsCSV(c.Out, found)
			}
			return c.Print(found, func(w io.Writer) { writeCosts(c, w, found) })
		},
	}

	flags := cmd.Flags()
	flags.StringVar(&by, "by", string(usage.ByJob), "what the rows are about: job, dataset, owner, dag or org")
	flags.StringVar(&since, "since", "",
		"from this day or time on: 2026-01-31 or 2026-01-31T12:00:00Z (default: the last seven days)")
	flags.StringVar(&until, "until", "", "to this day, without it, or time (default: now)")
	flags.StringVar(&step, "step", string(usage.Day), "of trends: hour, day or week")
	flags.StringVar(&dag, "dag", "", "only this DAG")
	return cmd
}

// nameOf names a row, also one of what has no name.
func nameOf(r usage.Row) string {
	if name := r.Name(); name != "" {
		return name
	}
	return "-"
}

func writeCosts(c *cli.CLI, w io.Writer, found usage.Costs) {
	header := []string{"WHAT", "TASKS", "FAILED", "TIME", "ROWS", "WRITTEN", "STORED NOW", "SHARE"}
	if found.Currency != "" {
		header = append(header, found.Currency)
	}
	t := cli.Table{Style: c.Style(c.Out), Header: header}
	add := func(name string, a usage.Amount, share float64, money *float64) {
		cells := []string{name, strconv.FormatInt(a.Tasks, 10), strconv.FormatInt(a.Failed, 10),
			cli.Duration(time.Duration(a.Seconds * float64(time.Second))), strconv.FormatInt(a.Rows, 10),
			web.Size(a.Bytes), web.Size(a.Stored), fmt.Sprintf("%.0f%%", share*100)}
		if money != nil {
			cells = append(cells, fmt.Sprintf("%.2f", *money))
		}
		t.Add(cells...)
	}

	for _, r := range found.Rows {
		add(nameOf(r), r.Amount, r.Share, r.Money)
	}
	if o := found.Others; o != nil {
		add("others", o.Amount, o.Share, o.Money)
	}
	add("total", found.Total.Amount, 1, found.Total.Money)
	t.Write(w)
	fmt.Fprintf(w, "From %s to %s (UTC), counted until %s.\n", found.Since.Format("2006-01-02 15:04"),
		found.Until.Format("2006-01-02 15:04"), found.Counted.UTC().Format("15:04:05"))
}

// costsCSV writes a line for each row.
func costsCSV(w io.Writer, found usage.Costs) error {
	out := csv.NewWriter(w)
	lines := [][]string{{"what", "tasks", "failed", "attempts", "seconds", "rows", "bytes", "stored_bytes", "share",
		"money", "currency"}}
	whole := func(n int64) string { return strconv.FormatInt(n, 10) }
	decimal := func(v float64, digits int) string { return strconv.FormatFloat(v, 'f', digits, 64) }

	for _, r := range found.Rows {
		money := ""
		if r.Money != nil {
			money = decimal(*r.Money, 6)
		}
		lines = append(lines, []string{r.Name(), whole(r.Tasks), whole(r.Failed), whole(r.Attempts),
			decimal(r.Seconds, 3), whole(r.Rows), whole(r.Bytes), whole(r.Stored), decimal(r.Share, 4), money,
			found.Currency})
	}

	if err := out.WriteAll(lines); err != nil {
		return fmt.Errorf("write as CSV: %w", err)
	}
	return nil
}
