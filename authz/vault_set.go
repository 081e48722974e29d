package authz

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/pg"
)

// A secret keeps the value that its newest one replaced: others may sign with that for as long as they overlap, and it
// is removed from what tasks say that began before. A trigger keeps it, because requests cannot read it.

const (
	// MaxOverlap is how long a value may count at most after another one replaced it.
	MaxOverlap = 30 * 24 * time.Hour
	// keptForTasks is how long a value stays after it counts no more, so that it can be removed from what tasks say.
	keptForTasks = 7 * 24 * time.Hour
)

// SetSecret stores the value of a new secret, or replaces the value of an existing one at once and keeps its bindings.
func (v *Vault) SetSecret(ctx context.Context, caller Caller, name, value string) (Secret, error) {
	return v.ReplaceSecret(ctx, caller, name, value, 0)
}

// ReplaceSecret is SetSecret, but others may sign with the value before for an overlap of MaxOverlap at most. The value
// before that one ends at once.
func (v *Vault) ReplaceSecret(
	ctx context.Context, caller Caller, name, value string, overlap time.Duration,
) (s Secret, err error) {
	if err := v.open(); err != nil {
		return s, err
	}
	if err := validSecret(name, value, overlap); err != nil {
		return s, err
	}

	ciphertext, keyID := v.seal(caller.OrgID, name, value)
	err = pg.InOrgTx(ctx, v.requests, caller.OrgID, func(ctx context.Context, tx pgx.Tx) error {
		before, err := lockedKey(ctx, tx, caller, name)
		if err != nil {
			return err
		}
		s, err = updateSecret(ctx, tx, caller, `
			UPDATE secrets SET ciphertext = $3, key_id = $4, updated_at = now(),
				previous_until = now() + make_interval(secs => $5)
			WHERE org_id = $1 AND name = $2
			RETURNING `+secretColumns, name, ciphertext, keyID, overlap.Seconds())
		if fault.Is(err, fault.NotFound) {
			s, err = updateSecret(ctx, tx, caller, `
				INSERT INTO secrets (org_id, name, ciphertext, key_id) VALUES ($1, $2, $3, $4)
				RETURNING `+secretColumns, name, ciphertext, keyID)
		}

		if violates(err, "secrets_org_id_name_key") {
			return fault.New(fault.Conflict, "secret %s is being set by someone else", name).WithHint("try again")
		}
		if err != nil {
			return err
		}
		after := map[string]any{"key_id": keyID, "set_at": s.UpdatedAt}
		if s.PreviousUntil != nil {
			after["previous_until"] = s.PreviousUntil
		}
		return Audit(ctx, tx, caller, "secret.set", "secret:"+name, Change{Before: before, After: after})
	})
	return s, err
}

// validSecret returns an error if a secret cannot be set so.
func validSecret(name, value string, overlap time.Duration) error {
	switch {
	case !goodSecretName.MatchString(name):
		return fault.New(fault.Invalid, "%q is not a valid name of a secret", name).
			WithHint("start with a letter and use only letters, digits, _, . and -, at most 127 characters")
	case value == "":
		return fault.New(fault.Invalid, "the value of secret %s is empty", name)
	case len(value) > maxSecretValue:
		return fault.New(fault.TooLarge, "the value of secret %s has more than %d bytes", name, maxSecretValue)
	case overlap < 0 || overlap > MaxOverlap:
		return fault.New(fault.Invalid, "an overlap of %s is not possible", overlap).
			WithHint("it is %d hours at most", int(MaxOverlap.Hours()))
	}
	return nil
}

// lockedKey locks a secret, and returns what the audit log says of its value: when it was set, and with which key it is
// encrypted; nil: there is no such secret.
func lockedKey(ctx context.Context, tx pgx.Tx, caller Caller, name string) (any, error) {
	var key string
	var at time.Time
	err := tx.QueryRow(ctx, `
		SELECT key_id, updated_at FROM secrets WHERE org_id = $1 AND name = $2 FOR UPDATE`, caller.OrgID, name).
		Scan(&key, &at)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("set secret %s: %w", name, err)
	}
	return map[string]any{"key_id": key, "set_at": at}, nil
}

// ForgetPrevious removes the values before that count no more, once the tasks that began with them are long over. It
// works for all orgs.
func (v *Vault) ForgetPrevious(ctx context.Context) error {
	_, err := v.owner.Exec(ctx, `
		WITH over AS (
			UPDATE secrets SET previous_key_id = NULL, previous_until = NULL
			WHERE previous_until < now() - make_interval(secs => $1) RETURNING id)
		DELETE FROM previous_secrets WHERE secret_id IN (SELECT id FROM over)`, keptForTasks.Seconds())
	if err != nil {
		return fmt.Errorf("forget previous values of secrets: %w", err)
	}
	return nil
}
