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
	"cmd": {everything}, // the programs themselves
	// The rooms of dagctl, which main puts together: server, workers and dev run something, the others are client
	// commands.
	"cmd/dagctl/cli":     {"dag", anyInternal},
	"cmd/dagctl/dagfile": {"cmd/dagctl/cli", "dag", "engine", "operators", anyInternal},
	"cmd/dagctl/dags": {"cmd/dagctl/cli", "cmd/dagctl/dagfile", "cmd/dagctl/datasets", "authz", "dag", "dispatcher",
		"registry", "web", anyInternal},
	"cmd/dagctl/datasets": {"cmd/dagctl/cli", "dispatcher", "lineage", "registry", "query", "web", anyInternal},
	"cmd/dagctl/tasks":    {"cmd/dagctl/cli", "dispatcher", "tasklogs", "timers", anyInternal},
	"cmd/dagctl/access":   {"cmd/dagctl/cli", "authz", anyInternal},
	"cmd/dagctl/server": {"cmd/dagctl/cli", "authz", "dag", "dispatcher", "engine", "lineage", "migrations",
		"operators",
		"query", "registry", "storage", "tasklogs",
		"timers", "web", "workerapi", anyInternal},
	"cmd/dagctl/workers": {"cmd/dagctl/cli", "cmd/dagctl/server", "dispatcher", "engine", "operators", "worker",
		"worker/builtin", "worker/conformance",
		"worker/queue", anyInternal},
	"cmd/dagctl/dev": {"cmd/dagctl/cli", "cmd/dagctl/dagfile", "cmd/dagctl/dags", "cmd/dagctl/datasets",
		"cmd/dagctl/server", "cmd/dagctl/workers",
		"authz", "dag", "dispatcher", "migrations", "operators", "query", "registry", "worker",
		"internal/pgdev",
		anyInternal},

	"dag":                        {"internal/fault", "internal/late", "internal/literal", "internal/spelling"},
	"dag/names":                  {"dag", anyInternal},
	"engine":                     {"dag", "operators/textfile", anyInternal},
	"engine/enginetest":          {"engine", "engine/inside"},
	"engine/inside":              {"engine", "dag", "storage", "operators/textfile", "internal/duck", anyInternal},
	"registry":                   {"registry/contract", "registry/search", "dag", "authz", "storage", anyInternal},
	"registry/contract":          {"dag", anyInternal},
	"registry/flow":              {"registry", "dag", "authz", anyInternal},
	"registry/search":            {},
	"registry/footprint":         {"registry", "dag", "authz", anyInternal},
	"registry/catalog":           {"registry", "dag", "authz", anyInternal},
	"registry/deploy":            {"registry", "registry/contract", "dag", "authz", "storage", anyInternal},
	"dispatcher/wakeup":          {},
	"dispatcher/metrics":         {},
	"dispatcher/workitems":       {anyInternal},
	"dispatcher/tasks":           {"dispatcher/wakeup", "dispatcher/metrics", "dag", "registry", anyInternal},
	"dispatcher/notices":         {"dispatcher/notices/formats", "dispatcher/tasks", "dag", "registry", "authz", anyInternal},
	"dispatcher/notices/formats": {anyInternal},
	"dispatcher/runevents":       {"dispatcher/tasks", "dag", "registry", "lineage", "lineage/openlineage", "authz", anyInternal},
	"dispatcher/pressure":        {"dispatcher/tasks", "dispatcher/wakeup", "registry", "authz", anyInternal},
	"dispatcher/stale":           {"dispatcher/tasks", "dag", "registry", "storage", "operators", anyInternal},
	"dispatcher": {"dispatcher/wakeup", "dispatcher/metrics", "dispatcher/workitems", "dispatcher/tasks", "dispatcher/notices",
		"dispatcher/runevents", "dispatcher/deliveries", "dispatcher/pressure", "dispatcher/stale",
		"dag", "registry", "lineage", "operators", "storage", "authz", "worker/protocol", anyInternal},
	"dispatcher/deliveries": {"dispatcher/tasks", "operators", anyInternal},
	"dispatcher/backends": {"dispatcher", "dispatcher/wakeup", "dispatcher/metrics", "dispatcher/tasks", "dag",
		"registry", "worker/protocol", anyInternal},
	"dispatcher/sources": {"dispatcher", "dispatcher/wakeup", "dispatcher/tasks", "dispatcher/notices",
		"dispatcher/pressure",
		"dag", "registry", "operators", "authz", anyInternal},
	"dispatcher/builds": {"dispatcher", "dispatcher/wakeup", "dispatcher/metrics", "dispatcher/tasks",
		"dispatcher/notices", "dispatcher/pressure",
		"dispatcher/stale", "dispatcher/sources", "dag", "registry", "operators", "storage", "authz",
		anyInternal},
	"dispatcher/views": {"dispatcher", "dispatcher/metrics", "dispatcher/tasks", "dispatcher/pressure", "dispatcher/stale",
		"dispatcher/sources",
		"dag", "registry", "authz", anyInternal},
	"dispatcher/control": {"dispatcher", "dispatcher/wakeup", "dispatcher/tasks", "dispatcher/pressure",
		"dispatcher/stale", "dispatcher/sources",
		"dispatcher/views", "dag", "registry", "storage", "operators", "authz", anyInternal},
	"dispatcher/upkeep": {"dispatcher", "dispatcher/wakeup", "dispatcher/tasks", "dispatcher/workitems", "dispatcher/builds",
		"dispatcher/views", "dispatcher/usage",
		"dag", "registry", "storage", "authz", anyInternal},
	"dispatcher/usage": {"dispatcher", "dispatcher/tasks", "dispatcher/workitems", "dispatcher/views",
		"dag", "registry", "authz", anyInternal},
	"dispatcher/attention": {"dispatcher", "dispatcher/backends", "dispatcher/tasks", "dispatcher/pressure",
		"dispatcher/views", "registry", "authz", anyInternal},
	"dispatcher/why": {"dispatcher", "dispatcher/tasks", "dispatcher/pressure", "dispatcher/stale",
		"dispatcher/backends", "dispatcher/sources",
		"dispatcher/builds", "dispatcher/views", "dag", "registry", "authz", anyInternal},
	"dispatcher/stream": {"dispatcher/tasks", "registry", "authz", anyInternal},
	"dispatcher/httpapi": {"dispatcher", "dispatcher/notices", "dispatcher/pressure", "dispatcher/sources", "dispatcher/builds",
		"dispatcher/views", "dispatcher/control",
		"dispatcher/upkeep", "dispatcher/why", "dispatcher/attention", "dispatcher/usage", "dispatcher/tasks", "registry", "authz",
		anyInternal},
	"dispatcher/service": {"dispatcher", "dispatcher/backends", "dispatcher/notices", "dispatcher/runevents", "dispatcher/sources",
		"dispatcher/builds", "dispatcher/views",
		"dispatcher/control", "dispatcher/upkeep", "dispatcher/why", "dispatcher/attention", "dispatcher/stream",
		"dispatcher/usage",
		"dispatcher/httpapi", anyInternal},
	"operators":                {"operators/textfile", "dag", "engine", "storage", "worker/protocol", anyInternal},
	"operators/textfile":       {anyInternal},
	"operators/alertevaluate":  {"operators", "operators/alerts", "dag", anyInternal},
	"operators/alertroute":     {"operators", "operators/alerts", "operators/webhook", "dag", anyInternal},
	"operators/alerts":         {"dag", anyInternal},
	"operators/blockfollower":  {"operators", "operators/evm", "dag", anyInternal},
	"operators/bucket":         {"operators", "dag", anyInternal},
	"operators/evm":            {"operators", "operators/patience", "engine", "dag", anyInternal},
	"operators/evmrangeingest": {"operators", "operators/evm", "dag", anyInternal},
	"operators/fence":          {"operators"},
	"operators/httpapi":        {"operators", "operators/patience", "operators/textfile", "dag", anyInternal},
	"operators/integritycheck": {"operators", "operators/ranges", "dag", "storage", anyInternal},
	"operators/mysqlquery":     {"operators", "operators/remotequery", "operators/textfile", "dag", anyInternal},
	"operators/parquetcompact": {"operators", "engine", "dag", anyInternal},
	"operators/parquetexport": {"operators", "operators/bucket", "operators/fence", "operators/patience",
		"dag", anyInternal},
	"operators/patience":        {"operators", anyInternal},
	"operators/postgresload":    {"operators", "operators/fence", "dag", "storage", anyInternal},
	"operators/postgresquery":   {"operators", "operators/remotequery", "operators/textfile", "dag", anyInternal},
	"operators/rangeaggregator": {"operators", "operators/ranges"},
	"operators/ranges":          {"operators", "dag", anyInternal},
	"operators/rangesplitter":   {"operators", "operators/ranges"},
	"operators/remotequery":     {"operators", "operators/textfile", "dag", anyInternal},
	"operators/s3source":        {"operators", "operators/bucket", "operators/textfile", "dag", anyInternal},
	"operators/seed":            {"operators", "operators/textfile", "dag", anyInternal},
	"operators/standard": {"operators", "operators/alertevaluate", "operators/alertroute",
		"operators/blockfollower", "operators/evmrangeingest", "operators/httpapi",
		"operators/integritycheck", "operators/mysqlquery", "operators/parquetcompact",
		"operators/parquetexport", "operators/postgresload", "operators/postgresquery",
		"operators/rangeaggregator", "operators/rangesplitter", "operators/s3source", "operators/seed",
		"operators/webhook"},
	"operators/webhook": {"operators", "operators/patience", "dag", anyInternal},
	"operators/operatortest": {"operators", "engine", "dag", "storage", "internal/duck",
		anyInternal},
	"storage":                             {anyInternal},
	"storage/health":                      {"storage", anyInternal},
	"tasklogs":                            {"dispatcher", "authz", "worker/protocol", anyInternal},
	"timers":                              {"dag", "registry", "dispatcher", "authz", anyInternal},
	"lineage/openlineage":                 {"lineage"},
	"lineage/openlineage/openlineagetest": {"lineage/openlineage"},
	"lineage":                             {"registry", "authz", anyInternal},
	"lineage/intake":                      {"lineage", "lineage/openlineage", "registry", "authz", anyInternal},
	"authz":                               {"worker/protocol", anyInternal},
	"authz/identity":                      {"authz", anyInternal},
	"authz/scim":                          {"authz", anyInternal},
	"query":                               {"engine", "registry", "storage", "authz", anyInternal},
	// A program that uses worker takes neither DuckDB nor the AWS SDK along: built-in operators and queues are apart.
	"worker":             {"worker/protocol", anyInternal},
	"worker/protocol":    {},
	"worker/builtin":     {"dag", "operators", "storage", "worker", "worker/protocol", anyInternal},
	"worker/queue":       {"worker", "worker/protocol", anyInternal},
	"worker/function":    {"worker", "worker/protocol"},
	"worker/conformance": {"worker", "worker/protocol", anyInternal},
	"workerapi": {"dag", "registry", "dispatcher", "operators", "storage", "authz", "query",
		"worker/protocol", anyInternal},
	"web": {"dag", "registry", "dispatcher", "tasklogs", "operators", "storage", "lineage", "authz",
		"query", "timers", anyInternal},
	"migrations":           {"internal/fault", "internal/pg"},
	"internal":             {anyInternal},
	"internal/testaws":     {"internal/testserver", anyInternal},
	"internal/testbrowser": {"internal/testserver", anyInternal},
	"internal/testdb":      {"migrations", "internal/pgdev", anyInternal},
	"internal/testgeth":    {"internal/testserver", anyInternal},
	"internal/testmysql":   {"internal/testserver", anyInternal},
	"internal/testoidc":    {"internal/testserver", anyInternal},
	"internal/tests3":      {"internal/testserver", anyInternal},
	"bench":                {everything},
	"examples":             {everything},
}

// confined are packages that only those who name them may import. engine/inside has DuckDB in it, and only programs that
// can be engines may.
var confined = []string{"engine/inside", "internal/duck", "internal/pgdev", "internal/testaws", "internal/testbrowser",
	"internal/testdb", "internal/testgeth", "internal/testmysql", "internal/testoidc", "internal/tests3", "internal/testserver"}

// duckDB are the rooms that talk with DuckDB's driver.
var duckDB = []string{"internal/duck", "engine/inside"}

// owners says which slice alone names a table in SQL.
var owners = map[string][]string{
	"authz": {"orgs", "org_quotas", "org_usage", "users", "org_roles", "org_role_memberships", "service_tokens", "secrets", "audit_log",
		"previous_secrets", "trust_rules", "sessions", "sign_in_links", "cli_logins", "audit_heads",
		"scim_users", "scim_groups", "scim_group_members"},
	"registry": {"dag_versions", "dag_current_versions", "dag_activations", "jobs", "job_inputs", "datasets",
		"dataset_versions",
		"dag_version_datasets", "generation_inputs", "read_role_patterns",
		"dataset_names", "dataset_name_owners", "dataset_pointers", "build_epochs",
		"partition_versions", "partition_inputs", "check_results", "pins", "reader_leases", "dataset_readings", "udf_bundles",
		"reading_changes", "reading_epochs", "kept_hidden"},
	"dispatcher": {"events", "enumerations", "event_consumers", "event_outcomes", "tasks", "ready", "waiting", "leases",
		"task_attempts", "task_inputs", "task_events", "task_results", "outbox", "told_notices", "limits", "sources", "workers",
		"backpressure", "org_backpressure", "operator_state", "dataset_cursors", "effect_positions",
		"pauses", "data_invalidations", "backfills", "backfill_partitions", "work_items", "awaited_inputs",
		"bulk_actions", "bulk_action_tasks", "deliveries", "delivery_marks", "usage_hours", "usage_days", "usage_dag_days",
		"usage_stored", "usage_progress"},
	"storage":    {"installation", "storage_servers"},
	"timers":     {"scheduled_events"},
	"tasklogs":   {"task_logs"},
	"lineage":    {"column_lineage", "external_runs", "external_edges"},
	"migrations": {"schema_migrations", "river_migration"},
}

// lent are the tables that a file of another slice may name, and why.
var lent = map[string][]string{
	// A DAG's timers go with it, in the transaction of its deletion; timers imports dispatcher, so it cannot be called.
	"dispatcher/upkeep/delete.go": {"scheduled_events"},
	// The timers of a renamed job go with it, in the transaction of the cutover, as its pause does.
	"dispatcher/builds/cutover.go": {"scheduled_events"},
	// Sweeps remove ended timers, and the positions at partitions that are gone, in the statements that look for them.
	"dispatcher/upkeep/old_rows.go": {"scheduled_events", "partition_versions"},
	// A dataset's view follows the pointers inside PostgreSQL, so that a cutover moves them and runs no DDL.
	"storage/view.go": {"dag_current_versions", "dag_version_datasets", "dataset_names"},
	// The first rows of a dataset that serves already make its view.
	"storage/view_cover.go": {"dag_current_versions", "dag_version_datasets", "dataset_name_owners"},
}

func TestImports(t *testing.T) {
	t.Parallel()
	for _, f := range goFiles(t) {
		if f.test {
			continue
		}
		allowed, known := mayImport[f.room]
		if top, _, _ := strings.Cut(f.room, "/"); !known && top != "dispatcher" && top != "registry" {
			allowed, known = mayImport[top]
		}
		assert.True(t, known, "%s: folder %s is not in the table of imports", f.path, f.room)
		for _, spec := range f.syntax.Imports {
			path, err := strconv.Unquote(spec.Path.Value)
			require.NoError(t, err)
			if strings.HasPrefix(path, "github.com/duckdb/") {
				assert.Contains(t, duckDB, f.room, "%s: only engines have DuckDB in them", f.path)
			}
			if target, ours := strings.CutPrefix(path, module); ours {
				assert.True(t, permits(allowed, f.room, roomOf(target)), "%s: %s may not import %s", f.path,
					f.room, target)
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
	case sliceOf(from) != sliceOf(to) && slices.Contains(allowed, sliceOf(to)):
		return true // from outside, a slice is open with all its rooms
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
		said[dir] = said[dir] || strings.HasPrefix(doc, "Package "+name+" ") ||
			(name == "main" && strings.HasPrefix(doc, "Command "))
	}
	for dir, ok := range said {
		assert.True(t, ok, "%s has no package comment", dir)
	}
}

// A path of somebody's machine works for nobody else.
func TestNoPathsOfSomebodysMachine(t *testing.T) {
	t.Parallel()
	private := regexp.MustCompile("(^|[\\s\"'`(=:])/(work|root|Users/\\w+|home/\\w+)/")
	places := []string{"work", "root", "Users", "home"}
	const ours = "/home/linuxbrew/" // where Homebrew lives on every Linux machine
	textual := []string{".go", ".mod", ".md", ".yaml", ".yml", ".sql", ".sh", ".html", ".css", ".js", ".py", ".json",
		""}
	walk(t, func(path string) {
		if !slices.Contains(textual, filepath.Ext(path)) {
			return
		}
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		others := strings.ReplaceAll(string(text), ours, "")
		if !slices.ContainsFunc(places, func(place string) bool { return strings.Contains(others, "/"+place+"/") }) {
			return // the expression takes half a minute for all files
		}
		assert.Empty(t, private.FindString(others), path)
	})
}

// taskWords are the statuses of tasks, and the kinds and reasons that mean nothing else. Values of other things with
// the same texts, such as the status of a backfill, are named constants too.
var taskWords = []string{"Queued", "Running", "Completed", "Failed", "Canceled", "reactive", "sibling", "backoff",
	"run_at",
	"lease_expired", "handed_back", "superseded", "abandoned"}

// A status that is written out where it is compared or set may be misspelt, and no compiler notices.
func TestNoRawStatus(t *testing.T) {
	t.Parallel()
	for _, f := range goFiles(t) {
		if f.slice != "dispatcher" || f.test {
			continue
		}
		ast.Inspect(f.syntax, func(n ast.Node) bool {
			if decl, ok := n.(*ast.GenDecl); ok && decl.Tok == token.CONST {
				return false // the name that others use
			}
			if lit, ok := n.(*ast.BasicLit); ok && lit.Kind == token.STRING {
				text, err := strconv.Unquote(lit.Value)
				require.NoError(t, err)
				assert.NotContains(t, taskWords, text, "%s: %q is the text of a constant: name that", f.path, text)
			}
			return true
		})
		for _, text := range rawKinds(f.syntax) {
			assert.Fail(t, "raw kind", "%s: a task of kind %s: name the constant", f.path, text)
		}
	}
}

// rawKinds lists the kinds that composite literals of tasks.Request write out.
func rawKinds(file *ast.File) (kinds []string) {
	ast.Inspect(file, func(n ast.Node) bool {
		made, ok := n.(*ast.CompositeLit)
		if !ok {
			return true
		}
		if of, ok := made.Type.(*ast.SelectorExpr); !ok || of.Sel.Name != "Request" {
			return true
		}
		for _, field := range made.Elts {
			pair, ok := field.(*ast.KeyValueExpr)
			if !ok {
				continue
			}
			key, ok := pair.Key.(*ast.Ident)
			if lit, raw := pair.Value.(*ast.BasicLit); ok && raw && key.Name == "Kind" {
				kinds = append(kinds, lit.Value)
			}
		}
		return true
	})
	return kinds
}

// readsMessages are the files that may branch on the text of an error, and why.
var readsMessages = map[string]string{
	"cmd/dagctl/mistyped.go":          "cobra says only in its text which flag or argument is wrong",
	"internal/rest/wording.go":        "huma says only in its text what is wrong with a parameter",
	"internal/child/said.go":          "what a program or DuckDB says of a disk is only text",
	"internal/pgdev/server.go":        "PostgreSQL says only in its log that another process took the port",
	"operators/secrets.go":            "an error is replaced where redacting its text changes it",
	"worker/conformance/scenarios.go": "a scenario checks that a worker passes on the message of a failure",
}

// Messages are for people, who may reword them: programs branch on types and kinds of errors.
func TestNoBranchOnAMessage(t *testing.T) {
	t.Parallel()
	found := map[string]bool{}
	for _, f := range goFiles(t) {
		if f.test || f.slice == "bench" || f.slice == "examples" {
			continue
		}
		ast.Inspect(f.syntax, func(n ast.Node) bool {
			if node, ok := n.(ast.Expr); ok && testsMessage(node) {
				found[f.path] = true
			}
			return true
		})
	}
	for path := range found {
		assert.Contains(t, readsMessages, path, "branch on the error's type or kind, not on its text")
	}
	for path := range readsMessages {
		assert.Contains(t, found, path, "it does not read messages any more: take it off the list")
	}
}

// testsMessage reports whether an expression compares the text of an error, or looks for something in that text or in
// a field called state or message.
func testsMessage(e ast.Expr) bool {
	switch e := e.(type) {
	case *ast.CallExpr:
		called, ok := e.Fun.(*ast.SelectorExpr)
		if !ok || !slices.Contains(textTests, called.Sel.Name) {
			return false
		}
		pkg, ok := called.X.(*ast.Ident)
		if !ok || pkg.Name != "strings" {
			return false
		}
		return slices.ContainsFunc(e.Args, isMessage)
	case *ast.BinaryExpr:
		if e.Op != token.EQL && e.Op != token.NEQ {
			return false
		}
		return isErrorText(e.X) || isErrorText(e.Y)
	}
	return false
}

var textTests = []string{"Contains", "ContainsAny", "HasPrefix", "HasSuffix", "Index", "EqualFold"}

// isMessage reports whether an expression is the text of an error, or a field named like one.
func isMessage(e ast.Expr) bool {
	field, ok := e.(*ast.SelectorExpr)
	return isErrorText(e) || ok && slices.Contains([]string{"state", "State", "message", "Message"}, field.Sel.Name)
}

// isErrorText reports whether an expression is a call of a method Error without arguments.
func isErrorText(e ast.Expr) bool {
	call, ok := e.(*ast.CallExpr)
	if !ok || len(call.Args) > 0 {
		return false
	}
	method, ok := call.Fun.(*ast.SelectorExpr)
	return ok && method.Sel.Name == "Error"
}

func TestTestsMessage(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]bool{
		`strings.Contains(err.Error(), "no such")`:   true,
		`strings.HasPrefix(row.state, "skipped: ")`:  true,
		`err.Error() == "no"`:                        true,
		`"no" != x.Err().Error()`:                    true,
		`strings.Contains(task.Name, "x")`:           false,
		`strings.ReplaceAll(err.Error(), "\n", " ")`: false,
		`task.State == ""`:                           false,
	} {
		e, err := parser.ParseExpr(text)
		require.NoError(t, err)
		require.Equal(t, want, testsMessage(e), text)
	}
}

// goFile is a parsed file of the product's module.
type goFile struct {
	path   string
	slice  string // the folder that owns its tables
	room   string // the folder that the table of imports knows it by
	test   bool
	syntax *ast.File
	fset   *token.FileSet
}

func (f goFile) line(pos token.Pos) int { return f.fset.Position(pos).Line }

func goFiles(t *testing.T) []goFile {
	t.Helper()
	var files []goFile
	walk(t, func(path string) {
		if filepath.Ext(path) != ".go" || !strings.Contains(path, "/") {
			return
		}
		fset := token.NewFileSet()
		syntax, err := parser.ParseFile(fset, path, nil, parser.ParseComments|parser.SkipObjectResolution)
		require.NoError(t, err)
		files = append(files, goFile{
			path:   path,
			slice:  sliceOf(filepath.Dir(path)),
			room:   roomOf(filepath.Dir(path)),
			test:   strings.HasSuffix(path, "_test.go") || strings.HasSuffix(filepath.Dir(path), "test"),
			syntax: syntax,
			fset:   fset,
		})
	})
	require.NotEmpty(t, files)
	return files
}

// roomed are the slices with rooms: folders of their own in the table of imports.
var roomed = []string{"internal", "worker", "dispatcher", "registry", "engine", "operators", "dag"}

// roomOf returns the folder that the table of imports knows a path by: the first of the path; in a slice with rooms the
// first two, and for the rooms of dagctl three.
func roomOf(dir string) string {
	parts := strings.Split(filepath.ToSlash(dir), "/")
	switch {
	case len(parts) > 2 && parts[0] == "cmd" && parts[1] == "dagctl":
		return strings.Join(parts[:3], "/")
	case len(parts) > 1 && slices.Contains(roomed, parts[0]):
		return strings.Join(parts[:2], "/")
	}
	return parts[0]
}

// sliceOf returns the top-level folder of a path, and the first two below internal and worker, whose folders have
// nothing in common.
func sliceOf(dir string) string {
	top, _, _ := strings.Cut(filepath.ToSlash(dir), "/")
	if top == "internal" || top == "worker" || top == "cmd" {
		return roomOf(dir)
	}
	return top
}

// walk visits the repository's files, apart from hidden folders, built things, and folders that are modules of their
// own.
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
		if path != "." && (noModule == nil || path == "bin" || d.Name() == "testdata" || d.Name() == "node_modules" ||
			strings.HasPrefix(d.Name(), ".")) {
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
	// Our SQL has its keywords in capitals, which distinguishes it from prose.
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

// mostFiles bounds the product files of a package: more than that is a hall and not a room.
const mostFiles = 40

func TestPackagesAreRooms(t *testing.T) {
	t.Parallel()
	files := map[string]int{}
	for _, f := range goFiles(t) {
		if !f.test {
			files[filepath.Dir(f.path)]++
		}
	}
	for dir, n := range files {
		assert.LessOrEqual(t, n, mostFiles, "%s: cut it into rooms", dir)
	}
}

// TestFileNamesTellHalvesApart checks that no two packages of a slice with rooms use one file name: a name that stands
// in two of them says that one thing was cut in half.
func TestFileNamesTellHalvesApart(t *testing.T) {
	t.Parallel()
	seen := map[string]string{}
	for _, f := range goFiles(t) {
		if f.test || f.slice != "dispatcher" && f.slice != "registry" {
			continue
		}
		name := f.slice + "/" + filepath.Base(f.path)
		assert.Empty(t, seen[name], "%s has the same name: give one of them a name of its own", f.path)
		seen[name] = f.path
	}
}

// mostColumns bounds the lines of code and tests, with tabs of four columns.
const mostColumns = 120

// TestLinesAreNarrow leaves out what cannot be broken well: tags of struct fields and what stands in raw strings.
func TestLinesAreNarrow(t *testing.T) {
	t.Parallel()
	for _, f := range goFiles(t) {
		raw := linesOfRawStrings(f)
		text, err := os.ReadFile(f.path)
		require.NoError(t, err)
		for i, line := range strings.Split(string(text), "\n") {
			wide := len([]rune(strings.ReplaceAll(line, "\t", "    ")))
			if wide > mostColumns && !raw[i+1] {
				t.Errorf("%s:%d: %d columns", f.path, i+1, wide)
			}
		}
	}
}

// linesOfRawStrings returns the lines of a file that a string in backquotes reaches over.
func linesOfRawStrings(f goFile) map[int]bool {
	lines := map[int]bool{}
	ast.Inspect(f.syntax, func(n ast.Node) bool {
		if lit, ok := n.(*ast.BasicLit); ok && lit.Kind == token.STRING && strings.HasPrefix(lit.Value, "`") {
			for line := f.line(lit.Pos()); line <= f.line(lit.End()); line++ {
				lines[line] = true
			}
		}
		return true
	})
	return lines
}

// longBody is how many lines a body may have without a paragraph, and fewSteps how many statements.
const longBody, fewSteps = 15, 3

// TestLongBodiesHaveParagraphs does not count the lines of raw strings: a statement in SQL is one step, however long.
func TestLongBodiesHaveParagraphs(t *testing.T) {
	t.Parallel()
	for _, f := range goFiles(t) {
		if f.test {
			continue
		}
		text, err := os.ReadFile(f.path)
		require.NoError(t, err)
		lines, raw := strings.Split(string(text), "\n"), linesOfRawStrings(f)
		for _, decl := range f.syntax.Decls {
			fn, ok := decl.(*ast.FuncDecl)
			if !ok || fn.Body == nil {
				continue
			}
			first, last := f.line(fn.Body.Lbrace), f.line(fn.Body.Rbrace)
			body := lines[min(first, last-1) : last-1]
			long := 0
			for line := first + 1; line < last; line++ {
				if !raw[line] {
					long++
				}
			}
			if long > longBody && len(fn.Body.List) > fewSteps && !slices.ContainsFunc(body, isBlank) {
				t.Errorf("%s:%d: %s has %d lines and no paragraph", f.path, first, fn.Name.Name, long)
			}
		}
	}
}

func isBlank(line string) bool { return strings.TrimSpace(line) == "" }

// dataSessions are the files that may open a session of DuckDB by themselves, because it reads no rows of users, and
// why. Everything else opens it by duck.OpenData, which asks for the scope.
var dataSessions = map[string]string{
	"engine/inside/parse.go":                 "parses",
	"operators/operatortest/operatortest.go": "compares outputs in tests",
	"dispatcher/dispatchertest/probe.go":     "makes data for tests",
	"bench/operators.go":                     "makes data",
	"examples/us-flights/generate/main.go":   "makes data",
}

// Rows mean the same wherever they are read, since all sessions that read them are set up in one place.
func TestSessionsOverDataHaveOneConstructor(t *testing.T) {
	t.Parallel()
	opens := regexp.MustCompile(`duck\.(Open\(|Config\{)|duckdb\.NewConnector\(|sql\.Open\("duckdb"`)
	walk(t, func(path string) {
		path = filepath.ToSlash(path)
		if !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") ||
			strings.HasPrefix(path, "internal/duck/") {
			return
		}
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		_, exempt := dataSessions[path]
		assert.Equal(t, exempt, opens.Match(text), "%s: use duck.OpenData", path)
	})
}
