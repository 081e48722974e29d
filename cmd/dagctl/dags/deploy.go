// Package dags has the commands about a DAG as a whole: plan and deploy it, follow its build, cut over and roll back,
// show, compare, pin, pause and delete its versions.
package dags

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/dagctl/dagctl/cmd/dagctl/cli"
	"github.com/dagctl/dagctl/cmd/dagctl/dagfile"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/registry"
)

// deployOptions are the flags of a deploy.
type deployOptions struct {
	vars       []string
	sourceRef  string
	wait       bool
	noActivate bool
	supersede  bool
	cancel     bool
	removals   bool
	moves      bool
	breaking   bool
	resume     bool
	forward    forwardFlag
	yes        bool
}

// DeployCommand returns `dagctl deploy`.
func DeployCommand(c *cli.CLI) *cobra.Command {
	var options deployOptions
	cmd := &cobra.Command{
		Use:   "deploy [FILE|DIR|PLAN]",
		Short: "Deploy a DAG file, and wait until it serves",
		Long: `Creates an immutable version of the document, builds what it changes beside the live data, and swaps all
datasets in one transaction once everything is built. The same document is the same version: deploying it again changes
nothing. On a terminal, deploy first shows the plan and asks for agreement.

A plan saved with "dagctl plan --out" is deployed as it was planned, or refused with exit code 4 if the DAG has changed
since; --var and --forward-only belong to its plan and are refused here. A folder without a dag.yaml of its own stands
for all DAG files below it: deploy takes producers before the consumers of their datasets and stops at the first
failure. After a failed build, --resume continues the build of the same document: it keeps what was built and tries only
what failed.

During the build, deploy shows for each dataset the partitions done and in total, failures, the rate of the last minute
and an estimate of the time left, and the critical path: on a terminal redrawn in place, elsewhere one line per event.
With --output json the events go to standard error, one JSON object per line, and the deployed version to standard
output.

With --forward-only, the datasets to be rebuilt keep their existing partitions as they are, for good, and compute only
later ones. With --forward-only=PARTITION, they also compute that partition and the ones after it. This saves
computing a long history again, which may be impossible where the files that it was read from are gone.

A DAG has one build at a time. A deploy that rebuilds nothing passes a running build; any other deploy is refused until
the build has ended.`,
		Example: `  dagctl deploy
  dagctl deploy flights/dag.yaml --var region=eu --source-ref "$(git rev-parse HEAD)"
  dagctl deploy pipelines/ --yes
  dagctl deploy --resume
  dagctl deploy --forward-only=2026-01-01`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			path := "."
			if len(args) == 1 {
				path = args[0]
			}
			api, err := c.Connect()
			if err != nil {
				return err
			}

			if dagfile.Several(path) {
				return deployFolder(cmd.Context(), c, api, path, options)
			}
			deployed, err := deployPath(cmd.Context(), c, api, path, options)
			if err != nil {
				return err
			}
			return c.Print(deployed, func(w io.Writer) { writeServing(c, w, deployed.Version) })
		},
	}

	dagfile.VarFlag(cmd, &options.vars)
	flags := cmd.Flags()
	flags.BoolVar(&options.wait, "wait", true, "wait until the version serves or has failed")
	flags.BoolVar(&options.noActivate, "no-activate", false, "build, but do not cut over")
	flags.BoolVar(&options.supersede, "supersede", false, "abandon a running build of this DAG, but keep what it built")
	flags.BoolVar(&options.resume, "resume", false,
		"continue this document's failed or abandoned version, and try again what failed")
	flags.BoolVar(&options.cancel, "cancel-tasks", false,
		"cancel the open tasks of manual, timer and webhook jobs that the version removes (the plan says how many)")
	flags.BoolVar(&options.removals, "allow-removals", false,
		"let partitions go that are served and that the version does not have (the plan says which)")
	flags.BoolVar(&options.moves, "allow-moves", false,
		"let published names move to other datasets (the plan says which)")
	flags.BoolVar(&options.breaking, "allow-breaking", false,
		"let columns go or change that jobs of other DAGs may read (the plan says which)")
	options.forward.add(flags)
	flags.BoolVar(&options.yes, "yes", false, "do not ask")
	flags.StringVar(&options.sourceRef, "source-ref", "",
		"note for people where the file comes from, such as a git commit")
	return cmd
}

// deployPath deploys one document or saved plan, and waits for it unless the options say not to.
func deployPath(ctx context.Context, c *cli.CLI, api *cli.Client, path string, options deployOptions) (
	registry.Deployment, error,
) {
	request, name, err := requestFrom(ctx, c, api, path, options.vars, options.forward)
	if err != nil {
		return registry.Deployment{}, err
	}

	activate := !options.noActivate
	request.SourceRef, request.Activate = options.sourceRef, &activate
	request.Supersede, request.Resume, request.CancelTasks = options.supersede, options.resume, options.cancel
	request.AllowRemovals, request.AllowMoves, request.AllowBreaking = options.removals, options.moves, options.breaking
	options.forward.apply(&request)
	deployed, err := agreedDeploy(ctx, c, api, name, request, options.yes)
	if err != nil {
		return deployed, err
	}

	if options.wait {
		deployed.Version, err = waitForVersion(ctx, c, api, deployed.Version, activate)
	}
	return deployed, err
}

// writeServing writes a version with its status.
func writeServing(c *cli.CLI, w io.Writer, v registry.Version) {
	fmt.Fprintf(w, "%s v%d (%s) is %s\n", v.DAG, v.Number, short(v.Hash), c.Style(c.Out).Status(string(v.Status)))
}

// requestFrom reads what to deploy, a saved plan or a DAG file, and returns the name of the DAG with it.
func requestFrom(ctx context.Context, c *cli.CLI, api *cli.Client, path string, vars []string, forward forwardFlag) (
	registry.DeployRequest, string, error,
) {
	saved, isPlan, err := readPlan(path)
	if err == nil && isPlan {
		err = refuseFixed(path, vars, forward)
	}
	if err != nil || isPlan {
		return saved.Request, saved.Plan.DAG, err
	}
	src, err := dagfile.Read(path, vars)
	if err != nil {
		return registry.DeployRequest{}, "", err
	}
	return NewRequest(ctx, c, api, src)
}

// refuseFixed refuses flags that cannot change a saved plan any more: it has the document and its bound.
func refuseFixed(path string, vars []string, forward forwardFlag) error {
	flag := ""
	switch {
	case forward.given:
		flag = "--forward-only"
	case len(vars) > 0:
		flag = "--var"
	default:
		return nil
	}
	return fault.New(fault.Invalid, "%s is a saved plan, which %s cannot change", path, flag).
		WithHint("plan again with `dagctl plan FILE %s --out %s`, or deploy the DAG file", flag, path)
}

// NewRequest returns the request that deploys a DAG file, with the files that it names, and the name of the DAG. It
// validates the document against the server's catalog first, so that problems are reported with their lines.
func NewRequest(ctx context.Context, c *cli.CLI, api *cli.Client, src dagfile.Source) (
	registry.DeployRequest, string, error,
) {
	catalog, err := server{api}.Catalog(ctx)
	if err != nil {
		return registry.DeployRequest{}, "", err
	}
	doc, problems, err := src.Parse(catalog)
	if err != nil {
		return registry.DeployRequest{}, "", err
	}
	if len(problems) > 0 {
		return registry.DeployRequest{}, "", dagfile.Report(c, problems)
	}
	return requestFor(src, doc), doc.Name, nil
}

// PrintPlan prints what a deploy changes, dataset by dataset.
func PrintPlan(c *cli.CLI, w io.Writer, d registry.Deployment) {
	style := c.Style(w)
	verb := "new version"
	if !d.Created {
		verb = "deployed before"
	}
	fmt.Fprintf(w, "%s → v%d (%s), %s\n", style.Bold(d.Version.DAG), d.Version.Number, short(d.Version.Hash), verb)
	printChanges(c, w, d.Changes, 0)
	writeMeeting(w, d.Meets)
	writeCanceled(w, d.Cancels)
	writeFindings(w, "deploy", d.Findings, d.Version.Consents)
}

// SendDeploy sends a request to deploy.
func SendDeploy(ctx context.Context, api *cli.Client, dag string, request registry.DeployRequest) (
	registry.Deployment, error,
) {
	var deployed registry.Deployment
	err := api.Post(ctx, cli.DAGPath(dag)+"/versions", request, &deployed)
	return deployed, err
}

// short returns as much of a hash as people need.
func short(hash string) string { return hash[:min(len(hash), 7)] }
