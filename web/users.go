package web

import (
	"cmp"
	"context"
	"html/template"
	"net/http"
	"net/url"
	"path"
	"strings"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/authz/identity"
	"github.com/dagctl/dagctl/internal/rest"
)

// usersView is a page of the org's users, with the form that invites another one.
type usersView struct {
	Users     []identity.User
	Next      template.URL // query of the next page; empty on the last page
	Invited   identity.NewUser
	Rights    rights
	Providers []identity.Provider
	Wrong     *rest.Problem
}

func (a *Access) users(w http.ResponseWriter, r *http.Request, caller authz.Caller) error {
	return a.showUsers(w, r, caller, usersView{})
}

func (a *Access) showUsers(w http.ResponseWriter, r *http.Request, caller authz.Caller, v usersView) error {
	list, err := a.Identity.ListUsers(r.Context(), caller, pageOf(r))
	if err != nil {
		return err
	}
	roles, err := a.orgRoles(r.Context(), caller)
	if err != nil {
		return err
	}
	v.Users, v.Next = list.Items, nextPage(r, list.NextCursor)
	v.Rights, v.Providers = v.Rights.offering(roles), a.Identity.Providers
	return renderAccess(w, caller, "users.html", "Users", "users", v.Wrong, v)
}

func (a *Access) inviteUser(w http.ResponseWriter, r *http.Request, caller authz.Caller) error {
	f, err := readForm(r)
	if err != nil {
		return err
	}
	v := usersView{Rights: rightsOf(f)}
	v.Invited = identity.NewUser{Email: strings.TrimSpace(f.Get("email")), Name: f.Get("name"), Issuer: f.Get("issuer"),
		Role: authz.Role(v.Rights.Role), Grants: v.Rights.grants(), OrgRoles: v.Rights.OrgRoles}

	user, err := a.Identity.Invite(r.Context(), caller, v.Invited)
	if v.Wrong = wrongWith(err); v.Wrong != nil {
		return a.showUsers(w, r, caller, v)
	}
	if err != nil {
		return err
	}
	tell(w, r, caller, called(user)+" is invited.")
	http.Redirect(w, r, userPath(user.ID.String()), http.StatusSeeOther)
	return nil
}

// called returns what a user is called.
func called(u identity.User) string { return cmp.Or(u.Email, u.Name, u.Subject, u.ID.String()) }

// userPath returns the path of a user's page.
func userPath(name string) string { return "/users/" + url.PathEscape(name) }

// userView is a user, with what an admin can do.
type userView struct {
	User   identity.User
	Self   bool           // the admin is the user
	Rights *rights        // as the form has them; nil: as the user has them
	Link   *identity.Link // just made: it is not shown again
	Wrong  *rest.Problem
}

func (a *Access) user(w http.ResponseWriter, r *http.Request, caller authz.Caller) error {
	return a.showUser(w, r, caller, userView{})
}

// showUser shows the user that the path names.
func (a *Access) showUser(w http.ResponseWriter, r *http.Request, caller authz.Caller, v userView) error {
	var err error
	if v.User, err = a.Identity.GetUser(r.Context(), caller, r.PathValue("user")); err != nil {
		return err
	}
	roles, err := a.orgRoles(r.Context(), caller)
	if err != nil {
		return err
	}

	if v.Rights == nil {
		u := v.User
		v.Rights = &rights{Role: string(u.Role), Grants: strings.Join(authz.GrantTexts(u.Grants), " "),
			OrgRoles: u.OrgRoles}
	}
	offered := v.Rights.offering(roles)
	offered.ByRules, v.Rights = true, &offered
	v.Self = caller.Actor == "user:"+v.User.ID.String()
	return renderAccess(w, caller, "user.html", "User", "users", v.Wrong, v)
}

func (a *Access) changeUser(w http.ResponseWriter, r *http.Request, caller authz.Caller) error {
	f, err := readForm(r)
	if err != nil {
		return err
	}
	if err := f.needs("role", "grants"); err != nil {
		return err
	}
	given := rightsOf(f)
	role, grants, orgRoles := authz.Role(given.Role), given.grants(), given.OrgRoles

	_, err = a.Identity.ChangeUser(r.Context(), caller, r.PathValue("user"),
		identity.UserChange{Role: &role, Grants: &grants, OrgRoles: &orgRoles})
	if wrong := wrongWith(err); wrong != nil {
		return a.showUser(w, r, caller, userView{Rights: &given, Wrong: wrong})
	}
	if err != nil {
		return err
	}
	tell(w, r, caller, "What this user may do is changed.")
	http.Redirect(w, r, userPath(r.PathValue("user")), http.StatusSeeOther)
	return nil
}

// disable returns what disables users, or enables them again.
func (a *Access) disable(yes bool) func(context.Context, authz.Caller, string) error {
	return func(ctx context.Context, caller authz.Caller, name string) error {
		_, err := a.Identity.ChangeUser(ctx, caller, name, identity.UserChange{Disabled: &yes})
		return err
	}
}

// userDone says what was done to a user, by the last part of the path.
var userDone = map[string]string{"disable": "The user is disabled.", "enable": "The user is enabled again.",
	"sign-out": "The user is signed out everywhere.", "remove": "The user is removed."}

// actOnUser does something to the user that the path names, and shows the user after it; all users if there is no such
// user any more.
func (a *Access) actOnUser(act func(ctx context.Context, caller authz.Caller, name string) error) func(
	http.ResponseWriter, *http.Request, authz.Caller) error {
	return func(w http.ResponseWriter, r *http.Request, caller authz.Caller) error {
		name := r.PathValue("user")
		err := act(r.Context(), caller, name)
		if wrong := wrongWith(err); wrong != nil {
			return a.showUser(w, r, caller, userView{Wrong: wrong})
		}
		if err != nil {
			return err
		}

		next, done := userPath(name), userDone[path.Base(r.URL.Path)]
		if strings.HasSuffix(r.URL.Path, "/remove") {
			next = "/users"
		}
		tell(w, r, caller, done)
		http.Redirect(w, r, next, http.StatusSeeOther)
		return nil
	}
}

func (a *Access) linkUser(w http.ResponseWriter, r *http.Request, caller authz.Caller) error {
	link, err := a.Identity.CreateLink(r.Context(), caller, r.PathValue("user"))
	if wrong := wrongWith(err); wrong != nil {
		return a.showUser(w, r, caller, userView{Wrong: wrong})
	}
	if err != nil {
		return err
	}
	return a.showUser(w, r, caller, userView{Link: &link})
}

func (a *Access) askToRemoveUser(w http.ResponseWriter, r *http.Request, caller authz.Caller) error {
	u, err := a.Identity.GetUser(r.Context(), caller, r.PathValue("user"))
	if err != nil {
		return err
	}
	path := userPath(u.ID.String())
	return renderAccess(w, caller, "confirm.html", "Remove "+called(u), "users", nil, confirmView{
		Says: "The user is signed out everywhere and is gone. A trust rule may admit the same person again: disable " +
			"whoever must stay out.",
		Action: path + "/remove", Button: "Remove", Back: path})
}
