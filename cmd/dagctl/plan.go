package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/registry"
	"github.com/dagctl/dagctl/web"
)

// errChanges ends a plan with changes where --detailed-exitcode asks for that.
var errChanges = errors.New("changes are present")

// savedPlan is a plan in a file: what was looked at, and all that a deploy of just that needs.
type savedPlan struct {
	Format  int                    `json:"dagctl_plan"` // 1
	Plan    registry.Plan          `json:"plan"`
	Request registry.DeployRequest `json:"request"`
}

func (c *cli) planCommand() *cobra.Command {
	var (
		vars     []string
		forward  forwardFlag
		out      string
		detailed bool
	)
	cmd := &cobra.Command{
		Use:   "plan [FILE|DIR]",
		Short: "Say what a deploy would do",
		Long: `Says for every dataset of the DAG whether a deploy would create, rebuild, reuse, swap or remove it, and why, and how much
there is to compute. Nothing is changed. The deploy does the same: both come from one function.

With --out the plan is kept in a file; "dagctl deploy FILE" then does just that, and exits 4 if the DAG has moved since.`,
		Example: "  dagctl plan\n  dagctl plan --detailed-exitcode --out flights.plan && dagctl deploy flights.plan\n  dagctl plan --output markdown",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			path := "."
			if len(args) == 1 {
				path = args[0]
			}
			src, err := readSource(path, vars)
			if err != nil {
				return err
			}
			api, err := c.connect()
			if err != nil {
				return err
			}
			request, name, err := c.deployRequest(cmd.Context(), api, src)
			if err != nil {
				return err
			}
			forward.apply(&request)
			plan, err := api.plan(cmd.Context(), name, request)
			if err != nil {
				return err
			}
			if out != "" {
				if err := writePlan(out, plan, request); err != nil {
					return err
				}
			}
			if c.output == outputMarkdown {
				writeMarkdown(c.out, plan)
			} else if err := c.print(plan, func(w io.Writer) {
				fmt.Fprintf(w, "%s · %s → v%d (%s)\n", c.style(w).bold(plan.DAG), baseName(plan), plan.Version, short(plan.Hash))
				c.printChanges(w, plan.Changes, plan.CriticalSeconds)
				writeMeeting(w, plan.Meets)
				writeCanceled(w, plan.Cancels)
			}); err != nil {
				return err
			}
			if detailed && changes(plan) {
				return errChanges
			}
			return nil
		},
	}
	varFlag(cmd, &vars)
	forward.add(cmd.Flags())
	cmd.Flags().StringVar(&out, "out", "", "keep the plan in a file, to deploy just that")
	cmd.Flags().BoolVar(&detailed, "detailed-exitcode", false, "exit 2 where there are changes, 0 where there are none")
	return cmd
}

func (c *client) plan(ctx context.Context, dag string, request registry.DeployRequest) (registry.Plan, error) {
	var plan registry.Plan
	err := c.post(ctx, "/v1/dags/"+url.PathEscape(dag)+"/plan", request, &plan)
	return plan, err
}

// changes reports whether a deploy of the plan would change anything. A definition that changes no dataset (limits, a
// schedule, a description) is a change too: it makes another version.
func changes(p registry.Plan) bool { return p.Status != registry.Active }

func baseName(p registry.Plan) string {
	if p.Base == nil {
		return "nothing deployed"
	}
	return fmt.Sprintf("base v%d", *p.Base)
}

func writePlan(path string, plan registry.Plan, request registry.DeployRequest) error {
	base := 0
	if plan.Base != nil {
		base = *plan.Base
	}
	request.Base = &base
	text, err := json.MarshalIndent(savedPlan{Format: 1, Plan: plan, Request: request}, "", "  ")
	if err != nil {
		return err
	}
	if err := os.WriteFile(path, append(text, '\n'), 0o600); err != nil {
		return fault.New(fault.Invalid, "keep the plan: %w", err)
	}
	return nil
}

// readPlan reads a saved plan; false where the file is not one.
func readPlan(path string) (savedPlan, bool, error) {
	text, err := os.ReadFile(path)
	if err != nil || !strings.HasPrefix(strings.TrimSpace(string(text)), "{") || !strings.Contains(string(text), `"dagctl_plan"`) {
		return savedPlan{}, false, nil
	}
	var saved savedPlan
	if err := json.Unmarshal(text, &saved); err != nil {
		return savedPlan{}, true, fault.New(fault.Invalid, "%s is not a whole plan: %w", path, err).WithHint("make it again with `dagctl plan --out %s`", path)
	}
	if saved.Format != 1 {
		return savedPlan{}, true, fault.New(fault.Invalid, "%s is a plan of format %d, which this program does not know", path, saved.Format)
	}
	return saved, true, nil
}

// printChanges is the table of a plan, with its sum and how long its longest chain is estimated to take.
func (c *cli) printChanges(w io.Writer, list []registry.Change, critical float64) {
	if len(list) == 0 {
		return
	}
	counts := c.writeChanges(w, list)
	forward := ""
	if n := counts[registry.ForwardOnly]; n > 0 {
		forward = fmt.Sprintf("%d forward-only, ", n)
	}
	fmt.Fprintf(w, "Plan: %d create, %d rebuild, %s%d swap-only, %d reuse, %d remove.", counts[registry.Create], counts[registry.Rebuild], forward,
		counts[registry.SwapOnly], counts[registry.Reuse], counts[registry.Remove])
	if critical > 0 {
		fmt.Fprintf(w, " Critical path %s.", estimate(critical))
	}
	fmt.Fprintln(w, " Live data is untouched until cutover.")
	writeKept(w, list)
}

// writeChanges is the table of a plan, and counts what is in it.
func (c *cli) writeChanges(w io.Writer, list []registry.Change) (counts map[string]int) {
	marks := map[string]string{
		registry.Create: "+", registry.Rebuild: "~", registry.ForwardOnly: "~", registry.SwapOnly: ">", registry.Reuse: "=", registry.Remove: "-",
	}
	counts = map[string]int{}
	t := table{style: c.style(w), header: []string{"", "DATASET", "ACTION", "REASON", "PARTITIONS", "TIME", "SIZE", "READ BY"}}
	for _, change := range list {
		counts[change.Action]++
		t.add(marks[change.Action], change.Dataset, change.Action, change.Reason, partitionCount(change), estimate(change.Seconds),
			estimatedSize(change.Bytes), strings.Join(change.Consumers, ", "))
	}
	t.write(w)
	return counts
}

func partitionCount(c registry.Change) string {
	switch {
	case c.Action == registry.Reuse || c.Action == registry.Remove:
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

// writeMarkdown is the plan for a pull request.
func writeMarkdown(w io.Writer, p registry.Plan) {
	fmt.Fprintf(w, "### `%s`: %s → v%d (`%s`)\n\n", p.DAG, baseName(p), p.Version, short(p.Hash))
	fmt.Fprintln(w, "| dataset | action | reason | partitions | time | size | read by |")
	fmt.Fprintln(w, "| --- | --- | --- | ---: | ---: | ---: | --- |")
	for _, c := range p.Changes {
		fmt.Fprintf(w, "| `%s` | %s | %s | %s | %s | %s | %s |\n", c.Dataset, c.Action, c.Reason, partitionCount(c), estimate(c.Seconds),
			estimatedSize(c.Bytes), strings.Join(c.Consumers, ", "))
	}
	var notes strings.Builder
	writeKept(&notes, p.Changes)
	writeMeeting(&notes, p.Meets)
	writeCanceled(&notes, p.Cancels)
	if notes.Len() > 0 {
		fmt.Fprintf(w, "\n%s", notes.String()) // a table ends with an empty line
	}
}
