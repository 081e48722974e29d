package main

import (
	"bytes"
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/engine/inside"
	"github.com/dagctl/dagctl/internal/testdb"
)

// Some figures start their own program again; here that is this test.
func TestMain(m *testing.M) {
	inside.Main()
	if len(os.Args) > 1 && (os.Args[1] == "-dispatch" || os.Args[1] == "-work") {
		main()
		return
	}
	os.Exit(m.Run())
}

// TestEveryFigureRuns runs each figure at a tiny size, so that the harness keeps working with the program that it
// measures.
func TestEveryFigureRuns(t *testing.T) {
	t.Parallel()
	for _, f := range figures {
		t.Run(f.name, func(t *testing.T) {
			t.Parallel()
			var out, log bytes.Buffer
			err := run([]string{"-dsn", testdb.URL(t), "-figure", f.name, "-tasks", "60", "-consumers", "5", "-edges",
				"4", "-fan", "40", "-remote", "30",
				"-datasets", "3", "-jobs", "4", "-partitions", "5", "-versions", "6", "-swaps", "2",
				"-reps", "1", "-workers", "8", "-conns", "8", "-storage", t.TempDir(), "-history", "1000", "-hold",
				"2s", "-backlog", "50", "-patience", "2s", "-timeout", "2m"}, &out, &log)
			require.NoError(t, err, log.String())

			lines := strings.Split(strings.TrimSpace(out.String()), "\n")
			for _, line := range lines {
				var r struct {
					Figure, Unit           string
					Value, Baseline, Ratio float64
					Params                 map[string]any
				}
				require.NoError(t, json.Unmarshal([]byte(line), &r), line)
				require.Equal(t, f.name, r.Figure)
				require.Positive(t, r.Value, line)
				require.Positive(t, r.Baseline, line)
				require.Positive(t, r.Ratio, line)
				require.NotEmpty(t, r.Params)
			}
		})
	}
}

func TestStatementsAndProfiles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	var out, log bytes.Buffer
	err := run([]string{"-dsn", testdb.URL(t), "-figure", "throughput", "-tasks", "10", "-consumers", "1", "-storage",
		dir,
		"-statements", "-memprofile", dir + "/heap"}, &out, &log)
	require.NoError(t, err, log.String())
	require.Contains(t, log.String(), "commit")
	require.FileExists(t, dir+"/heap")
}

func TestFanDAG(t *testing.T) {
	t.Parallel()
	yaml, tasks := fanDAG(1000)
	require.Equal(t, 1+1000+32+1, tasks)
	require.Equal(t, tasks, strings.Count(yaml, "- {name"))
}

func TestRefusesWhatItCannotMeasure(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	require.ErrorContains(t, run([]string{"-figure", "speed"}, &out, &out), `there is no figure "speed"`)
	require.ErrorContains(t, run([]string{"-tasks", "0"}, &out, &out), "must be positive")
}
