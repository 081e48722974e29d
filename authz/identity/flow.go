package identity

import (
	"encoding/base64"
	"encoding/json"
	"net/http"
	"net/url"
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
	Next     string `json:"next"` // the page to go to
	Org      string `json:"org"`  // empty: the one used last
}

// flowLasts is how long a person may take to sign in at a provider.
const flowLasts = 15 * time.Minute

func (id *Identity) flowCookie() string {
	if id.secure() {
		return "__Host-dagctl_sign_in"
	}
	return "dagctl_sign_in"
}

// begin makes a flow and gives it to the browser.
func (id *Identity) begin(w http.ResponseWriter, provider, next, org string) flow {
	f := flow{State: authz.NewSecret("state"), Nonce: authz.NewSecret("nonce"), Verifier: oauth2.GenerateVerifier(),
		Provider: provider, Next: localPath(next), Org: org}
	text, _ := json.Marshal(f) // texts only
	id.setCookie(w, id.flowCookie(), base64.RawURLEncoding.EncodeToString(text), flowLasts)
	return f
}

// ended returns the flow that a browser comes back from, and takes it from the browser: it is good for one answer.
func (id *Identity) ended(w http.ResponseWriter, r *http.Request) (f flow, err error) {
	bad := fault.New(fault.Invalid, "this sign-in was begun in another browser, too long ago, or is over").
		WithHint("sign in once more")
	cookie, err := r.Cookie(id.flowCookie())
	if err != nil {
		return flow{}, bad
	}
	id.setCookie(w, id.flowCookie(), "", -time.Second)
	text, err := base64.RawURLEncoding.DecodeString(cookie.Value)
	if err != nil || json.Unmarshal(text, &f) != nil {
		return flow{}, bad
	}
	if f.State == "" || f.State != r.URL.Query().Get("state") {
		return flow{}, bad
	}
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
