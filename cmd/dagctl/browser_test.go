package main

import (
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/html"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/authz/identity"
)

// browser is a signed-in browser without a window: a cookie and the origin of the server's pages.
type browser struct {
	t      *testing.T
	w      *world
	client *http.Client
}

// signedIn signs a new user in by a one-time link.
func (w *world) signedIn(t *testing.T, email string, role authz.Role) *browser {
	t.Helper()
	return w.follow(t, w.linkOf(t, email, role))
}

// linkOf makes a new user, and returns a one-time link that signs in as that user.
func (w *world) linkOf(t *testing.T, email string, role authz.Role) string {
	t.Helper()
	require.NoError(t, w.as(admin).Post(t.Context(), "/v1/users",
		identity.NewUser{Email: email, Issuer: identity.Local, Role: role}, nil))
	var link identity.Link
	require.NoError(t, w.as(admin).Post(t.Context(), "/v1/users/"+email+"/link", struct{}{}, &link))
	return link.URL
}

// follow signs a browser in by a link.
func (w *world) follow(t *testing.T, link string) *browser {
	t.Helper()
	b := &browser{t, w, &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error {
		return http.ErrUseLastResponse
	}}}
	jar, err := cookiejar.New(nil)
	require.NoError(t, err)
	b.client.Jar = jar
	address, err := url.Parse(link)
	require.NoError(t, err)
	status, _, body := b.send("/signin/link", url.Values{"token": {address.Query().Get("token")}})
	require.Equal(t, http.StatusSeeOther, status, body)
	return b
}

// send posts a form, or gets a page if form is nil. It returns the status, where the answer leads, and the page.
func (b *browser) send(path string, form url.Values) (status int, location, body string) {
	b.t.Helper()
	method := http.MethodGet
	if form != nil {
		method = http.MethodPost
	}
	request, err := http.NewRequestWithContext(b.t.Context(), method, b.w.url+path, strings.NewReader(form.Encode()))
	require.NoError(b.t, err)
	request.Header.Set("Accept", "text/html")
	if form != nil {
		request.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		request.Header.Set("Origin", b.w.url)
	}
	response, err := b.client.Do(request)
	require.NoError(b.t, err)
	defer response.Body.Close()
	require.Equal(b.t, "no-store", response.Header.Get("Cache-Control"), path)
	text, err := io.ReadAll(response.Body)
	require.NoError(b.t, err)
	return response.StatusCode, response.Header.Get("Location"), string(text)
}

// get returns a page.
func (b *browser) get(path string) *html.Node {
	b.t.Helper()
	status, _, body := b.send(path, nil)
	require.Equal(b.t, http.StatusOK, status, body)
	return parse(b.t, body)
}

// post sends a form with the CSRF token of the browser's pages.
func (b *browser) post(path string, form url.Values) (status int, location string, page *html.Node) {
	b.t.Helper()
	form.Set("csrf_token", b.csrf())
	status, location, body := b.send(path, form)
	return status, location, parse(b.t, body)
}

// csrf returns the CSRF token of the browser's pages.
func (b *browser) csrf() string {
	b.t.Helper()
	for _, input := range all(b.get("/account"), "input") {
		if attribute(input, "name") == "csrf_token" {
			return attribute(input, "value")
		}
	}
	require.Fail(b.t, "no CSRF token")
	return ""
}

func parse(t *testing.T, body string) *html.Node {
	t.Helper()
	root, err := html.Parse(strings.NewReader(body))
	require.NoError(t, err)
	return root
}

// field returns the value of a form's field, empty if there is none.
func field(root *html.Node, name string) string {
	for _, kind := range []string{"input", "textarea"} {
		for _, n := range all(root, kind) {
			if attribute(n, "name") == name && attribute(n, "type") != "checkbox" {
				return attribute(n, "value") + text(n)
			}
		}
	}
	for _, option := range all(root, "option") {
		_, selected := find(option, "selected")
		if selected && attribute(option.Parent, "name") == name {
			return text(option)
		}
	}
	return ""
}

func find(n *html.Node, name string) (string, bool) {
	for _, a := range n.Attr {
		if a.Key == name {
			return a.Val, true
		}
	}
	return "", false
}

// byID returns the text of an element, empty if there is none.
func byID(root *html.Node, id string) string {
	for n := range root.Descendants() {
		if n.Type == html.ElementNode && attribute(n, "id") == id {
			return text(n)
		}
	}
	return ""
}

// refused posts a form that is wrong: the answer is 422 with the page, which says why.
func (b *browser) refused(path string, form url.Values, why string) *html.Node {
	b.t.Helper()
	status, _, page := b.post(path, form)
	require.Equal(b.t, http.StatusUnprocessableEntity, status, text(page))
	require.Contains(b.t, text(page), why)
	for n := range page.Descendants() {
		if n.Type == html.ElementNode && attribute(n, "role") == "alert" {
			return page
		}
	}
	require.Fail(b.t, "no alert", text(page))
	return nil
}

// done posts a form that is right, and returns the page to which the answer leads.
func (b *browser) done(path string, form url.Values) *html.Node {
	b.t.Helper()
	status, location, page := b.post(path, form)
	require.Equal(b.t, http.StatusSeeOther, status, text(page))
	return b.get(location)
}

// userIn returns the id of the user who is signed in.
func userIn(b *browser) string {
	b.t.Helper()
	for _, row := range all(b.get("/users"), "a") {
		if id, ok := strings.CutPrefix(attribute(row, "href"), "/users/"); ok {
			return id
		}
	}
	require.Fail(b.t, "no user")
	return ""
}
