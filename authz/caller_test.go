package authz

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestRoles(t *testing.T) {
	t.Parallel()
	order := []Role{"", RoleReader, RoleProposer, RoleWriter, RoleAdmin}
	for have, role := range order {
		for want, least := range order {
			require.Equal(t, want > 0 && have >= want, Caller{Role: role}.is(least), "%q is %q", role, least)
		}
	}
	require.False(t, Caller{Role: "root"}.is(RoleReader))
	require.False(t, Caller{Role: RoleAdmin}.is("root"))
}

// Everybody may do what the table says, to what their role or a grant is for.
func TestAuthorize(t *testing.T) {
	t.Parallel()
	reader := Caller{Actor: "token:x", OrgSlug: "acme", Role: RoleReader}
	sales := reader
	sales.Grants = []Grant{{RoleWriter, "sales-*"}, {RoleProposer, "hr"}}
	everything := []Action{Read, Inspect, Plan, Operate, Deploy, Administer, ReadAll}
	require.Len(t, leastRoles, len(everything))
	for name, c := range map[string]struct {
		caller Caller
		on     Object
		may    []Action
	}{
		"nobody":               {Caller{}, WholeOrg, nil},
		"a reader":             {reader, OnDAG("sales-eu"), []Action{Read}},
		"a proposer":           {Caller{Role: RoleProposer}, WholeOrg, []Action{Read, Inspect, Plan}},
		"a writer":             {Caller{Role: RoleWriter}, WholeOrg, []Action{Read, Inspect, Plan, Operate, Deploy}},
		"an admin":             {Caller{Role: RoleAdmin}, OnDAG("any"), everything},
		"a pattern's writer":   {sales, OnDAG("sales-eu"), []Action{Read, Inspect, Plan, Operate, Deploy}},
		"and its proposer":     {sales, OnDAG("hr"), []Action{Read, Inspect, Plan}},
		"not of another DAG":   {sales, OnDAG("hr-sales-eu"), []Action{Read}},
		"not of the whole org": {sales, WholeOrg, []Action{Read}},
		"an unknown grant":     {Caller{Grants: []Grant{{"root", "*"}}}, OnDAG("a"), nil},
		"a pattern of any text": {Caller{Grants: []Grant{{RoleProposer, "*"}}}, OnDAG("a"),
			[]Action{Read, Inspect, Plan}},
	} {
		var may []Action
		for _, do := range everything {
			if c.caller.May(do, c.on) {
				may = append(may, do)
				require.NoError(t, Authorize(c.caller, do, c.on))
				continue
			}
			require.ErrorContains(t, Authorize(c.caller, do, c.on), "this needs the role "+string(leastRoles[do]), name)
		}
		require.Equal(t, c.may, may, name)
	}
	require.False(t, Caller{Role: RoleAdmin}.May("unheard-of", WholeOrg))

	var args []any
	require.Equal(t, "d.dag LIKE ANY($1::text[])", sales.MayOnDAGs(Inspect, "d.dag", &args))
	require.Equal(t, []any{[]string{"sales-%", "hr"}}, args)
	require.Equal(t, `a\_b%`, Grant{RoleWriter, "a_b*"}.like())
}

func TestSecrets(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for range 1000 {
		secret := NewSecret("user")
		kind, ok := SecretKind(secret)
		require.True(t, ok, secret)
		require.Equal(t, "user", kind)
		require.False(t, seen[secret])
		seen[secret] = true
	}

	good := NewSecret("user")
	for _, bad := range []string{"", "dagctl_user_", good[:len(good)-1], good + "0", good + "\n",
		" " + good, "x" + good, good[:20] + "-" + good[21:], "dagctl_USER" + good[11:]} {
		_, ok := SecretKind(bad)
		require.False(t, ok, "%q", bad)
	}
}
