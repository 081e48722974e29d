package authz

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/pg"
)

// VaultKeys returns the keys that secrets are encrypted with, the newest first: those of a variable, divided by commas,
// or else of a file, one per line. Neither: there are none.
func VaultKeys(variable, file string) ([]string, error) {
	if variable != "" || file == "" {
		return strings.Fields(strings.ReplaceAll(variable, ",", "\n")), nil
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, fault.New(fault.NotFound, "keys of secrets: %w", err)
	}
	return strings.Fields(string(text)), nil
}

// old reports whether one of these keys is not the newest.
func (v *Vault) old(keyIDs ...string) bool {
	return v.open() == nil && slices.ContainsFunc(keyIDs, func(id string) bool { return id != v.keys[0].id })
}

// lacks reports whether one of these keys is none of the server's.
func (v *Vault) lacks(keyIDs ...string) bool {
	return slices.ContainsFunc(keyIDs, func(id string) bool {
		return !slices.ContainsFunc(v.keys, func(k vaultKey) bool { return k.id == id })
	})
}

// Rotation says what RotateKeys did.
type Rotation struct {
	Rotated    int          `json:"rotated"`    // secrets that are under the newest key now
	Unreadable []Unreadable `json:"unreadable"` // secrets that stay as they are
}

// Unreadable is a secret that cannot be decrypted, by org and name.
type Unreadable struct {
	Org   string `json:"org"`
	Name  string `json:"name"`
	Error string `json:"error"`
}

// rotatedAtOnce is how many secrets RotateKeys looks up at once.
const rotatedAtOnce = 100

// agedSecret names a secret that is not under the newest key.
type agedSecret struct {
	ID, OrgID  uuid.UUID
	Slug, Name string
}

// RotateKeys encrypts every secret of every org, and its previous value, with the newest key. Each is locked only while
// it is changed, so servers may run meanwhile; those that lack the newest key could not read it any more. Whatever
// servers set under another key meanwhile is left for the next call.
func (v *Vault) RotateKeys(ctx context.Context) (r Rotation, err error) {
	if err := v.open(); err != nil {
		return r, err
	}

	var after uuid.UUID
	for {
		aged, err := v.aged(ctx, after)
		if err != nil || len(aged) == 0 {
			return r, err
		}
		for _, s := range aged {
			after = s.ID
			rotated, unreadable, err := v.rotate(ctx, s)
			if err != nil {
				return r, fmt.Errorf("rotate secret %s of %s: %w", s.Name, s.Slug, err)
			}
			for _, why := range unreadable {
				r.Unreadable = append(r.Unreadable, Unreadable{s.Slug, s.Name, why.Error()})
			}
			if rotated {
				r.Rotated++
			}
		}
	}
}

// aged returns secrets with ids after another that are not under the newest key.
func (v *Vault) aged(ctx context.Context, after uuid.UUID) ([]agedSecret, error) {
	rows, err := v.owner.Query(ctx, `
		SELECT s.id, s.org_id, o.slug, s.name FROM secrets s JOIN orgs o ON o.id = s.org_id
		WHERE s.id > $1 AND (s.key_id <> $2 OR s.previous_key_id <> $2) ORDER BY s.id LIMIT $3`,
		after, v.keys[0].id, rotatedAtOnce)
	if err != nil {
		return nil, fmt.Errorf("look for secrets under old keys: %w", err)
	}
	return pgx.CollectRows(rows, pgx.RowToStructByPos[agedSecret])
}

// rotate encrypts one secret with the newest key, unless it is so by now. unreadable says why values of it cannot be.
func (v *Vault) rotate(ctx context.Context, s agedSecret) (rotated bool, unreadable []error, err error) {
	err = pg.InTx(ctx, v.owner, func(ctx context.Context, tx pgx.Tx) error {
		rotated, unreadable = false, nil // the transaction may run again
		var now, before []byte
		var key, keyBefore string
		err := tx.QueryRow(ctx, `SELECT ciphertext, key_id, coalesce(previous_key_id, '') FROM secrets
			WHERE id = $1 AND org_id = $2 FOR UPDATE`, s.ID, s.OrgID).Scan(&now, &key, &keyBefore)
		if errors.Is(err, pgx.ErrNoRows) {
			return nil // deleted meanwhile
		}
		if err != nil {
			return err
		}
		err = tx.QueryRow(ctx, `SELECT ciphertext FROM previous_secrets WHERE secret_id = $1`, s.ID).Scan(&before)
		if err != nil && !errors.Is(err, pgx.ErrNoRows) {
			return err
		}

		if sealed, err := v.reseal(s, now, key); err != nil {
			unreadable = append(unreadable, err)
		} else if sealed != nil {
			// updated_at stays: it is the same value.
			if _, err := tx.Exec(ctx, `UPDATE secrets SET ciphertext = $3, key_id = $4 WHERE id = $1 AND org_id = $2`,
				s.ID, s.OrgID, sealed, v.keys[0].id); err != nil {
				return err
			}
			rotated = true
		}

		if sealed, err := v.reseal(s, before, keyBefore); err != nil {
			unreadable = append(unreadable, fmt.Errorf("its previous value: %w", err))
		} else if sealed != nil {
			if _, err := tx.Exec(ctx, `
				WITH kept AS (UPDATE previous_secrets SET ciphertext = $3 WHERE secret_id = $1)
				UPDATE secrets SET previous_key_id = $4 WHERE id = $1 AND org_id = $2`,
				s.ID, s.OrgID, sealed, v.keys[0].id); err != nil {
				return err
			}
			rotated = true
		}
		if !rotated {
			return nil
		}

		system := Caller{OrgID: s.OrgID, OrgSlug: s.Slug, Actor: "system"}
		return Audit(ctx, tx, system, "secret.rotate_key", "secret:"+s.Name,
			Change{Before: map[string]any{"key_id": key}, After: map[string]any{"key_id": v.keys[0].id}})
	})
	return rotated, unreadable, err
}

// reseal encrypts a value with the newest key; nil: there is none, or it is so already.
func (v *Vault) reseal(s agedSecret, ciphertext []byte, keyID string) ([]byte, error) {
	if ciphertext == nil || keyID == v.keys[0].id {
		return nil, nil
	}
	value, err := v.unseal(s.OrgID, s.Name, ciphertext, keyID)
	if err != nil {
		return nil, err
	}
	sealed, _ := v.seal(s.OrgID, s.Name, value)
	return sealed, nil
}

// KeyUse says how many secrets of all orgs are under which keys, their previous values included.
type KeyUse struct {
	Secrets int // all of them
	Old     int // under a key that is not the newest
	Unknown int // under a key that this process does not have, and still of use

	Lacking []string // the ids of those keys, sorted
}

// KeyUse counts the secrets of all orgs. Without keys, all are under unknown ones.
func (v *Vault) KeyUse(ctx context.Context) (use KeyUse, err error) {
	newest, known := "", make([]string, len(v.keys))
	for i, key := range v.keys {
		newest, known[i] = v.keys[0].id, key.id
	}
	err = v.owner.QueryRow(ctx, `
		SELECT count(*), count(*) FILTER (WHERE key_id <> $1 OR previous_key_id <> $1),
			count(*) FILTER (WHERE key_id <> ALL($2) OR previous_key_id <> ALL($2) AND previous_until > now()),
			ARRAY(SELECT k FROM (SELECT key_id FROM secrets
				UNION SELECT previous_key_id FROM secrets WHERE previous_until > now()) AS used(k)
				WHERE k <> ALL($2) ORDER BY k)
		FROM secrets`, newest, known).Scan(&use.Secrets, &use.Old, &use.Unknown, &use.Lacking)
	if err != nil {
		return use, fmt.Errorf("count the keys of secrets: %w", err)
	}
	v.lacking.Store(&use.Lacking)
	return use, nil
}

// Lacking returns the ids of the keys that secrets were under and this process did not have when KeyUse last looked.
func (v *Vault) Lacking() []string {
	if v == nil {
		return []string{}
	}
	if found := v.lacking.Load(); found != nil {
		return *found
	}
	return []string{}
}

// SecretsUnder counts the secrets of an org that are under each of some keys.
func SecretsUnder(ctx context.Context, tx pgx.Tx, org uuid.UUID, keys []string) (map[string]int64, error) {
	found := map[string]int64{}
	if len(keys) == 0 {
		return found, nil
	}
	rows, err := tx.Query(ctx, `
		SELECT k, count(*) FROM secrets s JOIN unnest($2::text[]) AS k
			ON k = s.key_id OR k = s.previous_key_id AND s.previous_until > now()
		WHERE s.org_id = $1 GROUP BY k`, org, keys)
	if err != nil {
		return nil, fmt.Errorf("count the secrets under some keys: %w", err)
	}
	var key string
	var count int64
	_, err = pgx.ForEachRow(rows, []any{&key, &count}, func() error { found[key] = count; return nil })
	return found, err
}
