package main

import (
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/timers"
)

const clockDAG = `name: clock
jobs:
  - name: tick
    operator: command
    source: { kind: timer }
    outputs: [ticks]
    config: { argv: [/bin/sh, -c, "exit 0"] }
publish:
  clock_ticks: { from: { job: tick } }
`

// That a name or a key is taken may be told, since nobody else can have it. By what, is for those who may see that.
func TestWhatIsTakenByWhatIsHidden(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.lockVault(t)
	dir := t.TempDir()
	must(t, w.env(t, writer), "deploy", writeDAG(t, dir, "clock", clockDAG))

	thief := writeDAG(t, dir, "thief", strings.NewReplacer("name: clock", "name: thief", "clock_ticks",
		"vault_daily").Replace(clockDAG))
	for _, command := range []string{"plan", "deploy"} {
		refused := dagctl(t, w.env(t, writer), command, thief)
		require.Contains(t, refused.err, `dataset name "vault_daily" is taken`)
		require.NotContains(t, refused.err, "DAG vault")
	}
	require.Contains(t, dagctl(t, w.env(t, admin), "plan", thief).err, `"vault_daily" is published by DAG vault`)

	require.NoError(t, w.as(admin).Post(t.Context(), "/v1/scheduled-events", timers.NewTimer{DAG: "vault",
		Job: "timed", Local: "2100-01-01T00:00:00", Timezone: "UTC", IdempotencyKey: "guessed"}, new(timers.Timer)))
	again := `{"dag": "clock", "job": "tick", "target_timezone": "UTC", "idempotency_key": "guessed",
		"target_timestamp_local": "2100-01-01T00:00:00"}`
	for caller, says := range map[string]string{writer: "cannot be used here", admin: "a timer of another job"} {
		status, body := w.send(t, caller, http.MethodPost, "/v1/scheduled-events", "application/json",
			strings.NewReader(again))
		require.Equal(t, http.StatusUnprocessableEntity, status, body)
		require.Contains(t, body, says)
		require.Equal(t, caller == admin, strings.Contains(body, "another job"), body)
	}
}
