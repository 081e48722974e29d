package rest

import (
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/internal/fault"
)

// A caller that asks again at once is answered ten times a second.
func TestRefusalsComeAMomentLate(t *testing.T) {
	t.Parallel()
	api, _ := newTestAPI(t, Config{})
	api.HandlePlain("GET /many", time.Minute, func(w http.ResponseWriter, r *http.Request) {
		api.WriteError(w, r, fault.New(fault.TooMany, "too many"))
	})
	handler := api.Handler()
	ask := func() { handler.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/many", nil)) }
	begun := time.Now()
	ask()
	require.GreaterOrEqual(t, time.Since(begun), lateBy)

	begun = time.Now()
	var all sync.WaitGroup
	for range 1000 {
		all.Go(ask)
	}
	all.Wait()
	require.Less(t, time.Since(begun), 500*lateBy, "they wait beside each other")
	require.Zero(t, api.delay.waiting.Load())

	api.delay.waiting.Store(mostLate)
	require.Zero(t, api.delay.wait(t.Context()), "no more than so many wait")
	require.EqualValues(t, mostLate, api.delay.waiting.Load())
}

func TestOnlyRefusalsComeLate(t *testing.T) {
	t.Parallel()
	for status, want := range map[int]time.Duration{200: 0, 404: 0, 429: lateBy, 503: 0} {
		a := &answer{ResponseWriter: httptest.NewRecorder(), late: func() time.Duration { return lateBy }}
		a.WriteHeader(status)
		require.Equal(t, want, a.waited, status)
	}
}
