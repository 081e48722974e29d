package dags

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/dispatcher/views"
	"github.com/dagctl/dagctl/registry"
)

func TestBuildEvents(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	look := func(status registry.Status, datasets ...views.DatasetProgress) *views.VersionDetail {
		v := &views.VersionDetail{Build: &views.BuildProgress{Datasets: datasets, Seconds: 90,
			CriticalPath: []string{"a", "b"}}}
		v.DAG, v.Number, v.Status = "flights", 3, status
		return v
	}
	at := func(done, total int, running, failed int64) views.DatasetProgress {
		return views.DatasetProgress{Job: "b", Dataset: "delays", Done: done, Total: &total, Running: running,
			Failed: failed, Rate: 2.5, Seconds: 90}
	}
	for name, c := range map[string]struct {
		before, v *views.VersionDetail
		lines     []string
	}{
		"first look": {nil, look(registry.Building, at(0, 100, 0, 0)),
			[]string{"flights v3 is Building, critical path ~1m30s left (a → b)"}},
		"nothing new": {look(registry.Building, at(0, 100, 0, 0)), look(registry.Building, at(0, 100, 0, 0)), nil},
		"it begins": {look(registry.Building, at(0, 100, 0, 0)), look(registry.Building, at(0, 100, 1, 0)),
			[]string{"flights v3 delays: 0/100 2.5/s ~1m30s"}},
		"not a tenth": {look(registry.Building, at(11, 100, 1, 0)), look(registry.Building, at(19, 100, 1, 0)), nil},
		"another tenth": {look(registry.Building, at(19, 100, 1, 0)), look(registry.Building, at(20, 100, 1, 0)),
			[]string{"flights v3 delays: 20/100 2.5/s ~1m30s"}},
		"a failure": {look(registry.Building, at(20, 100, 1, 0)), look(registry.Building, at(20, 100, 1, 1)),
			[]string{"flights v3 delays: 20/100 1 failed 2.5/s ~1m30s"}},
		"a new status": {look(registry.Building), look(registry.Ready),
			[]string{"flights v3 is Ready, critical path ~1m30s left (a → b)"}},
		"nobody can say": {look(registry.Building), look(registry.Building, views.DatasetProgress{Job: "raw",
			Output: 1, Running: 1}), []string{"flights v3 raw/1: 0/?"}},
	} {
		var lines []string
		for _, e := range buildEvents(c.before, *c.v, now) {
			lines = append(lines, e.line())
			require.Equal(t, now, e.At)
		}
		require.Equal(t, c.lines, lines, name)
	}
	text, err := json.Marshal(buildEvents(nil, *look(registry.Building), now)[0])
	require.NoError(t, err)
	require.JSONEq(t, `{"event": "status", "at": "2026-01-02T03:04:05Z", "dag": "flights", "version": 3, "status": "Building", "critical_path": ["a", "b"], "remaining_seconds": 90}`, string(text))
}

func TestBuildLinesFit(t *testing.T) {
	t.Parallel()
	build := &views.BuildProgress{Seconds: 5, CriticalPath: []string{"x"}}
	for i := range 50 {
		total := 10
		build.Datasets = append(build.Datasets, views.DatasetProgress{Job: fmt.Sprintf("job%02d", i), Done: 10,
			Total: &total})
	}
	build.Datasets[40].Done, build.Datasets[40].Running, build.Datasets[45].Done = 3, 1, 0
	lines := buildLines(registry.Version{DAG: "d", Number: 1, Status: registry.Building}, build, false, 60, 10)
	require.Len(t, lines, 10)
	require.Contains(t, strings.Join(lines, "\n"), "job40")
	require.Contains(t, strings.Join(lines, "\n"), "job45")
	require.Equal(t, "and 43 more datasets", lines[8])
	for _, line := range lines {
		require.LessOrEqual(t, len([]rune(line)), 60)
	}
}
