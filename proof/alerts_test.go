//go:build soak && linux

package proof_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/dispatcher"
	"github.com/dagctl/dagctl/examples/processtest"
	"github.com/dagctl/dagctl/internal/rest"
	"github.com/dagctl/dagctl/migrations"
)

const alertsYAML = `name: alerts
jobs:
  - { name: works, operator: command, source: { kind: manual }, outputs: 0, config: { argv: [/bin/true] } }
  - { name: fails, operator: command, source: { kind: manual }, outputs: 0, max_attempts: 1,
      config: { argv: [/bin/false] } }
  - { name: unserved, operator: command, runtime: elsewhere, source: { kind: manual }, outputs: 0,
      config: { argv: [/bin/true] } }
  - { name: lines, operator: file_source, source: { kind: poll, every: 1s }, config: { path: lines.csv, format: csv } }
`

// TestAlertsFire causes outages under a real Prometheus with the rules of docs/alerts.yaml, where a minute is a second.
// Each makes its alert fire, and no other than those that it may; once it is over, the alert ends. Before and after
// them, none fires.
func TestAlertsFire(t *testing.T) {
	database := startPostgres(t)
	require.NoError(t, migrations.Up(t.Context(), database.through(database.plain)))
	w := newWorldOn(t, database.through(database.plain))
	require.NoError(t, os.WriteFile(filepath.Join(w.landing, "lines.csv"), []byte("n\n1\n"), 0o600))
	secret, _, err := authz.CreateToken(t.Context(), w.pool, w.caller, authz.NewToken{Name: "proof",
		Role: authz.RoleAdmin})
	require.NoError(t, err)
	remount(t, w.root, 0)
	t.Cleanup(func() { require.NoError(t, unix.Unmount(w.root, unix.MNT_DETACH)) })
	key, config := filepath.Join(t.TempDir(), "task.pem"), filepath.Join(t.TempDir(), "config.yaml")
	_, err = authz.EnsureTaskKey(key)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(config, fmt.Appendf(nil, "limits: { requests_per_second: 100000, burst: 100000 }\n"+
		"runtimes: { dispatcher: in-process, elsewhere: poll }\ntasks: { key_files: [%s] }\n", key), 0o600))

	members := servers(t, 2, "--config", config, "--database-url", database.through(database.plain), "--storage-root",
		w.root, "--file-root", "acme="+w.landing, "--allow-command", "acme")
	var targets []string
	for _, m := range members {
		address := processtest.FreeAddress(t)
		m.args = append(m.args, "--metrics-address", address)
		targets = append(targets, address)
	}
	fleet := startFleet(t, members)
	w.eventually("the servers to be ready", func() bool { since, _ := fleet.working(); return !since.IsZero() })
	w.serve(alertsYAML)
	p := startPrometheus(t, targets)
	one := newServer("http://"+members[0].address, secret)
	enqueue := func(job string, n int) {
		items := make([]dispatcher.EnqueueItem, n)
		for i := range items {
			items[i].Payload = []byte(`{}`)
		}
		var made rest.List[dispatcher.Enqueued]
		require.NoError(t, one.call(t.Context(), http.MethodPost, "/v1/jobs/alerts/"+job+"/tasks",
			map[string]any{"items": items}, &made))
	}
	each := func(where, verb string) {
		for _, id := range w.texts(`SELECT t.id::text FROM tasks t JOIN jobs j ON j.id = t.job_id WHERE ` + where) {
			require.NoError(t, one.call(t.Context(), http.MethodPost, "/v1/tasks/"+id+":"+verb,
				map[string]any{"reason": "the test is over"}, new(any)))
		}
	}

	enqueue("works", 20)
	p.knows("dagctl_leader")
	p.until("DagctlNoServer", false, []string{"DagctlNoServer"}) // it has just begun to look
	p.quiet(20 * time.Second)
	for _, outage := range []struct {
		alert     string
		may       []string // fire as well
		cause     func()
		endsAgain func()
	}{
		{"DagctlDeadTasks", []string{"DagctlAttemptsFail"}, func() { enqueue("fails", 1) },
			func() { each(`j.name = 'fails'`, "skip") }},
		{"DagctlQueueOld", nil, func() { enqueue("unserved", 1) }, func() { each(`j.name = 'unserved'`, "cancel") }},
		{"DagctlStorageAway", []string{"DagctlNoWorker", "DagctlSourceLate", "DagctlStorageFails", "DagctlErrors"},
			func() { remount(t, w.root, unix.MS_REMOUNT|unix.MS_RDONLY) },
			func() { remount(t, w.root, unix.MS_REMOUNT) }},
		{"DagctlNoWorker", []string{"DagctlQueueOld", "DagctlSourceLate"}, func() {
			for _, id := range w.texts(`SELECT id FROM workers WHERE last_heartbeat > now() - interval '10 s'`) {
				_, err := dispatcher.DrainWorker(t.Context(), w.pool, id, "", time.Now())
				require.NoError(t, err)
			}
		}, func() {
			for _, m := range members {
				m.terminate()
			}
		}},
		{"DagctlNoServer", []string{"DagctlFiguresMissing", "DagctlNoLeader", "DagctlErrors", "DagctlSourceLate",
			"DagctlNoWorker", "DagctlQueueOld", "DagctlOutboxLag"}, database.end, database.start},
		{"DagctlNoServer", []string{"DagctlNoLeader"}, fleet.stop, nil},
	} {
		began := time.Now()
		outage.cause()
		p.until(outage.alert, true, append(outage.may, outage.alert))
		fired := time.Since(began)
		if outage.endsAgain == nil {
			t.Logf("%s fired after %s", outage.alert, fired.Round(time.Second))
			break
		}
		began = time.Now()
		outage.endsAgain()
		p.until(outage.alert, false, append(outage.may, outage.alert))
		t.Logf("%s fired after %s, and ended after %s", outage.alert, fired.Round(time.Second),
			time.Since(began).Round(time.Second))
		for _, other := range outage.may {
			p.until(other, false, append(outage.may, outage.alert))
		}
		p.quiet(5 * time.Second)
	}
}

// remount makes a folder a file system of its own, which takes root, or changes that.
func remount(t *testing.T, dir string, flags uintptr) {
	t.Helper()
	require.Eventually(t, func() bool { // not while a file is written there
		return unix.Mount("none", dir, "tmpfs", flags, "size=80m") == nil
	}, time.Minute, 10*time.Millisecond, "mount %s", dir)
}

// everyLook is how often the alerts are looked at.
const everyLook = 200 * time.Millisecond

// prometheus is a Prometheus that scrapes servers every second.
type prometheus struct {
	t *testing.T
	*server
}

func startPrometheus(t *testing.T, targets []string) prometheus {
	t.Helper()
	path, err := exec.LookPath("prometheus")
	require.NoError(t, err, "`make alerts` installs it")
	dir := t.TempDir()
	rules, err := os.ReadFile("../docs/alerts.yaml")
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "rules.yaml"), []byte(aMinuteIsASecond(string(rules))), 0o600))
	list, err := json.Marshal(targets)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "prometheus.yaml"), fmt.Appendf(nil, `
global: { scrape_interval: 1s, scrape_timeout: 1s, evaluation_interval: 1s }
rule_files: [rules.yaml]
scrape_configs: [{ job_name: dagctl, static_configs: [{ targets: %s }] }]
`, list), 0o600))

	address := processtest.FreeAddress(t)
	cmd := exec.Command(path, "--config.file="+filepath.Join(dir, "prometheus.yaml"), "--storage.tsdb.path="+
		filepath.Join(dir, "data"), "--web.listen-address="+address, "--log.level=error")
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return prometheus{t, newServer("http://"+address, "")}
}

var (
	duration  = regexp.MustCompile(`(\[|for: )(\d+)m`)
	threshold = regexp.MustCompile(`(_seconds\) > )(\d+)`)
)

// aMinuteIsASecond makes rules sixty times as quick.
func aMinuteIsASecond(rules string) string {
	rules = duration.ReplaceAllString(rules, "${1}${2}s")
	return threshold.ReplaceAllStringFunc(rules, func(text string) string {
		found := threshold.FindStringSubmatch(text)
		seconds, _ := strconv.ParseFloat(found[2], 64) // digits only
		return found[1] + strconv.FormatFloat(seconds/60, 'g', -1, 64)
	})
}

// knows waits until there is a figure.
func (p prometheus) knows(name string) {
	p.t.Helper()
	require.Eventually(p.t, func() bool {
		var answer struct{ Data struct{ Result []any } }
		err := p.call(p.t.Context(), http.MethodGet, "/api/v1/query?query="+name, nil, &answer)
		return err == nil && len(answer.Data.Result) > 0
	}, time.Minute, everyLook, name)
}

// firing returns the names of the alerts that fire now.
func (p prometheus) firing(ctx context.Context) (names []string, err error) {
	var answer struct {
		Data struct {
			Alerts []struct {
				State  string
				Labels map[string]string
			}
		}
	}
	if err := p.call(ctx, http.MethodGet, "/api/v1/alerts", nil, &answer); err != nil {
		return nil, err
	}
	for _, alert := range answer.Data.Alerts {
		if alert.State == "firing" && !slices.Contains(names, alert.Labels["alertname"]) {
			names = append(names, alert.Labels["alertname"])
		}
	}
	return names, nil
}

// until waits until an alert fires, or does not. No others may than some.
func (p prometheus) until(alert string, fires bool, may []string) {
	p.t.Helper()
	tick := time.NewTicker(everyLook)
	defer tick.Stop()
	for end := time.Now().Add(3 * time.Minute); ; <-tick.C {
		names, err := p.firing(p.t.Context())
		for _, name := range names {
			require.Contains(p.t, may, name, "beside %s", alert)
		}
		if err == nil && slices.Contains(names, alert) == fires {
			return
		}
		require.True(p.t, time.Now().Before(end), "%s: %t is not reached; %v fire (%v)", alert, fires, names, err)
	}
}

// quiet requires that no alert fires for a while.
func (p prometheus) quiet(long time.Duration) {
	p.t.Helper()
	tick := time.NewTicker(everyLook)
	defer tick.Stop()
	for end := time.Now().Add(long); time.Now().Before(end); <-tick.C {
		names, err := p.firing(p.t.Context())
		if err == nil {
			require.Empty(p.t, strings.Join(names, ", "))
		}
	}
}
