package identity_test

import (
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/authz/identity"
	"github.com/dagctl/dagctl/internal/fault"
)

// admin makes an admin of acme who can sign in by a link, and returns the user as a caller.
func (w *world) admin(email string) (identity.User, authz.Caller) {
	w.t.Helper()
	u := w.invite(w.acme, identity.NewUser{Email: email, Role: authz.RoleAdmin})
	_, err := w.identity.CreateLink(w.t.Context(), w.acme, email)
	require.NoError(w.t, err)
	as := w.acme
	as.Actor = "user:" + u.ID.String()
	return u, as
}

// Of two admins who take each other's rights away at the same moment, one stays.
func TestAdminsWhoEndEachOther(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	yes, reader := true, authz.RoleReader
	change := func(c identity.UserChange) func(authz.Caller, identity.User) error {
		return func(as authz.Caller, u identity.User) error {
			_, err := w.identity.ChangeUser(t.Context(), as, u.ID.String(), c)
			return err
		}
	}
	for _, end := range []func(authz.Caller, identity.User) error{
		func(as authz.Caller, u identity.User) error {
			return w.identity.RemoveUser(t.Context(), as, u.ID.String())
		},
		change(identity.UserChange{Disabled: &yes}), change(identity.UserChange{Role: &reader}),
	} {
		for range 4 {
			ada, asAda := w.admin("ada@example.com")
			ben, asBen := w.admin("ben@example.com")
			var both sync.WaitGroup
			var errs [2]error
			both.Go(func() { errs[0] = end(asAda, ben) })
			both.Go(func() { errs[1] = end(asBen, ada) })
			both.Wait()

			refused := errs[0]
			if refused == nil {
				refused = errs[1]
			}
			require.NotEqual(t, errs[0] == nil, errs[1] == nil, "%v", errs)
			require.True(t, fault.Is(refused, fault.Forbidden), "%v", refused)
			require.ErrorContains(t, refused, "is no admin of acme any more")
			for _, u := range []identity.User{ada, ben} {
				err := w.identity.RemoveUser(t.Context(), w.acme, u.ID.String())
				require.True(t, err == nil || fault.Is(err, fault.NotFound), "%v", err)
			}
		}
	}
}

// The last of those who can administer an org does not step down, by whatever way.
func TestTheLastAdminStays(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	ada, asAda := w.admin("ada@example.com")
	require.NoError(t, authz.RevokeAnyToken(t.Context(), w.owner, "acme", "admin"))
	reader := authz.RoleReader
	down := func() error {
		_, err := w.identity.ChangeUser(t.Context(), asAda, ada.Email, identity.UserChange{Role: &reader})
		return err
	}

	w.invite(asAda, identity.NewUser{Email: "ben@example.com", Role: authz.RoleAdmin})
	err := down()
	require.True(t, fault.Is(err, fault.Conflict), "%v", err)
	require.ErrorContains(t, err, "after that nobody could administer the org acme")
	err = w.identity.RemoveUser(t.Context(), w.acme, ada.Email)
	require.True(t, fault.Is(err, fault.Forbidden), "the caller's token is revoked: %v", err)

	_, err = w.identity.CreateLink(t.Context(), asAda, "ben@example.com")
	require.NoError(t, err)
	require.NoError(t, down(), "another admin can sign in")
}
