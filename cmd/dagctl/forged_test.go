package main

import (
	"encoding/base64"
	"flag"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/authz/identity"
	"github.com/dagctl/dagctl/internal/testoidc"
	"github.com/dagctl/dagctl/internal/webhook"
	"github.com/dagctl/dagctl/worker/protocol"
)

var forged = flag.Int("forged", 10_000, "how many mutated credentials TestMutatedCredentialsOpenNothing sends")

// hookDAG takes deliveries that are signed with the secret inbox_key.
const hookDAG = `name: inbox
jobs:
  - name: take
    operator: command
    source: { kind: webhook, path: inbox/take, secret: inbox_key }
    outputs: 0
    config: { argv: [/bin/sh, -c, "cat > /dev/null"] }
`

// credential is one that works, and the request that it opens.
type credential struct {
	name, value string
	request     func(value string) *http.Request
	opened      int // status with the right value; 0: any but 401
}

// TestMutatedCredentialsOpenNothing changes credentials that work: tokens, sessions, cookies, pipelines' and tasks'
// tokens and signatures of deliveries. None of the changed ones is accepted, and none crashes anything.
func TestMutatedCredentialsOpenNothing(t *testing.T) {
	t.Parallel()
	p := testoidc.Start(t, testoidc.Options{Users: []testoidc.User{ada}})
	w := newWorld(t, withProvider(t, p))
	handler := w.app.API.Handler()
	all := w.credentials(t, p)
	for _, c := range all {
		answer := httptest.NewRecorder()
		handler.ServeHTTP(answer, c.request(c.value))
		if c.opened != 0 {
			require.Equal(t, c.opened, answer.Code, "%s: %s", c.name, answer.Body)
		}
		require.NotEqual(t, http.StatusUnauthorized, answer.Code, "%s: %s", c.name, answer.Body)
	}

	seed := time.Now().UnixNano()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(uint64(seed), 0))
	var together errgroup.Group
	together.SetLimit(64) // a token of an unknown key waits for those of its issuer
	for range *forged {
		c := all[random.IntN(len(all))]
		value := mutated(random, c.value, all)
		if same(value, c.value) || slices.ContainsFunc(all, func(o credential) bool { return value == o.value }) {
			continue
		}
		together.Go(func() error {
			answer := httptest.NewRecorder()
			handler.ServeHTTP(answer, c.request(value))
			if slices.Contains([]int{http.StatusUnauthorized, http.StatusNotFound, http.StatusBadRequest},
				answer.Code) {
				return nil
			}
			return fmt.Errorf("%s as %q: %d %s", c.name, value, answer.Code, answer.Body)
		})
	}
	require.NoError(t, together.Wait())
}

// credentials returns one of each kind.
func (w *world) credentials(t *testing.T, p *testoidc.Provider) []credential {
	t.Helper()
	must(t, w.env(t, admin), "users", "invite", ada.Email, "--role", "reader")
	rule := decode[identity.Rule](t, w.env(t, admin), "trust", "add", "ci", "--issuer", p.Issuer, "--role", "reader",
		"--claim", "job=x")
	jwt := p.Sign(map[string]any{"iss": p.Issuer, "aud": rule.Audience, "job": "x", "sub": "s",
		"exp": time.Now().Add(time.Hour).Unix()}, testoidc.Signing{})
	b := w.browse(t, p, "ada")
	login := start(t, map[string]string{"HOME": t.TempDir()}, "login", w.url, "--device")
	b.submit(w.url+"/signin/device?code="+login.await(t, `type the code (\S+)`), nil)
	require.Zero(t, <-login.code)
	cookie := ""
	base, err := url.Parse(w.url)
	require.NoError(t, err)
	for _, c := range b.client.Jar.Cookies(base) {
		if c.Name == authz.SessionCookie {
			cookie = c.Value
		}
	}
	require.Zero(t, dagctlWithInput(t, w.env(t, admin), "hunter22hunter22\n", "secrets", "set", "inbox_key").code)
	must(t, w.env(t, admin), "secrets", "bind", "inbox_key", "--job", "inbox/take")
	must(t, w.env(t, writer), "deploy", writeDAG(t, t.TempDir(), "inbox", hookDAG))

	scim := decode[authz.CreatedToken](t, w.env(t, admin), "tokens", "create", "idp", "--kind", "scim", "--issuer",
		p.Issuer)

	bearer := func(method, path string) func(string) *http.Request {
		return func(value string) *http.Request {
			r := w.request(method, path, "{}")
			r.Header.Set("Authorization", "Bearer "+value)
			r.Header.Set(protocol.VersionHeader, strconv.Itoa(protocol.Version))
			return r
		}
	}
	const body = `{"n": 1}`
	id, stamp := "delivery-1", strconv.FormatInt(time.Now().Unix(), 10)
	return []credential{
		{"a service token", w.tokens[reader], bearer(http.MethodGet, "/v1/whoami"), http.StatusOK},
		{"a pipeline's token", jwt, bearer(http.MethodGet, "/v1/whoami"), http.StatusOK},
		{"a provisioner's token", scim.Secret, bearer(http.MethodGet, "/scim/v2/Users"), http.StatusOK},
		{"a worker token", w.tokens[anyWorker], bearer(http.MethodPost, "/internal/task-poll"), 0},
		{"a cookie", cookie, func(value string) *http.Request {
			r := w.request(http.MethodGet, "/v1/whoami", "")
			r.Header.Set("Cookie", authz.SessionCookie+"="+value)
			return r
		}, http.StatusOK},
		{"a task's token", w.tokens[anyTask], func(value string) *http.Request {
			r := w.request(http.MethodPost, "/v1/task/heartbeat", "{}")
			r.Header.Set(protocol.CapabilityHeader, value)
			r.Header.Set(protocol.VersionHeader, strconv.Itoa(protocol.Version))
			return r
		}, 0},
		{"a delivery's signature", webhook.Sign("hunter22hunter22", id, stamp, []byte(body)),
			func(value string) *http.Request {
				r := w.request(http.MethodPost, "/v1/hooks/acme/inbox/take", body)
				r.Header.Set("Webhook-Id", id)
				r.Header.Set("Webhook-Timestamp", stamp)
				r.Header.Set("Webhook-Signature", value)
				return r
			}, http.StatusAccepted},
	}
}

func (w *world) request(method, path, body string) *http.Request {
	r := httptest.NewRequest(method, w.url+path, strings.NewReader(body))
	r.Header.Set("Content-Type", "application/json")
	return r
}

// mutated changes a credential a little, or puts parts of others into it.
func mutated(random *rand.Rand, value string, all []credential) string {
	other := all[random.IntN(len(all))].value
	parts := strings.Split(value, ".")
	switch i := random.IntN(len(value)); random.IntN(9) {
	case 0: // another character
		return value[:i] + string(rune(33+random.IntN(94))) + value[i+1:]
	case 1:
		return value[:i]
	case 2:
		return value[i:]
	case 3:
		return value + value[i:]
	case 4:
		return value[:i] + value[min(i+1, len(value)):]
	case 5: // the beginning of one and the end of another
		return value[:i] + other[min(i, len(other)):]
	case 6:
		return strings.ToUpper(value[:i]) + value[i:]
	case 7: // a part of another token
		n := random.IntN(len(parts))
		parts[n] = strings.Split(other, ".")[0]
		return strings.Join(parts, ".")
	default: // another header, with the algorithm that takes no key
		parts[0] = base64.RawURLEncoding.EncodeToString(fmt.Appendf(nil, `{"alg":%q,"typ":"JWT"}`,
			[]string{"none", "HS256", "RS256", "None"}[random.IntN(4)]))
		return strings.Join(parts, ".")
	}
}

// same reports whether two credentials mean the same bytes: the last character of base64 may have bits that stand for
// nothing, and blanks around a value are none of it.
func same(a, b string) bool {
	if strings.TrimSpace(a) == b {
		return true
	}
	ours, theirs := strings.Split(a, "."), strings.Split(b, ".")
	if len(ours) != len(theirs) {
		return strings.Contains(" "+a+" ", " "+b+" ") // a list of signatures, with the right one in it
	}
	for i := range ours {
		x, errX := base64.RawURLEncoding.DecodeString(ours[i])
		y, errY := base64.RawURLEncoding.DecodeString(theirs[i])
		if ours[i] != theirs[i] && (errX != nil || errY != nil || string(x) != string(y)) {
			return false
		}
	}
	return true
}
