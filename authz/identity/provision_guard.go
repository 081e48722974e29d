package identity

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/pg"
)

// A provider says who its users are. What it says of a user who may do more than its token gives would make an admin of
// whoever has the token, so that it decides neither who accepts such an invitation nor who such a user is.

// outranked is the Forbidden fault of a change that would give somebody a user's rights that are beyond the token's.
type outranked struct {
	cause *fault.Error
	user  User
}

func (o *outranked) Error() string { return o.cause.Error() }

func (o *outranked) Unwrap() error { return o.cause }

// guardRights returns an outranked fault if a user may do more than the provisioner's users. What rules give does not
// count: those for people give it anew with each sign-in, and the provider itself keeps the groups of the others.
func guardRights(p authz.Provisioner, u User, doing string) error {
	if p.Covers(u.Role, u.Grants, u.OrgRoles) {
		return nil
	}
	return &outranked{user: u, cause: fault.New(fault.Forbidden,
		"user %s may do more than the users of token %s: the provider cannot %s", u.ID, p.TokenName, doing).
		WithHint("the user signs in first, or an admin of the org takes away what is more (`dagctl users set %s "+
			"--role %s`) and gives it back after", u.ID, p.Role)}
}

// asProvider runs a change by a provider in a transaction. One of a user who outranks it is in the audit log as
// refused: detail says what was asked for.
func (id *Identity) asProvider(ctx context.Context, p authz.Provisioner, action string, detail func() any,
	change func(ctx context.Context, tx pgx.Tx) error) error {
	err := pg.InOrgTx(ctx, id.Requests, p.OrgID, change)
	var refused *outranked
	if !errors.As(err, &refused) {
		return err
	}

	noted := pg.InOrgTx(ctx, id.Requests, p.OrgID, func(ctx context.Context, tx pgx.Tx) error {
		return authz.AuditRefused(ctx, tx, p.Author(), action, userOf(refused.user.ID), map[string]any{
			"before": refused.user, "account": detail(), "reason": refused.Error()})
	})
	if noted != nil {
		return noted
	}
	return err
}
