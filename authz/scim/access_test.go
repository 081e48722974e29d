package scim_test

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/authz/auditlog"
	"github.com/dagctl/dagctl/authz/identity"
	"github.com/dagctl/dagctl/internal/rest"
	"github.com/dagctl/dagctl/internal/testoidc"
)

var ada = testoidc.User{Subject: "ada", Email: "ada@example.com", EmailVerified: true, Name: "Ada",
	Groups: []string{"staff"}}

const offAgain = `{"Operations": [{"op": "replace", "path": "active", "value": false}]}`

// A deprovisioned user is out while a stream runs, and no rule and no sign-in leads in again.
func TestDeprovisioningEndsEverything(t *testing.T) {
	t.Parallel()
	w := newSignInWorld(t, ada)
	_, err := w.identity.CreateRule(t.Context(), w.acme, identity.NewRule{Name: "staff", Kind: identity.ForUsers,
		Issuer: w.issuer, Claims: identity.Conditions{"groups": {"staff"}}, Role: authz.RoleReader})
	require.NoError(t, err)
	idp := w.provisioner(w.acme)
	user := idp.newUser("ada@example.com")
	b, status := w.signIn("ada")
	require.Equal(t, http.StatusSeeOther, status)
	require.Equal(t, "ada", w.find(w.acme, user).Subject, "the first sign-in with the address is the user")

	for _, end := range []func(){
		func() { idp.send("PATCH", "/Users/"+user, offAgain).ok(http.StatusOK) },
		func() { idp.send("DELETE", "/Users/"+user, "").ok(http.StatusNoContent) },
	} {
		ended := make(chan int)
		go func() {
			response, err := b.Get(w.url + "/v1/endless")
			if err != nil {
				ended <- 0
				return
			}
			_ = response.Body.Close()
			ended <- response.StatusCode
		}()
		<-w.began
		end()
		select {
		case status := <-ended:
			require.Equal(t, http.StatusUnauthorized, status)
		case <-time.After(5 * time.Second):
			require.Fail(t, "the stream still runs")
		}
		_, status = w.me(b)
		require.Equal(t, http.StatusUnauthorized, status)
		_, status = w.signIn("ada")
		require.Equal(t, http.StatusForbidden, status, "the rule that admits everybody of the staff does not help")

		if idp.send("GET", "/Users/"+user, "").status == http.StatusOK {
			on := `{"Operations": [{"op": "add", "path": "active", "value": true}]}`
			idp.send("PATCH", "/Users/"+user, on).ok(http.StatusOK)
			_, status = w.me(b)
			require.Equal(t, http.StatusUnauthorized, status, "the old session stays over")
			b, status = w.signIn("ada")
			require.Equal(t, http.StatusSeeOther, status)
		}
	}
	require.Equal(t, user, idp.newUser("ada@example.com"))
	_, status = w.signIn("ada")
	require.Equal(t, http.StatusSeeOther, status)
}

// A rule of kind group gives roles to members as long as they are members, without a new sign-in.
func TestGroupsGiveRoles(t *testing.T) {
	t.Parallel()
	w := newSignInWorld(t, ada)
	idp := w.provisioner(w.acme)
	user := idp.newUser("ada@example.com")
	b, status := w.signIn("ada")
	require.Equal(t, http.StatusSeeOther, status)
	_, err := authz.CreateOrgRole(t.Context(), w.requests, w.acme, "finance", "")
	require.NoError(t, err)
	rule := func(issuer, group string) {
		_, err = w.identity.CreateRule(t.Context(), w.acme, identity.NewRule{Name: group, Kind: identity.ForGroups,
			Issuer: issuer, Claims: identity.Conditions{"group": {group, group + " too"}}, Role: authz.RoleWriter,
			OrgRoles: []string{"role:finance"}, Grants: []authz.Grant{{Role: authz.RoleWriter, DAGs: "sales-*"}}})
		require.NoError(t, err)
	}
	rule(w.issuer, "finance")
	rule("https://elsewhere.example.com", "sales")
	has := func(role authz.Role, orgRoles ...string) {
		t.Helper()
		me, status := w.me(b)
		require.Equal(t, http.StatusOK, status)
		require.Equal(t, role, me.Role)
		require.ElementsMatch(t, orgRoles, me.OrgRoles)
		require.Equal(t, role == authz.RoleWriter, len(me.Grants) == 1)
	}

	has(authz.RoleReader)
	finance := idp.send("POST", "/Groups", `{"displayName": "finance", "members": [{"value": "`+user+`"}]}`).id()
	idp.send("POST", "/Groups", `{"displayName": "sales", "members": [{"value": "`+user+`"}]}`).ok(201)
	has(authz.RoleWriter, "role:finance")
	change := func(operation string) {
		idp.send("PATCH", "/Groups/"+finance, `{"Operations": [`+operation+`]}`).ok(http.StatusNoContent)
	}
	change(`{"op": "remove", "path": "members[value eq \"` + user + `\"]"}`)
	has(authz.RoleReader)
	change(`{"op": "add", "path": "members", "value": [{"value": "` + user + `"}]}`)
	has(authz.RoleWriter, "role:finance")
	change(`{"op": "replace", "value": {"displayName": "Finance"}}`)
	has(authz.RoleReader)
	change(`{"op": "replace", "value": {"displayName": "finance too"}}`)
	has(authz.RoleWriter, "role:finance")
	require.NoError(t, w.identity.DeleteRule(t.Context(), w.acme, "finance"))
	has(authz.RoleReader)
	rule(w.issuer, "finance")
	has(authz.RoleWriter, "role:finance")
	idp.send("DELETE", "/Groups/"+finance, "").ok(http.StatusNoContent)
	has(authz.RoleReader)

	for _, claims := range []identity.Conditions{{"group": {"a*"}}, {"group": {"a"}, "sub": {"b"}}, {"sub": {"b"}},
		{}} {
		_, err = w.identity.CreateRule(t.Context(), w.acme, identity.NewRule{Name: "bad", Kind: identity.ForGroups,
			Issuer: w.issuer, Claims: claims, Role: authz.RoleWriter})
		require.Error(t, err)
	}
}

// With --subject-from, the provider says who a user is, and no e-mail address counts.
func TestTheProviderSaysWhoAUserIs(t *testing.T) {
	t.Parallel()
	unverified := testoidc.User{Subject: "00u1", Email: "eve@example.com"}
	w := newSignInWorld(t, unverified, ada)
	idp := w.provisioner(w.acme, func(n *authz.NewToken) {
		n.SubjectFrom, n.Role = authz.FromExternalID, authz.RoleWriter
	})
	idp.send("POST", "/Users", `{"userName": "eve"}`).fails(http.StatusBadRequest, "invalidValue")
	user := idp.send("POST", "/Users", `{"userName": "eve", "externalId": "00u1",
		"emails": [{"value": "ada@example.com"}]}`).ok(201).id()
	require.Equal(t, "00u1", w.find(w.acme, user).Subject)
	_, status := w.signIn("ada")
	require.Equal(t, http.StatusForbidden, status, "another subject with the address is not the user")
	b, status := w.signIn("00u1")
	require.Equal(t, http.StatusSeeOther, status)
	me, _ := w.me(b)
	require.Equal(t, authz.RoleWriter, me.Role)

	idp.send("POST", "/Users", `{"userName": "other", "externalId": "00u1"}`).fails(http.StatusConflict, "uniqueness")
	other := `{"Operations": [{"op": "replace", "path": "externalId", "value": "ada"}]}`
	idp.send("PATCH", "/Users/"+user, other).ok(http.StatusOK)
	_, status = w.me(b)
	require.Equal(t, http.StatusUnauthorized, status, "who was signed in as the former subject is out")
	_, status = w.signIn("ada")
	require.Equal(t, http.StatusSeeOther, status)
}

// A provider whose token gives less than a user may do does not say who that user is.
func TestAProviderMakesNobodyMightierThanItsToken(t *testing.T) {
	t.Parallel()
	mallory := testoidc.User{Subject: "s-mallory", Email: "mallory@example.com", EmailVerified: true}
	w := newSignInWorld(t, ada, mallory)
	byID := w.provisioner(w.acme, func(n *authz.NewToken) { n.SubjectFrom = authz.FromExternalID })
	byAddress := w.provisioner(w.acme, func(n *authz.NewToken) { n.Name = "addresses" })
	mighty := w.provisioner(w.acme, func(n *authz.NewToken) {
		n.Name, n.SubjectFrom, n.Role = "mighty", authz.FromExternalID, authz.RoleAdmin
	})
	_, err := authz.CreateOrgRole(t.Context(), w.requests, w.acme, "finance", "")
	require.NoError(t, err)

	// Nobody takes over an invitation to more than the token gives.
	for i, n := range []identity.NewUser{{Role: authz.RoleAdmin}, {Role: authz.RoleProposer},
		{Role: authz.RoleReader, Grants: []authz.Grant{{Role: authz.RoleWriter, DAGs: "sales-*"}}},
		{Role: authz.RoleReader, OrgRoles: []string{"role:finance"}}} {
		n.Email = fmt.Sprintf("more%d@example.com", i)
		_, err := w.identity.Invite(t.Context(), w.acme, n)
		require.NoError(t, err)
		before := w.find(w.acme, n.Email)
		account := `{"userName": "u` + n.Email + `", "externalId": "s-mallory", "emails": [{"value": "` + n.Email + `"}]}`
		byID.send("POST", "/Users", account).fails(http.StatusForbidden, "")
		byAddress.send("POST", "/Users", account).fails(http.StatusForbidden, "")
		require.Equal(t, before, w.find(w.acme, n.Email))
	}
	entries, err := auditlog.List(t.Context(), w.requests, w.acme, auditlog.Filter{Actor: "token:idp",
		Action: "user.provision", Outcome: authz.Refused}, rest.PageInput{Limit: 100})
	require.NoError(t, err)
	require.Len(t, entries.Items, 4)
	require.Contains(t, string(entries.Items[0].Detail), "more3@example.com")
	_, status := w.signIn("s-mallory")
	require.Equal(t, http.StatusForbidden, status)

	// One who is known stays the same person.
	admin := authz.RoleAdmin
	user := byID.send("POST", "/Users", `{"userName": "ada", "externalId": "ada"}`).ok(201).id()
	_, err = w.identity.ChangeUser(t.Context(), w.acme, user, identity.UserChange{Role: &admin})
	require.NoError(t, err)
	b, status := w.signIn("ada")
	require.Equal(t, http.StatusSeeOther, status)
	another := `{"Operations": [{"op": "replace", "path": "externalId", "value": "s-mallory"}]}`
	byID.send("PATCH", "/Users/"+user, another).fails(http.StatusForbidden, "")
	byID.send("PUT", "/Users/"+user, `{"userName": "ada", "externalId": "s-mallory"}`).fails(http.StatusForbidden, "")
	me, status := w.me(b)
	require.Equal(t, []any{http.StatusOK, authz.RoleAdmin}, []any{status, me.Role})
	byID.send("PATCH", "/Users/"+user, `{"Operations": [{"op": "replace", "path": "displayName", "value": "A"}]}`).
		ok(http.StatusOK)

	// The address is who a user is who has never signed in.
	waiting := byAddress.newUser("new@example.com")
	_, err = w.identity.ChangeUser(t.Context(), w.acme, waiting, identity.UserChange{Role: &admin})
	require.NoError(t, err)
	byAddress.send("PATCH", "/Users/"+waiting, `{"Operations": [{"op": "replace", "path": "emails", "value": [
		{"value": "mallory@example.com"}]}]}`).fails(http.StatusForbidden, "")
	byID.send("PATCH", "/Users/"+waiting, another).fails(http.StatusForbidden, "")
	_, status = w.signIn("s-mallory")
	require.Equal(t, http.StatusForbidden, status)

	mighty.send("PATCH", "/Users/"+user, another).ok(http.StatusOK)
	_, status = w.me(b)
	require.Equal(t, http.StatusUnauthorized, status)
	byID.send("PATCH", "/Users/"+user, offAgain).ok(http.StatusOK)
}

func TestAnotherOrgSeesNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	idp, foreign := w.provisioner(w.acme), w.provisioner(w.globex)
	elsewhere := w.provisioner(w.acme, func(n *authz.NewToken) {
		n.Name, n.Issuer = "elsewhere", "https://elsewhere.example.com"
	})
	user := idp.newUser("ada@example.com")
	group := idp.send("POST", "/Groups", `{"displayName": "staff", "members": [{"value": "`+user+`"}]}`).ok(201).id()
	before := w.dump("acme")

	for _, other := range []*client{foreign, elsewhere} {
		for _, kind := range []string{"Users", "Groups"} {
			_, total := other.send("GET", "/"+kind, "").ids()
			require.Zero(t, total)
		}
		for _, path := range []string{"/Users/" + user, "/Groups/" + group} {
			other.send("GET", path, "").fails(http.StatusNotFound, "")
			other.send("PUT", path, `{"userName": "x@example.com", "displayName": "x"}`).fails(http.StatusNotFound, "")
			other.send("PATCH", path, offAgain).fails(http.StatusNotFound, "")
			other.send("DELETE", path, "").fails(http.StatusNotFound, "")
		}
		other.send("POST", "/Groups", `{"displayName": "staff", "members": [{"value": "`+user+`"}]}`).
			fails(http.StatusBadRequest, "invalidValue")
	}
	elsewhere.send("POST", "/Users", `{"userName": "ada@example.com"}`).fails(http.StatusForbidden, "")
	require.Equal(t, before, w.dump("acme"))
	require.NotEqual(t, user, foreign.newUser("ada@example.com"), "the same person in another org is another user")
	require.Equal(t, before, w.dump("acme"))
}

// A scim token opens what is below /scim/v2, nothing else opens that, and it stops working at once.
func TestCredentials(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	idp := w.provisioner(w.acme)
	other := func(n authz.NewToken) *client {
		secret, _, err := authz.CreateToken(t.Context(), w.requests, w.acme, n)
		require.NoError(t, err)
		return &client{w, secret}
	}
	for _, c := range []*client{{w, ""}, {w, "junk"}, other(authz.NewToken{Name: "admin", Role: authz.RoleAdmin}),
		other(authz.NewToken{Name: "fleet", Kind: authz.KindWorker, Runtimes: []string{"r"}})} {
		for _, path := range []string{"/Users", "/Groups/x", "/ServiceProviderConfig", "/Me", "/Bulk"} {
			answer := c.send("GET", path, "")
			answer.fails(http.StatusUnauthorized, "")
			require.Contains(t, answer.header.Get("WWW-Authenticate"), "Bearer")
		}
	}
	idp.send("GET", "/Me", "").fails(http.StatusNotFound, "")
	idp.send("PUT", "/Users", "{}").fails(http.StatusNotFound, "")

	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, w.url+"/v1/whoami", nil)
	require.NoError(t, err)
	request.Header.Set("Authorization", "Bearer "+idp.token)
	response, err := http.DefaultClient.Do(request)
	require.NoError(t, err)
	require.NoError(t, response.Body.Close())
	require.Equal(t, http.StatusUnauthorized, response.StatusCode)

	idp.send("GET", "/Users", "").ok(http.StatusOK)
	require.NoError(t, authz.RevokeToken(t.Context(), w.requests, w.acme, "idp"))
	idp.send("GET", "/Users", "").fails(http.StatusUnauthorized, "")

	for _, bad := range []authz.NewToken{{}, {Issuer: "http://login.example.com"}, {Issuer: w.issuer, Role: "owner"},
		{Issuer: w.issuer, SubjectFrom: "emails"}, {Issuer: w.issuer, OrgRoles: []string{"role:x"}},
		{Kind: authz.KindUser, Role: authz.RoleReader, Issuer: w.issuer}} {
		if bad.Name = "bad"; bad.Kind == "" {
			bad.Kind = authz.KindSCIM
		}
		_, _, err := authz.CreateToken(t.Context(), w.requests, w.acme, bad)
		require.Error(t, err, bad)
	}
}
