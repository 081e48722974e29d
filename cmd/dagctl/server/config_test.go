package server

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/sandbox"
)

func noEnv(string) string { return "" }

// TestDocumentedConfigIsValid reads the example in docs/config.md, and compares its defaults with those of the code.
func TestDocumentedConfigIsValid(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../../docs/config.md")
	require.NoError(t, err)
	example := regexp.MustCompile("(?s)```yaml[^\n]*\n(.*?)```").FindSubmatch(text)
	require.NotNil(t, example)
	path := filepath.Join(t.TempDir(), "config.yaml")
	require.NoError(t, os.WriteFile(path, example[1], 0o600))
	cfg, err := loadConfig(path, noEnv)
	require.NoError(t, err)
	require.Equal(t, DefaultConfig.Listen, cfg.Listen)
	require.Equal(t, DefaultConfig.Runtimes, cfg.Runtimes)
	require.Equal(t, defaultWorkers, cfg.Workers)
	require.Equal(t, defaultQueries, cfg.Queries)
	require.Equal(t, defaultEngines, cfg.Engines)
	require.Equal(t, defaultLimits, cfg.Limits)
	require.Equal(t, defaultWeights, cfg.Weights)
	require.Equal(t, DefaultLog, cfg.Log)
	require.Equal(t, DefaultOperators.MemoryMB, cfg.Operators.MemoryMB)
	require.Equal(t, DefaultOperators.AllowCommand, cfg.Operators.AllowCommand)
}

func TestConfigSaysEverythingThatIsWrong(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "config.yaml")
	require.NoError(t, os.WriteFile(path, []byte("databse_url: x\n"), 0o600))
	_, err := loadConfig(path, noEnv)
	require.ErrorContains(t, err, "databse_url")

	cfg := Config{Runtimes: RuntimesConfig{"lambda": {{Kind: "lambda"}}},
		FileRoots: map[string][]string{"acme": {"relative", "/nowhere/at/all"}}}
	err = cfg.Validate()
	var f *fault.Error
	require.ErrorAs(t, err, &f)
	require.Equal(t, fault.Invalid, f.Kind)
	var places []string
	for _, p := range f.Problems {
		places = append(places, p.Location)
	}
	require.Equal(t, []string{"database_url", "storage.root", "storage.max_upload_mb", "runtimes.lambda.function",
		"worker_base_url", "tasks.key_files", "file_roots.acme", "file_roots.acme",
		"operators.memory_mb", "workers.pool_size", "queries", "engines.idle_seconds",
		"identity.session_idle_hours", "identity.session_days", "limits", "weights",
		"task_logs.max_mb", "task_logs.keep_days", "version_retention_days",
		"deliveries_retention_days", "usage_retention_days", "log"}, places)
}

// What one org exports is apart from the storage and from the folders of other orgs, wherever links lead.
func TestExportRootsAreApart(t *testing.T) {
	t.Parallel()
	base := t.TempDir()
	dir := func(name string) string {
		path := filepath.Join(base, name)
		require.NoError(t, os.MkdirAll(path, 0o700))
		return path
	}
	storage, landing, shared := dir("storage"), dir("landing"), dir("shared")
	require.NoError(t, os.Symlink(storage, filepath.Join(base, "link")))
	for root, why := range map[string]string{
		shared:                         "",
		dir("landing/acme"):            "file_roots.umbrella have files in common",
		dir("storage/exports"):         "storage.root have files in common",
		base:                           "storage.root have files in common",
		filepath.Join(base, "link"):    "storage.root have files in common",
		dir("theirs/sub"):              "export_roots.umbrella have files in common",
		"relative":                     "not an absolute path",
		filepath.Join(base, "nowhere"): "not a folder here",
	} {
		cfg := Config{Storage: StorageConfig{Root: storage}, FileRoots: map[string][]string{"umbrella": {landing}},
			ExportRoots: map[string][]string{"acme": {root}, "umbrella": {dir("theirs")}}}
		var found problems
		cfg.checkExportRoots(&found)
		text := fmt.Sprint(found)
		if why == "" {
			require.Empty(t, found)
			continue
		}
		require.Contains(t, text, why, root)
	}
}

// Browsers send the name of a host in ASCII, whatever the config says.
func TestABaseURLHasItsHostAsBrowsersSendIt(t *testing.T) {
	t.Parallel()
	for address, says := range map[string]string{
		"https://bücher.example:8443":   "has a host that browsers write as xn--bcher-kva.example",
		"https://BÜCHER.example":        "has a host that browsers write as xn--bcher-kva.example",
		"https://xn--bcher-kva.example": "", "https://dagctl.example.com": "",
	} {
		cfg := Config{BaseURL: address}
		err := cfg.Validate()
		var f *fault.Error
		require.ErrorAs(t, err, &f)
		found := ""
		for _, p := range f.Problems {
			if p.Location == "base_url" {
				found = p.Message
			}
		}
		if says == "" {
			require.Empty(t, found)
			continue
		}
		require.Contains(t, found, says)
	}
}

func TestEnvironmentWinsOverFile(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "config.yaml")
	require.NoError(t, os.WriteFile(path, []byte("listen: 127.0.0.1:1\nworkers: {pool_size: 2}\n"), 0o600))
	env := map[string]string{"DAGCTL_LISTEN": "127.0.0.1:2", "DAGCTL_POOL_SIZE": "9", "DAGCTL_ALLOW_COMMAND": "acme, b"}
	cfg, err := loadConfig(path, func(name string) string { return env[name] })
	require.NoError(t, err)
	require.Equal(t, "127.0.0.1:2", cfg.Listen)
	require.Equal(t, 9, cfg.Workers.PoolSize)
	require.Equal(t, OrgList{"acme", "b"}, cfg.Operators.AllowCommand)
	env["DAGCTL_ALLOW_COMMAND"] = "true"
	_, err = loadConfig(path, func(name string) string { return env[name] })
	require.ErrorContains(t, err, "list of orgs")
	delete(env, "DAGCTL_ALLOW_COMMAND")
	env["DAGCTL_POOL_SIZE"] = "many"
	_, err = loadConfig(path, func(name string) string { return env[name] })
	require.ErrorContains(t, err, "DAGCTL_POOL_SIZE")
}

// A server that is to have walls around users' code says at its start which of them it cannot have.
func TestMissingWallsAreRefused(t *testing.T) {
	t.Parallel()
	walls := []sandbox.Wall{{Name: "files", Stands: true}, {Name: "calls", Detail: "the kernel has no seccomp filters"}}
	var found problems
	checkWalls(&found, []string{"files"}, walls)
	require.NoError(t, found.err())

	checkWalls(&found, []string{"files", "calls", "moat"}, walls)
	require.Equal(t, problems{
		{Location: "engines.walls[1]",
			Message: "the wall calls does not stand on this machine: the kernel has no seccomp filters"},
		{Location: "engines.walls[2]", Message: `"moat" is no wall: there are files, calls`},
	}, found)
}

// TestConfigsOfPagesAreValid loads the settings that docs/identity.md and docs/lineage.md show.
func TestConfigsOfPagesAreValid(t *testing.T) {
	var blocks [][]string
	for _, page := range []string{"identity.md", "lineage.md"} {
		text, err := os.ReadFile("../../../docs/" + page)
		require.NoError(t, err)
		found := regexp.MustCompile("(?s)```yaml server\n(.*?)```").FindAllStringSubmatch(string(text), -1)
		require.NotEmpty(t, found, page)
		blocks = append(blocks, found...)
	}
	t.Setenv("OKTA_SECRET", "x")
	t.Setenv("ENTRA_SECRET", "x")
	for _, block := range blocks {
		file := filepath.Join(t.TempDir(), "config.yaml")
		require.NoError(t, os.WriteFile(file, []byte(block[1]), 0o600))
		cfg, err := loadConfig(file, func(name string) string {
			return map[string]string{"DAGCTL_DATABASE_URL": "postgres://x@y/z"}[name]
		})
		require.NoError(t, err)
		cfg.Storage.Root = t.TempDir()
		require.NoError(t, cfg.Validate(), block[1])
		require.True(t, len(cfg.Identity.Providers) > 0 || len(cfg.OpenLineage) > 0)
	}
}
