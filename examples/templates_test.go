package examples_test

import (
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/dispatcher"
	"github.com/dagctl/dagctl/dispatcher/views"
	"github.com/dagctl/dagctl/examples/processtest"
	"github.com/dagctl/dagctl/internal/testdb"
	"github.com/dagctl/dagctl/query"
)

// template writes the files of a template, which have to be valid and in the usual form.
func template(t *testing.T, name string) (dir string) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), name)
	processtest.Must(t, t.TempDir(), "init", "--template", name, dir)
	processtest.Must(t, dir, "validate")
	require.Empty(t, processtest.Must(t, dir, "fmt", "--check"))
	return dir
}

// TestTemplateOperator runs what `dagctl init --template operator` writes, and reads the log again once it has grown.
func TestTemplateOperator(t *testing.T) {
	t.Parallel()
	dir := template(t, "operator")
	database, data := testdb.URL(t), t.TempDir()
	once := func() string {
		return processtest.Must(t, dir, "dev", ".", "--once", "--addr", "127.0.0.1:0", "--data", data,
			"--database-url", database)
	}
	require.Regexp(t, `(?s)requests_by_path: 3 rows.*/cart +2 +0\n/search +2 +1\n`, once())

	log, err := os.OpenFile(filepath.Join(dir, "data", "access.log"), os.O_APPEND|os.O_WRONLY, 0)
	require.NoError(t, err)
	_, err = log.WriteString("2026-01-01T08:01:00Z /cart 900\n")
	require.NoError(t, err)
	require.NoError(t, log.Close())

	server := processtest.Dev(t, dir, data, "--database-url", database)
	rows := func() [][]any {
		return processtest.Decode[query.Rows](t, dir, "datasets", "preview", "requests_by_path", "--data", data).Rows
	}
	processtest.Must(t, dir, "run", "requests/requests", "--data", data)
	processtest.Eventually(t, "the new line is counted", func() bool { return rows()[1][1] == float64(3) })
	require.Equal(t, [][]any{{"/", 1.0, 0.0}, {"/cart", 3.0, 1.0}, {"/search", 2.0, 1.0}}, rows())
	server.Stop(t)
}

// A program's folder comes first where Python looks for modules: one called operator.py would take the place of
// Python's own, which others of its modules need.
func TestNoProgramTakesTheNameOfAModule(t *testing.T) {
	t.Parallel()
	const list = "import sys; print(*sys.stdlib_module_names)"
	out, err := exec.CommandContext(t.Context(), "python3", "-c", list).Output()
	require.NoError(t, err)
	modules := strings.Fields(string(out))
	require.Contains(t, modules, "operator")

	for _, root := range []string{".", "../cmd/dagctl/dagfile/templates"} {
		require.NoError(t, filepath.WalkDir(root, func(path string, _ fs.DirEntry, err error) error {
			if name, is := strings.CutSuffix(filepath.Base(path), ".py"); is {
				require.NotContains(t, modules, name, path)
			}
			return err
		}))
	}
}

// TestTemplateWorker runs what `dagctl init --template worker` writes: a server, which runs the worker, too.
func TestTemplateWorker(t *testing.T) {
	t.Parallel()
	w := &world{dir: template(t, "worker"), data: t.TempDir(), dbURL: testdb.URL(t)}
	sdk, err := filepath.Abs("../sdk/python")
	require.NoError(t, err)
	declared, err := os.OpenFile(filepath.Join(w.dir, "dev.yaml"), os.O_APPEND|os.O_WRONLY, 0)
	require.NoError(t, err)
	_, err = fmt.Fprintf(declared, "    env: { PYTHONPATH: %q, PYTHONDONTWRITEBYTECODE: 1 }\n", sdk)
	require.NoError(t, err)
	require.NoError(t, declared.Close())
	server := w.serve(t)

	processtest.Eventually(t, "the version serves", func() bool {
		r := processtest.Run(t, w.dir, "datasets", "preview", "prices", "--partition", "2026-01-02", "--data", w.data)
		return r.Code == 0
	})
	rows := ask[query.Rows](t, w, "datasets", "preview", "prices", "--partition", "2026-01-01")
	require.Equal(t, [][]any{{1.0, 11.9}, {2.0, 23.8}}, rows.Rows)

	mailed := ask[[]dispatcher.Enqueued](t, w, "run", "shop/mail", "--payload", `{"to": "ada@example.com"}`)
	var task views.TaskDetail
	processtest.Eventually(t, "the mail is sent", func() bool {
		task = ask[views.TaskDetail](t, w, "tasks", "get", mailed[0].ID.String())
		return task.Status == "Completed"
	})
	require.JSONEq(t, `{"sent": "ada@example.com"}`, string(task.Result))
	server.Stop(t)
}
