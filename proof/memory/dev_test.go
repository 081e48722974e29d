package memory_test

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/examples/processtest"
	"github.com/dagctl/dagctl/internal/testdb"
	"github.com/dagctl/dagctl/registry"
)

// TestMemoryOfDev saves a DAG file every second under a dev server, which looks at it twice as often.
func TestMemoryOfDev(t *testing.T) {
	t.Parallel()
	dev(t, short)
}

func dev(t *testing.T, r run) {
	t.Helper()
	dir, data := filepath.Join(t.TempDir(), "starter"), t.TempDir()
	processtest.Must(t, ".", "init", dir)
	server := processtest.Dev(t, dir, data, "--database-url", testdb.URL(t))
	newest := func() registry.Version {
		found := processtest.Decode[[]registry.Version](t, dir, "history", "starter", "--data", data, "--limit", "1")
		require.Len(t, found, 1)
		return found[0]
	}
	deployed := func() bool {
		return processtest.Run(t, dir, "history", "starter", "--data", data).Code == 0 && newest().Number > 1
	}

	var saving sync.WaitGroup
	done := make(chan struct{})
	saving.Go(func() { save(t, dir, done) })
	defer saving.Wait()
	defer close(done)
	processtest.Eventually(t, "saves are deployed", deployed)
	first := newest().Number
	watch(t, server.PID(), r)
	require.Greater(t, newest().Number, first, "saves are still deployed")
	t.Logf("%d versions", newest().Number)
}

// save saves both a DAG file and its query, with another content each time.
func save(t *testing.T, dir string, done <-chan struct{}) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()

	file, query := filepath.Join(dir, "dag.yaml"), filepath.Join(dir, "sql", "daily.sql")
	text, err := os.ReadFile(file)
	if err != nil {
		t.Error(err)
		return
	}
	for i := 0; ; i++ {
		select {
		case <-done:
			return
		case <-tick.C:
		}
		for path, content := range map[string]string{
			file: fmt.Sprintf("%s# saved %d times\n", text, i),
			query: fmt.Sprintf("SELECT station, max(celsius) AS highest, %d AS saved FROM readings "+
				"GROUP BY station", i),
		} {
			if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
				t.Error(err)
				return
			}
		}
	}
}
