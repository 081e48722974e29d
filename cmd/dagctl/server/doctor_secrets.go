package server

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/internal/plural"
)

// checkSecretKeys compares the keys that secrets are encrypted with to those that doctor was given, if it was.
func checkSecretKeys(ctx context.Context, pool *pgxpool.Pool, keys []string) finding {
	const check = "secrets"
	vault, err := authz.NewVault(authz.VaultConfig{Owner: pool, Keys: keys})
	if err != nil {
		return failed(check, err)
	}
	use, err := vault.KeyUse(ctx)
	if err != nil {
		return failed(check, err)
	}

	all := plural.Of(use.Secrets, "secret")
	switch {
	case use.Secrets == 0:
		return finding{Check: check, OK: true, Detail: "there are none"}
	case len(keys) == 0:
		return finding{Check: check, OK: true, Detail: all + ", whose key is not known here",
			Hint: "pass DAGCTL_SECRETS_KEY or --config to check it"}
	case use.Unknown > 0:
		return finding{Check: check,
			Detail: fmt.Sprintf("%d of %s are under a key that is not among these", use.Unknown, all),
			Hint:   "add the key to DAGCTL_SECRETS_KEY, or set these secrets again"}
	case use.Old > 0:
		return finding{Check: check, OK: true, Detail: fmt.Sprintf("%d of %s need an old key", use.Old, all),
			Hint: "`dagctl admin rotate-secrets` encrypts them with the newest key; keep the old one until then"}
	}
	return finding{Check: check, OK: true, Detail: all + " under the newest key; no older key is needed"}
}

// keyWatch knows which keys of secrets this server lacks: what uses such secrets fails, and webhooks are answered as if
// they did not exist. The server serves nevertheless, because it does everything else.
type keyWatch struct {
	vault *authz.Vault
	log   *slog.Logger
	said  []string // the keys that were lacking last
}

// keysEvery is how often a server looks which keys it lacks.
const keysEvery = 30 * time.Second

// run looks until ctx ends.
func (k *keyWatch) run(ctx context.Context) error {
	return each(ctx, keysEvery, func() {
		if err := k.look(ctx); err != nil && ctx.Err() == nil {
			k.log.Error("cannot look which keys of secrets are missing, will go on", "error", err)
		}
	})
}

// look finds the keys that this server lacks, and logs it if they are others than before.
func (k *keyWatch) look(ctx context.Context) error {
	use, err := k.vault.KeyUse(ctx)
	if err != nil || slices.Equal(use.Lacking, k.said) {
		return err
	}
	k.said = use.Lacking
	if len(use.Lacking) == 0 {
		k.log.Info("this server has the keys of all secrets again")
		return nil
	}
	k.log.Warn("secrets are under a key that this server does not have: webhooks and tasks that use them fail here",
		"keys", strings.Join(use.Lacking, ", "), "secrets", use.Unknown, "of", use.Secrets,
		"hint", "add the key to DAGCTL_SECRETS_KEY, or set them again")
	return nil
}

// warnings says what a server lacks that is ready nevertheless.
func (k *keyWatch) warnings() (list []string) {
	for _, key := range k.vault.Lacking() {
		list = append(list, "secrets are under the key "+key+", which this server does not have: webhooks and tasks "+
			"that use them fail here")
	}
	return list
}
