package web

import (
	"context"
	"errors"
	"html/template"
	"net/http"
	"net/url"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/authz/identity"
	"github.com/dagctl/dagctl/internal/rest"
)

// Access is the set of pages on which admins decide who may use the server.
type Access struct {
	Identity *identity.Identity
	Vault    *authz.Vault // the org's secrets
}

// NewAccess returns the pages. What authz does for them, it does by the pool of the requests that identity has.
func NewAccess(id *identity.Identity, vault *authz.Vault) (*Access, error) {
	if id == nil || vault == nil {
		return nil, errors.New("web: identity and a vault are needed")
	}
	return &Access{id, vault}, nil
}

// AddRoutes adds the pages to an API.
func (a *Access) AddRoutes(all *authz.API) {
	api := routes{all}
	api.HandlePage(authz.Admin, "GET /users", a.users)
	api.HandlePage(authz.Admin, "POST /users", a.inviteUser)
	api.HandlePage(authz.Admin, "GET /users/{user}", a.user)
	api.HandlePage(authz.Admin, "POST /users/{user}", a.changeUser)
	api.HandlePage(authz.Admin, "POST /users/{user}/disable", a.actOnUser(a.disable(true)))
	api.HandlePage(authz.Admin, "POST /users/{user}/enable", a.actOnUser(a.disable(false)))
	api.HandlePage(authz.Admin, "POST /users/{user}/sign-out", a.actOnUser(a.Identity.SignOutUser))
	api.HandlePage(authz.Admin, "POST /users/{user}/link", a.linkUser)
	api.HandlePage(authz.Admin, "GET /users/{user}/remove", a.askToRemoveUser)
	api.HandlePage(authz.Admin, "POST /users/{user}/remove", a.actOnUser(a.Identity.RemoveUser))

	api.HandlePage(authz.Admin, "GET /roles", a.roles)
	api.HandlePage(authz.Admin, "POST /roles", a.createRole)
	api.HandlePage(authz.Admin, "POST /roles/{slug}/delete", a.deleteRole)

	api.HandlePage(authz.Admin, "GET /trust", a.rules)
	api.HandlePage(authz.Admin, "POST /trust", a.addRule)
	api.HandlePage(authz.Admin, "GET /trust/{rule}/remove", a.askToRemoveRule)
	api.HandlePage(authz.Admin, "POST /trust/{rule}/remove", a.removeRule)

	api.HandlePage(authz.Admin, "GET /tokens", a.tokens)
	api.HandlePage(authz.Admin, "POST /tokens", a.createToken)
	api.HandlePage(authz.Admin, "POST /tokens/{token}/revoke", a.revokeToken)
	api.HandlePage(authz.Admin, "GET /audit", a.audit)

	api.HandlePage(authz.Admin, "GET /secrets", a.secrets)
	api.HandlePage(authz.Admin, "POST /secrets", a.setSecret)
	api.HandlePage(authz.Admin, "GET /secrets/{name}", a.secret)
	api.HandlePage(authz.Admin, "POST /secrets/{name}/bind", a.bindSecret)
	action(api, authz.Admin, "/secrets/{name}/delete", "secrets", a.askDeleteSecret)
	api.HandlePage(authz.Reader, "GET /usage", a.usage)
}

// renderAccess writes one of the pages, with status 422 if it shows what is wrong with a form.
func renderAccess(w http.ResponseWriter, caller authz.Caller, page, title, subtab string, wrong *rest.Problem,
	view any) error {
	status := http.StatusOK
	if wrong != nil {
		status = http.StatusUnprocessableEntity
	}
	return render(w, status, page, layout{Title: title, Tab: "access", Subtab: subtab, Caller: caller, View: view})
}

// pageOf returns which page of a list a request asks for.
func pageOf(r *http.Request) rest.PageInput {
	return rest.PageInput{Limit: pageSize, Cursor: r.URL.Query().Get("cursor")}
}

// nextPage returns the query of the page that a cursor begins, with the rest of the request's query; empty without one.
func nextPage(r *http.Request, cursor string) template.URL {
	if cursor == "" {
		return ""
	}
	q := url.Values{}
	if r.Method == http.MethodGet {
		q = r.URL.Query()
	}
	q.Set("cursor", cursor)
	return template.URL(q.Encode())
}

// mostRoles is how many org roles a form offers; the command line gives any.
const mostRoles = 500

// orgRoles returns the org roles that forms offer.
func (a *Access) orgRoles(ctx context.Context, caller authz.Caller) ([]string, error) {
	list, err := authz.ListOrgRoles(ctx, a.Identity.Requests, caller, rest.PageInput{Limit: mostRoles})
	if err != nil {
		return nil, err
	}
	all := make([]string, len(list.Items))
	for i, r := range list.Items {
		all[i] = "role:" + r.Slug
	}
	return all, nil
}
