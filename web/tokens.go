package web

import (
	"html/template"
	"net/http"
	"strconv"
	"time"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/rest"
)

// tokensView is a page of the org's service tokens, with the forms that create others.
type tokensView struct {
	Tokens []authz.Token
	Next   template.URL // query of the next page; empty on the last page
	User   tokenForm
	Worker tokenForm
	Made   string // name of the token just created
	Secret string // its secret, which is not shown again
	Wrong  *rest.Problem
}

// tokenForm is what a form has in it.
type tokenForm struct {
	Name, Days          string
	Rights              rights // of a user token
	Runtimes, Operators string // of a worker token
}

// defaultDays is how long a token lives where nobody says otherwise.
var defaultDays = strconv.Itoa(int(authz.DefaultTTL / (24 * time.Hour)))

func (a *Access) tokens(w http.ResponseWriter, r *http.Request, caller authz.Caller) error {
	return a.showTokens(w, r, caller, tokensView{})
}

func (a *Access) showTokens(w http.ResponseWriter, r *http.Request, caller authz.Caller, v tokensView) error {
	list, err := authz.ListTokens(r.Context(), a.Identity.Requests, caller, pageOf(r))
	if err != nil {
		return err
	}
	roles, err := a.orgRoles(r.Context(), caller)
	if err != nil {
		return err
	}

	v.Tokens, v.Next = list.Items, nextPage(r, list.NextCursor)
	v.User.Rights = v.User.Rights.offering(roles)
	for _, f := range []*tokenForm{&v.User, &v.Worker} {
		if f.Days == "" {
			f.Days = defaultDays
		}
	}
	return renderAccess(w, caller, "tokens.html", "Tokens", "tokens", v.Wrong, v)
}

// createToken creates a token and shows its secret, on the page that answers: no other page has it.
func (a *Access) createToken(w http.ResponseWriter, r *http.Request, caller authz.Caller) error {
	f, err := readForm(r)
	if err != nil {
		return err
	}
	given := tokenForm{Name: f.Get("name"), Days: f.Get("days"), Rights: rightsOf(f), Runtimes: f.Get("runtimes"),
		Operators: f.Get("operators")}
	kind := authz.TokenKind(f.Get("kind"))
	wanted, err := given.token(kind)

	var v tokensView
	if err == nil {
		v.Secret, _, err = authz.CreateToken(r.Context(), a.Identity.Requests, caller, wanted)
		v.Made = wanted.Name
	}
	if v.Wrong = wrongWith(err); v.Wrong == nil && err != nil {
		return err
	}
	switch {
	case v.Wrong != nil && kind == authz.KindWorker:
		v.Worker = given
	case v.Wrong != nil:
		v.User = given
	}
	return a.showTokens(w, r, caller, v)
}

// token returns the token that a form describes.
func (f tokenForm) token(kind authz.TokenKind) (authz.NewToken, error) {
	const most = int(authz.MaxTTL / (24 * time.Hour))
	days, err := strconv.Atoi(f.Days)
	if err != nil || days < 1 || days > most {
		return authz.NewToken{}, fault.New(fault.Invalid, "a token lives 1 to %d days, not %q", most, f.Days)
	}

	n := authz.NewToken{Name: f.Name, Kind: kind, TTL: time.Duration(days) * 24 * time.Hour}
	if kind == authz.KindWorker {
		n.Runtimes, n.Operators = words(f.Runtimes), words(f.Operators)
		return n, nil
	}
	n.Role, n.Grants, n.OrgRoles = authz.Role(f.Rights.Role), f.Rights.grants(), f.Rights.OrgRoles
	return n, nil
}

func (a *Access) revokeToken(w http.ResponseWriter, r *http.Request, caller authz.Caller) error {
	err := authz.RevokeToken(r.Context(), a.Identity.Requests, caller, r.PathValue("token"))
	if wrong := wrongWith(err); wrong != nil {
		return a.showTokens(w, r, caller, tokensView{Wrong: wrong})
	}
	if err != nil {
		return err
	}
	tell(w, r, caller, "The token is revoked.")
	http.Redirect(w, r, "/tokens", http.StatusSeeOther)
	return nil
}
