package authz_test

import (
	"net/http"
	"net/http/httptest"
	"strconv"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/internal/rest"
)

func TestRefusedCredentialsAreThrottledByAddress(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	limiter, err := rest.NewLimiter(0.001, 20)
	require.NoError(t, err)
	api := w.api(t, authz.Config{Failures: limiter})
	ask := func(from, token string) *httptest.ResponseRecorder {
		r := httptest.NewRequest("GET", "/v1/tokens", nil)
		r.RemoteAddr = from
		r.Header.Set("Authorization", "Bearer "+token)
		answer := httptest.NewRecorder()
		api.Handler().ServeHTTP(answer, r)
		return answer
	}
	known := w.token(t, authz.NewToken{Name: "known", Role: authz.RoleAdmin})
	fresh := w.token(t, authz.NewToken{Name: "fresh", Role: authz.RoleAdmin})
	const proxy, other = "192.0.2.1:4711", "192.0.2.2:4711"
	require.Equal(t, http.StatusOK, ask(proxy, known).Code)

	codes := answers(500, func(n int) int {
		answer := ask(proxy, "dagctl_user_"+strconv.Itoa(n))
		if answer.Code == http.StatusTooManyRequests {
			assert.NotEmpty(t, answer.Header().Get("Retry-After"))
		}
		return answer.Code
	})
	require.Len(t, codes, 2, "%v", codes)
	require.GreaterOrEqual(t, codes[http.StatusUnauthorized], 20, "%v", codes)
	require.Greater(t, codes[http.StatusTooManyRequests], 300, "%v", codes)

	require.Equal(t, http.StatusUnauthorized, ask(other, "dagctl_user_x").Code)
	require.Equal(t, http.StatusOK, ask(other, known).Code)
	for range 50 {
		require.Equal(t, http.StatusOK, ask(proxy, known).Code, "a caller behind the same proxy")
	}
	tries := 1
	for ; ask(proxy, fresh).Code != http.StatusOK; tries++ {
		require.Less(t, tries, 300, "a caller that was never seen gets in, too")
	}
	require.Equal(t, http.StatusOK, ask(proxy, fresh).Code)

	require.Equal(t, http.StatusUnauthorized, ask("[2001:db8::1]:1", "dagctl_user_x").Code)
	answers(200, func(n int) int { return ask("[2001:db8::"+strconv.Itoa(n+2)+"]:1", "dagctl_user_x").Code })
	codes = answers(100, func(n int) int { return ask("[2001:db8::a:"+strconv.Itoa(n)+"]:1", "dagctl_user_x").Code })
	require.Greater(t, codes[http.StatusTooManyRequests], 50, "addresses of one network count as one")
}

// answers asks so many times at once, and returns how often each status was the answer.
func answers(times int, ask func(n int) (status int)) map[int]int {
	statuses := make([]int, times)
	var all sync.WaitGroup
	for n := range statuses {
		all.Go(func() { statuses[n] = ask(n) })
	}
	all.Wait()

	codes := map[int]int{}
	for _, status := range statuses {
		codes[status]++
	}
	return codes
}

// Every claim and heartbeat gives a task another capability. One that the server has signed gets in at once, whatever
// others behind the same proxy send.
func TestRefusedCredentialsHoldUpNoTask(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	limiter, err := rest.NewLimiter(0.001, 20)
	require.NoError(t, err)
	api, s := w.remote(t, authz.Config{Failures: limiter})
	ask := func(capability string) int {
		return call(api, http.MethodPost, "/remote/task", `{}`, capable(capability)...).Code
	}
	codes := answers(300, func(n int) int { return ask("x.y." + strconv.Itoa(n)) })
	require.Equal(t, map[int]int{http.StatusUnauthorized: 20, http.StatusTooManyRequests: 280}, codes)

	require.Equal(t, http.StatusUnauthorized, ask(""))
	for range 50 {
		capability, _ := live(t, s, w.org.ID)
		require.Equal(t, http.StatusOK, ask(capability))
	}
}
