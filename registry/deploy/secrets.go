package deploy

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/dag"
)

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
