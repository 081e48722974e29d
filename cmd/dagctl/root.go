package main

import (
	"context"
	"errors"

	"github.com/spf13/cobra"

	"github.com/dagctl/dagctl/cmd/dagctl/access"
	"github.com/dagctl/dagctl/cmd/dagctl/cli"
	"github.com/dagctl/dagctl/cmd/dagctl/dagfile"
	"github.com/dagctl/dagctl/cmd/dagctl/dagfile/lsp"
	"github.com/dagctl/dagctl/cmd/dagctl/dags"
	"github.com/dagctl/dagctl/cmd/dagctl/datasets"
	"github.com/dagctl/dagctl/cmd/dagctl/dev"
	"github.com/dagctl/dagctl/cmd/dagctl/server"
	"github.com/dagctl/dagctl/cmd/dagctl/tasks"
	"github.com/dagctl/dagctl/cmd/dagctl/workers"
)

// run executes one command line and returns the exit code.
func run(ctx context.Context, args []string, env cli.Environment) int {
	c := &cli.CLI{Environment: env}
	root := rootCommand(c)
	root.SetArgs(args)
	cmd, err := root.ExecuteContextC(ctx)
	err = ofArguments(cmd, err)

	if errors.Is(context.Cause(ctx), errInterrupted) {
		return cli.ExitInterrupted
	}
	if errors.Is(context.Cause(ctx), errTerminated) && errors.Is(err, context.Canceled) {
		return cli.ExitTerminated
	}
	if err != nil {
		if outputOf(args) == "json" {
			c.Output = "json" // it may stand behind what is wrong
		}
		c.PrintError(err)
	}
	return cli.ExitCode(err)
}

// rootCommand returns the command with all commands below it, in groups.
func rootCommand(c *cli.CLI) *cobra.Command {
	root := &cobra.Command{
		Use:   "dagctl",
		Short: "Deploy DAGs of jobs over datasets, and run them",
		Long: `dagctl describes a pipeline as one YAML file, deploys it as an immutable version, rebuilds only what an
edit really changes, and swaps every dataset of the DAG in one transaction.

Start with ` + "`dagctl init`" + ` and ` + "`dagctl dev`" + `.

Exit codes: 0 ok, 1 failed, 2 changes present (plan --detailed-exitcode), 3 aborted, 4 conflict, 5 server or network,
130 interrupted, 143 terminated.`,
		Version:       cli.Version(),
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          cobra.NoArgs,
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}

	root.SetVersionTemplate("dagctl {{.Version}}\n")
	root.SetIn(c.In)
	root.SetOut(c.Out)
	root.SetErr(c.Err)
	root.SetFlagErrorFunc(suggestFlag)
	c.AddFlags(root)

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
	add("author", dagfile.InitCommand(c), dagfile.ValidateCommand(c, dags.Server(c)), dagfile.FmtCommand(c),
		dagfile.SchemaCommand(c), lsp.Command(c))
	add("deploy", dags.PlanCommand(c), dags.DeployCommand(c), dags.PromoteCommand(c), dags.RollbackCommand(c),
		dags.AbandonCommand(c), dags.HistoryCommand(c), dags.DiffCommand(c), dags.UDFCommand(c),
		tasks.RunCommand(c), tasks.EventsCommand(c), tasks.TimersCommand(c))
	add("look", dags.StatusCommand(c), dags.AttentionCommand(c), dags.NotifyCommand(c), dags.CostsCommand(c),
		dags.SourcesCommand(c), tasks.WhyCommand(c),
		tasks.WhyNotCommand(c),
		tasks.Command(c), datasets.Command(c), datasets.QueryCommand(c),
		datasets.LineageCommand(c, dagfile.LineageExplainCommand(c)), access.WhoamiCommand(c))
	add("upkeep", dags.PauseCommand(c), dags.ResumeCommand(c), dags.DeleteCommand(c), dags.RematerializeCommand(c),
		dags.PinCommand(c), dags.UnpinCommand(c), tasks.BackfillCommand(c), datasets.InvalidateCommand(c),
		datasets.GCCommand(c))
	add("server", dev.Command(c), server.ServeCommand(c), server.MigrateCommand(c), server.DoctorCommand(c),
		workers.WorkerCommand(c), workers.WorkersCommand(c),
		access.AdminCommand(c), access.OrgCommand(c), access.UsersCommand(c), access.TrustCommand(c),
		access.TokensCommand(c), access.RolesCommand(c), access.SecretsCommand(c), access.AuditCommand(c))
	root.AddCommand(access.LoginCommand(c), access.LogoutCommand(c), c.TargetCommand(), c.VersionCommand())
	suggestCommands(root)
	refuseTwice(root)
	completeNames(c, root)
	return root
}
