package identity

import (
	"encoding/base64"
	"encoding/json"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"golang.org/x/oauth2"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/internal/fault"
)

// flow is a sign-in at a provider that a browser has begun. It is in a cookie of the browser: that the provider's
// answer fits it shows that the same browser began, and strangers who begin sign-ins fill nothing on the server.
type flow struct {
	State    string `json:"state"`
	Nonce    string `json:"nonce"`
	Verifier string `json:"verifier"` // of PKCE
	Provider string `json:"provider"`
	Next     string `json:"next"`  // the page to go to
	Org      string `json:"org"`   // empty: the one used last
	Begun    int64  `json:"begun"` // in seconds of Unix
}

// flowLasts is how long a person may take to sign in at a provider.
const flowLasts = 15 * time.Minute

func (id *Identity) flowCookie() string {
	if id.secure() {
		return "__Host-dagctl_sign_in"
	}
	return "dagctl_sign_in"
}

// Limits of the cookie: it has the latest flows, of as many tabs, and browsers keep 4096 bytes of one with its name.
const (
	maxFlows      = 4
	maxFlowCookie = 3800 // bytes
)

// begin makes a flow and gives it to the browser, beside those that it has begun in other tabs.
func (id *Identity) begin(w http.ResponseWriter, r *http.Request, provider, next, org string) flow {
	f := flow{State: authz.NewSecret("state"), Nonce: authz.NewSecret("nonce"), Verifier: oauth2.GenerateVerifier(),
		Provider: provider, Next: localPath(next), Org: org, Begun: time.Now().Unix()}
	id.keepFlows(w, append(id.flowsOf(r), f))
	return f
}

// keepFlows gives the browser these flows, without the first ones of too many.
func (id *Identity) keepFlows(w http.ResponseWriter, all []flow) {
	all = all[max(0, len(all)-maxFlows):]
	for {
		text, _ := json.Marshal(all) // texts and numbers only
		value := base64.RawURLEncoding.EncodeToString(text)
		switch {
		case len(all) == 0:
			id.setCookie(w, id.flowCookie(), "", -time.Second)
			return
		case len(all) == 1 || len(value) <= maxFlowCookie:
			id.setCookie(w, id.flowCookie(), value, flowLasts)
			return
		}
		all = all[1:]
	}
}

// flowsOf returns the flows of the browser that sent r which have not taken too long, the oldest first.
func (id *Identity) flowsOf(r *http.Request) (all []flow) {
	cookie, err := r.Cookie(id.flowCookie())
	if err != nil {
		return nil
	}
	text, err := base64.RawURLEncoding.DecodeString(cookie.Value)
	if err != nil || json.Unmarshal(text, &all) != nil {
		return nil
	}
	return slices.DeleteFunc(all, func(f flow) bool {
		return f.State == "" || time.Since(time.Unix(f.Begun, 0)) > flowLasts
	})
}

// ended returns the flow that a browser comes back from, and takes it from the browser: it is good for one answer. An
// answer that fits none takes nothing away, since any page can send a browser here.
func (id *Identity) ended(w http.ResponseWriter, r *http.Request) (f flow, err error) {
	all := id.flowsOf(r)
	i := slices.IndexFunc(all, func(f flow) bool { return f.State == r.URL.Query().Get("state") })
	if i < 0 {
		return flow{}, fault.New(fault.Invalid,
			"this sign-in was begun in another browser, too long ago, or is over").WithHint("sign in once more")
	}
	f = all[i]
	id.keepFlows(w, slices.Delete(all, i, i+1))
	return f, nil
}

// localPath returns a path of this server, whatever text asks for: a sign-in must not lead elsewhere.
func localPath(text string) string {
	u, err := url.Parse(text)
	if err != nil || !strings.HasPrefix(text, "/") || u.Host != "" || u.Scheme != "" {
		return "/"
	}
	// Two slashes at the beginning would name a host.
	there := url.URL{Path: "/" + strings.TrimLeft(u.Path, "/\\"), RawQuery: u.RawQuery}
	return there.String()
}
