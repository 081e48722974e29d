package views

import (
	"context"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/internal/clock"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/registry"
	"github.com/dagctl/dagctl/registry/deploy"
)

// Plan returns the registry's plan with an estimate of the time it takes, from earlier tasks of the same jobs.
func (vs *Views) Plan(
	ctx context.Context, caller authz.Caller, dagName string, req registry.DeployRequest,
) (registry.Plan, error) {
	p, err := vs.deployer.Plan(ctx, caller, dagName, req)
	if err != nil {
		return registry.Plan{}, err
	}

	err = pg.InOrgTx(ctx, vs.requests, caller.OrgID, func(ctx context.Context, tx pgx.Tx) error {
		origins, err := deploy.OriginsByJob(ctx, tx, caller.OrgID, dagName)
		if err != nil {
			return err
		}
		if err := addSkipped(ctx, tx, caller.OrgID, &p); err != nil {
			return err
		}

		slots, err := vs.taskSlots(ctx, tx, clock.Now())
		if err != nil {
			return err
		}

		for i := range p.Changes {
			c := &p.Changes[i]
			if c.Partitions == nil || *c.Partitions == 0 {
				continue
			}
			seconds, err := meanSeconds(ctx, tx, caller.OrgID, origins[c.Job])
			if err != nil {
				return err
			}
			c.Seconds = took(*c.Partitions, seconds, slots)
		}

		steps := make([]step, len(p.Changes))
		for i, c := range p.Changes {
			steps[i] = step{c.Job, c.Upstream, c.Seconds}
		}
		p.CriticalPath, p.CriticalSeconds = criticalPath(steps)
		return nil
	})
	return p, err
}

// meanSeconds returns how long the last tasks of the origins took on average, or 0 if there were none.
func meanSeconds(ctx context.Context, tx pgx.Tx, org uuid.UUID, origins []uuid.UUID) (float64, error) {
	var seconds float64
	err := tx.QueryRow(ctx, `
		SELECT coalesce(avg(extract(epoch FROM last.completed_at - last.started_at)), 0)::float8
		FROM unnest($2::uuid[]) AS o(id)
		CROSS JOIN LATERAL (
			SELECT started_at, completed_at FROM tasks
			WHERE job_id = o.id AND org_id = $1 AND status = 'Completed' AND kind <> 'check'
			ORDER BY id DESC LIMIT 20) AS last`, org, origins).Scan(&seconds)
	if err != nil {
		return 0, fmt.Errorf("estimate: %w", err)
	}
	return seconds, nil
}
