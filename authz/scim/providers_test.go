package scim_test

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/authz/identity"
)

// The requests are those of Okta's reference of SCIM 2.0.
func TestOktaKeepsUsersAndGroups(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	okta := w.provisioner(w.acme)
	ids, total := okta.send("GET", "/Users?startIndex=1&count=2", "").ids()
	require.Empty(t, ids)
	require.Zero(t, total)
	ids, _ = okta.filter("Users", `userName eq "test.user@okta.local"`).ids()
	require.Empty(t, ids)

	made := okta.send("POST", "/Users", `{
		"schemas": ["urn:ietf:params:scim:schemas:core:2.0:User"],
		"userName": "test.user@okta.local", "name": {"givenName": "Test", "familyName": "User"},
		"emails": [{"primary": true, "value": "test.user@okta.local", "type": "work"}],
		"displayName": "Test User", "locale": "en-US", "externalId": "00ujl29u0le5T6Aj10h7", "groups": [],
		"password": "1mz050nq", "active": true}`).ok(http.StatusCreated)
	user := made.id()
	require.Equal(t, w.url+"/scim/v2/Users/"+user, made.header.Get("Location"))
	require.Equal(t, "test.user@okta.local", made.body["userName"])
	require.Equal(t, map[string]any{"givenName": "Test", "familyName": "User"}, made.body["name"])
	require.NotContains(t, made.text, "1mz050nq")
	is := w.find(w.acme, user)
	require.Equal(t, []any{"Test User", w.issuer, authz.RoleReader, "", "token:idp"},
		[]any{is.Name, is.Issuer, is.Role, is.Subject, is.CreatedBy})
	require.Nil(t, is.InvitedUntil, "such an invitation has no end")

	ids, _ = okta.filter("Users", `userName eq "TEST.user@okta.local"`).ids()
	require.Equal(t, []string{user}, ids)
	okta.send("GET", "/Users/"+user, "").ok(http.StatusOK)
	okta.send("PUT", "/Users/"+user, `{
		"schemas": ["urn:ietf:params:scim:schemas:core:2.0:User"], "id": "`+user+`",
		"userName": "test.user@okta.local", "name": {"givenName": "Another", "middleName": "", "familyName": "User"},
		"emails": [{"primary": true, "value": "test.user@okta.local", "type": "work", "display": "test.user@okta.local"}],
		"active": true, "groups": [], "meta": {"resourceType": "User"}}`).ok(http.StatusOK)
	require.Equal(t, "Another User", w.find(w.acme, user).Name)

	group := okta.send("POST", "/Groups", `{"schemas": ["urn:ietf:params:scim:schemas:core:2.0:Group"],
		"displayName": "Test SCIMv2", "members": []}`).ok(http.StatusCreated).id()
	patch := func(operations string) string {
		return `{"schemas": ["urn:ietf:params:scim:api:messages:2.0:PatchOp"], "Operations": ` + operations + `}`
	}
	okta.send("PATCH", "/Groups/"+group, patch(`[{"op": "replace", "value": {"id": "`+group+
		`", "displayName": "Test SCIMv3"}}]`)).ok(http.StatusNoContent)
	okta.send("PATCH", "/Groups/"+group, patch(`[{"op": "remove", "path": "members[value eq \"`+user+`\"]"},
		{"op": "add", "path": "members", "value": [{"value": "`+user+`", "display": "test.user@okta.local"}]}]`)).
		ok(http.StatusNoContent)
	shown := okta.send("GET", "/Groups/"+group, "").ok(http.StatusOK)
	require.Equal(t, "Test SCIMv3", shown.body["displayName"])
	require.Equal(t, []any{map[string]any{"value": user, "display": "test.user@okta.local", "type": "User",
		"$ref": w.url + "/scim/v2/Users/" + user}}, shown.body["members"])
	of := okta.send("GET", "/Users/"+user, "").body["groups"].([]any)
	require.Equal(t, "Test SCIMv3", of[0].(map[string]any)["display"])
	okta.send("PATCH", "/Groups/"+group, patch(`[{"op": "replace", "path": "members", "value": []}]`)).
		ok(http.StatusNoContent)
	require.Empty(t, okta.send("GET", "/Groups/"+group, "").body["members"])

	off := okta.send("PATCH", "/Users/"+user, patch(`[{"op": "replace", "value": {"active": false}}]`)).
		ok(http.StatusOK)
	require.Equal(t, false, off.body["active"])
	require.NotNil(t, w.find(w.acme, user).DisabledAt)
	ids, _ = okta.filter("Users", `active eq false and userName eq "test.user@okta.local"`).ids()
	require.Equal(t, []string{user}, ids, "a user who is not active is still there")
	okta.send("DELETE", "/Groups/"+group, "").ok(http.StatusNoContent)
	okta.send("GET", "/Groups/"+group, "").fails(http.StatusNotFound, "")

	require.Len(t, w.audit(w.acme, "user.provision"), 1)
	changes := w.audit(w.acme, "user.change")
	require.Len(t, changes, 2, "the name, and that it is off")
	require.Contains(t, changes[0], `"before": {"active": true`)
	require.Contains(t, changes[0], `"after": {"active": false`)
	require.Len(t, w.audit(w.acme, "group.create"), 1)
	require.Len(t, w.audit(w.acme, "group.change"), 3)
	require.Contains(t, w.audit(w.acme, "group.change")[1], `"added": ["`+user+`"]`)
	require.Len(t, w.audit(w.acme, "group.delete"), 1)
}

// The requests are those of Microsoft's tutorial on SCIM endpoints, and what its older clients send.
func TestEntraKeepsUsersAndGroups(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	entra := w.provisioner(w.acme)
	user := entra.send("POST", "/Users", `{
		"schemas": ["urn:ietf:params:scim:schemas:core:2.0:User",
			"urn:ietf:params:scim:schemas:extension:enterprise:2.0:User"],
		"externalId": "0a21f0f2-8d2a-4f8e-bf98-7363c4aed4ef", "userName": "Test_User_ab6490ee", "active": true,
		"emails": [{"primary": true, "type": "work", "value": "Test_User_fd0ea19b@testuser.com"}],
		"meta": {"resourceType": "User"},
		"name": {"formatted": "givenName familyName", "familyName": "familyName", "givenName": "givenName"},
		"roles": [], "urn:ietf:params:scim:schemas:extension:enterprise:2.0:User": {"department": "R&D"}}`).
		ok(http.StatusCreated).id()
	for _, filter := range []string{`userName eq "Test_User_ab6490ee"`,
		`externalId eq "0a21f0f2-8d2a-4f8e-bf98-7363c4aed4ef"`,
		`emails[type eq "work"].value eq "test_user_fd0ea19b@testuser.com"`,
		`emails.value eq "Test_User_fd0ea19b@testuser.com" and active eq "True"`,
		`urn:ietf:params:scim:schemas:core:2.0:User:userName eq "test_user_ab6490ee"`} {
		ids, total := entra.filter("Users", filter).ids()
		require.Equal(t, []string{user}, ids, filter)
		require.Equal(t, 1, total)
	}
	for _, filter := range []string{`userName eq "non-existent user"`, `emails[type eq "home"].value eq "x@y.z"`,
		`userName eq "Test_User_ab6490ee" and userName eq "b"`, `active eq false`} {
		ids, total := entra.filter("Users", filter).ids()
		require.Empty(t, ids, filter)
		require.Zero(t, total)
	}

	patched := entra.send("PATCH", "/Users/"+user, `{
		"schemas": ["urn:ietf:params:scim:api:messages:2.0:PatchOp"],
		"Operations": [
			{"op": "Replace", "path": "emails[type eq \"work\"].value", "value": "updatedEmail@microsoft.com"},
			{"op": "Replace", "path": "name.familyName", "value": "updatedFamilyName"},
			{"op": "Add", "path": "urn:ietf:params:scim:schemas:extension:enterprise:2.0:User:department", "value": "x"},
			{"op": "Add", "path": "addresses[type eq \"work\"].locality", "value": "x"},
			{"op": "Replace", "path": "roles[primary eq \"True\"].value", "value": "x"},
			{"op": "Add", "path": "emails[type eq \"home\"].value", "value": "home@example.com"},
			{"op": "Replace", "value": {"displayName": "Shown", "name.givenName": "Given"}}]}`).ok(http.StatusOK)
	require.Equal(t, map[string]any{"formatted": "givenName familyName", "familyName": "updatedFamilyName",
		"givenName": "Given"}, patched.body["name"])
	require.Equal(t, []any{map[string]any{"primary": true, "type": "work", "value": "updatedEmail@microsoft.com"},
		map[string]any{"type": "home", "value": "home@example.com"}}, patched.body["emails"])
	is := w.find(w.acme, "updatedemail@microsoft.com")
	require.Equal(t, user, is.ID.String())
	require.Equal(t, "Shown", is.Name)
	off := entra.send("PATCH", "/Users/"+user, `{"schemas": ["urn:ietf:params:scim:api:messages:2.0:PatchOp"],
		"Operations": [{"op": "Replace", "path": "active", "value": "False"}]}`).ok(http.StatusOK)
	require.Equal(t, false, off.body["active"])
	on := entra.send("PATCH", "/Users/"+user, `{"Operations": [{"op": "Replace", "value": {"active": "True"}}]}`)
	require.Equal(t, true, on.body["active"])
	require.Nil(t, w.find(w.acme, user).DisabledAt)

	group := entra.send("POST", "/Groups", `{
		"schemas": ["urn:ietf:params:scim:schemas:core:2.0:Group",
			"http://schemas.microsoft.com/2006/11/ResourceManagement/ADSCIM/2.0/Group"],
		"externalId": "8aa1a0c0-c4c3-4bc0-b4a5-2ef676900159", "displayName": "displayName",
		"meta": {"resourceType": "Group"}}`).ok(http.StatusCreated).id()
	entra.send("PATCH", "/Groups/"+group, `{"schemas": ["urn:ietf:params:scim:api:messages:2.0:PatchOp"],
		"Operations": [{"op": "Add", "path": "members", "value": [{"$ref": null, "value": "`+user+`"}]}]}`).
		ok(http.StatusNoContent)
	bare := entra.send("GET", "/Groups/"+group+"?excludedAttributes=members", "").ok(http.StatusOK)
	require.NotContains(t, bare.body, "members")
	for filter, want := range map[string]int{`displayName eq "DISPLAYname"`: 1, `displayName eq "other"`: 0,
		`id eq "` + group + `" and members eq "` + user + `"`: 1, `members.value eq "` + group + `"`: 0,
		`externalId eq "8aa1a0c0-c4c3-4bc0-b4a5-2ef676900159"`: 1} {
		ids, total := entra.filter("Groups", filter).ids()
		require.Len(t, ids, want, filter)
		require.Equal(t, want, total)
	}
	entra.send("PATCH", "/Groups/"+group, `{"Operations": [{"op": "Replace", "path": "displayName", "value": "New"},
		{"op": "Remove", "path": "members", "value": [{"$ref": null, "value": "`+user+`"}]}]}`).ok(http.StatusNoContent)
	require.Empty(t, entra.send("GET", "/Groups/"+group, "").body["members"])

	entra.send("DELETE", "/Users/"+user, "").ok(http.StatusNoContent)
	entra.send("GET", "/Users/"+user, "").fails(http.StatusNotFound, "")
	entra.send("DELETE", "/Users/"+user, "").fails(http.StatusNotFound, "")
	require.NotNil(t, w.find(w.acme, user).DisabledAt, "a deleted user stays behind, and out")
	require.Len(t, w.audit(w.acme, "user.deprovision"), 1)
}

// A user whom the org has at the issuer already is taken over, and keeps what an admin gave.
func TestUsersAreTakenOver(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	idp := w.provisioner(w.acme, func(n *authz.NewToken) { n.Role = authz.RoleAdmin })
	invited, err := w.identity.Invite(t.Context(), w.acme, identity.NewUser{Email: "ada@example.com",
		Role: authz.RoleAdmin})
	require.NoError(t, err)
	require.Equal(t, invited.ID.String(), idp.newUser("Ada@example.com"))
	require.Equal(t, authz.RoleAdmin, w.find(w.acme, "ada@example.com").Role)
	require.Nil(t, w.find(w.acme, "ada@example.com").InvitedUntil)
	require.Contains(t, w.audit(w.acme, "user.provision")[0], `"before"`)

	idp.send("POST", "/Users", `{"userName": "ADA@example.com"}`).fails(http.StatusConflict, "uniqueness")
	idp.send("POST", "/Users", `{"userName": "another", "emails": [{"value": "ada@example.com"}]}`).
		fails(http.StatusConflict, "uniqueness")
	ben := idp.newUser("ben@example.com")
	idp.send("PATCH", "/Users/"+ben, `{"Operations": [{"op": "replace", "path": "userName",
		"value": "ada@EXAMPLE.com"}]}`).fails(http.StatusConflict, "uniqueness")

	// What the provider takes away it gives back; what an admin takes away it does not.
	idp.send("DELETE", "/Users/"+ben, "").ok(http.StatusNoContent)
	require.Equal(t, ben, idp.newUser("ben@example.com"))
	require.Nil(t, w.find(w.acme, ben).DisabledAt)
	yes := true
	_, err = w.identity.ChangeUser(t.Context(), w.acme, ben, identity.UserChange{Disabled: &yes})
	require.NoError(t, err)
	for _, request := range [][3]string{{"PUT", "/Users/" + ben, `{"userName": "ben@example.com", "active": true}`},
		{"PATCH", "/Users/" + ben, `{"Operations": [{"op": "replace", "path": "active", "value": true}]}`}} {
		require.Equal(t, false, idp.send(request[0], request[1], request[2]).ok(200).body["active"])
	}
	idp.send("DELETE", "/Users/"+ben, "").ok(http.StatusNoContent)
	require.Equal(t, ben, idp.newUser("ben@example.com"))
	require.NotNil(t, w.find(w.acme, ben).DisabledAt)
	require.NoError(t, w.identity.RemoveUser(t.Context(), w.acme, ben))
	idp.send("GET", "/Users/"+ben, "").fails(http.StatusNotFound, "")
	require.NotEqual(t, ben, idp.newUser("ben@example.com"))
}
