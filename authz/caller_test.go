package authz

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestRoles(t *testing.T) {
	t.Parallel()
	order := []Role{"", RoleReader, RoleWriter, RoleAdmin}
	for have, role := range order {
		for want, least := range order {
			require.Equal(t, want > 0 && have >= want, Caller{Role: role}.Is(least), "%q is %q", role, least)
		}
	}
	require.False(t, Caller{Role: "root"}.Is(RoleReader))
	require.False(t, Caller{Role: RoleAdmin}.Is("root"))
}

func TestSecrets(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for range 1000 {
		secret := newSecret("user")
		kind, ok := secretKind(secret)
		require.True(t, ok, secret)
		require.Equal(t, "user", kind)
		require.False(t, seen[secret])
		seen[secret] = true
	}

	good := newSecret("user")
	for _, bad := range []string{"", "dagctl_user_", good[:len(good)-1], good + "0", good + "\n",
		" " + good, "x" + good, good[:20] + "-" + good[21:], "dagctl_USER" + good[11:]} {
		_, ok := secretKind(bad)
		require.False(t, ok, "%q", bad)
	}
}
