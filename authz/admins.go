package authz

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/internal/fault"
)

// An org always has somebody who can administer it: a user who is an admin and can sign in, or an admin token. Changes
// that can take that away are made one after the other, by those who are admins when it is their turn: of two admins
// who remove each other, only one is removed.

// lastsLong is how long the last admin tokens of an org must last where no admin can sign in.
const lastsLong = 24 * time.Hour

// ChangeAdmins makes a change that can take away the rights of an admin of the caller's org; others wait for the end of
// the transaction. It refuses a caller who is no admin any more when it is its turn, and a change that leaves nobody.
func ChangeAdmins(ctx context.Context, tx pgx.Tx, caller Caller, change func() error) error {
	_, err := tx.Exec(ctx, `SELECT pg_advisory_xact_lock(hashtextextended('admins of ' || $1::text, 0))`, caller.OrgID)
	if err != nil {
		return fmt.Errorf("lock the admins of org %s: %w", caller.OrgSlug, err)
	}
	var is bool
	err = tx.QueryRow(ctx, `SELECT still_admin($1, $2)`, caller.OrgID, []string(caller.Authority())).Scan(&is)
	if err != nil {
		return fmt.Errorf("is %s still an admin: %w", caller.Actor, err)
	}
	if !is {
		return fault.New(fault.Forbidden, "%s is no admin of %s any more", caller.Actor, caller.OrgSlug).
			WithHint("another admin has changed that just now: ask one")
	}

	before, err := hasAdmin(ctx, tx, caller)
	if err != nil {
		return err
	}
	if err := change(); err != nil {
		return err
	}
	after, err := hasAdmin(ctx, tx, caller)
	if err == nil && before && !after {
		return fault.New(fault.Conflict, "after that nobody could administer the org %s", caller.OrgSlug).
			WithHint("make another admin first: `dagctl users invite EMAIL --role admin`, or `dagctl tokens create " +
				"NAME --role admin`")
	}
	return err
}

// hasAdmin reports whether the caller's org has a user who is an admin and can sign in, or an admin token.
func hasAdmin(ctx context.Context, tx pgx.Tx, caller Caller) (has bool, err error) {
	err = tx.QueryRow(ctx, `
		SELECT EXISTS (
			SELECT FROM service_tokens WHERE org_id = $1 AND kind = 'user' AND role = 'admin' AND revoked_at IS NULL
				AND expires_at > now()) OR EXISTS (SELECT FROM admins_who_sign_in($1))`, caller.OrgID).Scan(&has)
	return has, fault.Wrap(err, "admins of org "+caller.OrgSlug)
}

// refuseLastAdmin refuses to revoke the last admin token, and one after which all others end soon while no admin can
// sign in.
func refuseLastAdmin(ctx context.Context, tx pgx.Tx, caller Caller, name string) error {
	var (
		ends   *time.Time // of the token, if it is one of an admin that works
		last   *time.Time // of the others
		soon   bool
		people bool
	)
	err := tx.QueryRow(ctx, `
		SELECT max(expires_at) FILTER (WHERE name = $2), max(expires_at) FILTER (WHERE name <> $2),
			coalesce(max(expires_at) FILTER (WHERE name <> $2) < now() + $3::interval, false),
			EXISTS (SELECT FROM admins_who_sign_in($1))
		FROM service_tokens WHERE org_id = $1 AND kind = 'user' AND role = 'admin' AND revoked_at IS NULL
			AND expires_at > now()`, caller.OrgID, name, lastsLong).Scan(&ends, &last, &soon, &people)
	if err != nil {
		return fmt.Errorf("admins of org %s: %w", caller.OrgSlug, err)
	}

	var refused *fault.Error
	switch {
	case ends == nil:
		return nil
	case last == nil:
		refused = fault.New(fault.Conflict, "token %s is the last admin token of org %s: nobody could make another one",
			name, caller.OrgSlug)
	case soon && ends.After(*last) && !people:
		refused = fault.New(fault.Conflict, "without token %s the last admin token of org %s ends at %s: nobody could "+
			"make another one after that", name, caller.OrgSlug, last.UTC().Format(time.RFC3339))
	default:
		return nil
	}
	return refused.WithHint("make the next one first: `dagctl tokens create NAME --role admin`; the server's "+
		"administrator can revoke any with `dagctl admin revoke-token %s --org %s`", name, caller.OrgSlug)
}
