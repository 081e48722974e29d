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

	"github.com/dagctl/dagctl/examples/processtest"
)

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
	threshold = regexp.MustCompile(`(_seconds(?:\{[^}]*\})?\) > )(\d+)`)
)

// aMinuteIsASecond makes rules sixty times as quick, and those that look at a day 3600 times.
func aMinuteIsASecond(rules string) string {
	rules = duration.ReplaceAllString(rules, "${1}${2}s")
	return threshold.ReplaceAllStringFunc(rules, func(text string) string {
		found := threshold.FindStringSubmatch(text)
		seconds, _ := strconv.ParseFloat(found[2], 64) // digits only
		if seconds >= 24*3600 {
			seconds /= 60
		}
		return found[1] + strconv.FormatFloat(seconds/60, 'g', -1, 64)
	})
}

// rules returns the names of all alerts.
func (p prometheus) rules() (names []string) {
	p.t.Helper()
	text, err := os.ReadFile("../docs/alerts.yaml")
	require.NoError(p.t, err)
	for _, found := range regexp.MustCompile(`- alert: (\w+)`).FindAllStringSubmatch(string(text), -1) {
		names = append(names, found[1])
	}
	require.NotEmpty(p.t, names)
	return names
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
