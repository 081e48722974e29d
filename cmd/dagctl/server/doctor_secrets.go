package server

import (
	"context"
	"fmt"
	"log/slog"

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

// warnOfKeys logs how many secrets none of the server's keys opens, if there are any: their tasks would fail. The
// server starts nevertheless, because it does everything else.
func warnOfKeys(ctx context.Context, vault *authz.Vault, log *slog.Logger) error {
	use, err := vault.KeyUse(ctx)
	if err == nil && use.Unknown > 0 {
		log.Warn("secrets are under a key that this server does not have: tasks that use them fail",
			"secrets", use.Unknown, "of", use.Secrets,
			"hint", "add the key to DAGCTL_SECRETS_KEY, or set them again")
	}
	return err
}
