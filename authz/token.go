package authz

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/dagctl/dagctl/internal/batch"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/internal/rest"
)

// How long service tokens live.
const (
	DefaultTTL = 90 * 24 * time.Hour
	MaxTTL     = 365 * 24 * time.Hour
)

// TokenKind says what a service token stands for.
type TokenKind string

const (
	KindUser   TokenKind = "user"   // becomes a Caller with the token's role
	KindWorker TokenKind = "worker" // may claim tasks of its runtimes and operators; never a Caller
)

// Token is a service token as people see it: without its secret, which nobody has but who made it.
type Token struct {
	Name       string     `json:"name"`
	Kind       TokenKind  `json:"kind" enum:"user,worker"`
	Role       Role       `json:"role,omitempty" enum:"reader,writer,admin"`
	Runtimes   []string   `json:"runtimes,omitempty"`
	Operators  []string   `json:"operators,omitempty"`
	Orgs       int        `json:"orgs,omitempty" doc:"Of a worker token: of how many orgs it may claim tasks"`
	CreatedBy  string     `json:"created_by"`
	CreatedAt  time.Time  `json:"created_at"`
	ExpiresAt  time.Time  `json:"expires_at"`
	LastUsedAt *time.Time `json:"last_used_at,omitempty"`
	RevokedAt  *time.Time `json:"revoked_at,omitempty"`
}

// NewToken is a token to be made.
type NewToken struct {
	Name      string
	Kind      TokenKind     // KindUser when empty
	Role      Role          // of a user token
	Runtimes  []string      // of a worker token, at least one
	Operators []string      // of a worker token; empty is every operator
	Orgs      []string      // of a worker token: slugs; empty is the caller's. Others are for CreateWorkerToken alone
	TTL       time.Duration // DefaultTTL when zero, MaxTTL at most
}

var goodTokenName = regexp.MustCompile(`^[a-z0-9][a-z0-9_.-]{0,62}$`)

// goodClaim is what runtimes and operators are called.
var goodClaim = regexp.MustCompile(`^[a-z][a-z0-9_-]{0,62}$`)

// validate fills in defaults and lists everything that is wrong.
func (n NewToken) validate() (NewToken, error) {
	if n.Kind == "" {
		n.Kind = KindUser
	}
	if n.TTL == 0 {
		n.TTL = DefaultTTL
	}
	var problems []fault.Problem
	wrong := func(where, format string, args ...any) {
		problems = append(problems, fault.Problem{Location: where, Message: fmt.Sprintf(format, args...)})
	}
	if !goodTokenName.MatchString(n.Name) {
		wrong("name", "%q is not a token name: use up to 63 of a-z, 0-9, _, . and -, beginning with a letter or digit", n.Name)
	}
	if n.TTL < time.Minute || n.TTL > MaxTTL {
		wrong("ttl", "a token lives between one minute and %d days, not %s", MaxTTL/(24*time.Hour), n.TTL)
	}
	switch n.Kind {
	case KindUser:
		if !n.Role.Valid() {
			wrong("role", "a user token needs a role: reader, writer or admin")
		}
		if len(n.Runtimes)+len(n.Operators) > 0 {
			wrong("runtimes", "a user token claims nothing: runtimes and operators belong to worker tokens")
		}
		if len(n.Orgs) > 0 {
			wrong("orgs", "a user token is of one org, its maker's")
		}
	case KindWorker:
		if n.Role != "" {
			wrong("role", "a worker token has no role: it never acts for a user")
		}
		if len(n.Runtimes) == 0 {
			wrong("runtimes", "a worker token needs the runtimes it may serve")
		}
		for field, names := range map[string][]string{"runtimes": n.Runtimes, "operators": n.Operators} {
			for _, name := range names {
				if !goodClaim.MatchString(name) {
					wrong(field, "%q is not a name: use up to 63 of a-z, 0-9, _ and -, beginning with a letter", name)
				}
			}
		}
	default:
		wrong("kind", "%q is no kind of token: user or worker", n.Kind)
	}
	if len(problems) > 0 {
		return n, &fault.Error{Kind: fault.Invalid, Message: "the token cannot be made: " + problems[0].Message, Problems: problems}
	}
	return n, nil
}

// CreateToken makes a service token in the caller's org. The secret is returned here and never again.
func CreateToken(ctx context.Context, pool *pgxpool.Pool, caller Caller, n NewToken) (secret string, t Token, err error) {
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
		return "", Token{}, fault.New(fault.Forbidden, "%s has no say over the org %q", caller.Actor, n.Orgs[other]).
			WithHint("whoever runs the server makes tokens for several orgs: `dagctl admin create-worker-token`")
	}
	return insertToken(ctx, tx, caller, n, []uuid.UUID{caller.OrgID})
}

// insertToken makes a token of the caller's org; a worker token may claim tasks of the given orgs.
func insertToken(ctx context.Context, tx pgx.Tx, caller Caller, n NewToken, orgs []uuid.UUID) (string, Token, error) {
	n, err := n.validate()
	if err != nil {
		return "", Token{}, err
	}
	secret := newSecret(string(n.Kind))
	if n.Kind != KindWorker {
		orgs = nil
	}
	rows, err := tx.Query(ctx, `
		INSERT INTO service_tokens (org_id, name, hash, kind, role, runtimes, operators, orgs, created_by, expires_at)
		VALUES ($1, $2, $3, $4, NULLIF($5, ''), $6, $7, $8, $9, now() + $10)
		RETURNING `+tokenColumns,
		caller.OrgID, n.Name, hashSecret(secret), n.Kind, n.Role, n.Runtimes, n.Operators, orgs, caller.Actor, n.TTL)
	if err != nil {
		return "", Token{}, fmt.Errorf("create token %s: %w", n.Name, err)
	}
	t, err := pgx.CollectExactlyOneRow(rows, scanToken)
	if violates(err, "service_tokens_org_id_name_key") {
		return "", Token{}, fault.New(fault.Conflict, "there is a token %s already, or there was", n.Name).
			WithHint("choose another name: the audit log knows tokens by theirs")
	}
	if err != nil {
		return "", Token{}, fmt.Errorf("create token %s: %w", n.Name, err)
	}
	return secret, t, Audit(ctx, tx, caller, "token.create", "token:"+t.Name, map[string]any{"after": t})
}

// ListTokens lists the tokens of the caller's org by name, revoked and expired ones too.
func ListTokens(ctx context.Context, pool *pgxpool.Pool, caller Caller, page rest.PageInput) (list rest.List[Token], err error) {
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

// RevokeToken ends a token of the caller's org at once. Revoking it again changes nothing.
func RevokeToken(ctx context.Context, pool *pgxpool.Pool, caller Caller, name string) error {
	return pg.InOrgTx(ctx, pool, caller.OrgID, func(ctx context.Context, tx pgx.Tx) error {
		orgs, revoked, err := lockToken(ctx, tx, caller.OrgID, name)
		if err != nil || revoked {
			return err
		}
		if orgs > 1 {
			return fault.New(fault.Forbidden, "workers of other orgs use token %s too", name).
				WithHint("whoever runs the server may revoke it: `dagctl admin revoke-token %s --org %s`", name, caller.OrgSlug)
		}
		return revokeToken(ctx, tx, caller, name)
	})
}

// lockToken locks a token's row, and says for how many orgs it claims tasks and whether it is revoked.
func lockToken(ctx context.Context, tx pgx.Tx, org uuid.UUID, name string) (orgs int, revoked bool, err error) {
	err = tx.QueryRow(ctx, `
		SELECT coalesce(cardinality(orgs), 0), revoked_at IS NOT NULL FROM service_tokens WHERE org_id = $1 AND name = $2 FOR UPDATE`,
		org, name).Scan(&orgs, &revoked)
	if errors.Is(err, pgx.ErrNoRows) {
		return 0, false, fault.New(fault.NotFound, "there is no token %q", name).WithHint("dagctl tokens list shows them")
	}
	if err != nil {
		return 0, false, fmt.Errorf("revoke token %s: %w", name, err)
	}
	return orgs, revoked, nil
}

func revokeToken(ctx context.Context, tx pgx.Tx, caller Caller, name string) error {
	if _, err := tx.Exec(ctx, `
		UPDATE service_tokens SET revoked_at = now() WHERE org_id = $1 AND name = $2`, caller.OrgID, name); err != nil {
		return fmt.Errorf("revoke token %s: %w", name, err)
	}
	return Audit(ctx, tx, caller, "token.revoke", "token:"+name, nil)
}

// tokenColumns is what scanToken scans.
const tokenColumns = `name, kind, COALESCE(role, ''), runtimes, operators, coalesce(cardinality(orgs), 0), created_by, created_at, expires_at, last_used_at, revoked_at`

func scanToken(row pgx.CollectableRow) (t Token, err error) {
	err = row.Scan(&t.Name, &t.Kind, &t.Role, &t.Runtimes, &t.Operators, &t.Orgs, &t.CreatedBy, &t.CreatedAt, &t.ExpiresAt, &t.LastUsedAt, &t.RevokedAt)
	return t, err
}

// violates reports whether err is a violation of the named unique constraint.
func violates(err error, constraint string) bool {
	var pgErr *pgconn.PgError
	return errors.As(err, &pgErr) && pgErr.Code == "23505" && pgErr.ConstraintName == constraint
}

// Tokens is the Authenticator of service tokens. Its pool must be the owner's: until the token is found nobody knows
// the org, and the requests' pool shows no rows without one.
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

// Authenticate recognises a service token of kind user. A worker token is a credential of this sort, and no good.
func (a *Tokens) Authenticate(r *http.Request) (Caller, bool, error) {
	secret, ok := bearer(r)
	if !ok {
		return Caller{}, false, nil
	}
	kind, ok := secretKind(secret)
	switch {
	case !ok || (kind != string(KindUser) && kind != string(KindWorker)):
		return Caller{}, false, nil
	case kind == string(KindWorker):
		return Caller{}, false, fault.New(fault.Unauthenticated, "a worker token does not act for a user").
			WithHint("use a token of kind user, or log in")
	}
	caller, err := a.find(r.Context(), secret)
	return caller, err == nil, err
}

// find looks a user token up by its hash, which takes the same time however nearly a guess matches.
func (a *Tokens) find(ctx context.Context, secret string) (Caller, error) {
	var c Caller
	var name string
	// service_tokens_hash_key. last_used_at is written once a minute at most, so that a busy token is not a hot row.
	err := a.pool.QueryRow(ctx, `
		WITH token AS (
			SELECT t.id, t.org_id, o.slug, t.name, t.role, t.last_used_at
			FROM service_tokens t JOIN orgs o ON o.id = t.org_id
			WHERE t.hash = $1 AND t.kind = 'user' AND t.revoked_at IS NULL AND t.expires_at > now()
		), touched AS (
			UPDATE service_tokens t SET last_used_at = now()
			FROM token
			WHERE t.id = token.id AND (t.last_used_at IS NULL OR t.last_used_at < now() - interval '1 minute')
		)
		SELECT org_id, slug, name, role FROM token`, hashSecret(secret)).
		Scan(&c.OrgID, &c.OrgSlug, &name, &c.Role)
	if errors.Is(err, pgx.ErrNoRows) {
		return Caller{}, badToken()
	}
	if err != nil {
		return Caller{}, fmt.Errorf("look up token: %w", err)
	}
	c.Actor = "token:" + name
	return c, nil
}
