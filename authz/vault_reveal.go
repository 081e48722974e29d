package authz

import (
	"context"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/secret"
)

// Reveal returns secrets for a job or for a DAG's notifications. Each must be bound to it now.
func (v *Vault) Reveal(
	ctx context.Context, org uuid.UUID, by SecretUser, names []string,
) (map[string]secret.Value, error) {
	values, err := v.values(ctx, org, by, names, `AND $3 = ANY(s.jobs)`, by.Name)
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		if _, ok := values[name]; !ok {
			return nil, fault.New(fault.Forbidden, "secret %s is not there any more, or is not bound to %s",
				name, by.Name).
				WithHint("%s", by.bind(name))
		}
	}
	return values, nil
}

// Redactor returns what removes secrets from what a job says, whatever it is bound to by now: it may have got them
// before a binding was removed.
func (v *Vault) Redactor(ctx context.Context, org uuid.UUID, names []string) (*secret.Redactor, error) {
	values, err := v.values(ctx, org, SecretUser{}, names, "")
	return secret.NewRedactor(values), err
}

// values returns the secrets of a name that a condition lets through, by name.
func (v *Vault) values(
	ctx context.Context, org uuid.UUID, by SecretUser, names []string, where string, args ...any,
) (map[string]secret.Value, error) {
	if err := v.open(); err != nil {
		return nil, err
	}
	rows, err := v.owner.Query(ctx, `
		SELECT s.name, s.hosts, s.programs, s.ciphertext, s.key_id,
			p.ciphertext, coalesce(s.previous_key_id, ''), coalesce(s.previous_until > now(), false)
		FROM secrets s LEFT JOIN previous_secrets p ON p.secret_id = s.id
		WHERE s.org_id = $1 AND s.name = ANY($2) `+where, append([]any{org, names}, args...)...)
	if err != nil {
		return nil, fmt.Errorf("open secrets of %s: %w", by.Name, err)
	}
	type sealed struct {
		Secret     Secret
		Ciphertext []byte
		KeyID      string

		Previous      []byte
		PreviousKeyID string
		Overlaps      bool
	}

	found, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (s sealed, err error) {
		return s, row.Scan(&s.Secret.Name, &s.Secret.Hosts, &s.Secret.Programs, &s.Ciphertext, &s.KeyID,
			&s.Previous, &s.PreviousKeyID, &s.Overlaps)
	})
	if err != nil {
		return nil, fmt.Errorf("open secrets of %s: %w", by.Name, err)
	}

	values := make(map[string]secret.Value, len(found))
	for _, s := range found {
		text, err := v.unseal(org, s.Secret.Name, s.Ciphertext, s.KeyID)
		if err != nil {
			return nil, err
		}
		value := s.Secret.value(text, by)
		if s.Previous != nil {
			// One whose key is gone counts no more. The secret is not to be lost for that.
			if previous, err := v.unseal(org, s.Secret.Name, s.Previous, s.PreviousKeyID); err == nil {
				value = value.After(previous, s.Overlaps)
			}
		}
		values[s.Secret.Name] = value
	}
	return values, nil
}
