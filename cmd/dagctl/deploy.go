package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/url"
	"time"

	"github.com/spf13/cobra"

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
	resume     bool
	forward    forwardFlag
	yes        bool
}

func (c *cli) deployCommand() *cobra.Command {
	var options deployOptions
	cmd := &cobra.Command{
		Use:   "deploy [FILE|DIR|PLAN]",
		Short: "Deploy a DAG file, and wait until it serves",
		Long: `Makes an immutable version of the document, builds what it changes beside what is live, and swaps all datasets
in one transaction once everything is there. The same document is the same version: deploying it again changes nothing.
On a terminal the plan is shown first, and nothing starts before it is agreed to.

A plan kept with "dagctl plan --out" is deployed as it was planned, or refused with exit code 4 if the DAG has moved.
A folder without a dag.yaml of its own stands for all DAG files below it: producers are deployed before the consumers of
their datasets, and the first that fails ends it. After a failed build, --resume takes the same document up again: what it
built is kept, and only what failed is tried again.

While it builds, each dataset is shown with its partitions done and in all, failures, the rate of the last minute and the
time left by past tasks, and the critical path: on a terminal redrawn in place, elsewhere a line an event. With --output
json the events go to standard error, one JSON object a line, and the deployed version to standard output.

A long history need not be computed anew, and cannot be where the files it was read from are gone: --forward-only has what is
rebuilt keep the partitions there are as they are, for good, and compute those that come after; --forward-only=PARTITION
computes that partition and those after it, too.

A DAG has one build at a time. A deploy that rebuilds nothing passes a running build; any other is refused while it lasts.`,
		Example: "  dagctl deploy\n  dagctl deploy flights/dag.yaml --var region=eu --source-ref \"$(git rev-parse HEAD)\"\n  dagctl deploy pipelines/ --yes\n  dagctl deploy --resume\n  dagctl deploy --forward-only=2026-01-01",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			path := "."
			if len(args) == 1 {
				path = args[0]
			}
			api, err := c.connect()
			if err != nil {
				return err
			}
			if several(path) {
				return c.deployFolder(cmd.Context(), api, path, options)
			}
			deployed, err := c.deployPath(cmd.Context(), api, path, options)
			if err != nil {
				return err
			}
			return c.print(deployed, func(w io.Writer) { c.writeServing(w, deployed.Version) })
		},
	}
	varFlag(cmd, &options.vars)
	flags := cmd.Flags()
	flags.BoolVar(&options.wait, "wait", true, "wait until the version serves, or has failed")
	flags.BoolVar(&options.noActivate, "no-activate", false, "build, and do not cut over")
	flags.BoolVar(&options.supersede, "supersede", false, "abandon a running build of this DAG, and keep what it built")
	flags.BoolVar(&options.resume, "resume", false, "take this document's failed or abandoned version up again, and try what failed")
	flags.BoolVar(&options.cancel, "cancel-tasks", false, "cancel the open tasks of manual, timer and webhook jobs that go (the plan says how many)")
	options.forward.add(flags)
	flags.BoolVar(&options.yes, "yes", false, "do not ask")
	flags.StringVar(&options.sourceRef, "source-ref", "", "where the file is from, for people: a git commit")
	return cmd
}

// deployPath deploys one document or saved plan, and waits for it.
func (c *cli) deployPath(ctx context.Context, api *client, path string, options deployOptions) (registry.Deployment, error) {
	request, name, err := c.requestFrom(ctx, api, path, options.vars)
	if err != nil {
		return registry.Deployment{}, err
	}
	activate := !options.noActivate
	request.SourceRef, request.Activate, request.Supersede, request.Resume = options.sourceRef, &activate, options.supersede, options.resume
	options.forward.apply(&request)
	request.CancelTasks = options.cancel
	deployed, err := c.agreedDeploy(ctx, api, name, request, options.yes)
	if err != nil {
		return deployed, err
	}
	if options.wait {
		deployed.Version, err = c.waitForVersion(ctx, api, deployed.Version, activate)
	}
	return deployed, err
}

func (c *cli) writeServing(w io.Writer, v registry.Version) {
	fmt.Fprintf(w, "%s v%d (%s) is %s\n", v.DAG, v.Number, short(v.Hash), c.style(w).status(string(v.Status)))
}

// requestFrom reads what is to be deployed: a saved plan, with the version it was made against, or a DAG file.
func (c *cli) requestFrom(ctx context.Context, api *client, path string, vars []string) (registry.DeployRequest, string, error) {
	saved, isPlan, err := readPlan(path)
	if err != nil || isPlan {
		return saved.Request, saved.Plan.DAG, err
	}
	src, err := readSource(path, vars)
	if err != nil {
		return registry.DeployRequest{}, "", err
	}
	return c.deployRequest(ctx, api, src)
}

// deployRequest validates the document against what the server has, so that faults show with their lines, and collects
// the files it names.
func (c *cli) deployRequest(ctx context.Context, api *client, src source) (registry.DeployRequest, string, error) {
	var catalog registry.OperatorCatalog
	if err := api.get(ctx, "/v1/operators", nil, &catalog); err != nil {
		return registry.DeployRequest{}, "", err
	}
	doc, problems, err := src.parse(catalog.Catalog())
	if err != nil {
		return registry.DeployRequest{}, "", err
	}
	if len(problems) > 0 {
		return registry.DeployRequest{}, "", c.reportProblems(problems)
	}
	return registry.DeployRequest{YAML: string(src.text), Files: doc.Files, Vars: src.vars}, doc.Name, nil
}

// printPlan says what the deploy changes, dataset by dataset.
func (c *cli) printPlan(w io.Writer, d registry.Deployment) {
	style := c.style(w)
	verb := "new version"
	if !d.Created {
		verb = "deployed before"
	}
	fmt.Fprintf(w, "%s → v%d (%s), %s\n", style.bold(d.Version.DAG), d.Version.Number, short(d.Version.Hash), verb)
	c.printChanges(w, d.Changes, 0)
	writeMeeting(w, d.Meets)
	writeCanceled(w, d.Cancels)
}

func versionPath(dag string, number int) string {
	return fmt.Sprintf("/v1/dags/%s/versions/%d", url.PathEscape(dag), number)
}

func (c *client) deploy(ctx context.Context, dag string, request registry.DeployRequest) (registry.Deployment, error) {
	var deployed registry.Deployment
	err := c.post(ctx, "/v1/dags/"+url.PathEscape(dag)+"/versions", request, &deployed)
	return deployed, err
}

// short is enough of a hash for people.
func short(hash string) string { return hash[:min(len(hash), 7)] }

// pause waits, or returns early with the reason the command ends.
func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}

// compact is JSON without blanks, for a cell.
func compact(v json.RawMessage) string {
	if len(v) == 0 || string(v) == "null" {
		return ""
	}
	return string(v)
}
