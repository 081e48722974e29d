package scim_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/internal/rest"
)

// dump returns all that an org has of users and groups.
func (w *world) dump(org string) string {
	w.t.Helper()
	var text string
	require.NoError(w.t, w.owner.QueryRow(w.t.Context(), `
		SELECT jsonb_build_object(
			'users', (SELECT jsonb_agg(to_jsonb(u) ORDER BY u.id) FROM users u WHERE u.org_id = o.id),
			'scim_users', (SELECT jsonb_agg(to_jsonb(s) ORDER BY s.user_id) FROM scim_users s WHERE s.org_id = o.id),
			'groups', (SELECT jsonb_agg(to_jsonb(g) ORDER BY g.id) FROM scim_groups g WHERE g.org_id = o.id),
			'members', (SELECT jsonb_agg(to_jsonb(m) ORDER BY m.group_id, m.user_id) FROM scim_group_members m
				WHERE m.org_id = o.id),
			'audit', (SELECT count(*) FROM audit_log a WHERE a.org_id = o.id AND a.actor <> 'token:admin'))::text
		FROM orgs o WHERE o.slug = $1`, org).Scan(&text))
	return text
}

func TestListsListsAndVersions(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	idp := w.provisioner(w.acme)
	var users []string
	for i := range 5 {
		users = append(users, idp.newUser(fmt.Sprintf("u%d@example.com", i)))
	}
	var seen []string
	for start := 1; start < 7; start += 2 {
		page := idp.send("GET", fmt.Sprintf("/Users?startIndex=%d&count=2", start), "")
		ids, total := page.ids()
		require.Equal(t, 5, total)
		require.EqualValues(t, len(ids), page.body["itemsPerPage"])
		require.EqualValues(t, start, page.body["startIndex"])
		seen = append(seen, ids...)
	}
	require.Equal(t, users, seen)
	for query, want := range map[string]int{"count=0": 0, "startIndex=-3&count=-2": 0, "startIndex=0": 5,
		"startIndex=9223372036854775807": 0, "count=9223372036854775807": 5} {
		ids, total := idp.send("GET", "/Users?"+query, "").ids()
		require.Len(t, ids, want, query)
		require.Equal(t, 5, total, query)
	}
	idp.send("GET", "/Users?count=x", "").fails(http.StatusBadRequest, "invalidValue")
	only := idp.send("GET", "/Users?count=1&attributes=userName,name.givenName", "").ok(200)
	for name := range only.body["Resources"].([]any)[0].(map[string]any) {
		require.Contains(t, []string{"id", "schemas", "meta", "userName"}, name)
	}
	for _, filter := range []string{`userName`, `userName sw "a"`, `userName eq`, `userName eq "a" or active eq true`,
		`not (userName eq "a")`, `(userName eq "a")`, `userName eq "a" and`, `password eq "a"`, `userName eq a`,
		`active eq "perhaps"`, `emails[type sw "w"].value eq "a"`, `emails[value eq "w"].value eq "a"`, `[`, `eq "a"`,
		`userName eq "a`, `userName pr`, `emails[type eq "work" and value eq "a"]`} {
		idp.filter("Users", filter).fails(http.StatusBadRequest, "invalidFilter")
		idp.filter("Groups", filter).fails(http.StatusBadRequest, "invalidFilter")
	}

	one := "/Users/" + users[0]
	first := idp.send("GET", one, "").ok(200).header.Get("ETag")
	require.NotEmpty(t, first)
	require.Equal(t, http.StatusNotModified, idp.send("GET", one, "", "If-None-Match", first).status)
	on := `{"Operations": [{"op": "replace", "path": "active", "value": true}]}`
	require.Equal(t, first, idp.send("PATCH", one, on, "If-Match", first).ok(200).header.Get("ETag"), "nothing changed")
	second := idp.send("PATCH", one, offAgain, "If-Match", first).ok(200)
	require.NotEqual(t, first, second.header.Get("ETag"))
	require.Equal(t, second.header.Get("ETag"), second.body["meta"].(map[string]any)["version"])
	idp.send("PATCH", one, on, "If-Match", first).fails(http.StatusPreconditionFailed, "")
	idp.send("PUT", one, `{"userName": "x@example.com"}`, "If-Match", first).fails(http.StatusPreconditionFailed, "")
	idp.send("DELETE", one, "", "If-Match", first).fails(http.StatusPreconditionFailed, "")
	group := "/Groups/" + idp.send("POST", "/Groups", `{"displayName": "a"}`).ok(201).id()
	idp.send("PATCH", group, `{"Operations": [{"op": "add", "path": "members", "value": {"value": "`+users[0]+`"}}]}`).
		ok(204)
	idp.send("PATCH", group, `{"Operations": []}`, "If-Match", `W/"1"`).fails(http.StatusBadRequest, "invalidSyntax")
	idp.send("DELETE", group, "", "If-Match", `W/"1"`).fails(http.StatusPreconditionFailed, "")
	tag := idp.send("GET", group, "").header.Get("ETag")
	idp.send("DELETE", one, "").ok(204)
	require.NotEqual(t, tag, idp.send("GET", group, "").header.Get("ETag"), "a member is gone")
	idp.send("POST", "/Groups", `{"displayName": "A"}`).fails(http.StatusConflict, "uniqueness")
}

func TestErrorsSayWhatIsWrong(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	idp := w.provisioner(w.acme)
	user := "/Users/" + idp.newUser("ada@example.com")
	group := "/Groups/" + idp.send("POST", "/Groups", `{"displayName": "staff"}`).ok(201).id()
	operation := func(text string) string { return `{"Operations": [` + text + `]}` }
	for _, c := range []struct{ method, path, body, scimType string }{
		{"POST", "/Users", ``, "invalidSyntax"}, {"POST", "/Users", `[]`, "invalidSyntax"},
		{"POST", "/Users", `null`, "invalidSyntax"}, {"POST", "/Users", "{\"userName\": \"\xff\"}", "invalidSyntax"},
		{"POST", "/Users", `{}`, "invalidValue"}, {"POST", "/Users", `{"userName": 1}`, "invalidValue"},
		{"POST", "/Users", `{"userName": "no address"}`, "invalidValue"},
		{"POST", "/Users", `{"userName": "a\u0000@example.com"}`, "invalidValue"},
		{"POST", "/Users", `{"userName": "b@example.com", "USERNAME": "c@example.com"}`, "invalidSyntax"},
		{"POST", "/Users", `{"userName": "b@example.com", "active": "perhaps"}`, "invalidValue"},
		{"POST", "/Users", `{"userName": "b@example.com", "emails": [{"value": "x"}]}`, "invalidValue"},
		{"POST", "/Users", `{"userName": "b", "emails": ["b@example.com"]}`, "invalidValue"},
		{"POST", "/Users", `{"userName": "b", "emails": [{"value": "b@example.com", "primary": true},
			{"value": "c@example.com", "primary": "True"}]}`, "invalidValue"},
		{"POST", "/Users", `{"userName": "` + strings.Repeat("x", 501) + `"}`, "invalidValue"},
		{"PATCH", user, `{}`, "invalidSyntax"}, {"PATCH", user, operation(`{"op": "move"}`), "invalidSyntax"},
		{"PATCH", user, operation(`{"op": "remove"}`), "noTarget"},
		{"PATCH", user, operation(`{"op": "add", "value": 1}`), "invalidValue"},
		{"PATCH", user, operation(`{"op": "add", "path": 1}`), "invalidPath"},
		{"PATCH", user, operation(`{"op": "add", "path": "a b", "value": 1}`), "invalidPath"},
		{"PATCH", user, operation(`{"op": "add", "path": "emails[", "value": 1}`), "invalidPath"},
		{"PATCH", user, operation(`{"op": "add", "path": "emails[x].value", "value": 1}`), "invalidFilter"},
		{"PATCH", user, operation(`{"op": "replace", "path": "id", "value": "x"}`), "mutability"},
		{"PATCH", user, operation(`{"op": "remove", "path": "userName"}`), "invalidValue"},
		{"PATCH", user, operation(`{"op": "remove", "path": "active"}`), "invalidValue"},
		{"PATCH", user, operation(`{"op": "replace", "path": "active", "value": "off"}`), "invalidValue"},
		{"PATCH", group, operation(`{"op": "remove", "path": "displayName"}`), "invalidValue"},
		{"PATCH", group, operation(`{"op": "add", "path": "members", "value": [{"value": "x"}]}`), "invalidValue"},
		{"PATCH", group, operation(`{"op": "add", "path": "members", "value": [{"value":
			"01a1fd91-0000-7000-8000-000000000000"}]}`), "invalidValue"},
		{"PATCH", group, operation(`{"op": "add", "path": "members[value eq \"x\"]"}`), "invalidPath"},
		{"PUT", group, `{"displayName": " "}`, "invalidValue"},
	} {
		idp.send(c.method, c.path, c.body).fails(http.StatusBadRequest, c.scimType)
	}
	idp.send("POST", "/Users", `{"userName": "`+strings.Repeat("x", 1<<20)+`"}`).
		fails(http.StatusRequestEntityTooLarge, "")
	idp.send("GET", "/Users/x", "").fails(http.StatusNotFound, "")

	for _, path := range []string{"/ServiceProviderConfig", "/ResourceTypes", "/ResourceTypes/User", "/Schemas",
		"/Schemas/urn:ietf:params:scim:schemas:core:2.0:Group"} {
		idp.send("GET", path, "").ok(http.StatusOK)
	}
	idp.send("GET", "/Schemas/x", "").fails(http.StatusNotFound, "")
}

func TestTheSameUserTwiceAtOnceIsOne(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	idp := w.provisioner(w.acme)
	for round := range 5 {
		statuses := make([]int, 6)
		var all sync.WaitGroup
		for i := range statuses {
			all.Go(func() {
				statuses[i] = idp.send("POST", "/Users", fmt.Sprintf(`{"userName": "n%d@example.com"}`, round)).status
			})
		}
		all.Wait()
		made := 0
		for _, status := range statuses {
			require.Contains(t, []int{http.StatusCreated, http.StatusConflict}, status)
			if status == http.StatusCreated {
				made++
			}
		}
		require.Equal(t, 1, made)
		ids, _ := idp.filter("Users", fmt.Sprintf(`userName eq "n%d@example.com"`, round)).ids()
		require.Len(t, ids, 1)
	}
	var users int
	require.NoError(t, w.owner.QueryRow(t.Context(), `SELECT count(*) FROM users`).Scan(&users))
	require.Equal(t, 5, users)
}

// Users that come and go while groups change hold nobody up, and leave no member behind.
func TestUsersComeAndGoWhileGroupsChange(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	idp := w.provisioner(w.acme)
	var groups []string
	for _, name := range []string{"a", "b", "c"} {
		groups = append(groups, idp.send("POST", "/Groups", `{"displayName": "`+name+`"}`).ok(201).id())
	}
	stays := idp.newUser("stays@example.com")

	var all sync.WaitGroup
	for i := range 4 {
		all.Go(func() {
			for round := range 15 {
				user := idp.send("POST", "/Users", fmt.Sprintf(`{"userName": "u%d-%d@example.com"}`, i, round)).id()
				for _, group := range groups {
					a := idp.send("PATCH", "/Groups/"+group, `{"Operations": [{"op": "add", "path": "members", "value": [
						{"value": "`+user+`"}, {"value": "`+stays+`"}]}]}`)
					if a.status != http.StatusNoContent {
						t.Errorf("add members: %d %s", a.status, a.text)
					}
				}
				if a := idp.send("DELETE", "/Users/"+user, ""); a.status != http.StatusNoContent {
					t.Errorf("delete a user: %d %s", a.status, a.text)
				}
			}
		})
	}
	all.Wait()
	for _, group := range groups {
		members := idp.send("GET", "/Groups/"+group, "").ok(http.StatusOK).body["members"].([]any)
		require.Len(t, members, 1)
		require.Equal(t, stays, members[0].(map[string]any)["value"])
	}
}

func TestRequestsAreBounded(t *testing.T) {
	t.Parallel()
	var quotas *authz.Quotas
	w := newWorld(t, func(c *authz.Config, owner *pgxpool.Pool) {
		var err error
		c.Limiter, err = rest.NewLimiter(0.001, 3)
		require.NoError(t, err)
		quotas = authz.NewQuotas(owner, "one")
		c.Quotas = quotas
	})
	idp := w.provisioner(w.acme)
	for range 3 {
		idp.send("GET", "/Users", "").ok(http.StatusOK)
	}
	refused := idp.send("GET", "/Users", "")
	refused.fails(http.StatusTooManyRequests, "")
	require.NotEmpty(t, refused.header.Get("Retry-After"))
	foreign := w.provisioner(w.globex)
	foreign.send("GET", "/Users", "").ok(http.StatusOK)

	none := []authz.OrgQuota{{Quota: authz.RequestsPerMinute, Most: 0}}
	_, err := authz.ChangeQuotas(t.Context(), w.owner, "globex", none, nil)
	require.NoError(t, err)
	require.NoError(t, quotas.Review(t.Context(), time.Now()))
	foreign.send("GET", "/Users", "").fails(http.StatusTooManyRequests, "")
}

// A text that could not be kept as it was sent is refused wherever it stands.
func TestTextsThatCannotBeKept(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	idp := w.provisioner(w.acme)
	user := idp.newUser("ada@example.com")
	group := idp.send("POST", "/Groups", `{"displayName": "staff"}`).ok(201).id()
	before := w.dump("acme")

	for _, bad := range []string{`\u0000`, `a\u0000b`, `\ud83d`, `\udE00\ud83d`, `\ud83dx`, `\ud83d\ud83d\ude00`} {
		for kind, attributes := range map[string][]string{
			"Users":  {"userName", "displayName", "externalId", "emails.value", `emails[type eq "work"].value`},
			"Groups": {"displayName", "externalId"}} {
			for _, attribute := range attributes {
				idp.filter(kind, attribute+` eq "`+bad+`"`).fails(http.StatusBadRequest, "invalidFilter")
			}
		}
		idp.filter("Users", `emails[type eq "`+bad+`"].value eq "a"`).fails(http.StatusBadRequest, "invalidFilter")

		escaped := strings.ReplaceAll(bad, `\`, `\\`)
		for _, path := range []string{"/Users/" + user, "/Groups/" + group} {
			idp.send("PATCH", path, `{"Operations": [{"op": "replace", "path": "emails[type eq \"`+escaped+
				`\"].value", "value": "a@b.c"}]}`).fails(http.StatusBadRequest, "invalidFilter")
			for _, name := range []string{"userName", "displayName", "externalId", "emails", "name.givenName", "x"} {
				idp.send("PATCH", path, `{"Operations": [{"op": "replace", "path": "`+name+`", "value": "`+bad+
					`"}]}`).fails(http.StatusBadRequest, "invalidValue")
			}
			idp.send("PUT", path, `{"userName": "`+bad+`@b.c", "displayName": "`+bad+`"}`).
				fails(http.StatusBadRequest, "invalidValue")
		}
	}
	for _, raw := range []string{"%00", "%ff"} {
		sent := idp.send("GET", "/Users?filter=userName%20eq%20%22"+raw+"%22", "")
		require.Equal(t, http.StatusBadRequest, sent.status, sent.text)
	}
	require.Equal(t, before, w.dump("acme"))

	whole := `{"Operations": [{"op": "replace", "path": "displayName", "value": "\\u0000 \ud83d\ude00 \u00e9"}]}`
	require.Equal(t, "\\u0000 😀 é", idp.send("PATCH", "/Users/"+user, whole).ok(http.StatusOK).body["displayName"])
	ids, _ := idp.filter("Users", `displayName eq "\\u0000 \ud83d\ude00 é"`).ids()
	require.Equal(t, []string{user}, ids)
}

// mutations is how many requests TestMutatedRequests sends.
const mutations = 2000

// Requests with random edits are never the server's fault, and change nothing of another org.
func TestMutatedRequests(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	idp, foreign := w.provisioner(w.acme), w.provisioner(w.globex)
	theirs := foreign.newUser("ada@example.com")
	theirGroup := foreign.send("POST", "/Groups", `{"displayName": "staff", "members": [{"value": "`+theirs+
		`"}]}`).ok(201).id()
	before := w.dump("globex")
	user := idp.newUser("ada@example.com")
	group := idp.send("POST", "/Groups", `{"displayName": "staff", "members": [{"value": "`+user+`"}]}`).ok(201).id()

	full := `{"schemas": ["urn:ietf:params:scim:schemas:core:2.0:User"], "userName": "ada@example.com", "active": true,
		"externalId": "00u1", "displayName": "Ada", "name": {"formatted": "Ada L", "givenName": "Ada"},
		"emails": [{"value": "ada@example.com", "type": "work", "primary": true}, {"value": "a@example.com"}]}`
	patch := `{"schemas": ["urn:ietf:params:scim:api:messages:2.0:PatchOp"], "Operations": [
		{"op": "Replace", "path": "emails[type eq \"work\"].value", "value": "b@example.com"},
		{"op": "add", "path": "name.familyName", "value": "L"}, {"op": "remove", "path": "externalId"},
		{"op": "replace", "value": {"active": "False", "displayName": "A"}},
		{"op": "add", "path": "emails", "value": [{"value": "c@example.com", "type": "home"}]}]}`
	groups := `{"displayName": "staff", "externalId": "g", "members": [{"value": "` + user + `"}]}`
	members := `{"Operations": [{"op": "add", "path": "members", "value": [{"$ref": null, "value": "` + user + `"}]},
		{"op": "remove", "path": "members[value eq \"` + user + `\"]"}, {"op": "replace", "path": "displayName",
		"value": "staff"}, {"op": "replace", "value": {"members": [{"value": "` + user + `"}]}}]}`
	seeds := [][3]string{{"POST", "/Users", full}, {"PUT", "/Users/" + user, full}, {"PATCH", "/Users/" + user, patch},
		{"POST", "/Groups", groups}, {"PUT", "/Groups/" + group, groups}, {"PATCH", "/Groups/" + group, members}}
	filters := []string{`userName eq "ada@example.com" and active eq true`, `emails[type eq "work"].value eq "a"`,
		`externalId eq "00u1"`, `id eq "` + user + `" and members eq "` + theirs + `"`, `displayName eq "staff"`}

	seed := uint64(time.Now().UnixNano())
	random := rand.New(rand.NewPCG(seed, 1))
	edit := mutator{random, []any{nil, true, "", "False", 1.5, -1e300, []any{}, map[string]any{}, theirs, theirGroup,
		user, "a\u0000b", strings.Repeat("y", 600), "members", "remove", "emails[type eq \"x\"]", "\U0010ffff",
		"%_'\\"}}
	counts := map[int]int{}
	for range mutations {
		var sent answer
		what := ""
		if random.IntN(4) == 0 {
			filter := edit.text(filters[random.IntN(len(filters))])
			kind := []string{"Users", "Groups"}[random.IntN(2)]
			what = "GET " + kind + " " + filter
			sent = idp.send("GET", "/"+kind+"?"+url.Values{"filter": {strings.ToValidUTF8(filter, "?")}}.Encode(), "")
		} else {
			s := seeds[random.IntN(len(seeds))]
			body, path := edit.body(s[2]), s[1]
			if random.IntN(10) == 0 {
				path = "/" + strings.Split(path, "/")[1] + "/" + []string{theirs, theirGroup, group}[random.IntN(3)]
			}
			what = s[0] + " " + path + " " + body
			sent = idp.send(s[0], path, body)
		}
		require.Less(t, sent.status, 500, "seed %d: %s\n%s", seed, what, sent.text)
		counts[sent.status]++
	}
	require.Equal(t, before, w.dump("globex"), "seed %d", seed)
	require.Greater(t, counts[200]+counts[201]+counts[204], 100, "seed %d: most edits are refused: %v", seed, counts)
	require.Greater(t, counts[400], 100, "seed %d: %v", seed, counts)
	t.Log("statuses", counts)
}

// mutator edits JSON and texts at random.
type mutator struct {
	*rand.Rand
	values []any
}

// body edits a JSON body: mostly its values, sometimes its bytes.
func (m mutator) body(text string) string {
	if m.IntN(6) == 0 {
		return m.text(text)
	}
	var v any
	if json.Unmarshal([]byte(text), &v) != nil {
		return text
	}
	for range 1 + m.IntN(3) {
		v = m.value(v)
	}
	out, _ := json.Marshal(v)
	return string(out)
}

func (m mutator) value(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for key := range v { // in random order
			switch m.IntN(6) {
			case 0:
				delete(v, key)
			case 1:
				v[[]string{"path", "value", "active", "ACTIVE", "members", "emails", "op", "$ref"}[m.IntN(8)]] = v[key]
			default:
				v[key] = m.value(v[key])
			}
			return v
		}
	case []any:
		if len(v) > 0 && m.IntN(4) > 0 {
			i := m.IntN(len(v))
			v[i] = m.value(v[i])
			return v
		}
		return append(v, v...)
	case string:
		if m.IntN(2) == 0 {
			return m.text(v)
		}
	}
	return m.values[m.IntN(len(m.values))]
}

// text inserts, removes or repeats some bytes.
func (m mutator) text(s string) string {
	for range 1 + m.IntN(3) {
		if s == "" {
			return "x"
		}
		i := m.IntN(len(s))
		switch m.IntN(3) {
		case 0:
			s = s[:i] + s[min(len(s), i+1+m.IntN(4)):]
		case 1:
			odd := []string{`"`, `[`, `]`, `.`, ` eq `, ` and `, `\`, `(`, "\u202e", `:`, `urn:`, `*`}
			s = s[:i] + odd[m.IntN(len(odd))] + s[i:]
		default:
			s += s[i:]
		}
	}
	return s
}
