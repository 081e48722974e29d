package deploy

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/internal/fault"
)

// What a document uses belongs to its org: secrets, which are bound to jobs and hosts, and paths of webhooks, each of
// which is one job's.

// checkSecrets refuses a document with a secret that no admin has bound to the job that names it and to the hosts that
// the job sends it to. The binding is checked again whenever the value is read, because it may be removed.
func (d *deploy) checkSecrets(ctx context.Context, tx pgx.Tx) error {
	var uses []authz.SecretUse
	for _, job := range d.doc.Jobs {
		use := authz.SecretUse{By: authz.SecretUser{Name: d.doc.Name + "/" + job.Name}, At: job.Position.String()}
		if job.Source != nil && job.Source.Secret != "" { // the key of a signature goes nowhere
			use.Name = job.Source.Secret
			uses = append(uses, use)
		}

		if job.RunsProgram() {
			use.By.Program = job.Program()
		}
		for _, name := range job.Secrets {
			use.Name = name
			for _, use.To = range destinations(d.deployer.catalog.Operators[job.Operator], job.Config, name) {
				uses = append(uses, use)
			}
		}
	}

	for _, n := range d.doc.Notify {
		owner := authz.SecretUser{Name: d.doc.Name}
		uses = append(uses, authz.SecretUse{Name: n.Secret, By: owner, At: "notify"})
	}
	return d.deployer.vault.CheckSecrets(ctx, tx, d.caller.OrgID, uses)
}

// destinations returns where a secret of a config goes: one empty text, if that is not known.
func destinations(op dag.OperatorSpec, config map[string]any, name string) []string {
	switch {
	case op.SecretTo != nil:
		if to := op.SecretTo(config, name); len(to) > 0 {
			return to
		}
	case op.SecretsTo != nil:
		return []string{op.SecretsTo(config)}
	}
	return []string{""}
}

// claimHooks refuses a webhook path that another job of the org uses: a delivery goes to one job.
func (d *deploy) claimHooks(ctx context.Context, tx pgx.Tx) error {
	var paths []string
	at := map[string]string{}
	var problems []fault.Problem
	for _, job := range d.doc.Jobs {
		if job.Source == nil || job.Source.Path == "" {
			continue
		}
		path := job.Source.Path
		if other, ok := at[path]; ok {
			problems = append(problems, fault.Problem{Location: job.Position.String(), Code: "duplicate",
				Message: fmt.Sprintf("job %s: the job at %s already uses the path %s", job.Name, other, path)})
			continue
		}
		paths, at[path] = append(paths, path), job.Position.String()
	}

	if len(paths) > 0 {
		// Two deploys at the same time may both pass this check; idx_sources_hook refuses the second at its cutover.
		rows, err := tx.Query(ctx, `
			SELECT DISTINCT j.definition -> 'source' ->> 'path', j.dag_name, j.name
			FROM jobs j JOIN dag_versions v ON v.id = j.dag_version_id AND v.status IN ('Active', 'Building', 'Ready')
			WHERE j.org_id = $1 AND j.dag_name <> $2
			  AND j.definition -> 'source' ->> 'path' = ANY($3)`, d.caller.OrgID, d.doc.Name, paths)
		if err != nil {
			return fmt.Errorf("look for webhook paths: %w", err)
		}

		var path, dagName, job string
		if _, err := pgx.ForEachRow(rows, []any{&path, &dagName, &job}, func() error {
			problems = append(problems, fault.Problem{Location: at[path], Code: "duplicate",
				Message: fmt.Sprintf("%s/%s already uses the path %s", dagName, job, path)})
			return nil
		}); err != nil {
			return fmt.Errorf("look for webhook paths: %w", err)
		}
	}

	if len(problems) == 0 {
		return nil
	}
	e := fault.New(fault.Invalid, "%s", problems[0].Message).WithHint("give the webhook another path")
	e.Problems = problems
	return e
}
