package lsp

import (
	"bufio"
	"encoding/json"
	"errors"
	"io"
	"net/url"
	"path/filepath"
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
you type, completes jobs, columns and fields, shows what they are, and goes to the job that makes a relation.

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
	s := &server{catalog: catalog, out: &writer{out: out}, open: map[string]*text{}}
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
	catalog dag.Catalog
	schema  map[string]any
	out     *writer
	looking sync.WaitGroup

	mu   sync.Mutex
	open map[string]*text // by URI
}

// text is an open file.
type text struct {
	now     string
	doc     *dag.Document // of the last look that could read it
	looking bool          // somebody looks at it, and will look again if it changes meanwhile
	closed  bool
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
}

func (s *server) handle(m message) {
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
		s.change(uri, p.TextDocument.Text)
	case "textDocument/didChange":
		if n := len(p.ContentChanges); n > 0 {
			s.change(uri, p.ContentChanges[n-1].Text)
		}
	case "textDocument/didClose":
		s.close(uri)
	default:
		if m.ID != nil {
			s.answer(m, uri, p.Position)
		}
	}
}

// answer answers a request.
func (s *server) answer(m message, uri string, at position) {
	var result any
	switch m.Method {
	case "initialize":
		result = map[string]any{
			"capabilities": map[string]any{
				"textDocumentSync": 1, "hoverProvider": true, "definitionProvider": true,
				"completionProvider": map[string]any{"triggerCharacters": []string{".", " ", "{", ","}},
			},
			"serverInfo": map[string]any{"name": "dagctl"},
		}
	case "shutdown":
		result = json.RawMessage("null")
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

// change takes a new text. One look at a file runs at a time, at the newest text: what was typed meanwhile is looked
// at next, and nothing is said of texts that have changed since.
func (s *server) change(uri, now string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.open[uri]
	if t == nil {
		t = &text{}
		s.open[uri] = t
	}
	t.now = now

	if t.looking {
		return
	}
	t.looking = true
	s.looking.Add(1)
	go func() {
		defer s.looking.Done()
		s.check(uri, t)
	}()
}

// check looks at a text until it does not change any more.
func (s *server) check(uri string, t *text) {
	for {
		s.mu.Lock()
		looked := t.now
		s.mu.Unlock()
		doc, problems, err := dagfile.Source{Path: pathOf(uri), Text: []byte(looked)}.Look(s.catalog)

		s.mu.Lock()
		if err == nil && doc != nil {
			t.doc = doc
		}
		same, closed := t.now == looked, t.closed
		if same || closed {
			t.looking = false
		}
		s.mu.Unlock()
		if closed {
			return
		}
		if same {
			s.publish(uri, looked, problems, err)
			return
		}
	}
}

func (s *server) close(uri string) {
	s.mu.Lock()
	if t := s.open[uri]; t != nil {
		t.closed = true
	}
	delete(s.open, uri)
	s.mu.Unlock()
	s.publish(uri, "", nil, nil)
}

// publish shows what is wrong with a text.
func (s *server) publish(uri, now string, problems dag.Problems, err error) {
	const faulty = 1
	list := []map[string]any{}
	if err != nil {
		list = append(list, map[string]any{"range": span{}, "severity": faulty, "source": "dagctl",
			"message": err.Error()})
	}

	lines := linesOf(now)
	for _, p := range problems {
		line := ""
		if p.Line <= len(lines) {
			line = lines[p.Line-1]
		}
		says := p.Message
		if p.Suggestion != "" {
			says += " (" + p.Suggestion + ")"
		}
		at := span{position{p.Line - 1, utf16Column(line, p.Column-1)},
			position{p.Line - 1, utf16Column(line, p.Column-1+max(1, p.Width))}}
		list = append(list, map[string]any{"range": at, "severity": faulty, "source": "dagctl", "code": p.Code,
			"message": says})
	}

	text, err := json.Marshal(map[string]any{"uri": uri, "diagnostics": list})
	if err == nil {
		s.out.write(message{Method: "textDocument/publishDiagnostics", Params: text})
	}
}

// utf16Column returns a column, in characters from 0, as editors count it.
func utf16Column(line string, column int) int {
	runes := []rune(line)
	return len(utf16.Encode(runes[:max(0, min(column, len(runes)))]))
}

func pathOf(uri string) string {
	u, err := url.Parse(uri)
	if err != nil || u.Scheme != "file" {
		return dagfile.FileName
	}
	return filepath.FromSlash(u.Path)
}
