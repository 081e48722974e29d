package web

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/internal/clock"
)

// What a form has done is said on the page that its answer leads to. Until then a cookie keeps the text: it is sealed
// for the session whose form it was, so that nobody else can put words on a page, and is good for a minute.

const (
	doneCookie = "dagctl_done"
	doneTime   = time.Minute
	maxDone    = 500 // bytes of the text
)

// tell has the next page that the caller sees say what was done. A caller without a session is a program, and gets
// nothing to keep.
func tell(w http.ResponseWriter, r *http.Request, caller authz.Caller, text string) {
	if caller.CSRFToken() == "" {
		return
	}
	keepDone(w, r, sealDone(caller, shorten(text, maxDone), clock.Now().Add(doneTime)), doneTime)
}

func keepDone(w http.ResponseWriter, r *http.Request, value string, age time.Duration) {
	http.SetCookie(w, &http.Cookie{Name: doneCookie, Value: value, Path: "/", HttpOnly: true, Secure: r.TLS != nil,
		SameSite: http.SameSiteLaxMode, MaxAge: int(age / time.Second)})
}

// sealDone returns a text with the time until which it may be shown, sealed for the caller's session.
func sealDone(caller authz.Caller, text string, until time.Time) string {
	sealed := strconv.FormatInt(until.Unix(), 10) + "." + base64.RawURLEncoding.EncodeToString([]byte(text))
	return sealed + "." + base64.RawURLEncoding.EncodeToString(doneSum(caller, sealed))
}

// openDone returns the text that a cookie keeps for the caller; empty if it is not what sealDone made for this session,
// or is too old.
func openDone(caller authz.Caller, value string, now time.Time) string {
	parts := strings.Split(value, ".")
	if len(parts) != 3 || caller.CSRFToken() == "" {
		return ""
	}
	sum, err := base64.RawURLEncoding.DecodeString(parts[2])
	if err != nil || !hmac.Equal(sum, doneSum(caller, parts[0]+"."+parts[1])) {
		return ""
	}

	until, err := strconv.ParseInt(parts[0], 10, 64)
	if err != nil || now.Unix() > until {
		return ""
	}
	text, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil {
		return ""
	}
	return string(text)
}

func doneSum(caller authz.Caller, sealed string) []byte {
	mac := hmac.New(sha256.New, []byte("done "+caller.CSRFToken()))
	mac.Write([]byte(sealed))
	return mac.Sum(nil)
}

// visit is the answer to a request for a page. render takes from it what the page is to say was done.
type visit struct {
	http.ResponseWriter
	request *http.Request
	caller  authz.Caller
}

// Unwrap lets http.ResponseController see what is below.
func (v visit) Unwrap() http.ResponseWriter { return v.ResponseWriter }

// doneBy returns what was done before, once: it removes the cookie. A script that fetches the page to refresh it, and
// leaves the rest of the window as it is, takes nothing away.
func doneBy(w http.ResponseWriter) string {
	v, ok := w.(visit)
	if !ok || v.request.Method == http.MethodHead {
		return ""
	}
	if mode := v.request.Header.Get("Sec-Fetch-Mode"); mode != "" && mode != "navigate" {
		return ""
	}
	cookie, err := v.request.Cookie(doneCookie)
	if err != nil {
		return ""
	}
	keepDone(w, v.request, "", -time.Second)
	return openDone(v.caller, cookie.Value, clock.Now())
}

// routes adds pages to an API, which say what was done before.
type routes struct{ *authz.API }

// handler answers a request for a page.
type handler = func(w http.ResponseWriter, r *http.Request, caller authz.Caller) error

// HandlePage is that of the API.
func (p routes) HandlePage(rule authz.Rule, pattern string, h handler) {
	p.API.HandlePage(rule, pattern, func(w http.ResponseWriter, r *http.Request, caller authz.Caller) error {
		return h(visit{w, r, caller}, r, caller)
	})
}
