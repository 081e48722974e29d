package main

import (
	"context"
	"errors"
	"io"
	"slices"

	"github.com/spf13/cobra"

	"github.com/dagctl/dagctl/internal/fault"
)

// environment is the world that a command runs in; tests bring their own.
type environment struct {
	in     io.Reader
	out    io.Writer
	err    io.Writer
	getenv func(string) string
}

// cli is one invocation: its world and the flags that every command has.
type cli struct {
	environment
	target  string
	output  string
	dataDir string
}

// run executes one command line and returns the exit code.
func run(ctx context.Context, args []string, env environment) int {
	c := &cli{environment: env}
	root := c.rootCommand()
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	if errors.Is(context.Cause(ctx), errInterrupted) {
		return exitInterrupted
	}
	if err != nil {
		c.printError(err)
	}
	return exitCode(err)
}

// rootCommand holds the table of commands.
func (c *cli) rootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:   "dagctl",
		Short: "Deploy DAGs of jobs over datasets, and run them",
		Long: `dagctl describes a pipeline as one YAML file, deploys it as an immutable version, rebuilds only what an edit
really changes, and swaps every dataset of the DAG in one transaction.

Start with ` + "`dagctl init`" + ` and ` + "`dagctl dev`" + `.

Exit codes: 0 ok, 1 failed, 2 changes present (plan --detailed-exitcode), 3 aborted, 4 conflict, 5 server or network, 130 interrupted.`,
		SilenceErrors:     true,
		SilenceUsage:      true,
		Args:              cobra.NoArgs,
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error { return c.checkOutput(cmd) },
		RunE:              func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.SetIn(c.in)
	root.SetOut(c.out)
	root.SetErr(c.err)
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return fault.New(fault.Invalid, "%w", err).WithHint("`%s --help` lists the flags", cmd.CommandPath())
	})
	flags := root.PersistentFlags()
	flags.StringVar(&c.target, "target", "", "server to talk to: the name of a target, or a URL")
	flags.StringVarP(&c.output, "output", "o", "table", "output: table, json or yaml")
	flags.StringVar(&c.dataDir, "data", ".dagctl", "data folder of the dev server")
	_ = root.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(outputs, cobra.ShellCompDirectiveNoFileComp))

	root.AddGroup(
		&cobra.Group{ID: "author", Title: "Write a DAG:"},
		&cobra.Group{ID: "deploy", Title: "Deploy and run it:"},
		&cobra.Group{ID: "look", Title: "See what happens:"},
		&cobra.Group{ID: "upkeep", Title: "Keep and remove data:"},
		&cobra.Group{ID: "server", Title: "Run the server:"},
	)
	add := func(group string, commands ...*cobra.Command) {
		for _, cmd := range commands {
			cmd.GroupID = group
			root.AddCommand(cmd)
		}
	}
	add("author", c.initCommand(), c.validateCommand(), c.fmtCommand(), c.schemaCommand())
	add("deploy", c.planCommand(), c.deployCommand(), c.promoteCommand(), c.rollbackCommand(), c.abandonCommand(), c.historyCommand(), c.diffCommand(), c.runCommand(), c.eventsCommand(), c.timersCommand(), c.udfCommand())
	add("look", c.statusCommand(), c.whyCommand(), c.whyNotCommand(), c.tasksCommand(), c.datasetsCommand(), c.queryCommand(), c.sourcesCommand(), c.whoamiCommand())
	add("upkeep", c.pauseCommand(), c.resumeCommand(), c.deleteCommand(), c.rematerializeCommand(), c.backfillCommand(), c.invalidateCommand(), c.pinCommand(), c.unpinCommand(), c.gcCommand())
	add("server", c.devCommand(), c.serveCommand(), c.migrateCommand(), c.doctorCommand(), c.adminCommand(), c.workerCommand(), c.workersCommand(), c.tokensCommand())
	add("server", c.secretsCommand())
	root.AddCommand(c.targetCommand(), c.versionCommand())
	return root
}

// checkOutput refuses an unknown --output before anything is done.
func (c *cli) checkOutput(cmd *cobra.Command) error {
	if slices.Contains(outputs, c.output) || c.output == outputMarkdown && cmd.Name() == "plan" || c.output == outputCSV && cmd.Name() == "query" {
		return nil
	}
	return fault.New(fault.Invalid, "--output %q is not known", c.output).WithHint("use table, json or yaml")
}
