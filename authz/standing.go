package authz

import (
	"context"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"github.com/dagctl/dagctl/internal/fault"
)

// A request is admitted when it begins. A query, an export or a stream may go on for minutes after that, so that its
// credential is looked at again while it lasts: one that was revoked, or has expired, ends it.

// lookAgainEach is how often the credential of a request that lasts is looked at, and how long at least a request lasts
// that is looked at again.
const lookAgainEach = 2 * time.Second

// whileGood returns a context for a request that was admitted. It is canceled, with an Unauthenticated fault as its
// cause, when the credential is not good any more. end must be called when the request has ended.
func (api *API) whileGood(r *http.Request) (ctx context.Context, end func()) {
	ctx, cancel := context.WithCancelCause(r.Context())
	r = r.WithContext(ctx)

	looks := time.AfterFunc(lookAgainEach, func() {
		tick := time.NewTicker(lookAgainEach)
		defer tick.Stop()
		for {
			if _, err := api.recognise(r); fault.Is(err, fault.Unauthenticated) {
				cancel(err)
				return
			}
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
		}
	})
	return ctx, func() {
		looks.Stop()
		cancel(nil)
	}
}

// endWhenRevoked is the middleware of operations that runs them in the context of whileGood.
func (api *API) endWhenRevoked(hc huma.Context, next func(huma.Context)) {
	r, _ := humago.Unwrap(hc)
	ctx, end := api.whileGood(r.WithContext(hc.Context()))
	defer end()
	next(huma.WithContext(hc, ctx))
}

// orRevoked returns the error of a request, which is that of its credential if that ended it.
func orRevoked(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); err != nil && fault.Is(cause, fault.Unauthenticated) {
		return cause
	}
	return err
}
