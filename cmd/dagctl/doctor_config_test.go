package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/cmd/dagctl/cli"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/internal/testdb"
)

// diagnose runs doctor on a config file, without a server, and returns its output.
func diagnose(t *testing.T, text string) (findings string, code int) {
	t.Helper()
	dir := t.TempDir()
	path := filepath.Join(dir, "config.yaml")
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	r := dagctl(t, map[string]string{"HOME": dir, "DAGCTL_DATA_DIR": dir, "DAGCTL_CONFIG": filepath.Join(dir, "none")},
		"doctor", "--config", path)
	require.Empty(t, r.err)
	return r.out, r.code
}

func TestDoctorChecksRuntimesAndKeys(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	fresh, old := filepath.Join(dir, "fresh.pem"), filepath.Join(dir, "old.pem")
	for _, path := range []string{fresh, old} {
		_, err := authz.EnsureTaskKey(path)
		require.NoError(t, err)
	}
	base := "database_url: postgres://x@127.0.0.1/x\nstorage: {root: /tmp}\n"
	config := func(keys ...string) string {
		return base + "base_url: https://dagctl.example.com\nruntimes:\n  python: poll\n" +
			"  ecs_udf: { kind: poll, orgs: [acme] }\n" +
			fmt.Sprintf("tasks: { key_files: [%s] }\n", strings.Join(keys, ", "))
	}
	out, code := diagnose(t, strings.Replace(config(fresh, old), ", orgs: [acme]", ", operators: [sql]", 1))
	require.Zero(t, code, out)
	require.Contains(t, out, "ecs_udf → poll for operators sql")
	require.Contains(t, out, "python → poll")
	require.Regexp(t, `ok +task keys +.*fresh.pem: ES256, id \S+, signs, 0 days old`, out)
	require.Regexp(t, `ok +task keys +.*old.pem: ES256, id \S{43}, 0 days old`, out)

	out, code = diagnose(t, strings.Replace(config(fresh), ", orgs: [acme]", ", operators: [sqll]", 1))
	require.Equal(t, cli.ExitFailed, code)
	require.Contains(t, out, `there is no operator "sqll"`)
	out, code = diagnose(t, config(fresh))
	require.Equal(t, cli.ExitFailed, code)
	require.Contains(t, out, "runtimes.ecs_udf: tasks of any operator have nowhere to go")

	require.NoError(t, os.Chtimes(old, time.Time{}, time.Now().AddDate(-2, 0, 0)))
	out, _ = diagnose(t, config(old))
	require.Contains(t, out, "make a new key and let both verify for a day")
	require.NoError(t, os.Chmod(old, 0o640))
	out, code = diagnose(t, config(fresh, old))
	require.Equal(t, cli.ExitFailed, code)
	require.Contains(t, out, "others than its owner may use it (mode 0640)")
	require.Contains(t, out, "chmod 600 "+old)

	out, code = diagnose(t, config(fresh, fresh))
	require.Equal(t, cli.ExitFailed, code)
	require.Contains(t, out, "is the same key as")
	out, code = diagnose(t, config(filepath.Join(dir, "nothing.pem")))
	require.Equal(t, cli.ExitFailed, code)
	require.Contains(t, out, "openssl genpkey")
	out, code = diagnose(t, base)
	require.Zero(t, code, out)
	require.Contains(t, out, "none: tasks run only in the server's process")
	out, code = diagnose(t, "runtimes: { a: { kynd: poll } }\n")
	require.Equal(t, cli.ExitFailed, code)
	require.Contains(t, out, `line 1: runtimes.a has no field "kynd"`)
}

func TestDoctorNamesBackgroundWorkThatFails(t *testing.T) {
	t.Parallel()
	url, dir := testdb.URL(t), t.TempDir()
	pool, err := pg.Open(t.Context(), url)
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	ask := func() result {
		return dagctl(t, map[string]string{"HOME": dir, "DAGCTL_DATA_DIR": dir,
			"DAGCTL_CONFIG": filepath.Join(dir, "none")}, "doctor", "--database-url", url)
	}
	require.Contains(t, ask().out, "no work fails")
	_, err = pool.Exec(t.Context(), `INSERT INTO work_items (kind, object, failures, error)
		VALUES ('retention', 'a table', 3, 'no luck')`)
	require.NoError(t, err)
	r := ask()
	require.Equal(t, cli.ExitFailed, r.code)
	require.Regexp(t, `FAIL background retention a table failed 3 times, next at \S+: no luck`, r.out)
}
