package dispatcher_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/dispatcher/builds"
	"github.com/dagctl/dagctl/dispatcher/dispatchertest"
	"github.com/dagctl/dagctl/internal/webhook"
)

const watching = `
name: watching
jobs:
  - name: disks
    operator: file_source
    source: { kind: poll, every: 1h }
    partition_by: { time: day }
    config: { path: disks, pattern: "{date}.csv", format: csv, types: { host: VARCHAR, used: DOUBLE } }
  - name: found
    operator: alert_evaluate
    inputs: [{ from: { job: disks } }]
    scaling: { max_concurrency: 1 }
    config:
      rules:
        - { name: disk_full, condition: "used > 90", key: [host], severity: critical, summary: "{host} has {used} %",
            value: used, labels: { host: "{host}", team: ops } }
  - name: told
    operator: alert_route
    inputs: [{ from: { job: found } }]
    outputs: 0
    scaling: { max_concurrency: 1 }
    max_attempts: 4
    config:
      receivers: { ops: { url: { secret: OPS } } }
      routes: [{ to: [ops], severity: error, repeat_every: 2d }]
      max_tries: 2
      request_timeout_seconds: 1
publish:
  watching_found: { from: { job: found } }
`

// alertsWorld serves watching, and tells a receiver.
func alertsWorld(t *testing.T) (*dispatchertest.World, *receiver) {
	t.Helper()
	re, w := newReceiver(t), dispatchertest.NewWorld(t)
	require.NoError(t, os.MkdirAll(filepath.Join(w.Landing, "disks"), 0o700))
	w.Secret("OPS", re.URL+"/alerts?token=hush#thekey", authz.Binding{AddJobs: []string{"watching/told"},
		AddHosts: []string{re.URL}})
	w.Serve(watching)
	return w, re
}

// put writes the rows of days of January, such as "5: a 95, b 50".
func put(w *dispatchertest.World, days ...string) {
	w.T.Helper()
	for _, text := range days {
		day, rows, _ := strings.Cut(text, ":")
		content := "host,used\n"
		for _, row := range strings.Split(rows, ",") {
			if fields := strings.Fields(row); len(fields) == 2 {
				content += fields[0] + "," + fields[1] + "\n"
			}
		}
		file := filepath.Join(w.Landing, "disks", "2026-01-0"+day+".csv")
		require.NoError(w.T, os.WriteFile(file, []byte(content), 0o600))
	}
	w.Poll()
	w.Settle()
}

// heard returns what the receiver was told since the last call: the hosts with what became of each, by message.
func heard(t *testing.T, re *receiver) (messages []string) {
	t.Helper()
	for _, text := range re.got() {
		var m struct {
			ID   string `json:"id"`
			Type string `json:"type"`
			Data struct {
				Status string `json:"status"`
				Alerts []struct {
					Alert, Key, Status, Summary string
					Labels                      map[string]string
				} `json:"alerts"`
			} `json:"data"`
		}
		require.NoError(t, json.Unmarshal([]byte(text), &m))
		require.Equal(t, "alerts", m.Type)
		require.NotContains(t, text, "hush")
		var told []string
		for _, a := range m.Data.Alerts {
			require.Equal(t, map[string]string{"host": a.Key, "team": "ops"}, a.Labels, "also of what is resolved")
			told = append(told, a.Key+" "+a.Status)
		}
		messages = append(messages, strings.Join(told, ", "))
	}
	slices.Sort(messages)
	return messages
}

// An alert is told once, then again after a while, and its end once, whatever is deployed, rolled back or renamed
// meanwhile.
func TestAlertsAreToldOnce(t *testing.T) {
	t.Parallel()
	w, re := alertsWorld(t)
	put(w, "1: a 95, b 50")
	require.Equal(t, []string{"a firing"}, heard(t, re))
	rows := w.Read("watching_found")["2026-01-01"]
	require.Len(t, rows, 1)
	require.Contains(t, rows[0], "disk_full,a,critical,firing,")
	require.Contains(t, rows[0], "a has 95.0 %")

	put(w, "2: a 96, b 50")
	require.Empty(t, heard(t, re), "within two days")
	put(w, "2: a 97, b 50")
	require.Empty(t, heard(t, re), "another revision")
	put(w, "3: a 96, b 99")
	require.Equal(t, []string{"a firing, b firing"}, heard(t, re), "a after two days, in one message with b")

	v2 := dispatchertest.Edit(watching, "used > 90", "used > 80", "max_tries: 2", "max_tries: 3")
	w.Serve(v2)
	require.Empty(t, heard(t, re), "a deploy tells nobody")
	put(w, "4: a 85, b 85, c 85")
	require.Equal(t, []string{"c firing"}, heard(t, re))
	_, err := w.D.Builds.Rollback(t.Context(), w.Caller, "watching", builds.RollbackRequest{})
	require.NoError(t, err)
	w.Settle()
	before := heard(t, re)
	require.NotContains(t, strings.Join(before, " "), "firing", "a rollback pages nobody")

	renamed := dispatchertest.Edit(watching, "- name: told", "- name: posted\n    renamed_from: told")
	_, err = w.Vault.BindSecret(t.Context(), w.Caller, "OPS", authz.Binding{AddJobs: []string{"watching/posted"}})
	require.NoError(t, err)
	w.Serve(renamed)
	require.Empty(t, heard(t, re))
	put(w, "5: a 20, b 20")
	put(w, "6: a 20, b 20")
	require.ElementsMatch(t, []string{"a resolved, b resolved"}, slices.Concat(before, heard(t, re)))

	require.Equal(t, 1, w.Count(`SELECT FROM delivery_marks WHERE value->>'status' = 'firing'`),
		"c fired by a rule that is gone")
	_, err = w.D.Upkeep.DeleteDAG(t.Context(), w.Caller, "watching", nil, time.Now())
	require.NoError(t, err)
	require.Zero(t, w.Count(`SELECT FROM delivery_marks`))
}

// Days that come late, or again, end nothing that newer days say, and tell nobody what is over.
func TestAlertsOfLateDays(t *testing.T) {
	t.Parallel()
	w, re := alertsWorld(t)
	put(w, "5: a 95, b 20")
	require.Equal(t, []string{"a firing"}, heard(t, re))
	put(w, "3: a 20, b 95", "4: a 99")
	require.Empty(t, heard(t, re))
	require.Contains(t, strings.Join(w.Read("watching_found")["2026-01-03"], ""), "disk_full,b,critical,firing")
	put(w, "6: a 95")
	require.Empty(t, heard(t, re))
	put(w, "3: a 95, b 20", "7: a 20")
	require.Equal(t, []string{"a resolved"}, heard(t, re))
}

// What fails for now is sent again under the same key, and nothing else with it.
func TestAlertsToAReceiverThatFails(t *testing.T) {
	t.Parallel()
	w, re := alertsWorld(t)
	failures := []int{http.StatusInternalServerError, http.StatusTooManyRequests, http.StatusBadGateway}
	re.answers(func(out http.ResponseWriter, r *http.Request, _ string, before int) {
		switch {
		case before < len(failures):
			out.WriteHeader(failures[before])
		case before == len(failures):
			<-r.Context().Done() // it takes too long
		}
	})
	put(w, "1: a 95", "2: a 95")
	for n := range 3 {
		w.Promote(dispatchertest.Later(time.Duration(n+1) * time.Hour))
		w.Settle()
	}
	require.Len(t, re.keys(), 1, "one message, under one key")
	for _, times := range re.keys() {
		require.Equal(t, 5, times, "500, 429, 502, no answer, 200")
	}
	require.Equal(t, 1, w.Count(`SELECT FROM deliveries WHERE status = 'delivered'`))
	heard(t, re)

	re.answers(func(out http.ResponseWriter, _ *http.Request, _ string, _ int) { out.WriteHeader(http.StatusNotFound) })
	put(w, "3: b 95")
	require.Len(t, heard(t, re), 1, "it is refused for good")
	var says string
	w.Row(`SELECT error_message FROM tasks WHERE status = 'Failed' AND error_message LIKE '%refused%'`)(&says)
	require.Contains(t, says, "answered 404")
	require.NotContains(t, says, "hush")
	re.answers(nil)
	put(w, "4: b 95")
	require.Equal(t, []string{"a resolved, b firing"}, heard(t, re), "whoever was not told is told by the next day")
	require.NotEmpty(t, w.Count(`SELECT FROM delivery_marks`))
}

// The newest day is mended, and what its file says last is what the receiver knows.
func TestAlertsOfADayThatIsMended(t *testing.T) {
	t.Parallel()
	w, re := alertsWorld(t)
	put(w, "1: a 20")
	for _, step := range [][2]string{{"2: a 95", "a firing"}, {"2: a 20", "a resolved"}, {"2: a 96", "a firing"},
		{"2: a 21", "a resolved"}} {
		put(w, step[0])
		require.Equal(t, []string{step[1]}, heard(t, re), step[0])
	}
}

// Whom the end of an alert did not reach is told of it by a later day, whose rows do not have it, and of the next one.
func TestAnEndThatDidNotArriveIsToldLater(t *testing.T) {
	t.Parallel()
	w, re := alertsWorld(t)
	put(w, "1: a 95, b 95")
	heard(t, re)
	re.answers(func(out http.ResponseWriter, _ *http.Request, _ string, _ int) { out.WriteHeader(http.StatusNotFound) })
	put(w, "2: a 20, b 20")
	require.Len(t, heard(t, re), 1, "it is refused for good")
	put(w, "3: b 95")
	require.Len(t, heard(t, re), 1)
	re.answers(nil)
	put(w, "4: b 95")
	require.Equal(t, []string{"a resolved, b firing"}, heard(t, re))
	put(w, "5: b 95")
	require.Empty(t, heard(t, re), "nothing twice")
	put(w, "6: a 95, b 20")
	require.Equal(t, []string{"a firing, b resolved"}, heard(t, re))
}

// The secret is the URL and the key of the signature, to the host that it is bound to.
func TestAlertsAreSigned(t *testing.T) {
	t.Parallel()
	w, re := alertsWorld(t)
	put(w, "1: a 95")
	require.Len(t, re.asked, 1)
	header, body := re.asked[0].Header, re.got()[0]
	id := header.Get("Idempotency-Key")
	require.Equal(t, webhook.Sign("thekey", id, header.Get("webhook-timestamp"), []byte(body)),
		header.Get("webhook-signature"))
	require.Equal(t, "/alerts?token=hush", re.asked[0].URL.String())
	require.Contains(t, body, fmt.Sprintf(`"id":%q`, id))

	_, err := w.Vault.BindSecret(t.Context(), w.Caller, "OPS", authz.Binding{RemoveHosts: []string{re.URL}})
	require.NoError(t, err)
	put(w, "2: b 95")
	require.Empty(t, heard(t, re))
	var says string
	w.Row(`SELECT error_message FROM tasks WHERE error_message IS NOT NULL`)(&says)
	require.Contains(t, says, "secret OPS may not be sent to")
	require.NotContains(t, says, "hush")
}

// Two dispatchers that share the work, with tasks that die between the work and the commit, tell each thing once.
func TestAlertsOfTwoDispatchers(t *testing.T) {
	t.Parallel()
	w, re := alertsWorld(t)
	stop := w.Start(w.Dispatcher("two"))
	defer stop()
	defer w.Start(w.Dispatcher("three"))()
	for n := range 9 {
		used := "95"
		if n == 8 {
			used = "20"
		}
		content := fmt.Sprintf("host,used\na,%s\nb,%s\n", used, used)
		require.NoError(t, os.WriteFile(filepath.Join(w.Landing, "disks", fmt.Sprintf("2026-01-0%d.csv", n+1)),
			[]byte(content), 0o600))
	}
	w.Exec(`UPDATE sources SET next_fire_at = now() WHERE next_fire_at IS NOT NULL`)
	w.Eventually("nine days", func() bool {
		return len(w.Read("watching_found")) == 9 &&
			w.Count(`SELECT FROM tasks WHERE status IN ('Queued', 'Running')`) == 0 &&
			w.Count(`SELECT FROM waiting`) == 0 && w.Count(`SELECT FROM effect_positions`) == 9
	})
	for _, times := range re.keys() {
		require.Equal(t, 1, times)
	}
	told := map[string]int{}
	for _, message := range heard(t, re) {
		for _, one := range strings.Split(message, ", ") {
			told[one]++
		}
	}
	for one, times := range told {
		if strings.HasSuffix(one, "resolved") {
			require.Equal(t, 1, times, one)
		}
		require.LessOrEqual(t, times, 5, "%s: at most every two days", one)
	}
}

// A config is refused whole, each mistake at its place.
func TestAlertConfigsAreRefusedAtTheirPlaces(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	refused := func(want []string, edits ...string) {
		t.Helper()
		_, problems := dag.Parse(dag.File{Name: "dag.yaml", Text: []byte(dispatchertest.Edit(watching, edits...))},
			w.Ops.Catalog(nil))
		var said []string
		for _, p := range problems {
			said = append(said, fmt.Sprintf("%d:%d %s", p.Line, p.Column, p.Message))
		}
		require.Len(t, said, len(want), "%q", said)
		for i := range want {
			require.Contains(t, said[i], want[i])
		}
	}
	refused([]string{"15:41 it is no SQL expression by itself", "16:20 "}, "used > 90", "used >",
		"value: used", `value: "1, 2"`)
	refused([]string{"15:59 \"{\" has a { without", "15:69 "}, "[host]", `"{"`, "severity: critical",
		"for: never, severity: critical")
	refused([]string{`15:11 job "found" has no input "secrets"`}, "used > 90", "used > (SELECT max(n) FROM secrets)")
	refused([]string{"15:41 "}, "used > 90", "1) AND (1")
	refused([]string{`25:23 there is no receiver "opps"`, `25:61 "often" is no duration`}, "to: [ops]", "to: [opps]",
		"repeat_every: 2d", "repeat_every: often")
	refused([]string{`24:32 it must be a URL with a host`}, "{ secret: OPS }", "ftp://example.com")
}
