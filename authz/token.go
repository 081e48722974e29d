package authz

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/dagctl/dagctl/internal/batch"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/late"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/internal/rest"
)

// How long service tokens live.
const (
	DefaultTTL = 90 * 24 * time.Hour
	MaxTTL     = 365 * 24 * time.Hour
)

// TokenKind is what a service token acts as.
type TokenKind string

const (
	KindUser   TokenKind = "user"   // becomes a Caller with the token's role
	KindWorker TokenKind = "worker" // may claim tasks of its runtimes and operators; never a Caller
	KindSCIM   TokenKind = "scim"   // keeps the users and groups of an issuer; never a Caller
)

// Token is a service token as people see it: without its secret, which only its creator knows.
type Token struct {
	Name      string    `json:"name"`
	Kind      TokenKind `json:"kind" enum:"user,worker,scim"`
	Role      Role      `json:"role,omitempty" enum:"reader,proposer,writer,admin" doc:"Of the token; of a scim token, that of the users it provisions"`
	Grants    []Grant   `json:"grants,omitempty" doc:"For user tokens: roles on some DAGs besides"`
	OrgRoles  []string  `json:"org_roles,omitempty" doc:"For user tokens: its visibility groups, each as role:SLUG"`
	Runtimes  []string  `json:"runtimes,omitempty"`
	Operators []string  `json:"operators,omitempty"`
	Orgs      int       `json:"orgs,omitempty" doc:"For worker tokens: the number of orgs whose tasks it may claim"`
	Issuer    string    `json:"issuer,omitempty" doc:"For scim tokens: at which its users sign in"`

	SubjectFrom SubjectFrom `json:"subject_from,omitempty" enum:"externalId,userName" doc:"For scim tokens: the attribute that holds the subject at the issuer"`

	CreatedBy  string     `json:"created_by"`
	CreatedAt  time.Time  `json:"created_at"`
	ExpiresAt  time.Time  `json:"expires_at"`
	LastUsedAt *time.Time `json:"last_used_at,omitempty"`
	RevokedAt  *time.Time `json:"revoked_at,omitempty"`
}

// NewToken describes a token to create.
type NewToken struct {
	Name      string
	Kind      TokenKind     // KindUser when empty
	Role      Role          // of a user token, or of the users that a scim token provisions: RoleReader when empty
	Grants    []Grant       // of a user token: roles on some DAGs besides
	OrgRoles  []string      // of a user token: visibility groups, each as role:SLUG, which the org has
	Runtimes  []string      // of a worker token, at least one
	Operators []string      // of a worker token; empty is every operator
	Orgs      []string      // of a worker token: slugs; empty is the caller's. Only CreateWorkerToken accepts others
	TTL       time.Duration // DefaultTTL when zero, MaxTTL at most

	Issuer      string      // of a scim token: at which its users sign in
	SubjectFrom SubjectFrom // of a scim token
}

var goodTokenName = late.Pattern(`^[a-z0-9][a-z0-9_.-]{0,62}$`)

// goodPattern matches names of DAGs in which * stands for any text.
var goodPattern = late.Pattern(`^[a-z0-9_*-]{1,63}$`)

// goodClaim matches the names of runtimes and operators.
var goodClaim = late.Pattern(`^[a-z][a-z0-9_-]{0,62}$`)

// validate returns the token with its defaults, or an error that lists everything that is wrong.
func (n NewToken) validate() (NewToken, error) {
	if n.Kind == "" {
		n.Kind = KindUser
	}
	if n.TTL == 0 {
		n.TTL = DefaultTTL
	}
	if n.Kind == KindSCIM && n.Role == "" {
		n.Role = RoleReader
	}

	var problems tokenProblems
	if !goodTokenName.MatchString(n.Name) {
		problems.add("name",
			"%q is not a token name: use up to 63 of a-z, 0-9, _, . and -, beginning with a letter or digit", n.Name)
	}
	if n.TTL < time.Minute || n.TTL > MaxTTL {
		problems.add("ttl", "a token must expire after one minute to %d days, not %s", MaxTTL/(24*time.Hour), n.TTL)
	}
	switch n.Kind {
	case KindUser:
		n.validateUser(&problems)
	case KindWorker:
		n.validateWorker(&problems)
	case KindSCIM:
		n.validateSCIM(&problems)
	default:
		problems.add("kind", "%q is not a kind of token: use user, worker or scim", n.Kind)
	}
	if n.Kind != KindSCIM && n.Issuer+string(n.SubjectFrom) != "" {
		problems.add("issuer", "only a scim token has an issuer")
	}

	if len(problems) > 0 {
		return n, &fault.Error{
			Kind:     fault.Invalid,
			Message:  "the token cannot be created: " + problems[0].Message,
			Problems: problems,
		}
	}
	return n, nil
}

func (n NewToken) validateUser(problems *tokenProblems) {
	*problems = append(*problems, CheckRoles(n.Role, n.Grants, n.OrgRoles)...)
	if len(n.Runtimes)+len(n.Operators) > 0 {
		problems.add("runtimes", "a user token claims no tasks: only worker tokens have runtimes and operators")
	}
	if len(n.Orgs) > 0 {
		problems.add("orgs", "a user token belongs to one org, that of its creator")
	}
}

// CheckRoles returns what is wrong with what somebody is to be given: a role, roles on some DAGs besides, and org
// roles.
func CheckRoles(role Role, grants []Grant, orgRoles []string) []fault.Problem {
	var problems tokenProblems
	switch {
	case role == "":
		problems.add("role", "there is no role: name reader, proposer, writer or admin")
	case !role.Valid():
		problems.add("role", "%q is no role: use reader, proposer, writer or admin", role)
	}
	for _, g := range grants {
		if g.Role != RoleProposer && g.Role != RoleWriter {
			problems.add("grants", "%q cannot be granted on some DAGs: only proposer and writer can", g.Role)
		}
		if !goodPattern.MatchString(g.DAGs) {
			problems.add("grants", "%q is no name or pattern of DAGs: write such as sales-* or orders", g.DAGs)
		}
	}

	for _, r := range orgRoles {
		if !goodOrgRole.MatchString(r) {
			problems.add("org_roles", "%q is not an org role: write role:SLUG", r)
		}
	}
	return problems
}

func (n NewToken) validateWorker(problems *tokenProblems) {
	if n.Role != "" {
		problems.add("role", "a worker token has no role: it never acts for a user")
	}
	if len(n.Grants) > 0 {
		problems.add("grants", "a worker token has no role, nor on some DAGs")
	}
	if len(n.OrgRoles) > 0 {
		problems.add("org_roles", "a worker token has no org roles: it reads what its tasks read")
	}

	if len(n.Runtimes) == 0 {
		problems.add("runtimes", "a worker token needs the runtimes it may serve")
	}
	for field, names := range map[string][]string{"runtimes": n.Runtimes, "operators": n.Operators} {
		for _, name := range names {
			if !goodClaim.MatchString(name) {
				problems.add(field, "%q is not a name: use up to 63 of a-z, 0-9, _ and -, beginning with a letter",
					name)
			}
		}
	}
}

// tokenProblems collects everything that is wrong with a NewToken.
type tokenProblems []fault.Problem

func (p *tokenProblems) add(field, format string, args ...any) {
	*p = append(*p, fault.Problem{Location: field, Message: fmt.Sprintf(format, args...)})
}

// CreateToken creates a service token in the caller's org. Nothing else ever returns its secret.
func CreateToken(ctx context.Context, pool *pgxpool.Pool, caller Caller, n NewToken) (secret string, t Token,
	err error) {
	err = pg.InOrgTx(ctx, pool, caller.OrgID, func(ctx context.Context, tx pgx.Tx) error {
		secret, t, err = createToken(ctx, tx, caller, n)
		return err
	})
	if err != nil {
		return "", Token{}, err
	}
	return secret, t, nil
}

func createToken(ctx context.Context, tx pgx.Tx, caller Caller, n NewToken) (string, Token, error) {
	if other := slices.IndexFunc(n.Orgs, func(slug string) bool { return slug != caller.OrgSlug }); other >= 0 {
		return "", Token{}, fault.New(fault.Forbidden, "%s has no rights in the org %q", caller.Actor, n.Orgs[other]).
			WithHint("the server's administrator can create tokens for several orgs: `dagctl admin " +
				"create-worker-token`")
	}
	return insertToken(ctx, tx, caller, n, []uuid.UUID{caller.OrgID})
}

// insertToken creates a token of the caller's org. A worker token may claim tasks of the given orgs.
func insertToken(ctx context.Context, tx pgx.Tx, caller Caller, n NewToken, orgs []uuid.UUID) (string, Token, error) {
	n, err := n.validate()
	if err != nil {
		return "", Token{}, err
	}

	secret := NewSecret(string(n.Kind))
	if n.Kind != KindWorker {
		orgs = nil
	}

	if err := RequireOrgRoles(ctx, tx, caller.OrgID, n.OrgRoles); err != nil {
		return "", Token{}, err
	}

	rows, err := tx.Query(ctx, `
		INSERT INTO service_tokens (org_id, name, hash, kind, role, org_roles, runtimes, operators, orgs, created_by,
			expires_at, grants, issuer, subject_from)
		VALUES ($1, $2, $3, $4, NULLIF($5, ''), coalesce($6::text[], '{}'), $7, $8, $9, $10, now() + $11, $12,
			NULLIF($13, ''), NULLIF($14, ''))
		RETURNING `+tokenColumns,
		caller.OrgID, n.Name, HashSecret(secret), n.Kind, n.Role, n.OrgRoles, n.Runtimes, n.Operators, orgs,
		caller.Actor, n.TTL, GrantTexts(n.Grants), n.Issuer, n.SubjectFrom)
	if err != nil {
		return "", Token{}, fmt.Errorf("create token %s: %w", n.Name, err)
	}
	t, err := pgx.CollectExactlyOneRow(rows, scanToken)
	if violates(err, "service_tokens_org_id_name_key") {
		return "", Token{}, fault.New(fault.Conflict, "a token %s exists or existed already", n.Name).
			WithHint("choose another name: the audit log identifies tokens by name")
	}
	if err != nil {
		return "", Token{}, fmt.Errorf("create token %s: %w", n.Name, err)
	}
	return secret, t, Audit(ctx, tx, caller, "token.create", "token:"+t.Name, Change{After: t})
}

// ListTokens returns the tokens of the caller's org by name, including revoked and expired ones.
func ListTokens(ctx context.Context, pool *pgxpool.Pool, caller Caller,
	page rest.PageInput) (list rest.List[Token], err error) {
	var after string
	if _, err := page.After(&after); err != nil {
		return list, err
	}

	err = pg.InOrgTx(ctx, pool, caller.OrgID, func(ctx context.Context, tx pgx.Tx) error {
		rows, err := tx.Query(ctx, `
			SELECT `+tokenColumns+` FROM service_tokens
			WHERE org_id = $1 AND name > $2 ORDER BY name LIMIT $3`, // service_tokens_org_id_name_key
			caller.OrgID, after, page.Limit+1)
		if err != nil {
			return err
		}
		tokens, err := pgx.CollectRows(rows, scanToken)
		if err != nil {
			return err
		}

		list, err = rest.NewList(tokens, page.Limit, func(t Token) any { return t.Name })
		return err
	})
	if err != nil {
		return list, fmt.Errorf("list tokens: %w", err)
	}
	return list, nil
}

// RevokeToken revokes a token of the caller's org at once. Revoking it again changes nothing.
func RevokeToken(ctx context.Context, pool *pgxpool.Pool, caller Caller, name string) error {
	return pg.InOrgTx(ctx, pool, caller.OrgID, func(ctx context.Context, tx pgx.Tx) error {
		return ChangeAdmins(ctx, tx, caller, func() error { return revokeOwnToken(ctx, tx, caller, name) })
	})
}

func revokeOwnToken(ctx context.Context, tx pgx.Tx, caller Caller, name string) error {
	orgs, revoked, err := lockToken(ctx, tx, caller.OrgID, name)
	if err != nil || revoked {
		return err
	}
	if orgs > 1 {
		return fault.New(fault.Forbidden, "workers of other orgs use token %s too", name).
			WithHint("the server's administrator can revoke it: `dagctl admin revoke-token %s --org %s`",
				name, caller.OrgSlug)
	}
	if err := refuseLastAdmin(ctx, tx, caller, name); err != nil {
		return err
	}
	return revokeToken(ctx, tx, caller, name)
}

// CreateUserToken creates a token of kind user for an org, for the server's administrator: it brings an org back that
// has no admin token any more. The pool is the owner's.
func CreateUserToken(
	ctx context.Context, owner *pgxpool.Pool, orgSlug string, n NewToken,
) (secret string, t Token, err error) {
	org, err := OrgBySlug(ctx, owner, orgSlug)
	if err != nil {
		return "", Token{}, err
	}
	n.Kind = KindUser
	err = pg.InTx(ctx, owner, func(ctx context.Context, tx pgx.Tx) error {
		system := Caller{OrgID: org.ID, OrgSlug: org.Slug, Actor: "system"}
		secret, t, err = createToken(ctx, tx, system, n)
		return err
	})
	return secret, t, err
}

// AdminsEnd returns when the last admin token of each org that needs one ends, by the org's id: orgs with an admin who
// signs in need none. It is in the past for an org that nobody can administer. The transaction is the owner's.
func AdminsEnd(ctx context.Context, tx pgx.Tx) (map[uuid.UUID]time.Time, error) {
	rows, err := tx.Query(ctx, `
		SELECT org_id, ends FROM (
			SELECT org_id, max(coalesce(revoked_at, expires_at)) AS ends FROM service_tokens
			WHERE kind = 'user' AND role = 'admin' GROUP BY org_id) AS t
		WHERE NOT EXISTS (SELECT FROM admins_who_sign_in(org_id))`)
	if err != nil {
		return nil, fmt.Errorf("admin tokens: %w", err)
	}

	ends := map[uuid.UUID]time.Time{}
	var (
		org uuid.UUID
		at  time.Time
	)
	_, err = pgx.ForEachRow(rows, []any{&org, &at}, func() error { ends[org] = at; return nil })
	return ends, err
}

// lockToken locks a token's row. It returns the number of orgs whose tasks the token may claim, and whether it is
// revoked.
func lockToken(ctx context.Context, tx pgx.Tx, org uuid.UUID, name string) (orgs int, revoked bool, err error) {
	err = tx.QueryRow(ctx, `
		SELECT coalesce(cardinality(orgs), 0), revoked_at IS NOT NULL FROM service_tokens WHERE org_id = $1
			AND name = $2 FOR UPDATE`,
		org, name).Scan(&orgs, &revoked)
	if errors.Is(err, pgx.ErrNoRows) {
		return 0, false, fault.New(fault.NotFound, "there is no token %q", name).
			WithHint("`dagctl tokens list` lists them")
	}
	if err != nil {
		return 0, false, fmt.Errorf("revoke token %s: %w", name, err)
	}
	return orgs, revoked, nil
}

func revokeToken(ctx context.Context, tx pgx.Tx, caller Caller, name string) error {
	rows, err := tx.Query(ctx, `
		UPDATE service_tokens SET revoked_at = now() WHERE org_id = $1 AND name = $2 RETURNING `+tokenColumns,
		caller.OrgID, name)
	if err != nil {
		return fmt.Errorf("revoke token %s: %w", name, err)
	}
	after, err := pgx.CollectExactlyOneRow(rows, scanToken)
	if err != nil {
		return fmt.Errorf("revoke token %s: %w", name, err)
	}

	before := after
	before.RevokedAt = nil
	return Audit(ctx, tx, caller, "token.revoke", "token:"+name, Change{Before: before, After: after})
}

// tokenColumns is what scanToken scans.
const tokenColumns = `
	name, kind, COALESCE(role, ''), grants, org_roles, runtimes, operators, coalesce(cardinality(orgs), 0),
	created_by, created_at, expires_at, last_used_at, revoked_at, coalesce(issuer, ''), coalesce(subject_from, '')`

func scanToken(row pgx.CollectableRow) (t Token, err error) {
	var grants []string
	err = row.Scan(&t.Name, &t.Kind, &t.Role, &grants, &t.OrgRoles, &t.Runtimes, &t.Operators, &t.Orgs,
		&t.CreatedBy, &t.CreatedAt, &t.ExpiresAt, &t.LastUsedAt, &t.RevokedAt, &t.Issuer, &t.SubjectFrom)
	t.Grants = ParseGrants(grants)
	return t, err
}

// violates reports whether err is a violation of the named unique constraint.
func violates(err error, constraint string) bool {
	var pgErr *pgconn.PgError
	return errors.As(err, &pgErr) && pgErr.Code == "23505" && pgErr.ConstraintName == constraint
}

// Tokens is the Authenticator of service tokens. Its pool must be the owner's: the org is unknown until the token is
// found, and the requests' pool shows no rows without an org.
type Tokens struct {
	pool    *pgxpool.Pool
	lookups *batch.Batcher[*lookup]
}

// NewTokens returns the Authenticator of service tokens.
func NewTokens(owner *pgxpool.Pool) *Tokens {
	a := &Tokens{pool: owner}
	a.lookups = batch.New(lookupBatch, lookupLanes, a.findWorkers)
	return a
}

// Authenticate returns the caller of a service token of kind user. It refuses tokens of other kinds.
func (a *Tokens) Authenticate(r *http.Request) (Caller, bool, error) {
	secret, ok := Bearer(r)
	if !ok {
		return Caller{}, false, nil
	}

	kind, ok := SecretKind(secret)
	switch {
	case !ok || !slices.Contains([]TokenKind{KindUser, KindWorker, KindSCIM}, TokenKind(kind)):
		return Caller{}, false, nil
	case kind == string(KindSCIM):
		return Caller{}, false, fault.New(fault.Unauthenticated, "a scim token does nothing but provision users").
			WithHint("use a token of kind user, or log in")
	case kind == string(KindWorker):
		return Caller{}, false, fault.New(fault.Unauthenticated, "a worker token does not act for a user").
			WithHint("use a token of kind user, or log in")
	}
	caller, err := a.find(r.Context(), secret)
	return caller, err == nil, err
}

// find looks up a user token by its hash, so that the time does not depend on how much of a guess is right.
func (a *Tokens) find(ctx context.Context, secret string) (Caller, error) {
	var c Caller
	var name string
	var grants []string

	// Uses service_tokens_hash_key. Writes last_used_at at most once a minute, so that a busy token is not a hot row.
	err := a.pool.QueryRow(ctx, `
		WITH token AS (
			SELECT t.id, t.org_id, o.slug, t.name, t.role, t.grants, t.org_roles, t.last_used_at, t.expires_at
			FROM service_tokens t JOIN orgs o ON o.id = t.org_id
			WHERE t.hash = $1 AND t.kind = 'user' AND t.revoked_at IS NULL AND t.expires_at > now()
		), touched AS (
			UPDATE service_tokens t SET last_used_at = now()
			FROM token
			WHERE t.id = token.id AND (t.last_used_at IS NULL OR t.last_used_at < now() - interval '1 minute')
		)
		SELECT org_id, slug, name, role, grants, org_roles, expires_at FROM token`, HashSecret(secret)).
		Scan(&c.OrgID, &c.OrgSlug, &name, &c.Role, &grants, &c.OrgRoles, &c.ExpiresAt)
	if errors.Is(err, pgx.ErrNoRows) {
		return Caller{}, badToken()
	}
	if err != nil {
		return Caller{}, fmt.Errorf("look up token: %w", err)
	}
	c.Actor, c.Grants = "token:"+name, ParseGrants(grants)
	return c, nil
}
