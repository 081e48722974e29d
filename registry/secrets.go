package registry

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/authz"
)

// checkSecrets refuses a document that names a secret which no admin has bound to the job that names it. It is checked
// again whenever the value is wanted: a binding may be taken back.
func (d *deploy) checkSecrets(ctx context.Context, tx pgx.Tx) error {
	var uses []authz.SecretUse
	for _, job := range d.doc.Jobs {
		names := job.Secrets
		if job.Source != nil && job.Source.Secret != "" {
			names = append(names[:len(names):len(names)], job.Source.Secret)
		}
		for _, name := range names {
			uses = append(uses, authz.SecretUse{Name: name, By: d.doc.Name + "/" + job.Name, At: job.Position.String()})
		}
	}
	for _, n := range d.doc.Notify {
		uses = append(uses, authz.SecretUse{Name: n.WebhookSecret, By: d.doc.Name, At: "notify"})
	}
	return d.registry.Vault.CheckSecrets(ctx, tx, d.caller.OrgID, uses)
}
