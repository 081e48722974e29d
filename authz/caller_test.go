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

func TestCanRead(t *testing.T) {
	t.Parallel()
	finance := []string{"role:finance"}

	for _, tc := range []struct {
		name      string
		caller    Caller
		readRoles []string
		published bool
		want      bool
	}{
		{"nobody", Caller{}, nil, true, false},
		{"nobody with a group", Caller{OrgRoles: finance}, finance, true, false},
		{"reader, open", Caller{Role: RoleReader}, nil, true, true},
		{"reader, restricted", Caller{Role: RoleReader}, finance, true, false},
		{"reader in the group", Caller{Role: RoleReader, OrgRoles: finance}, finance, true, true},
		{"reader in another", Caller{Role: RoleReader, OrgRoles: []string{"role:hr"}}, finance, true, false},
		{"reader in one of two", Caller{Role: RoleReader, OrgRoles: []string{"role:hr", "role:finance"}},
			[]string{"role:x", "role:finance"}, true, true},
		{"reader, unpublished", Caller{Role: RoleReader}, nil, false, false},
		{"reader in the group, unpublished", Caller{Role: RoleReader, OrgRoles: finance}, finance, false, false},
		{"writer, unpublished", Caller{Role: RoleWriter}, nil, false, true},
		{"writer, restricted", Caller{Role: RoleWriter}, finance, true, false},
		{"writer, restricted and unpublished", Caller{Role: RoleWriter}, finance, false, false},
		{"writer in the group, unpublished", Caller{Role: RoleWriter, OrgRoles: finance}, finance, false, true},
		{"admin", Caller{Role: RoleAdmin}, finance, false, true},
	} {
		require.Equal(t, tc.want, tc.caller.CanRead(tc.readRoles, tc.published), tc.name)
	}
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
