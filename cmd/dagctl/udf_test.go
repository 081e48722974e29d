package main

import (
	"archive/zip"
	"bytes"
	"context"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/cmd/dagctl/cli"
	"github.com/dagctl/dagctl/internal/sandbox"
	"github.com/dagctl/dagctl/registry"
)

// TestCodeIsSentAndNamed: a bundle can replace a folder with the same content, and nothing is rebuilt.
func TestCodeIsSentAndNamed(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	writers := w.env(t, writer)
	dir := t.TempDir()
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "score/__pycache__"), 0o755))
	for name, text := range map[string]string{"score/main.py": "print(1)\n", "score/.env": "SECRET=1",
		"score/__pycache__/x.pyc": "x"} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	id := strings.TrimSpace(must(t, writers, "udf", "push", filepath.Join(dir, "score")))
	require.Len(t, id, 64)

	zipped := filepath.Join(dir, "score.zip")
	file, err := os.Create(zipped)
	require.NoError(t, err)
	archive := zip.NewWriter(file)
	member, err := archive.Create("score/main.py")
	require.NoError(t, err)
	_, err = member.Write([]byte("print(1)\n"))
	require.NoError(t, err)
	require.NoError(t, archive.Close())
	require.NoError(t, file.Close())
	require.Equal(t, id, strings.TrimSpace(must(t, writers, "udf", "push", zipped)),
		"one folder around all of it is not its content")
	bundles := decode[[]registry.Bundle](t, writers, "udf", "list")
	require.Len(t, bundles, 1)
	require.Equal(t, 1, bundles[0].Files)

	path := filepath.Join(dir, "dag.yaml")
	deploy := func(udf string) result {
		text := "name: scoring\njobs:\n  - { name: score, operator: udf, runtime: elsewhere, source: { kind: manual " +
			"}, udf: " + udf + " }\n"
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		return dagctl(t, writers, "deploy", path)
	}
	require.Zero(t, deploy("{ folder: score, entrypoint: main.py }").code)
	same := deploy("{ bundle: " + id + ", entrypoint: main.py }")
	require.Zero(t, same.code, same.err)
	require.NotContains(t, same.out, "rebuild")
	unknown := deploy("{ bundle: " + strings.Repeat("f", 64) + ", entrypoint: main.py }")
	require.NotZero(t, unknown.code)
	require.Contains(t, unknown.err, "there is no bundle")
	require.Contains(t, unknown.err, "dagctl udf push")
	wrong := dagctl(t, writers, "udf", "push", filepath.Join(dir, "none"))
	require.NotZero(t, wrong.code)
}

// hostileArchives are bundles of code that are refused.
func hostileArchives(t *testing.T) map[string][]byte {
	archive := func(fill func(*zip.Writer)) []byte {
		var out bytes.Buffer
		z := zip.NewWriter(&out)
		fill(z)
		require.NoError(t, z.Close())
		return out.Bytes()
	}
	named := func(name string, mode fs.FileMode, text string) []byte {
		return archive(func(z *zip.Writer) {
			header := &zip.FileHeader{Name: name, Method: zip.Deflate}
			header.SetMode(mode)
			member, err := z.CreateHeader(header)
			require.NoError(t, err)
			_, err = member.Write([]byte(text))
			require.NoError(t, err)
		})
	}
	several := func(names ...string) []byte {
		return archive(func(z *zip.Writer) {
			for _, name := range names {
				_, err := z.Create(name)
				require.NoError(t, err)
			}
		})
	}
	numbered := make([]string, 20_000)
	for i := range numbered {
		numbered[i] = strconv.Itoa(i)
	}
	plain := named("main.py", 0o644, strings.Repeat("print(1)\n", 1000))
	lies := bytes.Replace(bytes.Clone(plain), []byte("main.py"), []byte("../x.py"), 1) // before its content only
	lies = bytes.Replace(lies, []byte("PK\x01\x02"), []byte("PK\x01\x03"), 1)
	return map[string][]byte{
		"no archive":    []byte("hello"),
		"empty":         {},
		"nothing in it": archive(func(*zip.Writer) {}),
		"a way out":     named("../evil", 0o644, "x"),
		"a longer way":  named("a/b/../../../evil", 0o644, "x"),
		"absolute":      named("/etc/cron.d/evil", 0o644, "x"),
		"backslashes":   named(`..\evil`, 0o644, "x"),
		"a drive":       named(`C:\evil`, 0o644, "x"),
		"a dot":         named("./evil", 0o644, "x"),
		"no name":       named("", 0o644, "x"),
		"a link":        named("link", fs.ModeSymlink|0o777, "/etc/passwd"),
		"a pipe":        named("pipe", fs.ModeNamedPipe|0o666, ""),
		"a device":      named("null", fs.ModeDevice|fs.ModeCharDevice|0o666, ""),
		"a socket":      named("socket", fs.ModeSocket|0o666, ""),
		"a bomb":        named("zeros", 0o644, strings.Repeat("\x00", 64<<20)),
		"hidden only":   named(".git/HEAD", 0o644, "x"),
		"a NUL":         named("a\x00b", 0o644, "x"),
		"setuid":        named("run", fs.ModeSetuid|0o755, "x"),
		"setgid":        named("run", fs.ModeSetgid|0o755, "x"),
		"case only":     several("Main.py", "main.py"),
		"its folders":   several("lib/a.py", "Lib/b.py"),
		"twice":         several("main.py", "main.py"),
		"file, folder":  several("main.py", "main.py/x"),
		"many files":    several(numbered...),
		"cut off":       plain[:len(plain)-30],
		"its head only": plain[:40],
		"lies":          lies,
	}
}

func TestHostileArchivesAreRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for name, body := range hostileArchives(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			status, text := w.send(t, writer, "POST", "/v1/udf-bundles", "application/zip", bytes.NewReader(body))
			require.GreaterOrEqual(t, status, 400, text)
			require.Less(t, status, 500, text)
		})
	}
}

// TestAWorkerRunsUsersCode: users' code runs on a worker, reads its input and writes its output, and its log is kept.
func TestAWorkerRunsUsersCode(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.land(t, "2026-01-01")
	writers := w.env(t, writer)
	dir := t.TempDir()
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "count"), 0o755))
	script := "#!/bin/sh\ncat > task.json\necho counting\nprintf 'files\\n' > outputs/out/n.csv\n" +
		"ls inputs/landing | wc -l >> outputs/out/n.csv\nid -u\nenv | grep -c DAGCTL\ntrue\n"
	require.NoError(t, os.WriteFile(filepath.Join(dir, "count/run.sh"), []byte(script), 0o600))
	path := filepath.Join(dir, "dag.yaml")
	require.NoError(t, os.WriteFile(path, []byte(`name: own
jobs:
`+landingJob+`  - name: count
    operator: udf
    runtime: elsewhere
    inputs: [{ from: { job: landing } }]
    outputs: [out]
    udf: { folder: count, entrypoint: run.sh }
publish:
  counted: { from: { job: count } }
`), 0o600))
	ctx, stop := context.WithCancel(t.Context())
	var said output
	ended := make(chan int, 1)
	go func() {
		env := map[string]string{"DAGCTL_TOKEN": w.tokens[anyWorker]}
		ended <- run(ctx, []string{"worker", "--url", w.url, "--runtime", "elsewhere", "--scratch-dir", t.TempDir()},
			cli.Environment{In: strings.NewReader(""), Out: &said, Err: &said,
				Getenv: func(name string) string { return env[name] }})
	}()
	t.Cleanup(func() {
		stop()
		<-ended
	})
	deployed := dagctl(t, writers, "deploy", path)
	if missing := sandbox.Available(); missing != nil {
		require.NotZero(t, deployed.code, deployed.out)
		require.Contains(t, must(t, writers, "tasks", "list", "--output", "json"), missing.Error())
		return
	}
	require.Zero(t, deployed.code, deployed.err)
	require.Contains(t, must(t, writers, "datasets", "preview", "counted", "--output", "json"), "1")
	task := w.tasks(t)[0]
	for _, other := range w.tasks(t) {
		if other.Job == "count" {
			task = other
		}
	}
	require.Equal(t, "Completed", task.Status)
	log := must(t, writers, "tasks", "logs", task.ID.String())
	require.Contains(t, log, "info counting\n")
	require.Contains(t, log, "info 0\n", "nothing of the worker's environment is in its own")
}
