package main

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/worker/conformance"
)

func (c *cli) workerConformanceCommand() *cobra.Command {
	var (
		only    []string
		verbose bool
	)
	cmd := &cobra.Command{
		Use:   "conformance [flags] -- COMMAND [ARGUMENT...]",
		Short: "Check that an SDK speaks the worker protocol",
		Long: `Plays a server that some calls do not reach, that loses answers, refuses, cancels and drains, and runs a program
against it that was built with the SDK under test. The program gets DAGCTL_URL, DAGCTL_TOKEN and DAGCTL_RUNTIME and offers
the functions that docs/conformance.md describes. It ends with 1 if a check has not passed.`,
		Example: `  dagctl worker conformance -- ./my-worker
  dagctl worker conformance --only logs --only "fenced off" --verbose -- python3 worker.py`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			o := conformance.Options{Command: args, Only: only}
			if verbose {
				o.Stderr = c.err
			}
			report, err := conformance.Run(cmd.Context(), o)
			if err != nil {
				return fault.New(fault.Invalid, "%w", err)
			}
			if err := c.print(report, func(w io.Writer) { c.writeConformance(w, report) }); err != nil {
				return err
			}
			if report.Failed > 0 {
				return errReported
			}
			return nil
		},
	}
	cmd.Flags().StringArrayVar(&only, "only", nil, "play only this scenario (repeatable)")
	cmd.Flags().BoolVar(&verbose, "verbose", false, "show what the program writes")
	_ = cmd.RegisterFlagCompletionFunc("only", cobra.FixedCompletions(conformance.Scenarios(), cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

func (c *cli) writeConformance(w io.Writer, report conformance.Report) {
	t := table{style: c.style(c.out), header: []string{"SCENARIO", "CHECK", "RESULT", "REASON"}, paint: map[int]func(string) string{2: c.style(c.out).status}}
	for _, check := range report.Checks {
		result := "pass"
		if !check.Passed {
			result = "fail"
		}
		t.add(check.Scenario, check.Check, result, check.Reason)
	}
	t.write(w)
	fmt.Fprintf(w, "\n%d passed, %d failed\n", report.Passed, report.Failed)
}
