package dags

import (
	"context"
	"fmt"

	"github.com/dagctl/dagctl/cmd/dagctl/cli"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/registry"
)

// agreedDeploy deploys what somebody agreed to. On a terminal it shows the plan, asks, and deploys that very plan; if
// the DAG has changed meanwhile, it does so again with a new plan. It does not ask about a saved plan, which somebody
// has looked at already.
func agreedDeploy(ctx context.Context, c *cli.CLI, api *cli.Client, name string, request registry.DeployRequest,
	yes bool,
) (registry.Deployment, error) {
	saved := request.Base != nil
	if yes || saved || !cli.IsTerminal(c.In) {
		deployed, err := SendDeploy(ctx, api, name, request)
		if err == nil && c.Output != "json" {
			PrintPlan(c, c.Err, deployed)
		}
		return deployed, err
	}

	for {
		plan, err := RequestPlan(ctx, api, name, request)
		if err != nil {
			return registry.Deployment{}, err
		}

		writePlanned(c, c.Err, plan)
		writeMeeting(c.Err, plan.Meets)
		writeCanceled(c.Err, plan.Cancels)
		writeFindings(c.Err, "deploy", plan.Findings, request.Consents())
		if changes(plan) && !refused(plan, request) {
			if err := c.Confirm(false, "Deploy %s v%d?", plan.DAG, plan.Version); err != nil {
				return registry.Deployment{}, err
			}
		}

		// With its base, the request is refused if the DAG has changed since the plan.
		agreed, base := request, baseNumber(plan)
		agreed.Base = &base
		deployed, err := SendDeploy(ctx, api, name, agreed)
		if !fault.Is(err, fault.Conflict) {
			return deployed, err
		}

		again, planning := RequestPlan(ctx, api, name, request)
		if planning != nil || baseName(again) == baseName(plan) {
			return deployed, err // the conflict is another one
		}
		fmt.Fprintln(c.Err, "The DAG has changed meanwhile; this is the new plan.")
	}
}
