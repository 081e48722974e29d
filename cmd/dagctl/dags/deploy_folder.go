package dags

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/dagctl/dagctl/cmd/dagctl/cli"
	"github.com/dagctl/dagctl/cmd/dagctl/dagfile"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/registry"
)

// deployFolder deploys every DAG file below a folder, producers first. Each one waits until those before it serve,
// because an input from another DAG binds to what is served. The first failure ends the command.
func deployFolder(ctx context.Context, c *cli.CLI, api *cli.Client, dir string, options deployOptions) error {
	if !options.wait || options.noActivate {
		return fault.New(fault.Invalid,
			"%s has several DAGs in it, and each one can only be deployed once those it reads serve", dir).
			WithHint("leave out --wait=false and --no-activate, or deploy one DAG at a time")
	}
	vars, err := dagfile.ParseVars(options.vars)
	if err != nil {
		return err
	}
	dags, err := dagfile.Find(dir, vars)
	if err != nil {
		return err
	}

	for _, d := range dags {
		if len(d.Problems) > 0 {
			return dagfile.Report(c, d.Problems)
		}
	}

	if err := dagfile.RefuseCircle(dags); err != nil {
		return err
	}
	deployments := []registry.Deployment{}
	for i, d := range dags {
		deployed, err := deployPath(ctx, c, api, d.Path, options)
		if err != nil {
			reportStopped(c, dags, i)
			return err
		}
		deployments = append(deployments, deployed)
	}

	return c.Print(deployments, func(w io.Writer) {
		for _, deployed := range deployments {
			writeServing(c, w, deployed.Version)
		}
	})
}

// reportStopped prints which DAGs were deployed, which one failed, and which were not tried.
func reportStopped(c *cli.CLI, dags []*dagfile.File, failed int) {
	names := make([]string, len(dags))
	for i, d := range dags {
		names[i] = d.Doc.Name
	}
	list := func(names []string) string {
		if len(names) == 0 {
			return "none"
		}
		return strings.Join(names, ", ")
	}
	fmt.Fprintf(c.Err, "Deployed: %s. Failed: %s. Not tried: %s.\n", list(names[:failed]), names[failed],
		list(names[failed+1:]))
}
