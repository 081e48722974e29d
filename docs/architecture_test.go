package docs_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// module is the module's Go files, and the names that its documentation may use.
type module struct {
	packages map[string]bool              // folders with a Go file that is no test
	names    map[string]map[string]string // by package name or type: what it declares, and in which file
	declared map[string][]string          // by symbol: the files that declare it
}

// TestArchitectureNamesEveryPackage keeps the page complete: a reader finds each package of the module on it.
func TestArchitectureNamesEveryPackage(t *testing.T) {
	t.Parallel()
	spans := map[string]bool{}
	for _, span := range codeSpans(pageAt(t, "docs/architecture.md")) {
		spans[strings.TrimSuffix(span.text, "/")] = true
	}

	for folder := range readModule(t).packages {
		assert.True(t, spans[folder], "docs/architecture.md does not name `%s/`", folder)
	}
}

// TestArchitectureNamesWhatExists looks up every file, folder, package, table and Go symbol that the page names.
func TestArchitectureNamesWhatExists(t *testing.T) {
	t.Parallel()
	m, tables := readModule(t), tablesOfMigrations(t)
	spans := codeSpans(pageAt(t, "docs/architecture.md"))
	require.NotEmpty(t, spans)

	symbols := 0
	for _, span := range spans {
		switch {
		case strings.Contains(span.text, " "): // a command
		case strings.Contains(span.text, "/"), isFile.MatchString(span.text):
			_, err := os.Stat(filepath.Join(root, filepath.FromSlash(span.text)))
			assert.NoError(t, err, "line %d", span.line)
		case symbol.MatchString(span.text):
			symbols++
			assert.True(t, m.has(span.text) || tables[span.text],
				"line %d: `%s` is neither a Go symbol nor a package nor a table", span.line, span.text)
		default:
			assert.Fail(t, "neither a command, a path nor a symbol", "line %d: `%s`", span.line, span.text)
		}
	}
	require.NotZero(t, symbols)
}

// TestArchitectureNamesTheFilesOfSymbols holds "`gate` in `dispatcher/builds.go`" to its word.
func TestArchitectureNamesTheFilesOfSymbols(t *testing.T) {
	t.Parallel()
	m := readModule(t)
	placed := regexp.MustCompile("`([A-Za-z.]+)(?:\\(\\))?` in `([a-z_0-9/-]+\\.go)`")

	found := placed.FindAllStringSubmatch(pageAt(t, "docs/architecture.md").text, -1)
	for _, match := range found {
		name := match[1][strings.LastIndex(match[1], ".")+1:]
		assert.Contains(t, m.declared[name], match[2], "`%s` is not declared in `%s`", match[1], match[2])
	}
}

var (
	isFile = regexp.MustCompile(`\.(go|md|sql|ya?ml|json|sh|py)$`)
	symbol = regexp.MustCompile(`^[A-Za-z_]\w*(\.[A-Za-z_]\w*){0,2}(\(\))?$`)
)

// codeSpan is a piece of a page between backticks, outside fenced blocks.
type codeSpan struct {
	text string
	line int
}

func codeSpans(p page) []codeSpan {
	var spans []codeSpan
	backticks := regexp.MustCompile("`([^`]+)`")
	fenced := false
	for i, line := range strings.Split(p.text, "\n") {
		if strings.HasPrefix(line, "```") {
			fenced = !fenced
		}
		if fenced {
			continue
		}
		for _, match := range backticks.FindAllStringSubmatch(line, -1) {
			spans = append(spans, codeSpan{text: match[1], line: i + 1})
		}
	}
	return spans
}

// has reports whether a name such as Cutover, registry.Cutover, Dispatcher.route or dispatcher.Dispatcher.route exists.
func (m module) has(name string) bool {
	parts := strings.Split(strings.TrimSuffix(name, "()"), ".")
	if len(parts) == 1 {
		return m.names[name] != nil || m.declared[parts[0]] != nil
	}

	for i := range len(parts) - 1 {
		if m.names[parts[i]][parts[i+1]] == "" {
			return false
		}
	}
	return true
}

func (m module) declare(owner, name, file string) {
	if m.names[owner] == nil {
		m.names[owner] = map[string]string{}
	}
	if name == "" {
		return
	}
	m.names[owner][name] = file
	m.declared[name] = append(m.declared[name], file)
}

// readModule parses the module's Go files, apart from tests and folders that are modules of their own.
func readModule(t *testing.T) module {
	t.Helper()
	m := module{packages: map[string]bool{}, names: map[string]map[string]string{}, declared: map[string][]string{}}
	require.NoError(t, filepath.WalkDir(root, func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() {
			return skipForeign(name, entry)
		}
		if !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go") {
			return nil
		}

		syntax, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, name)
		if err != nil {
			return err
		}
		m.add(filepath.ToSlash(rel), syntax)
		return nil
	}))
	require.NotEmpty(t, m.packages)
	return m
}

// skipForeign leaves out hidden folders, test data, built things and other modules.
func skipForeign(name string, entry fs.DirEntry) error {
	if name == root {
		return nil
	}
	_, noModule := os.Stat(filepath.Join(name, "go.mod"))
	switch base := entry.Name(); {
	case noModule == nil, strings.HasPrefix(base, "."), base == "testdata", base == "node_modules", base == "bin":
		return fs.SkipDir
	}
	return nil
}

// add enters the declarations of a file.
func (m module) add(file string, syntax *ast.File) {
	m.packages[filepath.ToSlash(filepath.Dir(file))] = true
	pkg := syntax.Name.Name
	m.declare(pkg, "", file)

	for _, declaration := range syntax.Decls {
		switch d := declaration.(type) {
		case *ast.FuncDecl:
			owner := pkg
			if d.Recv != nil {
				owner = receiver(d.Recv.List[0].Type)
			}
			m.declare(owner, d.Name.Name, file)
		case *ast.GenDecl:
			for _, spec := range d.Specs {
				m.addSpec(pkg, file, spec)
			}
		}
	}
}

func (m module) addSpec(pkg, file string, spec ast.Spec) {
	switch s := spec.(type) {
	case *ast.ValueSpec:
		for _, name := range s.Names {
			m.declare(pkg, name.Name, file)
		}
	case *ast.TypeSpec:
		m.declare(pkg, s.Name.Name, file)
		var members *ast.FieldList
		switch kind := s.Type.(type) {
		case *ast.StructType:
			members = kind.Fields
		case *ast.InterfaceType:
			members = kind.Methods
		default:
			return
		}
		for _, member := range members.List {
			for _, name := range member.Names {
				m.declare(s.Name.Name, name.Name, file)
			}
		}
	}
}

// receiver is the name of a method's type, without pointer and type parameters.
func receiver(expression ast.Expr) string {
	switch e := expression.(type) {
	case *ast.StarExpr:
		return receiver(e.X)
	case *ast.IndexExpr:
		return receiver(e.X)
	case *ast.IndexListExpr:
		return receiver(e.X)
	case *ast.Ident:
		return e.Name
	}
	return ""
}

// tablesOfMigrations are the tables and views of the schema.
func tablesOfMigrations(t *testing.T) map[string]bool {
	t.Helper()
	create := regexp.MustCompile(`(?m)^\s*CREATE (?:OR REPLACE )?(?:UNLOGGED )?(?:TABLE|VIEW) (?:IF NOT EXISTS )?(\w+)`)
	files, err := filepath.Glob(filepath.Join(root, "migrations", "*.sql"))
	require.NoError(t, err)
	require.NotEmpty(t, files)

	tables := map[string]bool{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		for _, match := range create.FindAllSubmatch(text, -1) {
			tables[string(match[1])] = true
		}
	}
	return tables
}
