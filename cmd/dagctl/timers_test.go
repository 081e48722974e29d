package main

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/cmd/dagctl/cli"
	"github.com/dagctl/dagctl/timers"
)

const inboxDAG = `name: inbox
jobs:
  - { name: remind, operator: command, source: { kind: timer }, outputs: 0, config: { argv: [/bin/sh, -c, "cat > /dev/null"] } }
  - { name: take, operator: command, source: { kind: webhook, path: inbox/take, secret: HOOK }, outputs: 0, config: { argv: [/bin/sh, -c, "cat > /dev/null"] } }
`

// TestTimersAndWebhooksOnARealServer creates timers on the command line, delivers to a webhook over HTTP, and waits
// until their tasks have run.
func TestTimersAndWebhooksOnARealServer(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	env := w.env(t, writer)
	require.Zero(t, dagctlWithInput(t, w.env(t, admin), "hunter22\n", "secrets", "set", "HOOK").code)
	must(t, w.env(t, admin), "secrets", "bind", "HOOK", "--job", "inbox/take")
	file := filepath.Join(t.TempDir(), "dag.yaml")
	require.NoError(t, os.WriteFile(file, []byte(inboxDAG), 0o600))
	must(t, env, "deploy", file)

	past := decode[timers.Timer](t, env, "timers", "create", "inbox/remind", "--at", "2020-02-29T09:00", "--timezone",
		"Europe/London", "--group", "g", "--payload", `{"n": 1}`)
	next := decode[timers.Timer](t, env, "timers", "create", "inbox/remind", "--at", "2020-02-29T09:00", "--timezone",
		"Europe/London", "--group", "g", "--repeat", "yearly")
	require.True(t, next.UTC.After(time.Now()))
	eventually(t, "the timer fires", func() (bool, error) {
		return decode[timers.Timer](t, env, "timers", "get", past.ID.String()).Status == "COMPLETED", nil
	})
	require.Equal(t, cli.ExitConflict, dagctl(t, env, "timers", "update", next.ID.String(), "--at", "2030-01-01T00:00",
		"--if-version", "7").code)
	require.Contains(t, must(t, env, "timers", "update", "--group", "g", "--timezone", "Asia/Kathmandu"),
		"1 timer of group g moved")
	require.Contains(t, must(t, env, "timers", "list", "--group", "g"), "Asia/Kathmandu")
	require.Contains(t, must(t, env, "timers", "delete", "--group", "g", "--yes"), "2 timers deleted")
	require.NotZero(t, dagctl(t, w.env(t, reader), "timers", "create", "inbox/remind", "--at", "2030-01-01T00:00",
		"--timezone", "UTC").code)

	// A batch: the flags give what its lines lack, and a line that is wrong makes none.
	batch := filepath.Join(t.TempDir(), "timers.ndjson")
	lines := `{"target_timestamp_local": "2030-05-01T09:00", "delivery_payload": {"n": 1}, "idempotency_key": "a"}
{"target_timestamp_local": "2030-05-02T09:00", "target_timezone": "UTC", "idempotency_key": "b"}
`
	create := func(text string) result {
		require.NoError(t, os.WriteFile(batch, []byte(text), 0o600))
		return dagctl(t, env, "timers", "create", "inbox/remind", "--batch", batch, "--timezone", "Asia/Tokyo",
			"--group", "batch")
	}
	require.Contains(t, create(lines).out, "2 timers created; 0 had a known idempotency key.")
	require.Contains(t, create(lines+strings.Replace(lines, `"a"`, `"c"`, 1)).out, "1 timer created; 3 had a known")
	require.Contains(t, create(lines+`{"target_timestamp_local": "soon"}`).err, `body.timers[2]: "soon" is not a local time`)
	require.Contains(t, create(`{"at": "2030-05-01"}`).err, `timers.ndjson:1: json: unknown field "at"`)
	listed := must(t, env, "timers", "list", "--group", "batch")
	require.Equal(t, 2, strings.Count(listed, "Asia/Tokyo"))
	require.Equal(t, 1, strings.Count(listed, "UTC"))
	require.Contains(t, dagctl(t, env, "timers", "create", "inbox/remind", "--at", "2030-01-01T00:00").err,
		"--timezone is missing")

	send := func(key, id, body string) int {
		stamp := fmt.Sprint(time.Now().Unix())
		mac := hmac.New(sha256.New, []byte(key))
		fmt.Fprintf(mac, "%s.%s.%s", id, stamp, body)
		request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, w.url+"/v1/hooks/acme/inbox/take",
			strings.NewReader(body))
		require.NoError(t, err)
		for name, value := range map[string]string{"Content-Type": "application/json", "webhook-id": id,
			"webhook-timestamp": stamp,
			"webhook-signature": "v1," + base64.StdEncoding.EncodeToString(mac.Sum(nil))} {
			request.Header.Set(name, value)
		}
		response, err := http.DefaultClient.Do(request)
		require.NoError(t, err)
		require.NoError(t, response.Body.Close())
		return response.StatusCode
	}
	for range 3 {
		require.Equal(t, http.StatusAccepted, send("hunter22", "m1", `{"order": 1}`))
	}
	require.Equal(t, http.StatusNotFound, send("hunter23", "m2", `{}`))
	require.Equal(t, http.StatusUnprocessableEntity, send("hunter22", "m3", `{`))
	require.Equal(t, http.StatusRequestEntityTooLarge, send("hunter22", "m4", `"`+strings.Repeat("x", 2<<20)+`"`))
	require.Equal(t, http.StatusRequestEntityTooLarge, send("hunter22", "m5", "{}"+strings.Repeat(" ", 1<<20-1)))
	require.Equal(t, http.StatusNotFound, send("hunter23", "m6", "{}"+strings.Repeat(" ", 1<<20-2)),
		"all of it is read")
	eventually(t, "both tasks are done", func() (bool, error) {
		done := map[string]int{}
		for _, task := range w.tasks(t) {
			if task.Status == "Completed" {
				done[task.Job]++
			}
		}
		return done["remind"] == 1 && done["take"] == 1, nil
	})
	require.Len(t, w.tasks(t), 2)
}
