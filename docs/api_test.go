package docs_test

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/examples/processtest"
	"github.com/dagctl/dagctl/internal/pgdev"
	"github.com/dagctl/dagctl/internal/testserver"
)

// TestOpenAPIDocumentIsClean has two linters judge the document by their default rules. Examples that do not fit their
// schemas are among them.
func TestOpenAPIDocumentIsClean(t *testing.T) {
	t.Parallel()
	document := absolute(t, "docs/openapi.json")
	rules := absolute(t, "tools/openapi/.spectral.yaml")
	run(t, node(t, "spectral", "lint", "--ruleset", rules, "--fail-severity", "hint", document), t.TempDir())
	answer := run(t, node(t, "redocly", "lint", "--extends", "recommended", "--format", "json", document), t.TempDir(),
		"REDOCLY_TELEMETRY=off", "REDOCLY_SUPPRESS_UPDATE_NOTICE=true")

	var found struct {
		Totals struct{ Errors, Warnings, Ignored int }
	}
	answer = answer[strings.Index(answer, "{") : strings.LastIndex(answer, "}")+1] // remarks for people surround it
	require.NoError(t, json.Unmarshal([]byte(answer), &found))
	assert.Zero(t, found.Totals)
}

// TestOpenAPIExamples requires an example of each JSON body and answer.
func TestOpenAPIExamples(t *testing.T) {
	t.Parallel()
	type content map[string]struct{ Example any }
	var document struct {
		Paths map[string]map[string]struct {
			OperationID string
			RequestBody struct{ Content content }
			Responses   map[string]struct{ Content content }
		}
	}
	text, err := os.ReadFile(absolute(t, "docs/openapi.json"))
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(text, &document))
	require.NotEmpty(t, document.Paths)

	for _, item := range document.Paths {
		for _, op := range item {
			all := []content{op.RequestBody.Content}
			for status, response := range op.Responses {
				if strings.HasPrefix(status, "2") {
					all = append(all, response.Content)
				}
			}
			for _, c := range all {
				if media, isJSON := c["application/json"]; isJSON {
					assert.NotNil(t, media.Example, op.OperationID)
				}
			}
		}
	}

	body := document.Paths["/v1/dags/{dag}/versions"]["post"].RequestBody.Content["application/json"].Example
	example := body.(map[string]any)["yaml"].(string)
	_, problems := dag.Parse(dag.File{Name: "dag.yaml", Text: []byte(example)}, catalog(t))
	assert.Empty(t, problems, "the example of a deploy")

	// What a schema cannot say, such as that a first partition is one.
	sent := func(path string) map[string]any {
		return document.Paths[path]["post"].RequestBody.Content["application/json"].Example.(map[string]any)
	}
	for _, path := range []string{"/v1/dags/{dag}/backfills", "/v1/datasets/{name}/invalidate",
		"/v1/datasets/{name}/purge"} {
		first, last := sent(path)["from"].(string), sent(path)["to"].(string)
		precedes, err := dag.Partitioning{Kind: dag.ByTime, Unit: dag.Day}.Precedes(first, last)
		assert.NoError(t, err, path)
		assert.True(t, precedes, path)
	}
	assert.Equal(t, "cron", sent("/v1/scheduled-events")["repeat"], "which its schedule needs")
	assert.NotRegexp(t, `FROM \w+\.`, sent("/v1/query")["sql"], "names of relations have no dots")
}

// TestClientsOfTheAPI makes the clients of the page, and deploys with them.
func TestClientsOfTheAPI(t *testing.T) {
	t.Parallel()
	p := pageAt(t, "docs/api.md")
	landing := t.TempDir()
	write(t, filepath.Join(landing, "shop", "2026-03-01.csv"), "product,amount\ntea,3\nrum,9\n")
	postgres, err := pgdev.Start(t.Context(), pgdev.Config{})
	require.NoError(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		require.NoError(t, postgres.Stop(ctx))
	})
	processtest.Must(t, ".", "migrate", "--database-url", postgres.URL())

	// Each client has an org of its own, so that both deploy a new DAG.
	tokens := map[string]string{}
	for _, org := range []string{"typescript", "golang"} {
		tokens[org] = strings.TrimSpace(processtest.Must(t, ".", "admin", "bootstrap", "--database-url", postgres.URL(),
			"--another-org", "--org", org))
	}
	server, _ := processtest.Serve(t, postgres.URL(), "--storage-root", t.TempDir(),
		"--file-root", "typescript="+landing, "--file-root", "golang="+landing)
	deploy := func(t *testing.T, org, dir string, program *exec.Cmd) {
		program.Args = append(program.Args, "shop.yaml", filepath.Join(landing, "shop"))
		said := run(t, program, dir, "DAGCTL_URL="+server, "DAGCTL_TOKEN="+tokens[org])
		assert.Equal(t, "version 1: 12", strings.TrimSpace(said))
	}

	t.Run("TypeScript", func(t *testing.T) {
		t.Parallel()
		dir := t.TempDir()
		writeBlocks(t, p, dir, "shop.yaml", "deploy.ts")
		write(t, filepath.Join(dir, "package.json"), `{"type": "module"}`)
		packages, err := testserver.PackagesOf("openapi")
		require.NoError(t, err)
		require.NoError(t, os.Symlink(packages, filepath.Join(dir, "node_modules")))
		run(t, node(t, "openapi-typescript", absolute(t, "docs/openapi.json"), "-o", "dagctl.d.ts"), dir)
		run(t, node(t, "tsc", "--strict", "--module", "nodenext", "--target", "es2022", "deploy.ts"), dir)
		deploy(t, "typescript", dir, node(t, "node", "deploy.js"))
	})

	t.Run("Go", func(t *testing.T) {
		t.Parallel()
		dir, tools := t.TempDir(), absolute(t, "tools/oapi-codegen")
		writeBlocks(t, p, dir, "shop.yaml", "deploy.go")
		for _, file := range []string{"go.mod", "go.sum"} {
			text, err := os.ReadFile(filepath.Join(tools, file))
			require.NoError(t, err)
			write(t, filepath.Join(dir, file), strings.Replace(string(text),
				"module github.com/dagctl/dagctl/tools/oapi-codegen", "module example", 1))
		}
		require.NoError(t, os.Mkdir(filepath.Join(dir, "dagctl"), 0o755))
		run(t, exec.Command("go", "tool", "oapi-codegen", "-generate", "types,client", "-package", "dagctl",
			"-o", "dagctl/dagctl.go", absolute(t, "docs/openapi.json")), dir)
		run(t, exec.Command("go", "build", "-o", "deploy", "."), dir)
		deploy(t, "golang", dir, exec.Command("./deploy"))
	})
}

func absolute(t *testing.T, path string) string {
	t.Helper()
	full, err := filepath.Abs(filepath.Join(root, path))
	require.NoError(t, err)
	return full
}

// node prepares a program of the packages that tools/openapi pins.
func node(t *testing.T, name string, args ...string) *exec.Cmd {
	t.Helper()
	cmd, err := testserver.Program("openapi", name, args...)
	require.NoError(t, err)
	return cmd
}

func write(t *testing.T, path, text string) {
	t.Helper()
	require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
	require.NoError(t, os.WriteFile(path, []byte(text), 0o644))
}

// writeBlocks writes the blocks of a page that are named as files.
func writeBlocks(t *testing.T, p page, dir string, files ...string) {
	t.Helper()
	for _, file := range files {
		found := false
		for _, b := range p.blocks {
			if _, name, _ := strings.Cut(b.info, " "); name == file {
				write(t, filepath.Join(dir, file), b.text)
				found = true
			}
		}
		require.True(t, found, "%s has no block %s", p.path, file)
	}
}

// run runs a program in a folder. It must succeed; run returns what it printed.
func run(t *testing.T, cmd *exec.Cmd, dir string, env ...string) string {
	t.Helper()
	cmd.Dir, cmd.Env = dir, append(os.Environ(), env...)
	output, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s\n%s", strings.Join(cmd.Args, " "), output)
	return string(output)
}
