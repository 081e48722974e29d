package authz

import (
	"context"
	"net/http"
	"slices"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/wait"
)

// A request is admitted when it begins. A query, an export or a stream may go on for minutes after that, so that its
// credential is looked at again while it lasts: one that was revoked, or has expired, ends it, and so does one whose
// caller may do less now.

// lookAgainEach is how often the credential of a request that lasts is looked at, and how long at least a request lasts
// that is looked at again.
const lookAgainEach = 2 * time.Second

// whileGood returns a context for a request of a caller who was admitted. It is canceled when the credential is not
// good any more, with an Unauthenticated fault as its cause, or when the caller has lost a right, with a Forbidden one.
// end must be called when the request has ended.
func (api *API) whileGood(r *http.Request, admitted Caller) (ctx context.Context, end func()) {
	return wait.While(r.Context(), lookAgainEach, func(ctx context.Context) error {
		now, err := api.recognise(r.WithContext(ctx))
		if err == nil && now.lost(admitted) {
			err = fault.New(fault.Forbidden, "what %s may do has become less while this ran", admitted.Actor).
				WithHint("begin again with what there is now: `dagctl whoami` says it")
		}
		if fault.Is(err, fault.Unauthenticated) || fault.Is(err, fault.Forbidden) {
			return err
		}
		return nil // a look that fails says nothing of the credential
	})
}

// endWhenRevoked is the middleware of operations that runs them in the context of whileGood.
func (api *API) endWhenRevoked(hc huma.Context, next func(huma.Context)) {
	r, _ := humago.Unwrap(hc)
	admitted, _ := hc.Context().Value(admittedKey{}).(Caller)
	ctx, end := api.whileGood(r.WithContext(hc.Context()), admitted)
	defer end()
	next(huma.WithContext(hc, ctx))
}

// orRevoked returns the error of a request, which is that of its credential if that ended it.
func orRevoked(ctx context.Context, err error) error {
	cause := context.Cause(ctx)
	if err != nil && (fault.Is(cause, fault.Unauthenticated) || fault.Is(cause, fault.Forbidden)) {
		return cause
	}
	return err
}

// admittedKey is that of the caller in the context of an operation.
type admittedKey struct{}

// lost reports whether a caller has a lesser role than before, or lacks a grant or an org role of that time.
func (c Caller) lost(before Caller) bool {
	return c.Role.rank() < before.Role.rank() ||
		slices.ContainsFunc(before.Grants, func(g Grant) bool { return !slices.Contains(c.Grants, g) }) ||
		slices.ContainsFunc(before.OrgRoles, func(r string) bool { return !slices.Contains(c.OrgRoles, r) })
}
