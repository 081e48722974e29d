package lsp

import (
	"bufio"
	"encoding/json"
	"errors"
	"io"
	"sync"
	"unicode/utf16"

	"github.com/spf13/cobra"

	"github.com/dagctl/dagctl/cmd/dagctl/cli"
	"github.com/dagctl/dagctl/cmd/dagctl/dagfile"
	"github.com/dagctl/dagctl/dag"
)

// Command returns `dagctl lsp`.
func Command(c *cli.CLI) *cobra.Command {
	return &cobra.Command{
		Use:   "lsp",
		Short: "Answer editors about DAG files, by the Language Server Protocol",
		Long: `Answers an editor over standard input and output: it shows the problems that "dagctl validate" finds while
you type, completes jobs, datasets, columns, macros and fields, shows what they are, and goes to where they are defined.
It knows the datasets that the DAG files below the editor's folder publish.

docs/editors.md has the lines that set up VS Code and Neovim.`,
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			catalog, err := dagfile.BuiltinCatalog()
			if err != nil {
				return err
			}
			return Serve(c.In, c.Out, catalog)
		},
	}
}

// Serve answers an editor until it says exit, or ends.
func Serve(in io.Reader, out io.Writer, catalog dag.Catalog) error {
	s := &server{out: &writer{out: out}, open: map[string]*text{}, shown: map[string]diagnostics{},
		folder: folder{group: dagfile.NewGroup(catalog)}}
	if err := json.Unmarshal(dag.Schema(catalog), &s.schema); err != nil {
		return err
	}
	defer s.looking.Wait()

	from := bufio.NewReader(in)
	for {
		m, err := read(from)
		if errors.Is(err, io.EOF) || err == nil && m.Method == "exit" {
			return s.out.err
		}
		switch {
		case errors.Is(err, errNoJSON):
			s.out.write(message{ID: json.RawMessage("null"), Error: &failure{noJSON, err.Error()}})
		case err != nil:
			return err
		default:
			s.handle(m)
		}
	}
}

// server is what one editor is told.
type server struct {
	schema  map[string]any
	out     *writer
	looking sync.WaitGroup
	stage   stage // of the conversation, which one goroutine leads

	mu       sync.Mutex
	open     map[string]*text // by URI
	roots    []string         // the folders that the editor has open
	changes  int              // of texts and of what is beside them
	rescan   bool             // the folder has to be listed again
	busy     bool             // somebody looks at the files, and will look again if they change meanwhile
	datasets map[string]published

	// Of whoever looks.
	folder folder
	shown  map[string]diagnostics // by URI
}

// stage is how far the conversation with an editor is.
type stage int

const (
	beforeInitialize stage = iota
	talking
	afterShutdown
)

// text is an open file.
type text struct {
	now    string
	change int           // the number of the change that made it
	doc    *dag.Document // of the last look that could read it
}

type position struct {
	Line      int `json:"line"`
	Character int `json:"character"` // in UTF-16
}

type span struct {
	Start position `json:"start"`
	End   position `json:"end"`
}

// params are the parameters of all methods that are known here.
type params struct {
	TextDocument struct {
		URI  string `json:"uri"`
		Text string `json:"text"`
	} `json:"textDocument"`
	ContentChanges []struct {
		Text string `json:"text"`
	} `json:"contentChanges"`
	Position position `json:"position"`

	RootURI string `json:"rootUri"` // of initialize, as are folders
	Folders []struct {
		URI string `json:"uri"`
	} `json:"workspaceFolders"`
}

func (s *server) handle(m message) {
	if s.refuse(m) {
		return
	}
	var p params
	if len(m.Params) > 0 && json.Unmarshal(m.Params, &p) != nil {
		if m.ID != nil {
			s.out.write(message{ID: m.ID, Error: &failure{badParams, "the parameters cannot be read"}})
		}
		return
	}

	uri := p.TextDocument.URI
	switch m.Method {
	case "textDocument/didOpen":
		s.change(uri, p.TextDocument.Text, true)
	case "textDocument/didChange":
		if n := len(p.ContentChanges); n > 0 {
			s.change(uri, p.ContentChanges[n-1].Text, false)
		}
	case "textDocument/didClose":
		s.lookAfter(func() { delete(s.open, uri) })
	case "textDocument/didSave", "workspace/didChangeWatchedFiles":
		s.lookAfter(func() { s.rescan = true })
	default:
		if m.ID != nil {
			s.answer(m, p)
		}
	}
}

// refuse reports whether a message comes before the conversation begins or after its end, and answers it if it is a
// request.
func (s *server) refuse(m message) bool {
	var refusal *failure
	switch first := m.Method == "initialize"; {
	case s.stage == beforeInitialize && !first:
		refusal = &failure{notInitialized, "the editor has to begin with initialize"}
	case s.stage == talking && first:
		refusal = &failure{badRequest, "the editor has sent initialize already"}
	case s.stage == afterShutdown:
		refusal = &failure{badRequest, "nothing but exit follows shutdown"}
	default:
		return false
	}
	if m.ID != nil {
		s.out.write(message{ID: m.ID, Error: refusal})
	}
	return true
}

// answer answers a request.
func (s *server) answer(m message, p params) {
	uri, at := p.TextDocument.URI, p.Position
	var result any
	switch m.Method {
	case "initialize":
		s.begin(p)
		result = map[string]any{
			"capabilities": map[string]any{
				"textDocumentSync": map[string]any{"openClose": true, "change": 1, "save": true},
				"hoverProvider":    true, "definitionProvider": true,
				"completionProvider": map[string]any{"triggerCharacters": []string{".", " ", "{", ","}},
			},
			"serverInfo": map[string]any{"name": "dagctl"},
		}
	case "shutdown":
		s.stage = afterShutdown
	case "textDocument/completion":
		result = s.look(uri, at).complete()
	case "textDocument/hover":
		result = s.look(uri, at).hover()
	case "textDocument/definition":
		result = s.look(uri, at).definition(uri)
	default:
		s.out.write(message{ID: m.ID, Error: &failure{unknownMethod, m.Method + " is not known here"}})
		return
	}

	if result == nil {
		result = json.RawMessage("null")
	}
	s.out.write(message{ID: m.ID, Result: result})
}

// begin notes the folders that the editor has open.
func (s *server) begin(p params) {
	s.stage = talking
	uris := []string{}
	for _, f := range p.Folders {
		uris = append(uris, f.URI)
	}
	if len(uris) == 0 {
		uris = append(uris, p.RootURI)
	}

	s.mu.Lock()
	defer s.mu.Unlock()
	for _, uri := range uris {
		if path, ok := pathOf(uri); ok {
			s.roots = append(s.roots, path)
		}
	}
}

// change takes a new text.
func (s *server) change(uri, now string, opened bool) {
	s.lookAfter(func() {
		t := s.open[uri]
		if t == nil {
			t = &text{}
			s.open[uri] = t
		}
		t.now, t.change = now, s.changes
		s.rescan = s.rescan || opened
	})
}

// lookAfter has the files looked at after a change. One look runs at a time, at the newest texts: what was typed
// meanwhile is looked at next, and nothing is said of texts that have changed since.
func (s *server) lookAfter(change func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.changes++
	change()
	if s.busy {
		return
	}
	s.busy = true
	s.looking.Add(1)
	go func() {
		defer s.looking.Done()
		s.lookUntilStill()
	}()
}

// lookUntilStill looks at the files until they do not change any more.
func (s *server) lookUntilStill() {
	for looked := -1; ; {
		s.mu.Lock()
		if s.changes == looked {
			s.busy = false
			s.mu.Unlock()
			return
		}
		looked = s.changes
		roots, rescan := s.roots, s.rescan
		s.rescan = false
		texts := make(map[string]text, len(s.open))
		for uri, t := range s.open {
			texts[uri] = *t
		}
		s.mu.Unlock()

		found := s.folder.look(roots, texts, rescan)

		s.mu.Lock()
		for uri, seen := range found.open {
			if t := s.open[uri]; t != nil && seen.Err == nil && seen.Doc != nil {
				t.doc = seen.Doc
			}
		}
		s.datasets = found.datasets
		still := s.changes == looked
		s.mu.Unlock()
		if still {
			s.show(texts, found.open)
		}
	}
}

// show shows what is wrong with the open texts where that is not shown already, and clears what is shown of others.
func (s *server) show(texts map[string]text, found map[string]dagfile.Seen) {
	for uri := range s.shown {
		if _, open := texts[uri]; !open {
			delete(s.shown, uri)
			s.publish(uri, []byte("[]"))
		}
	}
	for uri, t := range texts {
		now := diagnostics{t.change, string(diagnose(t.now, found[uri]))}
		if s.shown[uri] != now {
			s.shown[uri] = now
			s.publish(uri, []byte(now.list))
		}
	}
}

// diagnostics is what an editor is shown of a text.
type diagnostics struct {
	change int    // the number of the change that made the text
	list   string // as JSON
}

func (s *server) publish(uri string, list json.RawMessage) {
	params, err := json.Marshal(map[string]any{"uri": uri, "diagnostics": list})
	if err == nil {
		s.out.write(message{Method: "textDocument/publishDiagnostics", Params: params})
	}
}

// diagnose returns what is wrong with a text, as editors are told.
func diagnose(now string, seen dagfile.Seen) []byte {
	const faulty = 1
	list := []map[string]any{}
	if seen.Err != nil {
		list = append(list, map[string]any{"range": span{}, "severity": faulty, "source": "dagctl",
			"message": seen.Err.Error()})
	}

	lines := linesOf(now)
	for _, p := range seen.Problems {
		says := p.Message
		if p.Suggestion != "" {
			says += " (" + p.Suggestion + ")"
		}
		list = append(list, map[string]any{"range": spanOf(lines, p.Line, p.Column, p.Width), "severity": faulty,
			"source": "dagctl", "code": p.Code, "message": says})
	}

	text, err := json.Marshal(list)
	if err != nil {
		return []byte("[]")
	}
	return text
}

// spanOf returns a place in a text, whose lines and columns are counted from 1, as editors count.
func spanOf(lines []string, line, column, width int) span {
	in := ""
	if line >= 1 && line <= len(lines) {
		in = lines[line-1]
	}
	return span{position{line - 1, utf16Column(in, column-1)},
		position{line - 1, utf16Column(in, column-1+max(1, width))}}
}

// utf16Column returns a column, in characters from 0, as editors count it.
func utf16Column(line string, column int) int {
	runes := []rune(line)
	return len(utf16.Encode(runes[:max(0, min(column, len(runes)))]))
}
