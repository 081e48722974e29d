package main

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/cmd/dagctl/cli"
)

var update = flag.Bool("update", false, "write golden files")

// golden compares got with a file, or writes the file with -update.
func golden(t *testing.T, path string, got []byte) {
	t.Helper()
	if *update {
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		require.NoError(t, os.WriteFile(path, got, 0o644))
		return
	}
	want, err := os.ReadFile(path)
	require.NoError(t, err)
	if !bytes.Equal(want, got) { // a whole document in the message would hide it
		t.Fatalf("%s is not current: run `go test ./cmd/dagctl -run %s -update` and look at the difference", path,
			t.Name())
	}
}

func TestCommandReferenceIsCurrent(t *testing.T) {
	t.Parallel()
	c := &cli.CLI{Environment: cli.Environment{Getenv: func(string) string { return "" }}}
	root := rootCommand(c)
	root.InitDefaultCompletionCmd()
	var b bytes.Buffer
	fmt.Fprintln(&b, "# Commands\n\nGenerated from the commands themselves; `dagctl COMMAND --help` prints the same.")
	writeReference(&b, root)
	golden(t, "../../docs/cli.md", b.Bytes())
}

func writeReference(b *bytes.Buffer, cmd *cobra.Command) {
	if cmd.Hidden || cmd.Name() == "help" {
		return
	}
	text := cmd.Long
	if text == "" {
		text = cmd.Short + "."
	}
	fmt.Fprintf(b, "\n## %s\n\n%s\n\n```\n%s\n```\n", cmd.CommandPath(), text, cmd.UseLine())
	if cmd.Example != "" {
		fmt.Fprintf(b, "\n```\n%s\n```\n", cmd.Example)
	}
	if flags := strings.TrimRight(cmd.NonInheritedFlags().FlagUsages(), "\n"); flags != "" {
		fmt.Fprintf(b, "\n```\n%s\n```\n", flags)
	}
	if cmd.Name() == "completion" {
		return // what it prints for each shell is cobra's own
	}
	for _, child := range cmd.Commands() {
		writeReference(b, child)
	}
}

func TestOpenAPIDocumentIsCurrent(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	status, text := w.send(t, nobody, http.MethodGet, "/openapi.json", "", nil)
	require.Equal(t, http.StatusOK, status)
	var document map[string]any
	require.NoError(t, json.Unmarshal([]byte(text), &document))
	document["info"].(map[string]any)["version"] = "dev" // that of the build does not belong here
	pretty, err := json.MarshalIndent(document, "", "  ")
	require.NoError(t, err)
	golden(t, "../../docs/openapi.json", append(pretty, '\n'))
}
