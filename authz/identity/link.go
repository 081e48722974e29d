package identity

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/pg"
)

// Link is an address that signs one user in, once.
type Link struct {
	URL       string    `json:"url" doc:"Give it to the user alone: it is not shown again"`
	ExpiresAt time.Time `json:"expires_at"`
}

// linkLasts is how long a link waits for its user.
const linkLasts = 24 * time.Hour

// CreateLink returns a link for a user of the caller's org whom no provider knows.
func (id *Identity) CreateLink(ctx context.Context, caller authz.Caller, name string) (l Link, err error) {
	if id.BaseURL == "" {
		return Link{}, fault.New(fault.Conflict, "this server has no base_url, so nobody can sign in").
			WithHint("an administrator of the server sets base_url in its config")
	}
	err = pg.InOrgTx(ctx, id.Requests, caller.OrgID, func(ctx context.Context, tx pgx.Tx) error {
		u, err := findUser(ctx, tx, caller.OrgID, name)
		if err != nil {
			return err
		}
		l, err = createLink(ctx, tx, caller, u, id.BaseURL)
		return err
	})
	return l, fault.Wrap(err, "create link")
}

func createLink(ctx context.Context, tx pgx.Tx, caller authz.Caller, u User, baseURL string) (l Link, err error) {
	switch {
	case u.Issuer != Local:
		return Link{}, fault.New(fault.Conflict, "%s signs in at %s: a link would go around it", u.Email, u.Issuer).
			WithHint("links are for users that were invited with --local")
	case u.DisabledAt != nil:
		return Link{}, fault.New(fault.Conflict, "%s is disabled", u.Email).
			WithHint("`dagctl users enable %s` lets the user in again", u.Email)
	}
	key, err := uuid.NewV7()
	if err != nil {
		return Link{}, err
	}

	// A new link takes the place of those before it, which may have got lost.
	secret := authz.NewSecret("link")
	err = tx.QueryRow(ctx, `
		WITH old AS (UPDATE sign_in_links SET used_at = now() WHERE org_id = $2 AND user_id = $3 AND used_at IS NULL)
		INSERT INTO sign_in_links (id, org_id, user_id, hash, created_by, expires_at)
		VALUES ($1, $2, $3, $4, $5, now() + $6::interval) RETURNING expires_at`,
		key, caller.OrgID, u.ID, authz.HashSecret(secret), caller.Actor, linkLasts).Scan(&l.ExpiresAt)
	if err != nil {
		return Link{}, err
	}
	l.URL = baseURL + "/signin/link?" + url.Values{"token": {secret}}.Encode()
	return l, authz.Audit(ctx, tx, caller, "user.link", userOf(u.ID), map[string]any{"link": key, "email": u.Email})
}

// FirstLink returns a link for an admin of an org whom no provider knows, and makes that user if there is none. The
// pool is the owner's: whoever may use it may do everything.
func FirstLink(ctx context.Context, owner *pgxpool.Pool, org authz.Org, email, baseURL string) (l Link, err error) {
	system := authz.Caller{OrgID: org.ID, OrgSlug: org.Slug, Actor: "system", Role: authz.RoleAdmin}
	n, err := new(Identity).invite(NewUser{Email: email, Issuer: Local, Role: authz.RoleAdmin}, org.Slug)
	if err != nil {
		return Link{}, err
	}

	err = pg.InTx(ctx, owner, func(ctx context.Context, tx pgx.Tx) error {
		u, err := findUser(ctx, tx, org.ID, n.Email)
		if fault.Is(err, fault.NotFound) {
			u, err = inviteIn(ctx, tx, system, n)
		}
		if err != nil {
			return err
		}
		l, err = createLink(ctx, tx, system, u, baseURL)
		return err
	})
	return l, err
}

// linkPage asks a person to confirm: programs that look at links in mails must not use them up.
func (id *Identity) linkPage(w http.ResponseWriter, r *http.Request, _ authz.Caller) error {
	// The address has the token, which no referrer may carry on; a browser that sent none would not send the form's
	// origin either.
	w.Header().Set("Referrer-Policy", "strict-origin")
	return id.render(w, authz.Caller{}, "link.html", "Sign in", map[string]any{"Token": r.URL.Query().Get("token")})
}

// followLink signs the browser in as the user of a link.
func (id *Identity) followLink(w http.ResponseWriter, r *http.Request, _ authz.Caller) error {
	if err := id.takeStart(r); err != nil {
		return err
	}
	if err := id.ownForm(r); err != nil {
		return err
	}
	var secret string
	err := pg.InTx(r.Context(), id.Owner, func(ctx context.Context, tx pgx.Tx) error {
		var at place
		err := tx.QueryRow(ctx, `
			UPDATE sign_in_links l SET used_at = now()
			FROM users u JOIN orgs o ON o.id = u.org_id
			WHERE l.hash = $1 AND l.used_at IS NULL AND l.expires_at > now() AND u.id = l.user_id AND u.issuer = $2
			  AND u.disabled_at IS NULL
			RETURNING o.id, o.slug, u.id`, authz.HashSecret(r.PostFormValue("token")), Local).
			Scan(&at.org.ID, &at.org.Slug, &at.user)
		if errNoRows(err) {
			return fault.New(fault.Forbidden, "this link was used, has expired, or was replaced by another").
				WithHint("ask an admin of your org for a new one")
		}
		if err != nil {
			return fmt.Errorf("use link: %w", err)
		}
		secret, err = id.open(ctx, tx, at, Browser, r.UserAgent())
		return err
	})
	if err != nil {
		return err
	}

	id.setCookie(w, id.cookieName(), secret, id.Ends)
	http.Redirect(w, r, "/", http.StatusSeeOther)
	return nil
}
