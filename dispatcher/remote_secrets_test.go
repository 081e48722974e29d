package dispatcher_test

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/dispatcher/dispatchertest"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/worker/protocol"
)

const secretive = `
name: work
jobs:
  - { name: mails, operator: handler, runtime: poll, source: { kind: manual }, outputs: 0, config: { handler: "email:send", key: { secret: SMTP } } }
  - { name: plain, operator: handler, runtime: poll, source: { kind: manual }, outputs: 0, config: { handler: "email:send" } }
  - { name: loads, operator: act, runtime: poll, source: { kind: manual }, outputs: 0, config: { key: { secret: API } } }
`

func TestSecretsGoToTheAttemptTheyAreFor(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Secret("SMTP", "hunter22", authz.Binding{})
	w.Secret("API", "open sesame", authz.Binding{AddJobs: []string{"work/loads"},
		AddHosts: []string{"api.example.com"}})
	w.Secret("OTHER", "not yours", authz.Binding{AddJobs: []string{"work/other"}})
	w.Grant(secretive)
	w.Serve(secretive)
	claim := func(job string) (protocol.Claim, authz.Capability) {
		c := claimID(w, claimant(w.Tenant), w.Want(job))
		require.Equal(t, protocol.Claimed, c.Status)
		capability, err := w.D.Signer.Verify(c.CapabilityToken, time.Now())
		require.NoError(t, err)
		return c, capability
	}
	ask := func(c protocol.Claim, by authz.Capability) (protocol.Secrets, error) {
		return w.D.Secrets(t.Context(), by, c.Fence())
	}

	mail, mailer := claim("mails")
	require.Equal(t, []string{"SMTP"}, mail.Task.Secrets)
	text, err := json.Marshal(mail)
	require.NoError(t, err)
	require.NotContains(t, string(text), "hunter22", "the claim has the name alone")
	got, err := ask(mail, mailer)
	require.NoError(t, err)
	require.Equal(t, map[string]string{"SMTP": "hunter22"}, got.Secrets)
	load, loader := claim("loads")
	got, err = ask(load, loader)
	require.NoError(t, err)
	require.Equal(t, protocol.Secrets{Secrets: map[string]string{"API": "open sesame"},
		Hosts: map[string][]string{"API": {"api.example.com"}}}, got)
	plain, none := claim("plain")
	got, err = ask(plain, none)
	require.NoError(t, err)
	require.Empty(t, got.Secrets)

	_, err = ask(mail, loader)
	require.True(t, fault.Is(err, fault.Forbidden), "another task's capability: %v", err)
	elsewhere := mailer
	elsewhere.OrgID = uuid.New()
	_, err = ask(mail, elsewhere)
	require.True(t, fault.Is(err, fault.NotFound), "another org's: %v", err)
	stale := mail
	stale.LeaseToken = new(uuid.UUID)
	_, err = ask(stale, mailer)
	require.True(t, fault.Is(err, fault.Conflict), "another lease: %v", err)

	// A binding that an admin removes has no effect any more; a worker's handler may get only secrets that an admin
	// granted to its job, and a binding to any host is no grant.
	_, err = w.Vault.BindSecret(t.Context(), w.Caller, "API", authz.Binding{RemoveJobs: []string{"work/loads"}})
	require.NoError(t, err)
	_, err = ask(load, loader)
	require.True(t, fault.Is(err, fault.Forbidden), "not bound any more: %v", err)
	_, err = w.Vault.BindSecret(t.Context(), w.Caller, "SMTP", authz.Binding{RemovePrograms: []string{"work/mails"},
		AddHosts: []string{"*"}})
	require.NoError(t, err)
	_, err = ask(mail, mailer)
	require.True(t, fault.Is(err, fault.Forbidden), "%v", err)
	require.ErrorContains(t, err, "SMTP")
	require.NotContains(t, err.Error(), "hunter22")

	// A task that is on the runtime of uploaded code nevertheless gets no secrets there.
	_, err = w.Pool.Exec(t.Context(), `UPDATE tasks SET runtime = 'ecs_udf' WHERE id = $1`, mail.Task.TaskID)
	require.NoError(t, err)
	_, err = ask(mail, mailer)
	require.True(t, fault.Is(err, fault.Forbidden), "%v", err)
	require.ErrorContains(t, err, "code that users upload")
}
