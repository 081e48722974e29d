package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const editedDAG = `name: weather
jobs:
  - name: landing
    description: What the stations send.
    operator: file_source
    source: { kind: poll, every: 10s }
    config: { path: data, format: csv, pattern: "{date}.csv", columns: [station, Order], types: { station: VARCHAR } }
    partition_by: { time: day }
  - name: daily
    operator: sql
    inputs: [{ from: { job: landing }, as: readings }]
    config:
      query: |
        SELECT r.staton FROM readings r
`

// editor is a running "dagctl lsp" and what an editor keeps of it.
type editor struct {
	t    *testing.T
	in   io.WriteCloser
	out  *bufio.Reader
	last int
	uri  string
}

func editorsProgram(t *testing.T) string {
	t.Helper()
	path, err := binary()
	require.NoError(t, err)
	return path
}

func startEditor(t *testing.T, file string) *editor {
	t.Helper()
	return startEditorIn(t, "", file)
}

// startEditorIn starts an editor that has a folder open.
func startEditorIn(t *testing.T, folder, file string) *editor {
	t.Helper()
	cmd := exec.Command(editorsProgram(t), "lsp")
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	e := &editor{t: t, in: in, out: bufio.NewReader(out), uri: "file://" + file}
	t.Cleanup(func() {
		e.tell("exit", map[string]any{})
		require.NoError(t, cmd.Wait())
	})
	folders := []any{}
	if folder != "" {
		folders = append(folders, map[string]any{"uri": "file://" + folder, "name": "work"})
	}
	require.Contains(t, string(e.ask("initialize", map[string]any{"rootUri": nil, "workspaceFolders": folders})),
		"completionProvider")
	e.tell("initialized", map[string]any{})
	return e
}

func (e *editor) write(m map[string]any) {
	m["jsonrpc"] = "2.0"
	body, err := json.Marshal(m)
	require.NoError(e.t, err)
	_, err = fmt.Fprintf(e.in, "Content-Length: %d\r\n\r\n%s", len(body), body)
	require.NoError(e.t, err)
}

func (e *editor) tell(method string, params any) {
	e.write(map[string]any{"method": method, "params": params})
}

// read returns the next message.
func (e *editor) read() (m struct {
	ID     int
	Method string
	Params struct {
		URI         string
		Diagnostics []struct {
			Range struct {
				Start struct{ Line, Character int }
				End   struct{ Line, Character int }
			}
			Message string
		}
	}
	Result json.RawMessage
	Error  *struct{ Code int }
}) {
	length := 0
	for {
		line, err := e.out.ReadString('\n')
		require.NoError(e.t, err)
		if line = strings.TrimSpace(line); line == "" {
			break
		}
		length, err = strconv.Atoi(strings.TrimPrefix(line, "Content-Length: "))
		require.NoError(e.t, err)
	}
	body := make([]byte, length)
	_, err := io.ReadFull(e.out, body)
	require.NoError(e.t, err)
	require.NoError(e.t, json.Unmarshal(body, &m))
	return m
}

func (e *editor) ask(method string, params any) json.RawMessage {
	e.last++
	e.write(map[string]any{"id": e.last, "method": method, "params": params})
	for {
		if m := e.read(); m.ID == e.last {
			return m.Result
		}
	}
}

// shownOf returns the folder of the next file that the editor is shown problems of, and them.
func (e *editor) shownOf() (list []string) {
	for {
		m := e.read()
		if m.Method != "textDocument/publishDiagnostics" {
			continue
		}
		for _, d := range m.Params.Diagnostics {
			list = append(list, fmt.Sprintf("%d:%d: %s", d.Range.Start.Line+1, d.Range.Start.Character+1, d.Message))
		}
		slices.Sort(list)
		return append([]string{filepath.Base(filepath.Dir(m.Params.URI))}, list...)
	}
}

// shown returns the problems that the editor is shown next: "line:column: message".
func (e *editor) shown() []string { return e.shownOf()[1:] }

func (e *editor) open(text string) {
	e.tell("textDocument/didOpen", map[string]any{"textDocument": map[string]any{"uri": e.uri, "text": text}})
}

func (e *editor) change(text string) {
	e.tell("textDocument/didChange", map[string]any{"textDocument": map[string]any{"uri": e.uri},
		"contentChanges": []any{map[string]any{"text": text}}})
}

// at asks about the place after the first occurrence of a text.
func (e *editor) at(method, text, after string) string {
	before, _, found := strings.Cut(text, after)
	require.True(e.t, found, after)
	before += after
	line := strings.Count(before, "\n")
	column := len(before) - strings.LastIndexByte(before, '\n') - 1
	return string(e.ask("textDocument/"+method, map[string]any{"textDocument": map[string]any{"uri": e.uri},
		"position": map[string]any{"line": line, "character": column}}))
}

// Editors show what validate says, while somebody types, and know what may stand where.
func TestEditorsShowWhatValidateSays(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "dag.yaml")
	require.NoError(t, os.WriteFile(file, []byte(editedDAG), 0o600))
	e := startEditor(t, file)
	e.open(editedDAG)
	shown := e.shown()
	require.Equal(t, []string{`14:18: "r" has no column "staton" (did you mean "station"?)`}, shown)
	require.Contains(t, dagctl(t, nil, "validate", file).err, file+`:14:18: "r" has no column "staton"`)

	mended := strings.Replace(editedDAG, "staton", "station", 1)
	e.change(mended)
	require.Empty(t, e.shown())

	// Completion, while the text is no YAML.
	typing := strings.Replace(mended, "r.station", "r.", 1)
	require.Contains(t, e.at("completion", mended, "SELECT r."), `"label":"station"`)
	require.Contains(t, e.at("completion", mended, "SELECT r."), `"insertText":"\"Order\""`)
	require.NotContains(t, e.at("completion", mended, "SELECT r."), `"label":"readings"`)
	require.Contains(t, e.at("completion", mended, "SELECT "), `"label":"readings"`)
	require.Contains(t, e.at("completion", mended, "{ job: "), `"label":"landing"`)
	require.Contains(t, e.at("completion", mended, "    operator: "), `"label":"postgres_query"`)
	require.Contains(t, e.at("completion", mended, "{ kind: "), `"label":"webhook"`)
	require.Contains(t, e.at("completion", mended, "config: { path: data, "), `"label":"pattern"`)
	e.change(typing + "    che\n")
	e.shown()
	require.Contains(t, e.at("completion", typing+"    che\n", "    che"), `"label":"checks"`)

	e.change(mended)
	e.shown()
	require.Contains(t, e.at("hover", mended, "FROM readi"), "What the stations send.")
	require.Contains(t, e.at("hover", mended, "FROM readi"), "| station | VARCHAR |")
	require.Contains(t, e.at("hover", mended, "partition_"), "partition_by")
	require.Contains(t, e.at("definition", mended, "FROM readi"), `"line":2,"character":10`)
	require.Contains(t, e.at("definition", mended, "{ job: lan"), `"line":2,"character":10`)

	// Whatever a place is, an answer comes.
	for line := range strings.Split(mended, "\n") {
		for _, method := range []string{"completion", "hover", "definition"} {
			e.ask("textDocument/"+method, map[string]any{"textDocument": map[string]any{"uri": e.uri},
				"position": map[string]any{"line": line, "character": 7}})
		}
	}
}

const storesDAG = `name: stores
jobs:
  - name: visits
    operator: file_source
    source: { kind: poll, every: 10s }
    config: { path: data, format: csv, pattern: "{date}.csv", columns: [shop, visitors],
      types: { shop: VARCHAR, visitors: INTEGER } }
    partition_by: { time: day }
publish:
  shop_visits: { from: { job: visits }, description: Who came. }
`

const rankingDAG = `name: ranking
macros: shared.sql
jobs:
  - name: ranked
    operator: sql
    inputs: [{ from: { dataset: shop_visits }, as: v }]
    config:
      query: |
        SELECT v.shop, half(v.visitros) AS part FROM v
`

// Editors know the DAG files beside the one that is open, as a deploy of the folder does.
func TestEditorsKnowTheFolder(t *testing.T) {
	t.Parallel()
	for _, open := range []bool{true, false} { // the editor has the folder open; or only the file
		folder := t.TempDir()
		stores, ranking := writeDAG(t, folder, "stores", storesDAG), writeDAG(t, folder, "ranking", rankingDAG)
		shared := filepath.Join(folder, "ranking", "shared.sql")
		require.NoError(t, os.WriteFile(shared, []byte("-- Shared.\nCREATE MACRO half(n) AS n / 2;\n"), 0o600))
		root := ""
		if open {
			root = folder
		}
		e := startEditorIn(t, root, ranking)
		e.open(rankingDAG)
		require.Equal(t, []string{`9:31: "v" has no column "visitros" (did you mean "visitors"?)`}, e.shown())
		require.Contains(t, dagctl(t, nil, "validate", folder).err, ranking+`:9:31: "v" has no column "visitros"`)

		text := strings.Replace(rankingDAG, "visitros", "visitors", 1)
		e.change(text)
		require.Empty(t, e.shown())
		require.Contains(t, e.at("completion", text, "dataset: "), `"label":"shop_visits","kind":9,"detail":"of DAG stores"`)
		require.Contains(t, e.at("completion", text, "SELECT "), `"label":"half"`)
		require.Contains(t, e.at("completion", text, "SELECT "), `"label":"_partition"`)
		require.Contains(t, e.at("completion", text, "SELECT v."), `"label":"visitors"`)
		require.Contains(t, e.at("completion", text, "SELECT v."), `"label":"_partition"`)
		require.NotContains(t, e.at("completion", text, "SELECT v."), `"label":"half"`)
		for _, at := range []string{"dataset: shop", "AS part FROM "} {
			hover := e.at("hover", text, at)
			require.Contains(t, hover, "published by DAG stores", at)
			require.Contains(t, hover, "Who came.", at)
			require.Contains(t, hover, "| visitors | INTEGER |", at)
			require.Contains(t, e.at("definition", text, at), `{"range":{"start":{"line":9,"character":2},`+
				`"end":{"line":9,"character":13}},"uri":"file://`+stores+`"`, at)
		}
		require.Contains(t, e.at("definition", text, "hal"), `"line":1,"character":13`)
		require.Contains(t, e.at("definition", text, "hal"), "file://"+shared)

		// What the editor has not saved counts, too: the problem is shown where it is now.
		uri := e.uri
		e.uri = "file://" + stores
		e.open(storesDAG)
		require.Equal(t, []string{"stores"}, e.shownOf())
		e.change(strings.ReplaceAll(storesDAG, "visitors", "guests"))
		told := [][]string{e.shownOf(), e.shownOf()}
		require.ElementsMatch(t, [][]string{{"stores"},
			{"ranking", `9:31: "v" has no column "visitors" (use one of: shop, guests)`}}, told)
		e.tell("textDocument/didClose", map[string]any{"textDocument": map[string]any{"uri": e.uri}})
		told = [][]string{e.shownOf(), e.shownOf()}
		require.ElementsMatch(t, [][]string{{"stores"}, {"ranking"}}, told, "the saved file counts again")

		// Another program writes a file.
		e.uri = uri
		others := strings.NewReplacer("stores", "more", "shop_visits", "night_visits")
		writeDAG(t, folder, "more", others.Replace(storesDAG))
		e.tell("workspace/didChangeWatchedFiles", map[string]any{"changes": []any{}})
		e.change(text + "# more\n")
		require.Empty(t, e.shown())
		require.Contains(t, e.at("completion", text, "dataset: "), `"label":"night_visits"`)
	}
}

// A request before initialize, or after shutdown, is refused as the protocol says; a notification is not heard.
func TestEditorsBeginWithInitialize(t *testing.T) {
	t.Parallel()
	cmd := exec.Command(editorsProgram(t), "lsp")
	var sent strings.Builder
	for _, m := range []string{`{"id":1,"method":"textDocument/hover","params":{}}`,
		`{"method":"textDocument/didOpen","params":{"textDocument":{"uri":"file:///x/dag.yaml","text":"name: 7"}}}`,
		`{"id":2,"method":"initialize","params":{}}`, `{"id":3,"method":"initialize","params":{}}`,
		`{"id":4,"method":"shutdown"}`, `{"id":5,"method":"textDocument/hover","params":{}}`} {
		fmt.Fprintf(&sent, "Content-Length: %d\r\n\r\n%s", len(m), m)
	}
	cmd.Stdin = strings.NewReader(sent.String())
	said, err := cmd.Output()
	require.NoError(t, err)
	require.NotContains(t, string(said), "publishDiagnostics")
	require.Contains(t, string(said), `"id":1,"error":{"code":-32002`)
	require.Contains(t, string(said), `"id":2,"result":{"capabilities"`)
	require.Contains(t, string(said), `"id":3,"error":{"code":-32600`)
	require.Contains(t, string(said), `"id":4,"result":null`)
	require.Contains(t, string(said), `"id":5,"error":{"code":-32600`)
}

// Of texts that come faster than they can be looked at, the last one counts.
func TestEditorsAreToldOfTheNewestText(t *testing.T) {
	t.Parallel()
	var many strings.Builder
	many.WriteString(editedDAG)
	for n := range 3000 {
		fmt.Fprintf(&many, "  - { name: j%d, operator: sql, inputs: [{ from: { job: landing } }], "+
			"config: { query: SELECT station FROM landing } }\n", n)
	}
	e := startEditor(t, filepath.Join(t.TempDir(), "dag.yaml"))
	e.open(many.String())
	for range 50 {
		e.change(many.String() + "# more\n")
	}
	e.change("name: weather\njobs: []\n")
	told := 1
	for !strings.Contains(strings.Join(e.shown(), "\n"), "jobs") {
		told++
	}
	require.Less(t, told, 10, "little is said of the texts before")
}

// What is no message ends the program with an error.
func TestEditorsThatSendNoMessages(t *testing.T) {
	t.Parallel()
	for _, sent := range []string{"hello\n", "Content-Length: x\r\n\r\n", "Content-Length: 5\r\n\r\n{", "A: b\r\n\r\n",
		"Content-Length: 99"} {
		cmd := exec.Command(editorsProgram(t), "lsp")
		cmd.Stdin = strings.NewReader(sent)
		var said bytes.Buffer
		cmd.Stderr = &said
		require.Error(t, cmd.Run(), sent)
		require.Contains(t, said.String(), "the editor", sent)
	}
}

// A message that is no JSON is answered as the protocol says, and so is the one behind it.
func TestEditorsThatSendBadJSON(t *testing.T) {
	t.Parallel()
	cmd := exec.Command(editorsProgram(t), "lsp")
	const next = `{"jsonrpc":"2.0","id":7,"method":"nothing"}`
	cmd.Stdin = strings.NewReader("Content-Length: 5\r\n\r\n{bad}Content-Length: 2\r\n\r\n[]" +
		fmt.Sprintf("Content-Length: %d\r\n\r\n%s", len(next), next))
	said, err := cmd.Output()
	require.NoError(t, err)
	require.Equal(t, 2, strings.Count(string(said), `"id":null,"error":{"code":-32700`), string(said))
	require.Contains(t, string(said), `"id":7,"error":{"code":-32002`)
}
