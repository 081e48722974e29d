package testoidc

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"strings"
	"testing"

	"golang.org/x/net/html"
)

// SignIn opens an authorization URL in a browser of its own, signs in as the user, consents to what the client asks
// for, and returns the URL at the client that the provider then redirects to, without following it. An error that the
// provider reports to the client is in that URL too.
func (p *Provider) SignIn(t testing.TB, authURL, subject string) (callbackURL string) {
	t.Helper()
	return signIn(t, p.Issuer, authURL, subject, "any password")
}

// ApproveDevice opens the verification_uri_complete of a device, signs in as the user and consents.
func (p *Provider) ApproveDevice(t testing.TB, verificationURL, subject string) {
	t.Helper()
	callback, err := newVisitor(p.Issuer, subject, "any password").open(t, verificationURL)
	if err == nil && callback != "" {
		err = fmt.Errorf("it redirected to %s", callback)
	}
	if err != nil {
		t.Fatalf("approve a device as %s: %v", subject, err)
	}
}

// Cancel opens an authorization URL, and cancels on the first page. It returns what SignIn does.
func (p *Provider) Cancel(t testing.TB, authURL string) (callbackURL string) {
	t.Helper()
	v := newVisitor(p.Issuer, "", "")
	v.cancels = true
	callbackURL, err := v.open(t, authURL)
	if err != nil || callbackURL == "" {
		t.Fatalf("cancel: it returned to no client: %v", err)
	}
	return callbackURL
}

func signIn(t testing.TB, issuer, authURL, login, password string) string {
	t.Helper()
	callback, err := newVisitor(issuer, login, password).open(t, authURL)
	if err == nil && callback == "" {
		err = errors.New("it returned to no client")
	}
	if err != nil {
		t.Fatalf("sign in as %s: %v", login, err)
	}
	return callback
}

// visitor plays a browser and the person at it, on the pages of one provider.
type visitor struct {
	issuer          string
	login, password string
	cancels         bool

	client *http.Client
}

func newVisitor(issuer, login, password string) *visitor {
	jar, _ := cookiejar.New(nil) // it cannot fail
	v := &visitor{issuer: issuer, login: login, password: password}
	v.client = &http.Client{Jar: jar, Transport: http.DefaultTransport.(*http.Transport).Clone(),
		CheckRedirect: func(r *http.Request, _ []*http.Request) error {
			if !v.own(r.URL) {
				return http.ErrUseLastResponse
			}
			return nil
		}}
	return v
}

// own reports whether a page is the provider's.
func (v *visitor) own(u *url.URL) bool { return strings.HasPrefix(u.String()+"/", v.issuer+"/") }

// open opens a page of the provider, and submits forms until the provider redirects elsewhere, or shows a page without
// a form, when callback is "".
func (v *visitor) open(t testing.TB, address string) (callback string, err error) {
	defer v.client.CloseIdleConnections()
	next, err := http.NewRequestWithContext(t.Context(), http.MethodGet, address, nil)
	if err != nil {
		return "", err
	}
	if !v.own(next.URL) {
		return "", fmt.Errorf("%s is no page of the provider at %s", address, v.issuer)
	}

	const pages = 10
	var seen []string
	for range pages {
		response, err := v.client.Do(next)
		if err != nil {
			return "", err
		}
		body, err := io.ReadAll(response.Body)
		_ = response.Body.Close()
		if err != nil {
			return "", err
		}
		if to, err := response.Location(); err == nil {
			return to.String(), nil
		}
		if response.StatusCode != http.StatusOK {
			return "", fmt.Errorf("%s answers %s: %s", response.Request.URL, response.Status, body)
		}

		page, err := html.Parse(strings.NewReader(string(body)))
		if err != nil {
			return "", err
		}
		seen = append(seen, response.Request.URL.String())
		if next, err = v.act(response.Request, page); next == nil || err != nil {
			return "", err
		}
		next = next.WithContext(t.Context())
	}
	return "", fmt.Errorf("it shows page after page, as it does to those whom it does not know: %s",
		strings.Join(seen, ", "))
}

// act returns the request that the person at the browser makes on a page; nil: there is nothing to do on it.
func (v *visitor) act(shown *http.Request, page *html.Node) (*http.Request, error) {
	if v.cancels {
		for link := range elements(page, "a") {
			if to, err := shown.URL.Parse(attribute(link, "href")); err == nil && strings.HasSuffix(to.Path, "/abort") {
				return http.NewRequest(http.MethodGet, to.String(), nil)
			}
		}
		return nil, errors.New("the page has no link to cancel")
	}

	for form := range elements(page, "form") {
		fields := url.Values{}
		for input := range elements(form, "input") {
			fields.Set(attribute(input, "name"), attribute(input, "value"))
		}
		if fields.Has("login") {
			fields.Set("login", v.login)
			fields.Set("password", v.password)
		}
		to, err := shown.URL.Parse(attribute(form, "action"))
		if err != nil {
			return nil, err
		}
		request, err := http.NewRequest(http.MethodPost, to.String(), strings.NewReader(fields.Encode()))
		if err != nil {
			return nil, err
		}
		request.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		return request, nil
	}
	return nil, nil
}

// elements yields the elements with a tag at and below a node.
func elements(n *html.Node, tag string) func(yield func(*html.Node) bool) {
	return func(yield func(*html.Node) bool) {
		for d := range n.Descendants() {
			if d.Type == html.ElementNode && d.Data == tag && !yield(d) {
				return
			}
		}
	}
}

// attribute returns "" for one that there is not.
func attribute(n *html.Node, key string) string {
	for _, a := range n.Attr {
		if a.Key == key {
			return a.Val
		}
	}
	return ""
}

// ClientCredentials returns the access token, a JWT, that the provider gives a client for itself, as a CI system gives
// one to a run. Its claims are those given, such as aud, sub, repository and ref, over iss, iat, exp, jti, sub and
// client_id.
func (p *Provider) ClientCredentials(t testing.TB, client Client, claims map[string]any) string {
	t.Helper()
	text, err := json.Marshal(claims)
	if err != nil {
		t.Fatal(err)
	}
	form := url.Values{"grant_type": {"client_credentials"}, "workload": {string(text)}}
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, p.Issuer+"/token",
		strings.NewReader(form.Encode()))
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	request.SetBasicAuth(url.QueryEscape(client.ID), url.QueryEscape(client.Secret))

	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatalf("credentials of client %s: %v", client.ID, err)
	}
	defer response.Body.Close()
	var answer struct {
		Token string `json:"access_token"`
		Error string `json:"error_description"`
	}
	if err := json.NewDecoder(response.Body).Decode(&answer); err != nil || answer.Token == "" {
		t.Fatalf("credentials of client %s: %s: %s %v", client.ID, response.Status, answer.Error, err)
	}
	return answer.Token
}
