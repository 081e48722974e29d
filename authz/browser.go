package authz

import (
	"cmp"
	"crypto/hmac"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"

	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/worker/protocol"
)

// origins are the addresses at which browsers reach the server, each as scheme://host[:port].
type origins []string

func newOrigins(list []string) (origins, error) {
	var all origins
	for _, s := range list {
		u, err := url.Parse(s)
		if err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" ||
			strings.Trim(u.Path, "/") != "" || u.User != nil {
			return nil, fmt.Errorf("origin %q: it must be like https://dagctl.example.com", s)
		}
		all = append(all, strings.ToLower(u.Scheme+"://"+u.Host))
	}
	return all, nil
}

func (o origins) has(origin string) bool { return slices.Contains(o, strings.ToLower(origin)) }

// hasHost reports whether one of the origins is on this host and port.
func (o origins) hasHost(host string) bool {
	return slices.ContainsFunc(o, func(origin string) bool {
		_, h, _ := strings.Cut(origin, "://")
		return strings.EqualFold(h, host)
	})
}

// SafeAddress reports whether text is an address at which nobody in between reads along: by TLS, or on this machine.
func SafeAddress(text string) bool {
	u, err := url.Parse(text)
	if err != nil || u.Host == "" || u.User != nil || u.Fragment != "" || u.RawQuery != "" {
		return false
	}
	ip, err := netip.ParseAddr(u.Hostname())
	local := strings.EqualFold(u.Hostname(), "localhost") || err == nil && ip.IsLoopback()
	return u.Scheme == "https" || u.Scheme == "http" && local
}

// sessionCookie returns the value of a cookie that signs a browser in, empty if the request has none.
func sessionCookie(r *http.Request) string {
	for _, c := range r.Cookies() {
		name := strings.TrimPrefix(c.Name, "__Host-")
		if name == SessionCookie || strings.HasPrefix(name, devCookie) {
			return c.Value
		}
	}
	return ""
}

// safe reports whether a method changes nothing.
func safe(method string) bool {
	return method == http.MethodGet || method == http.MethodHead || method == http.MethodOptions
}

// checkMutation refuses requests that a page of another site may have made a browser send: the browser adds the cookie
// by itself, but neither our Origin nor the token that only our pages hold.
func (o origins) checkMutation(r *http.Request, caller Caller) error {
	if caller.csrf == "" || safe(r.Method) {
		return nil
	}
	if !o.has(r.Header.Get("Origin")) {
		return fault.New(fault.Forbidden, "a change from a browser must come from this server's own pages")
	}

	token := r.Header.Get("X-CSRF-Token")
	if isForm(r) {
		// HandlePlain has limited the body. A page that has sent too much would do so again, whatever its token.
		if tooLarge := (*http.MaxBytesError)(nil); errors.As(r.ParseForm(), &tooLarge) {
			return tooLarge
		}
		token = cmp.Or(token, r.PostFormValue("csrf_token"))
	}
	if subtle.ConstantTimeCompare([]byte(token), []byte(caller.csrf)) != 1 {
		return fault.New(fault.Forbidden, "the page's CSRF token is missing or from another session").
			WithHint("reload the page and try again")
	}
	return nil
}

func isForm(r *http.Request) bool {
	return strings.HasPrefix(r.Header.Get("Content-Type"), "application/x-www-form-urlencoded")
}

// csrfToken returns a token that belongs to one session and does not reveal it.
func csrfToken(session string) string {
	mac := hmac.New(sha256.New, []byte(session))
	mac.Write([]byte("csrf"))
	return base64.RawURLEncoding.EncodeToString(mac.Sum(nil))
}

// onlyKnownHosts answers only requests to one of the server's own hosts that no page of another origin sent. A site
// that rebinds its name to this address still sends its own name, and is refused.
func (api *API) onlyKnownHosts(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !api.knowsHost(r) {
			if strings.HasPrefix(r.URL.Path, "/v1/") && api.dev == nil {
				api.rest.WriteError(w, r, fault.New(fault.Forbidden, "this server answers only at %s, not at %s",
					strings.Join(api.addresses(), ", "), r.Host))
				return
			}
			http.Error(w, "403 Forbidden\n\nThis server answers only at "+strings.Join(api.addresses(), ", "),
				http.StatusForbidden)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// knowsHost reports whether a request may go to the host that it names. A dev server, which lets in whoever reaches it,
// is strict. Others let through what no page can make a browser send, as it takes a token or a signature: workers and
// probes use names inside of a cluster.
func (api *API) knowsHost(r *http.Request) bool {
	if api.dev != nil {
		origin := r.Header.Get("Origin")
		return api.origins.hasHost(r.Host) && (origin == "" || api.origins.has(origin))
	}
	if len(api.hosts) == 0 || r.Header.Get("Authorization") != "" || r.Header.Get(protocol.CapabilityHeader) != "" ||
		r.URL.Path == "/healthz" || r.URL.Path == "/readyz" || strings.HasPrefix(r.URL.Path, "/v1/hooks/") {
		return true
	}
	return slices.ContainsFunc(api.hosts, func(host string) bool {
		return strings.EqualFold(host, r.Host) || strings.EqualFold(host+":443", r.Host) ||
			strings.EqualFold(host+":80", r.Host) // some proxies write the port that an address has anyway
	})
}

// addresses are where the server answers, for people.
func (api *API) addresses() []string {
	if api.dev != nil {
		return api.origins
	}
	return api.hosts
}

// escapeNext returns the path to come back to after signing in. The sign-in page must check that it is on this server.
func escapeNext(r *http.Request) string { return url.QueryEscape(r.URL.RequestURI()) }
