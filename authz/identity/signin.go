package identity

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/pg"
)

// Paths of pages. The provider must know the first as the server's redirect URI.
const (
	callbackPath = "/signin/callback/" // and the provider's name: each has an address of its own to come back to
	SignInPath   = "/signin"
)

// addPages adds the pages on which people sign in and out.
func (id *Identity) addPages(api *authz.API) {
	api.HandlePage(authz.Public, "GET "+SignInPath, id.signInPage)
	api.HandlePage(authz.Public, "GET /signin/with/{provider}", id.signInWith)
	api.HandlePage(authz.Public, "GET "+callbackPath+"{provider}", id.callback)
	api.HandlePage(authz.Public, "GET /signin/link", id.linkPage)
	api.HandlePage(authz.Public, "POST /signin/link", id.followLink)
	api.HandlePage(authz.Reader, "GET /signin/cli", id.cliPage)
	api.HandlePage(authz.Reader, "POST /signin/cli", id.approveCLI)
	api.HandlePage(authz.Reader, "GET /signin/device", id.devicePage)
	api.HandlePage(authz.Reader, "POST /signin/device", id.approveDevice)
	api.HandlePage(authz.Reader, "GET /account", id.accountPage)
	api.HandlePage(authz.Reader, "POST /signout", id.signOutPage)
}

// signInPage lists the providers.
func (id *Identity) signInPage(w http.ResponseWriter, r *http.Request, _ authz.Caller) error {
	query := r.URL.Query()
	again := url.Values{"next": {localPath(query.Get("next"))}}
	if org := query.Get("org"); org != "" {
		again.Set("org", org)
	}
	type choice struct{ Title, Address string }
	var choices []choice
	for _, p := range id.Providers {
		choices = append(choices, choice{id.providers[p.Name].Title,
			"/signin/with/" + p.Name + "?" + again.Encode()})
	}
	return id.render(w, authz.Caller{}, "signin.html", "Sign in",
		map[string]any{"Choices": choices, "Out": query.Has("out")})
}

// signInWith sends the browser to a provider.
func (id *Identity) signInWith(w http.ResponseWriter, r *http.Request, _ authz.Caller) error {
	if err := id.takeStart(r); err != nil {
		return err
	}
	p, ok := id.providers[r.PathValue("provider")]
	if !ok {
		return fault.New(fault.NotFound, "this server knows no provider %q", r.PathValue("provider")).
			WithHint("choose one on the page %s", SignInPath)
	}

	f := id.begin(w, r, p.Provider.Name, r.URL.Query().Get("next"), r.URL.Query().Get("org"))
	address, err := p.start(r.Context(), f)
	if err != nil {
		return err
	}
	http.Redirect(w, r, address, http.StatusSeeOther)
	return nil
}

// takeStart bounds how often one address begins to sign in.
func (id *Identity) takeStart(r *http.Request) error {
	return id.Starts.Take(authz.AddressOf(r), time.Now())
}

// callback signs in the browser that comes back from a provider.
func (id *Identity) callback(w http.ResponseWriter, r *http.Request, _ authz.Caller) error {
	if err := id.takeStart(r); err != nil {
		return err
	}
	f, err := id.ended(w, r)
	if err != nil {
		return err
	}
	p, ok := id.providers[f.Provider]
	if !ok {
		return fault.New(fault.NotFound, "this server knows no provider %q any more", f.Provider)
	}
	if issuer := r.URL.Query().Get("iss"); r.PathValue("provider") != f.Provider || issuer != "" && issuer != p.Issuer {
		return fault.New(fault.Invalid, "this answer is of another provider than %s, at which the sign-in was begun",
			p.Title).
			WithHint("sign in once more")
	}
	if refusal := r.URL.Query().Get("error"); refusal != "" {
		return fault.New(fault.Forbidden, "%s did not sign you in: %s", p.Title, short(refusal)).
			WithHint("sign in once more")
	}

	claims, err := p.exchange(r.Context(), r.URL.Query().Get("code"), f)
	if err != nil {
		id.Log.Warn("a sign-in failed", "provider", p.Provider.Name, "error", err)
		return err
	}
	secret, ask, err := id.signIn(r, personOf(p, claims), f.Org)
	if err != nil {
		id.Log.Warn("a sign-in was refused", "provider", p.Provider.Name, "subject", claims.text("sub"), "error", err)
		return err
	}
	if secret == "" {
		return id.askForOrg(w, r, ask, f)
	}
	id.setCookie(w, id.cookieName(), secret, id.Ends)
	http.Redirect(w, r, localPath(f.Next), http.StatusSeeOther)
	return nil
}

// askForOrg shows a person the orgs that let the person in. The provider signs in once more, mostly by itself.
func (id *Identity) askForOrg(w http.ResponseWriter, r *http.Request, among places, f flow) error {
	var orgs []otherOrg
	for _, at := range among.open {
		orgs = append(orgs, otherOrg{at.org.Slug, "/signin/with/" + f.Provider + "?" +
			url.Values{"org": {at.org.Slug}, "next": {localPath(f.Next)}}.Encode()})
	}
	return id.render(w, authz.Caller{}, "choose.html", "Choose an org", map[string]any{"Orgs": orgs,
		"Disabled": among.disabled})
}

// signIn makes a session of a person for the browser that sent r, whose old one ends, and returns its secret. It is
// empty if the person has to choose among places first. A refusal is recorded, and takes away what rules gave before.
func (id *Identity) signIn(r *http.Request, p person, org string) (secret string, among places, err error) {
	var refusal error
	err = pg.InTx(r.Context(), id.Owner, func(ctx context.Context, tx pgx.Tx) error {
		secret = ""
		all, err := findPlaces(ctx, tx, p)
		if err != nil {
			return err
		}
		if err := learn(ctx, tx, all); err != nil {
			return err
		}

		var at place
		var chosen bool
		if among, refusal = admitted(all, p); refusal == nil {
			at, chosen, refusal = among.choose(org)
		}
		if refusal != nil {
			return noteRefused(ctx, tx, p, all)
		}
		if !chosen {
			return nil
		}
		secret, err = id.enter(ctx, tx, at, p, r)
		return err
	})
	return secret, among, cmp.Or(err, refusal)
}

// enter makes a session of a person in a place.
func (id *Identity) enter(ctx context.Context, tx pgx.Tx, at place, p person, r *http.Request) (string, error) {
	if err := at.settle(ctx, tx, p); err != nil {
		return "", err
	}
	_, err := tx.Exec(ctx, `UPDATE sessions SET revoked_at = now() WHERE hash = $1 AND revoked_at IS NULL`,
		id.hashOf(r))
	if err != nil {
		return "", fmt.Errorf("end the old session: %w", err)
	}
	return id.open(ctx, tx, at, Browser, r.UserAgent())
}

// accountPage shows users who they are, their other orgs, and where they are signed in.
func (id *Identity) accountPage(w http.ResponseWriter, r *http.Request, caller authz.Caller) error {
	view := map[string]any{}
	if _, err := userID(caller); err == nil {
		sessions, err := id.ListSessions(r.Context(), caller, r)
		if err != nil {
			return err
		}
		orgs, err := id.otherOrgs(r.Context(), caller)
		if err != nil {
			return err
		}
		view["Sessions"], view["Orgs"] = sessions, orgs
	}
	return id.render(w, caller, "account.html", "Your account", view)
}

// otherOrg is an org in which the same person is a user, with the address that switches to it.
type otherOrg struct{ Slug, Address string }

func (id *Identity) otherOrgs(ctx context.Context, caller authz.Caller) (orgs []otherOrg, err error) {
	user, err := userID(caller)
	if err != nil {
		return nil, err
	}
	rows, err := id.Owner.Query(ctx, `
		SELECT o.slug, other.issuer
		FROM users me
		JOIN users other ON other.issuer = me.issuer AND other.external_id = me.external_id AND other.org_id <> me.org_id
		JOIN orgs o ON o.id = other.org_id
		WHERE me.id = $1 AND me.org_id = $2 AND other.disabled_at IS NULL AND (other.role IS NOT NULL
			OR EXISTS (SELECT FROM trust_rules r WHERE r.org_id = other.org_id AND r.id = ANY(other.rules)))
		ORDER BY o.slug LIMIT 100`, user, caller.OrgID)
	if err != nil {
		return nil, fmt.Errorf("orgs of a user: %w", err)
	}

	var slug, issuer string
	_, err = pgx.ForEachRow(rows, []any{&slug, &issuer}, func() error {
		i := slices.IndexFunc(id.Providers, func(p Provider) bool { return p.Issuer == issuer })
		if i >= 0 {
			orgs = append(orgs, otherOrg{slug, "/signin/with/" + id.Providers[i].Name + "?" +
				url.Values{"org": {slug}, "next": {"/"}}.Encode()})
		}
		return nil
	})
	return orgs, fault.Wrap(err, "orgs of a user")
}

// signOutPage ends the session of the browser, or all of its user.
func (id *Identity) signOutPage(w http.ResponseWriter, r *http.Request, caller authz.Caller) error {
	if err := id.signOut(r.Context(), caller, r, r.PostFormValue("everywhere") != ""); err != nil {
		return err
	}
	id.setCookie(w, id.cookieName(), "", -time.Second)
	http.Redirect(w, r, SignInPath+"?out=1", http.StatusSeeOther)
	return nil
}

// ownForm refuses a form that no page of this server sent.
func (id *Identity) ownForm(r *http.Request) error {
	if origin := r.Header.Get("Origin"); origin != id.base.Scheme+"://"+id.base.Host {
		return fault.New(fault.Forbidden, "the form must come from a page of this server, at %s", id.BaseURL)
	}
	return nil
}
