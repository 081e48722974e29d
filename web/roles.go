package web

import (
	"html/template"
	"net/http"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/internal/rest"
)

// rolesView is a page of the org's visibility groups, with the form that makes another one.
type rolesView struct {
	Roles      []authz.OrgRole
	Next       template.URL // query of the next page; empty on the last page
	Slug, Name string       // as the form has them
	Wrong      *rest.Problem
}

func (a *Access) roles(w http.ResponseWriter, r *http.Request, caller authz.Caller) error {
	return a.showRoles(w, r, caller, rolesView{})
}

func (a *Access) showRoles(w http.ResponseWriter, r *http.Request, caller authz.Caller, v rolesView) error {
	list, err := authz.ListOrgRoles(r.Context(), a.Identity.Requests, caller, pageOf(r))
	if err != nil {
		return err
	}
	v.Roles, v.Next = list.Items, nextPage(r, list.NextCursor)
	return renderAccess(w, caller, "roles.html", "Org roles", "roles", v.Wrong, v)
}

func (a *Access) createRole(w http.ResponseWriter, r *http.Request, caller authz.Caller) error {
	f, err := readForm(r)
	if err != nil {
		return err
	}
	v := rolesView{Slug: f.Get("slug"), Name: f.Get("name")}
	_, err = authz.CreateOrgRole(r.Context(), a.Identity.Requests, caller, v.Slug, v.Name)
	return a.afterRole(w, r, caller, v, err)
}

func (a *Access) deleteRole(w http.ResponseWriter, r *http.Request, caller authz.Caller) error {
	err := authz.DeleteOrgRole(r.Context(), a.Identity.Requests, caller, r.PathValue("slug"))
	return a.afterRole(w, r, caller, rolesView{}, err)
}

// afterRole shows the org roles after a change, or what was wrong with it.
func (a *Access) afterRole(w http.ResponseWriter, r *http.Request, caller authz.Caller, v rolesView, err error) error {
	if v.Wrong = wrongWith(err); v.Wrong != nil {
		return a.showRoles(w, r, caller, v)
	}
	if err != nil {
		return err
	}
	tell(w, r, caller, "The org roles are changed.")
	http.Redirect(w, r, "/roles", http.StatusSeeOther)
	return nil
}
