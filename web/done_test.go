package web

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/authz"
)

// What was done is said once, to the session that did it, and nothing that was not sealed for it is shown.
func TestWhatWasDoneIsSaidOnce(t *testing.T) {
	t.Parallel()
	caller := authz.Caller{Actor: "user:1"}.ByCookie("secret")
	ask := func(by authz.Caller, cookie, mode string) (said string, left []*http.Cookie) {
		r := httptest.NewRequest(http.MethodGet, "/dags", nil)
		r.Header.Set("Sec-Fetch-Mode", mode)
		r.AddCookie(&http.Cookie{Name: doneCookie, Value: cookie})
		answer := httptest.NewRecorder()
		said = doneBy(visit{answer, r, by})
		return said, answer.Result().Cookies()
	}

	answer := httptest.NewRecorder()
	tell(answer, httptest.NewRequest(http.MethodPost, "/x", nil), caller, `Paused "<b>" für immer.`)
	sealed := answer.Result().Cookies()
	require.Len(t, sealed, 1)
	require.True(t, sealed[0].HttpOnly)
	require.Equal(t, http.SameSiteLaxMode, sealed[0].SameSite)
	said, left := ask(caller, sealed[0].Value, "navigate")
	require.Equal(t, `Paused "<b>" für immer.`, said)
	require.Len(t, left, 1)
	require.Negative(t, left[0].MaxAge, "it is said once")

	said, left = ask(caller, sealed[0].Value, "cors")
	require.Empty(t, said, "a script that refreshes the page")
	require.Empty(t, left, "takes nothing away")

	said, _ = ask(authz.Caller{Actor: "user:2"}.ByCookie("another"), sealed[0].Value, "")
	require.Empty(t, said, "another session's")
	said, _ = ask(authz.Caller{Actor: "token:1"}, sealDone(authz.Caller{}, "forged", time.Now().Add(time.Hour)), "")
	require.Empty(t, said, "without a session nothing is sealed")
	for _, forged := range []string{"", "Your account is locked", "..", "99999999999.SGVsbG8.",
		sealed[0].Value + "x", "9" + sealed[0].Value, "99999999999.SGVsbG8.SGVsbG8"} {
		said, _ = ask(caller, forged, "navigate")
		require.Empty(t, said, forged)
	}
	require.Empty(t, openDone(caller, sealed[0].Value, time.Now().Add(2*doneTime)), "too old")

	answer = httptest.NewRecorder()
	tell(answer, httptest.NewRequest(http.MethodPost, "/x", nil), authz.Caller{Actor: "token:1"}, "for nobody")
	require.Empty(t, answer.Result().Cookies(), "a program keeps no cookies")
}
