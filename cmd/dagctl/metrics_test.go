package main

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"gopkg.in/yaml.v3"
)

// TestMetricsOfOneOrgAndOfAll: the address of the API serves the metrics of the caller's org, that of metrics those of
// all.
func TestMetricsOfOneOrgAndOfAll(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.deployReadings(t, "2026-01-01")
	w.exec(t, `INSERT INTO outbox (org_id, kind, payload, available_at) SELECT id, 'route_event', '{}', now() + interval '1 hour' FROM orgs`)
	_, mine := w.send(t, reader, http.MethodGet, "/metrics", "", nil)
	require.Contains(t, mine, `dagctl_attempts_total{org="acme",outcome="Completed"}`)
	require.NotContains(t, mine, "umbrella")
	require.Contains(t, mine, `dagctl_db_connections{pool="owner",state="idle"}`)
	require.Contains(t, mine, "dagctl_batch_seconds_bucket")
	require.Contains(t, mine, `dagctl_workers{org="",state="live"}`, "the servers are everybody's")
	_, theirs := w.send(t, foreign, http.MethodGet, "/metrics", "", nil)
	require.NotContains(t, theirs, "acme")
	require.Contains(t, theirs, `dagctl_outbox_pending_rows{kind="route_event",org="umbrella"} 1`)

	server := httptest.NewServer(w.app.MetricsHandler())
	defer server.Close()
	response, err := http.Get(server.URL + "/metrics")
	require.NoError(t, err)
	defer response.Body.Close()
	all, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	require.Contains(t, string(all), `dagctl_outbox_pending_rows{kind="route_event",org="umbrella"} 1`)
	require.Contains(t, string(all), `dagctl_outbox_pending_rows{kind="route_event",org="acme"} 1`)
	response, err = http.Get(server.URL + "/v1/dags")
	require.NoError(t, err)
	require.NoError(t, response.Body.Close())
	require.Equal(t, http.StatusNotFound, response.StatusCode, "nothing else is served there")
}

func (w *world) exec(t *testing.T, sql string, args ...any) {
	t.Helper()
	_, err := w.pool.Exec(t.Context(), sql, args...)
	require.NoError(t, err)
}

// described returns the names of all metrics that the server has.
func described(t *testing.T, w *world) []string {
	t.Helper()
	descs := make(chan *prometheus.Desc)
	go func() { w.app.Metrics.Describe(descs); close(descs) }()
	name := regexp.MustCompile(`fqName: "(dagctl_\w+)"`)
	var names []string
	for d := range descs {
		if m := name.FindStringSubmatch(d.String()); m != nil {
			names = append(names, m[1])
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

var metricName = regexp.MustCompile(`\bdagctl_[a-z_]+\b`)

// TestDocumentedMetricsExist compares docs/operations.md, the dashboard and the alerts with the metrics of the server.
func TestDocumentedMetricsExist(t *testing.T) {
	t.Parallel()
	names := described(t, newWorld(t))
	page, err := os.ReadFile("../../docs/operations.md")
	require.NoError(t, err)
	var documented []string
	for _, row := range regexp.MustCompile("(?m)^\\| `(dagctl_\\w+)").FindAllStringSubmatch(string(page), -1) {
		documented = append(documented, row[1])
	}
	slices.Sort(documented)
	require.Equal(t, names, documented)

	exists := func(where, expression string) {
		used := metricName.FindAllString(expression, -1)
		require.NotEmpty(t, used, "%s: %s", where, expression)
		for _, name := range used {
			base := regexp.MustCompile(`_(bucket|sum|count)$`).ReplaceAllString(name, "")
			require.True(t, slices.Contains(names, name) || slices.Contains(names, base),
				"%s: there is no metric %s", where, name)
		}
	}
	var dashboard struct {
		Title, UID    string
		SchemaVersion int
		Panels        []struct {
			ID          int
			Title, Type string
			GridPos     struct{ W, H int }
			Targets     []struct{ Expr, RefID string }
		}
	}
	text, err := os.ReadFile("../../docs/grafana-dashboard.json")
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(text, &dashboard))
	require.NotEmpty(t, dashboard.Title)
	require.NotEmpty(t, dashboard.UID)
	require.NotZero(t, dashboard.SchemaVersion)
	require.NotEmpty(t, dashboard.Panels)
	seen := map[int]bool{}
	for _, p := range dashboard.Panels {
		require.False(t, seen[p.ID], p.Title)
		seen[p.ID] = true
		require.NotEmpty(t, p.Title)
		require.Contains(t, []string{"timeseries", "stat"}, p.Type, p.Title)
		require.Positive(t, p.GridPos.W*p.GridPos.H, p.Title)
		require.NotEmpty(t, p.Targets, p.Title)
		for _, target := range p.Targets {
			require.NotEmpty(t, target.RefID, p.Title)
			exists(p.Title, target.Expr)
			balanced(t, target.Expr)
		}
	}

	var alerts struct {
		Groups []struct {
			Name  string
			Rules []struct {
				Alert, Expr, For    string
				Labels, Annotations map[string]string
			}
		}
	}
	text, err = os.ReadFile("../../docs/alerts.yaml")
	require.NoError(t, err)
	decoder := yaml.NewDecoder(strings.NewReader(string(text)))
	decoder.KnownFields(true)
	require.NoError(t, decoder.Decode(&alerts))
	require.NotEmpty(t, alerts.Groups)
	for _, group := range alerts.Groups {
		require.NotEmpty(t, group.Name)
		require.NotEmpty(t, group.Rules)
		for _, rule := range group.Rules {
			require.NotEmpty(t, rule.Alert)
			require.Regexp(t, `^\d+[smh]$`, rule.For, rule.Alert)
			require.Contains(t, []string{"warning", "critical"}, rule.Labels["severity"], rule.Alert)
			require.NotEmpty(t, rule.Annotations["summary"], rule.Alert)
			require.NotEmpty(t, rule.Annotations["description"], rule.Alert)
			exists(rule.Alert, rule.Expr)
			balanced(t, rule.Expr)
		}
	}
}

// balanced checks that the parentheses and quotes of an expression match.
func balanced(t *testing.T, expression string) {
	t.Helper()
	for _, pair := range []string{"()", "{}", "[]"} {
		require.Equal(t, strings.Count(expression, pair[:1]), strings.Count(expression, pair[1:]), expression)
	}
	require.Zero(t, strings.Count(expression, `"`)%2, expression)
}
