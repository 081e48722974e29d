// The rules of docs/architecture.md that a compiler does not enforce: who may import whom, who may name which table.
package dagctl_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const module = "github.com/dagctl/dagctl/"

// everything lets a folder import all others; anyInternal stands for the internal packages that are not in confined.
const (
	everything  = "*"
	anyInternal = "internal"
)

// mayImport says which of our folders a folder's product code may import. Tests may import more. A better cut changes
// this table and the code in one commit that says why.
var mayImport = map[string][]string{
	"cmd":        {everything},
	"dag":        {"internal/fault"},
	"registry":   {"dag", "authz", "storage", anyInternal},
	"dispatcher": {"dag", "registry", "lineage", "operators", "storage", "authz", "worker/protocol", anyInternal},
	"operators":  {"dag", "storage", "internal/duck", anyInternal},
	"storage":    {"internal/duck", anyInternal},
	"tasklogs":   {"dispatcher", "authz", "worker/protocol", anyInternal},
	"timers":     {"dag", "registry", "dispatcher", "authz", anyInternal},
	"lineage":    {"registry", "authz", anyInternal},
	"authz":      {"worker/protocol", anyInternal},
	"query":      {"registry", "storage", "authz", "internal/duck", anyInternal},
	// A program that uses worker takes neither DuckDB nor the AWS SDK along: built-in operators and queues are apart.
	"worker":             {"worker/protocol", anyInternal},
	"worker/protocol":    {},
	"worker/builtin":     {"dag", "operators", "storage", "worker", "worker/protocol", anyInternal},
	"worker/queue":       {"worker", "worker/protocol", anyInternal},
	"worker/function":    {"worker", "worker/protocol"},
	"worker/conformance": {"worker", "worker/protocol", anyInternal},
	"workerapi":          {"dag", "registry", "dispatcher", "operators", "storage", "authz", "query", "worker/protocol", anyInternal},
	"web":                {"dag", "registry", "dispatcher", "tasklogs", "operators", "storage", "lineage", "authz", "query", anyInternal},
	"migrations":         {"internal/pg"},
	"internal":           {anyInternal},
	"internal/testdb":    {"migrations", "internal/pgdev", anyInternal},
	"bench":              {everything},
	"examples":           {everything},
}

// confined are internal packages that only those who name them may import.
var confined = []string{"internal/duck", "internal/pgdev", "internal/testaws", "internal/testdb", "internal/tests3"}

// owners says which slice alone names a table in SQL.
var owners = map[string][]string{
	"authz": {"orgs", "users", "org_roles", "org_role_memberships", "service_tokens", "secrets", "audit_log"},
	"registry": {"dag_versions", "dag_current_versions", "dag_activations", "jobs", "job_inputs", "datasets", "dataset_versions",
		"dag_version_datasets", "dataset_pointers", "build_epochs", "partition_versions", "partition_inputs", "check_results",
		"pins", "reader_leases", "udf_bundles"},
	"dispatcher": {"events", "enumerations", "event_consumers", "event_outcomes", "tasks", "ready", "waiting", "leases",
		"task_attempts", "task_inputs", "task_events", "task_results", "outbox", "limits", "sources", "workers", "backpressure", "operator_state", "dataset_cursors", "effect_positions",
		"pauses", "data_invalidations", "backfills", "backfill_partitions",
		"bulk_actions", "bulk_action_tasks"},
	"timers":     {"scheduled_events"},
	"tasklogs":   {"task_logs"},
	"lineage":    {"column_lineage"},
	"migrations": {"schema_migrations", "river_migration"},
}

// lent are the tables that a file of another slice may name, and why.
var lent = map[string][]string{
	// A DAG's timers go with it, in the transaction of its deletion; timers imports dispatcher, so it cannot be called.
	"dispatcher/delete.go": {"scheduled_events"},
	// A dataset's view follows the pointers inside PostgreSQL, so that a cutover moves them and runs no DDL.
	"storage/view.go": {"dag_current_versions", "dag_version_datasets"},
}

func TestImports(t *testing.T) {
	t.Parallel()
	for _, f := range goFiles(t) {
		if f.test {
			continue
		}
		allowed, known := mayImport[f.slice]
		if !known {
			allowed, known = mayImport[strings.Split(f.slice, "/")[0]]
		}
		assert.True(t, known, "%s: folder %s is not in the table of imports", f.path, f.slice)
		for _, spec := range f.syntax.Imports {
			path, err := strconv.Unquote(spec.Path.Value)
			require.NoError(t, err)
			if target, ours := strings.CutPrefix(path, module); ours {
				assert.True(t, permits(allowed, f.slice, sliceOf(target)), "%s: %s may not import %s", f.path, f.slice, target)
			}
		}
	}
}

func permits(allowed []string, from, to string) bool {
	switch {
	case from == to, slices.Contains(allowed, everything), slices.Contains(allowed, to):
		return true
	case slices.Contains(confined, to):
		return false
	}
	return strings.HasPrefix(to, "internal/") && slices.Contains(allowed, anyInternal)
}

func TestOnlyTheOwnerNamesATable(t *testing.T) {
	t.Parallel()
	owner := map[string]string{}
	for slice, tables := range owners {
		for _, table := range tables {
			owner[table] = slice
		}
	}
	for _, f := range goFiles(t) {
		// Tests look at whatever they must; benchmarks and examples are tests of a kind.
		if f.test || f.slice == "bench" || f.slice == "examples" {
			continue
		}
		for _, text := range literals(f.syntax) {
			for _, table := range tablesIn(text) {
				if of, known := owner[table]; known && !slices.Contains(lent[f.path], table) {
					assert.Equal(t, of, f.slice, "%s: table %s is %s's; call its functions", f.path, table, of)
				}
			}
		}
	}
}

func TestEveryTableHasAnOwner(t *testing.T) {
	t.Parallel()
	var known []string
	for _, tables := range owners {
		known = append(known, tables...)
	}
	files, err := filepath.Glob("migrations/*.sql")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, file := range files {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		for _, match := range createTable.FindAllSubmatch(text, -1) {
			assert.Contains(t, known, string(match[1]), "%s: say in this file who owns the table", file)
		}
	}
}

func TestNoSQLInWeb(t *testing.T) {
	t.Parallel()
	for _, f := range goFiles(t) {
		if f.slice != "web" || f.test {
			continue
		}
		for _, spec := range f.syntax.Imports {
			assert.NotContains(t, spec.Path.Value, "jackc/pgx", f.path)
			assert.NotContains(t, spec.Path.Value, "database/sql", f.path)
		}
		for _, text := range literals(f.syntax) {
			assert.NotRegexp(t, statement, text, f.path)
		}
	}
}

func TestEveryPackageSaysWhatItIs(t *testing.T) {
	t.Parallel()
	said := map[string]bool{}
	for _, f := range goFiles(t) {
		if f.test {
			continue
		}
		dir, name := filepath.Dir(f.path), f.syntax.Name.Name
		doc := f.syntax.Doc.Text()
		said[dir] = said[dir] || strings.HasPrefix(doc, "Package "+name+" ") || (name == "main" && strings.HasPrefix(doc, "Command "))
	}
	for dir, ok := range said {
		assert.True(t, ok, "%s has no package comment", dir)
	}
}

// A path of somebody's machine works for nobody else.
func TestNoPathsOfSomebodysMachine(t *testing.T) {
	t.Parallel()
	private := regexp.MustCompile("(^|[\\s\"'`(=:])/(work|root|Users/\\w+|home/\\w+)/")
	const ours = "/home/linuxbrew/" // where Homebrew lives on every Linux machine
	textual := []string{".go", ".mod", ".md", ".yaml", ".yml", ".sql", ".sh", ".html", ".css", ".js", ".py", ".json", ""}
	walk(t, func(path string) {
		if !slices.Contains(textual, filepath.Ext(path)) {
			return
		}
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		found := private.FindString(strings.ReplaceAll(string(text), ours, ""))
		assert.Empty(t, found, path)
	})
}

// goFile is a parsed file of the product's module.
type goFile struct {
	path   string
	slice  string // the folder that the table of imports knows it by
	test   bool
	syntax *ast.File
}

func goFiles(t *testing.T) []goFile {
	t.Helper()
	var files []goFile
	walk(t, func(path string) {
		if filepath.Ext(path) != ".go" || !strings.Contains(path, "/") {
			return
		}
		syntax, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ParseComments|parser.SkipObjectResolution)
		require.NoError(t, err)
		files = append(files, goFile{
			path:   path,
			slice:  sliceOf(filepath.Dir(path)),
			test:   strings.HasSuffix(path, "_test.go") || strings.HasSuffix(filepath.Dir(path), "test"),
			syntax: syntax,
		})
	})
	require.NotEmpty(t, files)
	return files
}

// sliceOf is the first folder of a path, or the first two where the table tells a package from its neighbours.
func sliceOf(dir string) string {
	parts := strings.SplitN(filepath.ToSlash(dir), "/", 3)
	if parts[0] != "internal" && parts[0] != "worker" || len(parts) == 1 {
		return parts[0]
	}
	return parts[0] + "/" + parts[1]
}

// walk visits the repository's files, apart from hidden folders, built things, and folders that are modules of their own.
func walk(t *testing.T, visit func(path string)) {
	t.Helper()
	require.NoError(t, filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if !d.IsDir() {
			visit(filepath.ToSlash(path))
			return nil
		}
		_, noModule := os.Stat(filepath.Join(path, "go.mod"))
		if path != "." && (noModule == nil || path == "bin" || d.Name() == "testdata" || d.Name() == "node_modules" || strings.HasPrefix(d.Name(), ".")) {
			return filepath.SkipDir
		}
		return nil
	}))
}

// literals are the file's strings, import paths apart.
func literals(file *ast.File) []string {
	var texts []string
	ast.Inspect(file, func(n ast.Node) bool {
		if lit, ok := n.(*ast.BasicLit); ok && lit.Kind == token.STRING {
			if text, err := strconv.Unquote(lit.Value); err == nil {
				texts = append(texts, text)
			}
		}
		return true
	})
	return texts
}

var (
	createTable = regexp.MustCompile(`(?m)^\s*CREATE (?:UNLOGGED )?TABLE (?:IF NOT EXISTS )?(\w+)`)
	// Our SQL has its keywords in capitals, which tells it from prose.
	statement  = regexp.MustCompile(`\b(SELECT\s.*\sFROM|INSERT\s+INTO|UPDATE\s+\w+\s+SET|DELETE\s+FROM)\b`)
	tableAfter = regexp.MustCompile(`\b(?:FROM|JOIN|INTO|UPDATE|TABLE|USING)\s+(?:ONLY\s+)?((?:\w+(?:\s+(?:AS\s+)?[a-z]\w*)?\s*,\s*)*\w+)`)
	listed     = regexp.MustCompile(`(?:^|,)\s*(\w+)`)
)

// tablesIn lists what a text names where SQL expects tables.
func tablesIn(text string) []string {
	var names []string
	for _, match := range tableAfter.FindAllStringSubmatch(text, -1) {
		for _, name := range listed.FindAllStringSubmatch(match[1], -1) {
			names = append(names, name[1])
		}
	}
	return names
}

func TestTablesIn(t *testing.T) {
	t.Parallel()
	for text, want := range map[string][]string{
		"SELECT 1 FROM tasks t, ready AS r WHERE true":                        {"tasks", "ready"},
		"WITH x AS (DELETE FROM ONLY leases USING tasks) SELECT":              {"leases", "tasks"},
		"INSERT INTO outbox (kind) SELECT k FROM unnest($1::text[]) AS u (k)": {"outbox", "unnest"},
		"UPDATE jobs SET n = 1\nFROM\n\tdatasets d JOIN users ON true":        {"jobs", "datasets", "users"},
		"read events from tasks":                                              nil,
	} {
		require.Equal(t, want, tablesIn(text), text)
	}
}
