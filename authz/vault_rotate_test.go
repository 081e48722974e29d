package authz_test

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/rest"
	"github.com/dagctl/dagctl/internal/secret"
)

var job = authz.SecretUser{Name: "d/j"}

// setSecret sets a secret that job may use.
func (w world) setSecret(t *testing.T, v *authz.Vault, caller authz.Caller, name, value string, overlap time.Duration) {
	t.Helper()
	_, err := v.ReplaceSecret(t.Context(), caller, name, value, overlap)
	require.NoError(t, err)
	_, err = v.BindSecret(t.Context(), caller, name, authz.Binding{AddJobs: []string{job.Name}})
	require.NoError(t, err)
}

// revealed returns a secret of job.
func (w world) revealed(t *testing.T, v *authz.Vault, caller authz.Caller, name string) secret.Value {
	t.Helper()
	values, err := v.Reveal(t.Context(), caller.OrgID, job, []string{name})
	require.NoError(t, err)
	return values[name]
}

func TestTheValueBeforeCountsWhileTheyOverlap(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	v := w.vault(t, authz.NewVaultKey())
	previous := func() *time.Time {
		list, err := v.ListSecrets(t.Context(), w.admin(), rest.PageInput{Limit: 10})
		require.NoError(t, err)
		require.Len(t, list.Items, 1)
		return list.Items[0].PreviousUntil
	}
	redacted := func(text string) string {
		r, err := v.Redactor(t.Context(), w.org.ID, []string{"key"})
		require.NoError(t, err)
		return r.Redact(text)
	}

	w.setSecret(t, v, w.admin(), "key", "first value", 24*time.Hour)
	require.Nil(t, previous(), "there is none before the first one")
	require.Equal(t, []string{"first value"}, w.revealed(t, v, w.admin(), "key").Accepted())
	w.setSecret(t, v, w.admin(), "key", "second value", 24*time.Hour)
	require.WithinDuration(t, time.Now().Add(24*time.Hour), *previous(), time.Minute)
	value := w.revealed(t, v, w.admin(), "key")
	require.Equal(t, "second value", value.Reveal())
	require.Equal(t, []string{"second value", "first value"}, value.Accepted())
	require.Equal(t, "[secret], [secret]", redacted("first value, second value"))

	// Only the latest one before counts, and a binding changes nothing about it.
	w.setSecret(t, v, w.admin(), "key", "third value", time.Hour)
	require.Equal(t, []string{"third value", "second value"}, w.revealed(t, v, w.admin(), "key").Accepted())
	require.WithinDuration(t, time.Now().Add(time.Hour), *previous(), time.Minute)

	// Without an overlap it ends at once, and is still removed from what tasks say that began before.
	w.setSecret(t, v, w.admin(), "key", "fourth one", 0)
	require.Equal(t, []string{"fourth one"}, w.revealed(t, v, w.admin(), "key").Accepted())
	require.Nil(t, previous())
	require.Equal(t, "[secret], [secret]", redacted("third value, fourth one"))
	require.NoError(t, v.ForgetPrevious(t.Context()))
	require.Equal(t, "[secret]", redacted("third value"))
	_, err := w.owner.Exec(t.Context(), `UPDATE secrets SET previous_until = now() - interval '8 days'`)
	require.NoError(t, err)
	require.NoError(t, v.ForgetPrevious(t.Context()))
	require.Equal(t, "third value", redacted("third value"), "no task is that old")
	require.Equal(t, []string{"fourth one"}, w.revealed(t, v, w.admin(), "key").Accepted())

	for _, overlap := range []time.Duration{-time.Second, authz.MaxOverlap + time.Second} {
		_, err := v.ReplaceSecret(t.Context(), w.admin(), "key", "x", overlap)
		require.True(t, fault.Is(err, fault.Invalid), "%v", err)
	}
}

// Requests replace values, although they read neither the one before nor that which they replace.
func TestRequestsReadNoValueBefore(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	v := w.vault(t, authz.NewVaultKey())
	w.setSecret(t, v, w.admin(), "key", "first value", 0)
	w.setSecret(t, v, w.admin(), "key", "second value", time.Hour)
	for _, said := range []string{`SELECT ciphertext FROM secrets`, `SELECT * FROM previous_secrets`,
		`UPDATE previous_secrets SET ciphertext = ''`, `DELETE FROM previous_secrets`,
		`UPDATE secrets SET key_id = encode(ciphertext, 'hex')`} {
		_, err := w.requests.Exec(t.Context(), said)
		require.ErrorContains(t, err, "permission denied", said)
	}

	// A server of the build before sets values without an overlap: the value before ends.
	_, err := w.owner.Exec(t.Context(), `UPDATE secrets SET ciphertext = 'x', updated_at = now()`)
	require.NoError(t, err)
	var ended bool
	require.NoError(t, w.owner.QueryRow(t.Context(), `SELECT previous_until <= now() FROM secrets`).Scan(&ended))
	require.True(t, ended)
	require.NoError(t, v.DeleteSecret(t.Context(), w.admin(), "key", false))
	var left int
	require.NoError(t, w.owner.QueryRow(t.Context(), `SELECT count(*) FROM previous_secrets`).Scan(&left))
	require.Zero(t, left, "it goes with its secret")
}

// Every secret of every org is under the newest key afterwards, while servers that have both keys go on setting them.
func TestRotateKeys(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	older, newer, lost := authz.NewVaultKey(), authz.NewVaultKey(), authz.NewVaultKey()
	another, err := authz.CreateOrg(t.Context(), w.owner, "another", "")
	require.NoError(t, err)
	callers := []authz.Caller{w.admin(),
		{OrgID: another.ID, OrgSlug: "another", Actor: "system", Role: authz.RoleAdmin}}
	before, both := w.vault(t, older), w.vault(t, newer, older)

	const secrets = 120 // more than are looked up at once, over both orgs
	for n := range secrets {
		name := fmt.Sprint("s", n)
		w.setSecret(t, before, callers[n%2], name, "before "+name, 0)
		if n%3 == 0 {
			w.setSecret(t, before, callers[n%2], name, "value of "+name, time.Hour)
		}
	}
	w.setSecret(t, w.vault(t, lost), w.admin(), "unreadable", "gone", 0)
	use, err := both.KeyUse(t.Context())
	require.NoError(t, err)
	require.Len(t, use.Lacking, 1)
	require.Equal(t, use.Lacking, both.Lacking())
	require.Equal(t, authz.KeyUse{Secrets: secrets + 1, Old: secrets + 1, Unknown: 1, Lacking: use.Lacking}, use)

	var sets sync.WaitGroup
	sets.Go(func() {
		for n := range 30 {
			_, err := both.ReplaceSecret(t.Context(), callers[n%2], fmt.Sprint("s", n), "set meanwhile", time.Hour)
			if err != nil {
				t.Error(err)
			}
		}
	})
	first, err := both.RotateKeys(t.Context())
	require.NoError(t, err)
	sets.Wait()
	require.Greater(t, first.Rotated, secrets/2)
	again, err := both.RotateKeys(t.Context()) // what was set meanwhile has a value before under the old key
	require.NoError(t, err)
	last, err := both.RotateKeys(t.Context())
	require.NoError(t, err)
	require.Zero(t, last.Rotated, "after %d and %d", first.Rotated, again.Rotated)
	require.Len(t, last.Unreadable, 1)
	require.Equal(t, "unreadable", last.Unreadable[0].Name)
	require.Contains(t, last.Unreadable[0].Error, "which this server does not have")

	// The old key is not needed any more.
	after := w.vault(t, newer)
	for n := range secrets {
		name := fmt.Sprint("s", n)
		value := w.revealed(t, after, callers[n%2], name)
		switch {
		case n < 30 && n%3 == 0:
			require.Equal(t, []string{"set meanwhile", "value of " + name}, value.Accepted())
		case n < 30:
			require.Equal(t, []string{"set meanwhile", "before " + name}, value.Accepted())
		case n%3 == 0:
			require.Equal(t, []string{"value of " + name, "before " + name}, value.Accepted())
		default:
			require.Equal(t, []string{"before " + name}, value.Accepted())
		}
	}
	use, err = after.KeyUse(t.Context())
	require.NoError(t, err)
	require.Equal(t, authz.KeyUse{Secrets: secrets + 1, Old: 1, Unknown: 1, Lacking: both.Lacking()}, use)
	list, err := after.ListSecrets(t.Context(), w.admin(), rest.PageInput{Limit: 200})
	require.NoError(t, err)
	for _, s := range list.Items {
		require.Equal(t, s.Name == "unreadable", s.KeyMissing, s.Name)
		require.False(t, s.OldKey, s.Name)
	}
}
