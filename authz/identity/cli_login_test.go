package identity_test

import (
	"crypto/sha256"
	"encoding/base64"
	"net/http"
	"net/url"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/authz/identity"
	"github.com/dagctl/dagctl/internal/testoidc"
)

func TestTheCommandLineSignsInByABrowser(t *testing.T) {
	t.Parallel()
	p := testoidc.Start(t, testoidc.Options{Users: []testoidc.User{ada}})
	w := newWorld(t, map[string]*testoidc.Provider{"corp": p})
	u := w.invite(w.acme, identity.NewUser{Email: ada.Email, Role: authz.RoleWriter})
	b := w.browser()

	verifier := "a verifier that only the command line has, of some length"
	sum := sha256.Sum256([]byte(verifier))
	ask := "/signin/cli?" + url.Values{"port": {"4567"}, "state": {"s"}, "client": {"laptop"},
		"challenge": {base64.RawURLEncoding.EncodeToString(sum[:])}}.Encode()
	require.Equal(t, http.StatusSeeOther, b.get(ask).status, "first the person signs in")
	require.Equal(t, http.StatusSeeOther, b.signIn(p, "corp", "ada", "").status)
	shown := b.get(ask)
	require.Contains(t, shown.body, "laptop")
	form := url.Values{}
	for _, field := range regexp.MustCompile(`name="(\w+)" value="([^"]*)"`).FindAllStringSubmatch(shown.body, -1) {
		form.Set(field[1], field[2])
	}
	done := b.post("/signin/cli", form)
	require.Equal(t, http.StatusOK, done.status, done.body)
	found := regexp.MustCompile(`http://127\.0\.0\.1:4567/\?code=(\w+)&amp;state=s`).FindStringSubmatch(done.body)
	require.NotNil(t, found, done.body)

	var answer identity.Waiting
	code := map[string]string{"code": found[1], "verifier": "another"}
	require.Equal(t, http.StatusUnprocessableEntity, w.post("", "/v1/auth/token", code, nil),
		"the code alone is worth nothing")
	code["verifier"] = verifier
	require.Equal(t, http.StatusOK, w.post("", "/v1/auth/token", code, &answer))
	require.Equal(t, "done", answer.Status)
	status, me := w.whoami(answer.Token)
	require.Equal(t, http.StatusOK, status)
	require.Equal(t, authz.RoleWriter, me.Role)
	require.Equal(t, http.StatusUnprocessableEntity, w.post("", "/v1/auth/token", code, nil), "once")
	status, _ = w.ask(http.Header{"Cookie": {authz.SessionCookie + "=" + answer.Token}})
	require.Equal(t, http.StatusUnauthorized, status, "its secret is no cookie")

	require.Equal(t, http.StatusNoContent, w.post(answer.Token, "/v1/auth/sign-out", map[string]bool{}, nil))
	status, _ = w.whoami(answer.Token)
	require.Equal(t, http.StatusUnauthorized, status)
	status, _ = b.me()
	require.Equal(t, http.StatusOK, status, "the browser stays signed in")

	yes := true
	again := b.post("/signin/cli", form)
	_, err := w.identity.ChangeUser(t.Context(), w.acme, u.Email, identity.UserChange{Disabled: &yes})
	require.NoError(t, err)
	found = regexp.MustCompile(`code=(\w+)&amp;`).FindStringSubmatch(again.body)
	require.Equal(t, http.StatusUnauthorized, w.post("", "/v1/auth/token",
		map[string]string{"code": found[1], "verifier": verifier}, nil), "who approved is out meanwhile")
}

func TestADeviceSignsIn(t *testing.T) {
	t.Parallel()
	p := testoidc.Start(t, testoidc.Options{Users: []testoidc.User{ada}})
	w := newWorld(t, map[string]*testoidc.Provider{"corp": p})
	w.invite(w.acme, identity.NewUser{Email: ada.Email, Role: authz.RoleWriter})
	b := w.browser()
	require.Equal(t, http.StatusSeeOther, b.signIn(p, "corp", "ada", "").status)

	start := func() (d identity.Device) {
		require.Equal(t, http.StatusOK, w.post("", "/v1/auth/device", map[string]string{"client": "build-7"}, &d))
		require.Regexp(t, `^[BCDFGHJKLMNPQRSTVWXZ]{4}-[BCDFGHJKLMNPQRSTVWXZ]{4}$`, d.UserCode)
		return d
	}
	ask := func(d identity.Device) (int, identity.Waiting) {
		var answer identity.Waiting
		return w.post("", "/v1/auth/token", map[string]string{"code": d.DeviceCode}, &answer), answer
	}
	d := start()
	status, answer := ask(d)
	require.Equal(t, http.StatusOK, status)
	require.Equal(t, "pending", answer.Status)
	status, _ = ask(d)
	require.Equal(t, http.StatusTooManyRequests, status)

	require.Contains(t, b.get(d.Complete).body, "build-7")
	var odd identity.Device
	require.Equal(t, http.StatusOK, w.post("", "/v1/auth/device", map[string]string{
		"client": "7\u202ed\u2066li\u0085ub \u05d0"}, &odd))
	require.Contains(t, b.get(odd.Complete).body, "7dli ub \u05d0", "nothing turns the name around")
	typed := url.Values{"csrf_token": {b.csrf("/signin/device")}, "code": {" " + d.UserCode[:4] + d.UserCode[5:]}}
	wrong := url.Values{"csrf_token": typed["csrf_token"], "code": {"BBBB-BBBB"}}
	require.Equal(t, http.StatusNotFound, b.post("/signin/device", wrong).status)
	require.Equal(t, http.StatusForbidden, b.post("/signin/device", url.Values{"code": {d.UserCode}}).status)
	require.Equal(t, http.StatusOK, b.post("/signin/device", typed).status)
	require.Equal(t, http.StatusNotFound, b.post("/signin/device", typed).status, "once")
	_, answer = ask(d)
	require.Equal(t, "done", answer.Status)
	status, me := w.whoami(answer.Token)
	require.Equal(t, http.StatusOK, status)
	require.Equal(t, "acme", me.Org)
	status, _ = ask(d)
	require.Equal(t, http.StatusUnprocessableEntity, status)

	refused := start()
	typed = url.Values{"csrf_token": typed["csrf_token"], "code": {refused.UserCode}, "deny": {"1"}}
	require.Equal(t, http.StatusOK, b.post("/signin/device", typed).status)
	_, answer = ask(refused)
	require.Equal(t, "denied", answer.Status)
	require.Empty(t, answer.Token)
}
