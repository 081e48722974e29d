package workers

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/dagctl/dagctl/cmd/dagctl/cli"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/worker/conformance"
)

// workerConformanceCommand returns `dagctl worker conformance`.
func workerConformanceCommand(c *cli.CLI) *cobra.Command {
	var (
		only    []string
		verbose bool
	)
	cmd := &cobra.Command{
		Use:   "conformance [flags] -- COMMAND [ARGUMENT...]",
		Short: "Check that an SDK speaks the worker protocol",
		Long: `Runs a program that was built with the SDK under test against a simulated server, which misses calls,
loses answers, refuses, cancels and drains. The program gets DAGCTL_URL, DAGCTL_TOKEN and DAGCTL_RUNTIME, and must offer
the functions that docs/conformance.md describes. The exit code is 1 if a check fails.`,
		Example: `  dagctl worker conformance -- ./my-worker
  dagctl worker conformance --only logs --only "fenced off" --verbose -- python3 worker.py`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			o := conformance.Options{Command: args, Only: only}
			if verbose {
				o.Stderr = c.Err
			}
			report, err := conformance.Run(cmd.Context(), o)
			if err != nil {
				return fault.New(fault.Invalid, "%w", err)
			}
			if err := c.Print(report, func(w io.Writer) { writeConformance(c, w, report) }); err != nil {
				return err
			}

			if report.Failed > 0 {
				return cli.ErrReported
			}
			return nil
		},
	}

	cmd.Flags().StringArrayVar(&only, "only", nil, "run only this scenario (repeatable)")
	cmd.Flags().BoolVar(&verbose, "verbose", false, "show the output of the program")
	_ = cmd.RegisterFlagCompletionFunc("only",
		cobra.FixedCompletions(conformance.Scenarios(), cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

// writeConformance writes the result of each check.
func writeConformance(c *cli.CLI, w io.Writer, report conformance.Report) {
	style := c.Style(c.Out)
	t := cli.Table{
		Style: style, Header: []string{"SCENARIO", "CHECK", "RESULT", "REASON"},
		Paint: map[int]func(string) string{2: style.Status},
	}
	for _, check := range report.Checks {
		result := "pass"
		if !check.Passed {
			result = "fail"
		}
		t.Add(check.Scenario, check.Check, result, check.Reason)
	}
	t.Write(w)
	fmt.Fprintf(w, "\n%d passed, %d failed\n", report.Passed, report.Failed)
}
