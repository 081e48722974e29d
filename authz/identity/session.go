package identity

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/pg"
)

// SessionKind is what a user signed in with.
type SessionKind string

const (
	Browser     SessionKind = "browser"
	CommandLine SessionKind = "cli"
)

// Session is a session as its user sees it.
type Session struct {
	ID         uuid.UUID   `json:"id" format:"uuid"`
	Kind       SessionKind `json:"kind" enum:"browser,cli"`
	Client     string      `json:"client,omitempty" doc:"The browser or machine, as it calls itself"`
	CreatedAt  time.Time   `json:"created_at"`
	LastUsedAt time.Time   `json:"last_used_at"`
	ExpiresAt  time.Time   `json:"expires_at" doc:"When it ends unless it is used before"`
	Current    bool        `json:"current" doc:"Whether this request came by it"`
}

// open makes a session of a place, in the transaction that admitted the person, and returns its secret.
func (id *Identity) open(ctx context.Context, tx pgx.Tx, at place, kind SessionKind, client string) (string, error) {
	key, err := uuid.NewV7()
	if err != nil {
		return "", fmt.Errorf("open session: %w", err)
	}

	secret := authz.NewSecret("session")
	_, err = tx.Exec(ctx, `
		INSERT INTO sessions (id, org_id, user_id, kind, hash, client, idle_seconds, expires_at, ends_at)
		VALUES ($1, $2, $3, $4, $5, $6, $7, now() + least($7, $8::bigint) * interval '1 second',
			now() + $8::bigint * interval '1 second')`,
		key, at.org.ID, at.user, kind, authz.HashSecret(secret), short(client),
		int64(id.IdleAfter.Seconds()), int64(id.Ends.Seconds()))
	if err != nil {
		return "", fmt.Errorf("open session: %w", err)
	}
	if _, err := tx.Exec(ctx, `UPDATE users SET last_seen_at = now() WHERE id = $1`, at.user); err != nil {
		return "", fmt.Errorf("open session: %w", err)
	}
	as := authz.Caller{OrgID: at.org.ID, OrgSlug: at.org.Slug, Actor: userOf(at.user)}
	return secret, authz.AuditSignIn(ctx, tx, as, authz.Done, map[string]any{"session": key, "kind": kind,
		"client": short(client)})
}

// sessions is the Authenticator of cookies and of the tokens of the command line.
type sessions struct{ *Identity }

// cookieName returns the name of the cookie of sessions. The prefix makes browsers take it from this host by TLS only.
func (id *Identity) cookieName() string {
	if id.secure() {
		return "__Host-" + authz.SessionCookie
	}
	return authz.SessionCookie
}

// Authenticate returns the caller of a session.
func (s sessions) Authenticate(r *http.Request) (authz.Caller, bool, error) {
	kind, secret := CommandLine, ""
	if token, ok := authz.Bearer(r); ok {
		secret = token
	} else if cookie, err := r.Cookie(s.cookieName()); err == nil {
		kind, secret = Browser, cookie.Value
	}
	if form, ok := authz.SecretKind(secret); !ok || form != "session" {
		return authz.Caller{}, false, nil
	}

	caller, err := s.find(r.Context(), secret, kind)
	if err != nil {
		return authz.Caller{}, false, err
	}
	if kind == Browser {
		caller = caller.ByCookie(secret)
	}
	return caller, true, nil
}

// find looks up a session by its hash. It is prolonged at most once a minute, so that a busy one is no hot row.
func (s sessions) find(ctx context.Context, secret string, kind SessionKind) (authz.Caller, error) {
	var (
		c                   authz.Caller
		user                uuid.UUID
		own                 *string
		grants, more, roles []string
	)
	err := s.Owner.QueryRow(ctx, `
		WITH session AS (
			SELECT s.id, s.org_id, o.slug, u.id AS user_id, coalesce(u.email, u.display_name, '') AS name, u.role,
				u.grants, s.last_used_at, s.expires_at
			FROM sessions s JOIN users u ON u.id = s.user_id JOIN orgs o ON o.id = s.org_id
			WHERE s.hash = $1 AND s.kind = $2 AND s.revoked_at IS NULL AND s.expires_at > now() AND u.disabled_at IS NULL
		), used AS (
			UPDATE sessions s SET last_used_at = now(),
				expires_at = least(now() + s.idle_seconds * interval '1 second', s.ends_at)
			FROM session WHERE s.id = session.id AND s.last_used_at < now() - interval '1 minute'
			RETURNING s.user_id
		), seen AS (
			UPDATE users u SET last_seen_at = now() FROM used WHERE u.id = used.user_id
		), given AS (
			SELECT g.* FROM session CROSS JOIN LATERAL rules_of_user(session.org_id, session.user_id) g
		)
		SELECT org_id, slug, user_id, name, role, grants, expires_at,
			org_roles_of_user(org_id, user_id),
			ARRAY(SELECT role FROM given),
			ARRAY(SELECT unnest(grants) FROM given)
		FROM session`, authz.HashSecret(secret), kind).
		Scan(&c.OrgID, &c.OrgSlug, &user, &c.Name, &own, &grants, &c.ExpiresAt, &c.OrgRoles, &roles, &more)
	if errNoRows(err) {
		return authz.Caller{}, over()
	}
	if err != nil {
		return authz.Caller{}, fmt.Errorf("look up session: %w", err)
	}

	if own != nil {
		roles = append(roles, *own)
	}
	if c.Role = authz.Highest(roles); c.Role == "" {
		return authz.Caller{}, over() // the rules that admitted the user are gone
	}
	c.Actor = userOf(user)
	c.Grants = authz.ParseGrants(append(grants, more...))
	return c, nil
}

// over returns the same error for every session that is no more, and for one that never was.
func over() error {
	return fault.New(fault.Unauthenticated, "you are not signed in any more").
		WithHint("sign in again: `dagctl login`, or reload the page")
}

// signOut ends the caller's session, or all of the user's. Other callers than users have none.
func (id *Identity) signOut(ctx context.Context, caller authz.Caller, r *http.Request, everywhere bool) error {
	user, err := userID(caller)
	if err != nil {
		return err
	}
	if !everywhere {
		return pg.InOrgTx(ctx, id.Requests, caller.OrgID, func(ctx context.Context, tx pgx.Tx) error {
			return revokeSessions(ctx, tx, caller, user, id.hashOf(r))
		})
	}

	// In all orgs: it is the same person, which only the owner's pool sees.
	return pg.InTx(ctx, id.Owner, func(ctx context.Context, tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, `
			UPDATE sessions s SET revoked_at = now()
			FROM users me JOIN users u ON u.issuer = me.issuer AND u.external_id = me.external_id
			WHERE me.id = $1 AND me.org_id = $2 AND s.user_id = u.id AND s.revoked_at IS NULL
			  AND (me.issuer <> $3 OR u.id = me.id) -- nobody vouches for that those of two orgs are one person`,
			user, caller.OrgID, Local)
		if err != nil {
			return fmt.Errorf("end sessions: %w", err)
		}
		return authz.Audit(ctx, tx, caller, "user.sign_out", userOf(user),
			map[string]any{"sessions": tag.RowsAffected()})
	})
}

// revokeSessions ends the session of a user with a hash, or all of them if hash is nil.
func revokeSessions(ctx context.Context, tx pgx.Tx, caller authz.Caller, user uuid.UUID, hash []byte) error {
	tag, err := tx.Exec(ctx, `
		UPDATE sessions SET revoked_at = now()
		WHERE org_id = $1 AND user_id = $2 AND revoked_at IS NULL AND ($3::bytea IS NULL OR hash = $3)`,
		caller.OrgID, user, hash)
	if err != nil {
		return fmt.Errorf("end sessions: %w", err)
	}
	if tag.RowsAffected() == 0 {
		return nil
	}
	return authz.Audit(ctx, tx, caller, "user.sign_out", userOf(user), map[string]any{"sessions": tag.RowsAffected()})
}

// hashOf returns the hash of the session's secret in a request; that of an empty text if it has none.
func (id *Identity) hashOf(r *http.Request) []byte {
	if token, ok := authz.Bearer(r); ok {
		return authz.HashSecret(token)
	}
	cookie, err := r.Cookie(id.cookieName())
	if err != nil {
		return authz.HashSecret("")
	}
	return authz.HashSecret(cookie.Value)
}

// userID returns the user that a caller is.
func userID(caller authz.Caller) (uuid.UUID, error) {
	text, ok := strings.CutPrefix(caller.Actor, "user:")
	user, err := uuid.Parse(text)
	if !ok || err != nil {
		return uuid.Nil, fault.New(fault.Conflict, "%s is no user, so it has no sessions", caller.Actor)
	}
	return user, nil
}

// ListSessions returns the sessions of the caller that have not ended, latest first.
func (id *Identity) ListSessions(ctx context.Context, caller authz.Caller, r *http.Request) (all []Session, err error) {
	user, err := userID(caller)
	if err != nil {
		return nil, err
	}
	err = pg.InOrgTx(ctx, id.Requests, caller.OrgID, func(ctx context.Context, tx pgx.Tx) error {
		rows, err := tx.Query(ctx, `
			SELECT id, kind, client, created_at, last_used_at, expires_at, hash = $3
			FROM sessions
			WHERE org_id = $1 AND user_id = $2 AND revoked_at IS NULL AND expires_at > now()
			ORDER BY created_at DESC LIMIT 200`, caller.OrgID, user, id.hashOf(r))
		if err != nil {
			return err
		}
		all, err = pgx.CollectRows(rows, pgx.RowToStructByPos[Session])
		return err
	})
	return all, fault.Wrap(err, "list sessions")
}

// setCookie gives a browser its session. It ends with the browser, or with the session.
func (id *Identity) setCookie(w http.ResponseWriter, name, value string, age time.Duration) {
	http.SetCookie(w, &http.Cookie{Name: name, Value: value, Path: "/", HttpOnly: true, Secure: id.secure(),
		SameSite: http.SameSiteLaxMode, MaxAge: int(age / time.Second)})
}
