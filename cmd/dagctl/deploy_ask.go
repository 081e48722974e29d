package main

import (
	"context"
	"fmt"

	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/registry"
)

// agreedDeploy deploys what was agreed to. On a terminal it shows the plan and asks; the deploy is then of that very plan,
// and where the DAG moves meanwhile, the plan is made, shown and asked about again. A saved plan was looked at already.
func (c *cli) agreedDeploy(ctx context.Context, api *client, name string, request registry.DeployRequest, yes bool) (registry.Deployment, error) {
	saved := request.Base != nil
	if yes || saved || !isTerminal(c.in) {
		deployed, err := api.deploy(ctx, name, request)
		if err == nil && c.output != "json" {
			c.printPlan(c.err, deployed)
		}
		return deployed, err
	}
	for {
		plan, err := api.plan(ctx, name, request)
		if err != nil {
			return registry.Deployment{}, err
		}
		base := 0
		if plan.Base != nil {
			base = *plan.Base
		}
		fmt.Fprintf(c.err, "%s · %s → v%d (%s)\n", c.style(c.err).bold(plan.DAG), baseName(plan), plan.Version, short(plan.Hash))
		c.printChanges(c.err, plan.Changes, plan.CriticalSeconds)
		writeMeeting(c.err, plan.Meets)
		writeCanceled(c.err, plan.Cancels)
		if changes(plan) {
			if err := c.confirm(false, "Deploy %s v%d?", plan.DAG, plan.Version); err != nil {
				return registry.Deployment{}, err
			}
		}
		agreed := request
		agreed.Base = &base
		deployed, err := api.deploy(ctx, name, agreed)
		if !fault.Is(err, fault.Conflict) {
			return deployed, err
		}
		again, planning := api.plan(ctx, name, request)
		if planning != nil || baseName(again) == baseName(plan) {
			return deployed, err // it is about something else
		}
		fmt.Fprintln(c.err, "The DAG has moved meanwhile; this is the plan now.")
	}
}
