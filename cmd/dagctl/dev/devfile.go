package dev

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"gopkg.in/yaml.v3"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/internal/late"
)

// devFileName is the file beside a DAG file that says which workers the dev server runs for it.
const devFileName = "dev.yaml"

// declared is a worker that a dev.yaml declares.
type declared struct {
	Name    string // for people, unique in a dev server: worker.py, billing/worker.py
	Command []string
	Dir     string
	Env     []string // NAME=VALUE
	Watch   []string // patterns of file names whose change starts the worker anew
	folder  string   // of the dev.yaml
}

func (d declared) equal(other declared) bool { return reflect.DeepEqual(d, other) }

// codeFiles are the files whose change starts a worker anew, unless its `watch` names others.
var codeFiles = []string{"*.py", "*.go", "*.js", "*.mjs", "*.ts", "*.rb", "*.sh", "*.toml"}

// readDevFile returns the workers that the dev.yaml of a folder declares: none without that file.
func readDevFile(root, folder string) ([]declared, dag.Problems, error) {
	file := filepath.Join(folder, devFileName)
	text, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil, nil
	}
	if err != nil {
		return nil, nil, fmt.Errorf("read the workers of a dev server: %w", err)
	}

	r := &devReader{file: file, lines: strings.Split(string(text), "\n")}
	workers := r.read(text)
	for i := range workers {
		w := &workers[i]
		w.folder = folder
		w.Dir = filepath.Join(folder, w.Dir)
		w.Name = w.title(root)
	}
	return workers, r.problems, nil
}

// title names a worker by its program, and by its folder below that of the dev server.
func (d declared) title(root string) string {
	program := path.Base(d.Command[0])
	for _, word := range d.Command {
		if info, err := os.Stat(filepath.Join(d.Dir, word)); err == nil && info.Mode().IsRegular() {
			program = path.Base(word)
		}
	}
	if below, err := filepath.Rel(root, d.Dir); err == nil && below != "." {
		return filepath.Join(below, program)
	}
	return program
}

// devReader reads a dev.yaml and notes what is wrong with it.
type devReader struct {
	file     string
	lines    []string
	problems dag.Problems
}

func (r *devReader) wrong(n *yaml.Node, code dag.Code, suggestion, format string, args ...any) {
	p := dag.Problem{Position: dag.Position{File: r.file, Line: max(n.Line, 1), Column: max(n.Column, 1)}, Code: code,
		Message: fmt.Sprintf(format, args...), Suggestion: suggestion, Width: max(len(n.Value), 1)}
	if p.Line <= len(r.lines) {
		p.Source = strings.TrimRight(r.lines[p.Line-1], "\r")
	}
	r.problems = append(r.problems, p)
}

var syntaxError = late.Pattern(`^yaml: (?:line (\d+): )?`)

func (r *devReader) read(text []byte) (workers []declared) {
	var root yaml.Node
	if err := yaml.Unmarshal(text, &root); err != nil {
		line := 1
		if m := syntaxError.FindStringSubmatch(err.Error()); m != nil {
			line, _ = strconv.Atoi(cmp.Or(m[1], "1"))
		}
		r.wrong(&yaml.Node{Line: line}, dag.CodeSyntax, "", "%s", syntaxError.ReplaceAllString(err.Error(), ""))
		return nil
	}
	if len(root.Content) == 0 {
		r.wrong(&root, dag.CodeMissing, devExample, "%s declares no workers", devFileName)
		return nil
	}

	r.fields(root.Content[0], devFileName, devExample, map[string]func(*yaml.Node){
		"workers": func(list *yaml.Node) {
			if list.Kind != yaml.SequenceNode || len(list.Content) == 0 {
				r.wrong(list, dag.CodeType, devExample, "`workers` is a list of workers")
				return
			}
			for _, n := range list.Content {
				if w, ok := r.worker(n); ok {
					workers = append(workers, w)
				}
			}
		},
	}, "workers")
	return workers
}

const devExample = "for example: workers: [{command: [python3, worker.py]}]"

func (r *devReader) worker(n *yaml.Node) (w declared, ok bool) {
	before := len(r.problems)
	w.Watch = codeFiles

	r.fields(n, "a worker", devExample, map[string]func(*yaml.Node){
		"command": func(n *yaml.Node) {
			w.Command = r.texts(n, "command", "write the program and each of its arguments: [python3, worker.py]")
		},
		"env": func(n *yaml.Node) { w.Env = r.env(n) },

		"watch": func(n *yaml.Node) {
			w.Watch = r.texts(n, "watch", `write patterns of file names: ["*.py", "*.json"]`)
			for i, pattern := range w.Watch {
				if _, err := path.Match(pattern, ""); err != nil || strings.Contains(pattern, "/") {
					r.wrong(n.Content[i], dag.CodeValue, `names without folders, such as "*.py"`,
						"%q is not a pattern of file names", pattern)
				}
			}
		},
		"dir": func(n *yaml.Node) {
			if r.text(n, "dir", "a folder below this file's") && !filepath.IsLocal(n.Value) {
				r.wrong(n, dag.CodeValue, "name a folder below this file's", "`dir` %q is not below this file", n.Value)
			}
			w.Dir = n.Value
		},
	}, "command")
	return w, len(r.problems) == before
}

// fields reads the fields of an object.
func (r *devReader) fields(n *yaml.Node, what, suggestion string, known map[string]func(*yaml.Node), needed string) {
	if n.Kind != yaml.MappingNode {
		r.wrong(n, dag.CodeType, suggestion, "%s is an object with the field `%s`", what, needed)
		return
	}

	seen := map[string]bool{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		read, ok := known[key.Value]
		switch {
		case !ok:
			names := make([]string, 0, len(known))
			for name := range known {
				names = append(names, name)
			}
			slices.Sort(names)
			r.wrong(key, dag.CodeUnknown, "use one of: "+strings.Join(names, ", "), "%s has no field %q", what,
				key.Value)
		case seen[key.Value]:
			r.wrong(key, dag.CodeDuplicate, "", "`%s` is there twice", key.Value)
		default:
			read(value)
		}
		seen[key.Value] = true
	}
	if !seen[needed] {
		r.wrong(n, dag.CodeMissing, suggestion, "%s needs the field `%s`", what, needed)
	}
}

func (r *devReader) texts(n *yaml.Node, field, suggestion string) (texts []string) {
	if n.Kind != yaml.SequenceNode || len(n.Content) == 0 {
		r.wrong(n, dag.CodeType, suggestion, "`%s` is a list of texts", field)
		return nil
	}
	for _, item := range n.Content {
		if r.text(item, field, suggestion) {
			texts = append(texts, item.Value)
		}
	}
	return texts
}

func (r *devReader) text(n *yaml.Node, field, suggestion string) bool {
	if n.Kind != yaml.ScalarNode || n.Value == "" || strings.ContainsRune(n.Value, 0) {
		r.wrong(n, dag.CodeType, suggestion, "`%s` needs a text here", field)
		return false
	}
	return true
}

var variableName = late.Pattern(`^[A-Za-z_][A-Za-z0-9_]*$`)

func (r *devReader) env(n *yaml.Node) (env []string) {
	if n.Kind != yaml.MappingNode {
		r.wrong(n, dag.CodeType, "for example: env: { LOG_LEVEL: debug }", "`env` is an object of variables")
		return nil
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		name, value := n.Content[i], n.Content[i+1]
		switch {
		case !variableName.MatchString(name.Value):
			r.wrong(name, dag.CodeValue, "use letters, digits and underscores", "%q cannot name a variable", name.Value)
		case name.Value == "DAGCTL_URL" || name.Value == "DAGCTL_TOKEN":
			r.wrong(name, dag.CodeValue, "leave it out", "the dev server sets %s itself", name.Value)
		case value.Kind != yaml.ScalarNode || strings.ContainsRune(value.Value, 0):
			r.wrong(value, dag.CodeType, "", "the variable %s needs a text", name.Value)
		default:
			env = append(env, name.Value+"="+value.Value)
		}
	}
	return env
}
