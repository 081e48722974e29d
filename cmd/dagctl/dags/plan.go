package dags

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/dagctl/dagctl/cmd/dagctl/cli"
	"github.com/dagctl/dagctl/cmd/dagctl/dagfile"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/registry"
	"github.com/dagctl/dagctl/registry/deploy"
	"github.com/dagctl/dagctl/web"
)

// savedPlan is the content of a plan file: the plan that people look at, and the request that deploys exactly that.
type savedPlan struct {
	Format  int                    `json:"dagctl_plan"` // 1
	Plan    registry.Plan          `json:"plan"`
	Request registry.DeployRequest `json:"request"`
}

// PlanCommand returns `dagctl plan`.
func PlanCommand(c *cli.CLI) *cobra.Command {
	var (
		vars     []string
		forward  forwardFlag
		out      string
		detailed bool
	)
	cmd := &cobra.Command{
		Use:   "plan [FILE|DIR]",
		Short: "Show what a deploy would do",
		Long: `Shows for every dataset of the DAG whether a deploy would create, rebuild, reuse, swap or remove it, why,
and how much there is to compute. It changes nothing. The same function makes the plan of a deploy, so both agree.

--out saves the plan in a file. "dagctl deploy FILE" then deploys exactly that plan, or exits with 4 if the DAG has
changed since.`,
		Example: `  dagctl plan
  dagctl plan --detailed-exitcode --out flights.plan && dagctl deploy flights.plan
  dagctl plan --output markdown`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			path := "."
			if len(args) == 1 {
				path = args[0]
			}
			if dagfile.Several(path) {
				return planSeveral(path)
			}
			src, err := dagfile.Read(path, vars)
			if err != nil {
				return err
			}
			api, err := c.Connect()
			if err != nil {
				return err
			}
			request, name, err := NewRequest(cmd.Context(), c, api, src)
			if err != nil {
				return err
			}

			forward.apply(&request)
			plan, err := RequestPlan(cmd.Context(), api, name, request)
			if err != nil {
				return err
			}

			if out != "" {
				if err := writePlan(out, plan, request); err != nil {
					return err
				}
			}
			if c.Output == cli.OutputMarkdown {
				writeMarkdown(c.Out, plan)
			} else if err := c.Print(plan, func(w io.Writer) {
				writePlanned(c, w, plan)
				writeMeeting(w, plan.Meets)
				writeCanceled(w, plan.Cancels)
				writeFindings(w, "deploy", plan.Findings, nil)
			}); err != nil {
				return err
			}

			if detailed && changes(plan) {
				return cli.ErrChanges
			}
			return nil
		},
	}

	dagfile.VarFlag(cmd, &vars)
	forward.add(cmd.Flags())
	cmd.Flags().StringVar(&out, "out", "", "save the plan in a file, to deploy exactly that")
	cmd.Flags().BoolVar(&detailed, "detailed-exitcode", false,
		"exit with 2 if there are changes, with 0 if there are none")
	return cmd
}

// RequestPlan asks the server for the plan of a request.
func RequestPlan(ctx context.Context, api *cli.Client, dag string, request registry.DeployRequest) (
	registry.Plan, error,
) {
	var plan registry.Plan
	err := api.Post(ctx, cli.DAGPath(dag)+"/plan", request, &plan)
	return plan, err
}

// changes reports whether a deploy of the plan would change anything. An edit that changes no dataset, such as of
// limits, a schedule or a description, is a change too, because it makes a new version.
func changes(p registry.Plan) bool { return p.Status != registry.Active }

// baseNumber returns the number of the version that a plan starts from, or 0 if nothing is deployed.
func baseNumber(p registry.Plan) int {
	if p.Base == nil {
		return 0
	}
	return *p.Base
}

// baseName names the version that a plan starts from.
func baseName(p registry.Plan) string {
	if p.Base == nil {
		return "nothing deployed"
	}
	return fmt.Sprintf("base v%d", *p.Base)
}

// writePlan saves a plan in a file.
func writePlan(path string, plan registry.Plan, request registry.DeployRequest) error {
	base := baseNumber(plan)
	request.Base = &base
	text, err := json.MarshalIndent(savedPlan{Format: 1, Plan: plan, Request: request}, "", "  ")
	if err != nil {
		return err
	}
	if err := os.WriteFile(path, append(text, '\n'), 0o600); err != nil {
		return fault.New(fault.Invalid, "save the plan: %w", err)
	}
	return nil
}

// readPlan reads a saved plan, and reports whether the file is one.
func readPlan(path string) (savedPlan, bool, error) {
	text, err := os.ReadFile(path)
	if err != nil || !strings.HasPrefix(strings.TrimSpace(string(text)), "{") ||
		!strings.Contains(string(text), `"dagctl_plan"`) {
		return savedPlan{}, false, nil
	}
	var saved savedPlan
	if err := json.Unmarshal(text, &saved); err != nil {
		return savedPlan{}, true, fault.New(fault.Invalid, "%s is not a complete plan: %w", path, err).
			WithHint("write it again with `dagctl plan --out %s`", path)
	}
	if saved.Format != 1 {
		return savedPlan{}, true, fault.New(fault.Invalid,
			"%s is a plan of format %d, which this program does not know", path, saved.Format)
	}
	return saved, true, nil
}

// writePlanned writes the head of a plan and its changes.
func writePlanned(c *cli.CLI, w io.Writer, p registry.Plan) {
	fmt.Fprintf(w, "%s · %s → v%d (%s)\n", c.Style(w).Bold(p.DAG), baseName(p), p.Version, short(p.Hash))
	printChanges(c, w, p.Changes, p.CriticalSeconds)
}

// printChanges writes the table of a plan, its totals, and an estimate of the time that its longest chain takes.
func printChanges(c *cli.CLI, w io.Writer, list []registry.Change, critical float64) {
	if len(list) == 0 {
		return
	}
	counts := writeChanges(c, w, list)
	forward := ""
	if n := counts[deploy.ForwardOnly]; n > 0 {
		forward = fmt.Sprintf("%d forward-only, ", n)
	}

	fmt.Fprintf(w, "Plan: %d create, %d rebuild, %s%d swap-only, %d reuse, %d remove.",
		counts[deploy.Create], counts[deploy.Rebuild], forward,
		counts[deploy.SwapOnly], counts[deploy.Reuse], counts[deploy.Remove])
	if critical > 0 {
		fmt.Fprintf(w, " Critical path %s.", estimate(critical))
	}
	fmt.Fprintln(w, " Live data is untouched until cutover.")
	writeKept(w, list)
	writeConsumerCosts(c, w, list)
}

// costly returns what changes cost jobs of other DAGs, of those that compute again or may have to.
func costly(list []registry.Change) (costs []registry.Change) {
	for _, change := range list {
		change.ConsumerCosts = slices.DeleteFunc(slices.Clone(change.ConsumerCosts),
			func(cost registry.ConsumerCost) bool { return cost.Partitions != nil && *cost.Partitions == 0 })
		if len(change.ConsumerCosts) > 0 {
			costs = append(costs, change)
		}
	}
	return costs
}

// writeConsumerCosts writes what jobs of other DAGs compute again after the cutover.
func writeConsumerCosts(c *cli.CLI, w io.Writer, list []registry.Change) {
	list = costly(list)
	if len(list) == 0 {
		return
	}
	fmt.Fprintln(w, "\nAfter the cutover, these jobs of other DAGs compute again:")
	t := cli.Table{Style: c.Style(w), Header: []string{"JOB", "READS", "COLUMNS", "PARTITIONS", "TIME", "SIZE"}}
	for _, change := range list {
		for _, cost := range change.ConsumerCosts {
			t.Add(cost.Job, change.Dataset, strings.Join(cost.Columns, ", "), consumerPartitions(cost),
				estimate(cost.Seconds), estimatedSize(cost.Bytes))
		}
	}
	t.Write(w)
}

// consumerPartitions returns how many partitions a consumer computes again.
func consumerPartitions(cost registry.ConsumerCost) string {
	if cost.Partitions == nil {
		return "?"
	}
	return fmt.Sprint(*cost.Partitions)
}

// writeChanges writes the table of a plan, and returns how many changes there are of each action.
func writeChanges(c *cli.CLI, w io.Writer, list []registry.Change) (counts map[string]int) {
	marks := map[string]string{
		deploy.Create: "+", deploy.Rebuild: "~", deploy.ForwardOnly: "~",
		deploy.SwapOnly: ">", deploy.Reuse: "=", deploy.Remove: "-",
	}
	counts = map[string]int{}
	t := cli.Table{Style: c.Style(w), Header: []string{
		"", "DATASET", "ACTION", "REASON", "PARTITIONS", "TIME", "SIZE", "READ BY",
	}}
	for _, change := range list {
		counts[change.Action]++
		t.Add(marks[change.Action], change.Dataset, change.Action, change.Reason, partitionCount(change),
			estimate(change.Seconds), estimatedSize(change.Bytes), strings.Join(change.Consumers, ", "))
	}
	t.Write(w)
	return counts
}

// partitionCount returns how many partitions a change computes, and how many it leaves.
func partitionCount(c registry.Change) string {
	switch {
	case c.Action == deploy.Reuse || c.Action == deploy.Remove:
		return ""
	case c.Partitions == nil:
		return "?"
	case c.Kept > 0:
		return fmt.Sprintf("%d, %d stay", *c.Partitions, c.Kept)
	case c.Skipped > 0:
		return fmt.Sprintf("%d, %d skipped", *c.Partitions, c.Skipped)
	}
	return fmt.Sprint(*c.Partitions)
}

// estimate returns an estimated time for people, or an empty text where there is none.
func estimate(seconds float64) string {
	switch {
	case seconds <= 0:
		return ""
	case seconds < 1:
		return "<1s"
	}
	return "~" + time.Duration(seconds*float64(time.Second)).Round(time.Second).String()
}

func estimatedSize(n int64) string {
	if n <= 0 {
		return ""
	}
	return web.Size(n)
}

// writeMarkdown writes a plan for a pull request.
func writeMarkdown(w io.Writer, p registry.Plan) {
	fmt.Fprintf(w, "### `%s`: %s → v%d (`%s`)\n\n", p.DAG, baseName(p), p.Version, short(p.Hash))
	fmt.Fprintln(w, "| dataset | action | reason | partitions | time | size | read by |")
	fmt.Fprintln(w, "| --- | --- | --- | ---: | ---: | ---: | --- |")
	for _, c := range p.Changes {
		fmt.Fprintf(w, "| `%s` | %s | %s | %s | %s | %s | %s |\n", c.Dataset, c.Action, c.Reason,
			partitionCount(c), estimate(c.Seconds), estimatedSize(c.Bytes), strings.Join(c.Consumers, ", "))
	}

	if list := costly(p.Changes); len(list) > 0 {
		fmt.Fprint(w, "\nAfter the cutover, these jobs of other DAGs compute again:\n\n")
		fmt.Fprintln(w, "| job | reads | columns | partitions | time | size |")
		fmt.Fprintln(w, "| --- | --- | --- | ---: | ---: | ---: |")
		for _, change := range list {
			for _, cost := range change.ConsumerCosts {
				fmt.Fprintf(w, "| `%s` | `%s` | %s | %s | %s | %s |\n", cost.Job, change.Dataset,
					strings.ReplaceAll(strings.Join(cost.Columns, ", "), "*", `\*`), consumerPartitions(cost),
					estimate(cost.Seconds), estimatedSize(cost.Bytes))
			}
		}
	}

	var notes strings.Builder
	writeKept(&notes, p.Changes)
	writeMeeting(&notes, p.Meets)
	writeCanceled(&notes, p.Cancels)
	writeFindings(&notes, "deploy", p.Findings, nil)
	if notes.Len() > 0 {
		fmt.Fprintf(w, "\n%s", notes.String()) // a table ends with an empty line
	}
}

// planSeveral refuses the plan of a folder with several DAGs: that of a consumer depends on what its producers will
// serve, once they are deployed.
func planSeveral(dir string) error {
	folders, err := dagfile.Folders(dir)
	if err != nil {
		return err
	}
	if len(folders) == 0 {
		_, err := dagfile.Read(dir, nil)
		return err
	}
	return fault.New(fault.Invalid, "%s has several DAGs in it, and a plan is of one", dir).
		WithHint("name one of %s; `dagctl validate %s` checks all", strings.Join(folders, ", "), dir)
}
