package authz

import (
	"context"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// Authority is on whose rights something goes on after its request: the actors whose rights count together. nil: nobody
// knows, and nothing is refused.
type Authority []string

// Authority returns the caller's, to be kept with what it starts.
func (c Caller) Authority() Authority {
	if len(c.Rules) == 0 {
		return Authority{c.Actor}
	}
	actors := make(Authority, len(c.Rules))
	for i, r := range c.Rules {
		actors[i] = "workload:" + r
	}
	return actors
}

// Now returns a caller that reads what these actors may read at this moment. Whether they may still sign in does not
// count: a pipeline does not end with its author's account, but with the roles that the account is deprived of.
func (a Authority) Now(ctx context.Context, tx pgx.Tx, org uuid.UUID) (Caller, error) {
	rows, err := tx.Query(ctx, `SELECT coalesce(role, ''), org_roles FROM rights_of($1, $2)`, org, []string(a))
	if err != nil {
		return Caller{}, fmt.Errorf("rights of %v: %w", a, err)
	}

	c := Caller{OrgID: org}
	var (
		role     string
		orgRoles []string
		roles    []string
	)
	_, err = pgx.ForEachRow(rows, []any{&role, &orgRoles}, func() error {
		roles, c.OrgRoles = append(roles, role), append(c.OrgRoles, orgRoles...)
		return nil
	})
	if err != nil {
		return Caller{}, fmt.Errorf("rights of %v: %w", a, err)
	}
	c.Role = Highest(roles)
	return c, nil
}
