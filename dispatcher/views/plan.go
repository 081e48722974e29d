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

		if err := addSeconds(ctx, tx, caller.OrgID, p.Changes, origins, slots); err != nil {
			return err
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

// addSeconds adds to the changes of a plan how long they take, and how long what they cost other DAGs takes. Origins
// are those of the DAG's jobs.
func addSeconds(
	ctx context.Context, tx pgx.Tx, org uuid.UUID, changes []registry.Change, origins map[string][]uuid.UUID, slots int,
) error {
	asked := map[string][]uuid.UUID{} // consumers by DAG/JOB
	for _, c := range changes {
		if c.Partitions != nil && *c.Partitions > 0 {
			asked[c.Job] = origins[c.Job]
		}
		for _, cost := range c.ConsumerCosts {
			if cost.Partitions != nil && *cost.Partitions > 0 {
				asked[cost.Job] = []uuid.UUID{cost.Origin}
			}
		}
	}
	mean, err := meanSeconds(ctx, tx, org, asked)
	if err != nil {
		return err
	}

	for i := range changes {
		c := &changes[i]
		if c.Partitions != nil {
			c.Seconds = took(*c.Partitions, mean[c.Job], slots)
		}
		for n := range c.ConsumerCosts {
			if cost := &c.ConsumerCosts[n]; cost.Partitions != nil {
				cost.Seconds = took(*cost.Partitions, mean[cost.Job], slots)
			}
		}
	}
	return nil
}

// meanSeconds returns, by name, how long the last tasks of its origins took on average; a name without any is absent.
func meanSeconds(
	ctx context.Context, tx pgx.Tx, org uuid.UUID, origins map[string][]uuid.UUID,
) (map[string]float64, error) {
	var (
		names []string
		ids   []uuid.UUID
	)
	for name, list := range origins {
		for _, id := range list {
			names, ids = append(names, name), append(ids, id)
		}
	}
	rows, err := tx.Query(ctx, `
		SELECT o.name, avg(extract(epoch FROM last.completed_at - last.started_at))::float8
		FROM unnest($2::text[], $3::uuid[]) AS o(name, id)
		CROSS JOIN LATERAL (
			SELECT started_at, completed_at FROM tasks
			WHERE job_id = o.id AND org_id = $1 AND status = 'Completed' AND kind <> 'check'
			ORDER BY id DESC LIMIT 20) AS last
		GROUP BY o.name`, org, names, ids)
	if err != nil {
		return nil, fmt.Errorf("estimate: %w", err)
	}

	mean := map[string]float64{}
	var (
		name    string
		seconds *float64
	)
	_, err = pgx.ForEachRow(rows, []any{&name, &seconds}, func() error {
		if seconds != nil {
			mean[name] = *seconds
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("estimate: %w", err)
	}
	return mean, nil
}
