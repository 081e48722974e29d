package operators_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/engine/enginetest"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/sandbox"
	"github.com/dagctl/dagctl/internal/secret"
	"github.com/dagctl/dagctl/operators"
	"github.com/dagctl/dagctl/operators/operatortest"
)

// TestMain lets this binary be the command of the tests below: `self` runs one of the programs.
func TestMain(m *testing.M) {
	sandbox.Stage()
	if len(os.Args) > 2 && os.Args[1] == "be" {
		programs[os.Args[2]]()
		return
	}
	os.Exit(m.Run())
}

// anyProgram lets programs of tests reach the folders of tests, this binary among them.
var anyProgram = operators.CommandOptions{Every: true, Paths: append(operators.ToolFolders(), os.TempDir()),
	Shared: []string{os.TempDir()}}

func self(t *testing.T, program string, env map[string]any) map[string]any {
	t.Helper()
	path, err := os.Executable()
	require.NoError(t, err)
	config := map[string]any{"argv": []string{path, "be", program}}
	if env != nil {
		config["env"] = env
	}
	return config
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}

var programs = map[string]func(){
	"lines": func() { // writes its task as rows
		var task operators.CommandTask
		must(json.NewDecoder(os.Stdin).Decode(&task))
		wd, err := os.Getwd()
		must(err)
		rows := [][2]string{
			{"job", task.DAG + "/" + task.Job}, {"inputs", task.Inputs[0].As + " " +
				strconv.Itoa(len(task.Inputs[0].Files))},
			{"partition", task.Partition.Key}, {"in scratch", strconv.FormatBool(wd == task.Scratch)},
			{"payload", string(task.Payload)},
		}

		for _, variable := range os.Environ() {
			name, value, _ := strings.Cut(variable, "=")
			if name != "PATH" && name != "HOME" && name != "TMPDIR" && name != "GOCOVERDIR" {
				rows = append(rows, [2]string{"env " + name, value})
			}
		}

		f, err := os.Create(filepath.Join(task.Outputs[0].Dir, "rows.ndjson"))
		must(err)
		for _, row := range rows {
			must(json.NewEncoder(f).Encode(map[string]string{"a": row[0], "b": row[1]}))
		}

		must(f.Close())
		os.Stdout.WriteString("working\n" +
			`{"result": {"ok": true}, "operator_state": {"n": 1}, "source_version": "v1"}` + "\n")
	},
	"csv": func() {
		var task operators.CommandTask
		must(json.NewDecoder(os.Stdin).Decode(&task))
		must(os.WriteFile(filepath.Join(task.Outputs[0].Dir, "a.csv"), []byte("x,y\n1,a\n"), 0o600))
		must(os.WriteFile(filepath.Join(task.Outputs[0].Dir, "b.csv"), []byte("x,y\n2,b\n"), 0o600))
	},
	"fail": func() { os.Stderr.WriteString(strings.Repeat("noise\n", 10_000) + "the reason\n"); os.Exit(1) },
	"full": func() { os.Stderr.WriteString("OSError: [Errno 28] No space left on device: 'n.csv'\n"); os.Exit(1) },
	"data": func() { os.Stderr.WriteString("a bad row\n"); os.Exit(65) },
	"stubborn": func() { // starts a child, and reports SIGTERM before it ends
		var task operators.CommandTask
		must(json.NewDecoder(os.Stdin).Decode(&task))
		path, err := os.Executable()
		must(err)
		child, err := os.StartProcess(path, []string{path, "be", "sleeper"}, &os.ProcAttr{})
		must(err)
		must(os.WriteFile(string(task.Payload[1:len(task.Payload)-1]), []byte(strconv.Itoa(child.Pid)), 0o600))
		select {}
	},
	"copy": func() { // copies its input
		var task operators.CommandTask
		must(json.NewDecoder(os.Stdin).Decode(&task))
		for i, file := range task.Inputs[0].Files {
			content, err := os.ReadFile(file)
			must(err)
			must(os.WriteFile(filepath.Join(task.Outputs[0].Dir, strconv.Itoa(i)+".parquet"), content, 0o600))
		}
	},
	"stray": func() { // writes its rows where nobody looks
		var task operators.CommandTask
		must(json.NewDecoder(os.Stdin).Decode(&task))
		must(os.WriteFile(filepath.Join(task.Outputs[0].Dir, "_done"), nil, 0o600))
		must(os.WriteFile(filepath.Join(task.Outputs[0].Dir, "rows.txt"), []byte("n\n1\n"), 0o600))
	},
	"commits": func() { // asks for the commits in its payload and writes the answers to the output
		var task operators.CommandTask
		must(json.NewDecoder(os.Stdin).Decode(&task))
		for name, text := range map[string]string{"a.ndjson": `{"n": 1}`, "b.csv": "n\n1", "c.txt": ""} {
			must(os.WriteFile(filepath.Join(task.Outputs[0].Dir, name), []byte(text+"\n"), 0o600))
		}

		must(os.Mkdir(filepath.Join(task.Outputs[0].Dir, "d.csv"), 0o700))
		var asked []string
		must(json.Unmarshal(task.Payload, &asked))
		ask, answers := os.NewFile(uintptr(task.Commit.Ask), "ask"),
			bufio.NewReader(os.NewFile(uintptr(task.Commit.Answer), "answer"))
		result := map[string][]string{}
		for _, line := range asked {
			_, err := ask.WriteString(line + "\n")
			must(err)
			answer, err := answers.ReadString('\n')
			must(err)
			result["answers"] = append(result["answers"], answer)
		}

		must(os.Remove(filepath.Join(task.Outputs[0].Dir, "d.csv")))
		left, err := filepath.Glob(filepath.Join(task.Outputs[0].Dir, "*"))
		must(err)
		for _, file := range left {
			result["left"] = append(result["left"], filepath.Base(file))
		}
		must(os.Remove(filepath.Join(task.Outputs[0].Dir, "c.txt"))) // it would be refused at the end
		must(json.NewEncoder(os.Stdout).Encode(map[string]any{"result": result, "unchanged": true}))
	},
	"hasty": func() { // asks for a commit and does not wait for the answer
		_, err := os.NewFile(3, "ask").WriteString(`{"operator_state": 1}` + "\n")
		must(err)
	},
	"sparse": func() { // leaves a file that is nearly all hole
		var task operators.CommandTask
		must(json.NewDecoder(os.Stdin).Decode(&task))
		f, err := os.Create(filepath.Join(task.Outputs[0].Dir, "rows.parquet"))
		must(err)
		must(f.Truncate(64 << 20))
	},
	"holder": func() { // holds files that it removed
		for range 60 {
			f, err := os.CreateTemp("", "")
			must(err)
			must(errors.Join(f.Truncate(10<<20), os.Remove(f.Name())))
			defer f.Close()
		}
		time.Sleep(time.Hour)
	},
	"many": func() { // leaves files that are too much together
		var task operators.CommandTask
		must(json.NewDecoder(os.Stdin).Decode(&task))
		for _, name := range []string{"a.parquet", "b.parquet"} {
			f, err := os.Create(filepath.Join(task.Outputs[0].Dir, name))
			must(err)
			must(f.Truncate(10 << 20))
		}
	},
	"sleeper": func() { time.Sleep(time.Hour) },
}

func TestCommandConforms(t *testing.T) {
	t.Parallel()
	input := operatortest.Input{As: "numbers", Query: "SELECT 1 AS n"}
	operatortest.Run(t, builtin(t, "command"),
		operatortest.Case{
			Name: "stdin, env and stdout", Config: self(t, "lines", map[string]any{"MODE": "fast"}),
			Inputs:    []operatortest.Input{input},
			Partition: &operators.PartitionRange{Key: "p"}, Payload: json.RawMessage(`{"a":1}`),
			Want: map[string][]string{"out": {
				"'a': job, 'b': d/j", "'a': inputs, 'b': numbers 1", "'a': partition, 'b': p",
				"'a': in scratch, 'b': true",
				`'a': payload, 'b': '{"a":1}'`, "'a': env LANG, 'b': C.UTF-8", "'a': env MODE, 'b': fast",
			}},
			Check: func(t *testing.T, r operators.Result) {
				require.JSONEq(t, `{"ok": true}`, string(r.Result))
				require.JSONEq(t, `{"n": 1}`, string(r.State))
				require.Equal(t, "v1", r.SourceVersion)
			},
		},
		caseOf{Name: "csv", Config: self(t, "csv", nil)}.wants("'x': 1, 'y': a", "'x': 2, 'y': b"),
		operatortest.Case{Name: "writes nothing", Config: map[string]any{"argv": []string{"true"}},
			Want: map[string][]string{}},
		operatortest.Case{Name: "fails", Config: self(t, "fail", nil), Fails: "exit status 1\n"},
		caseOf{Name: "only files of other names", Config: self(t, "stray", nil)}.fails("rows.txt is not *.parquet"),
		caseOf{Name: "bad data", Config: self(t, "data", nil)}.fails("exit status 65\na bad row"),
		caseOf{Name: "no such program",
			Config: map[string]any{"argv": []string{"/no/such/program"}}}.fails("no such file"),
		operatortest.Case{Name: "endless", Config: self(t, "sleeper", nil), Endless: true},
		caseOf{Name: "no program", Config: map[string]any{"argv": []string{}}}.refused("minItems"),
		caseOf{Name: "a shell line", Config: map[string]any{"argv": "rm -rf /"}}.refused("got string, want array"),
	)
}

func TestCommandTailIsBounded(t *testing.T) {
	t.Parallel()
	out := newWorld(t).run(t, assignment("command", self(t, "fail", nil)))
	require.True(t, out.Retryable)
	require.True(t, strings.HasSuffix(out.Err.Error(), "the reason"), "%v", out.Err)
	require.Less(t, len(out.Err.Error()), 9000)
}

// A program's folders are beside the storage: what it says of a full disk is said of the storage, secrets or not.
func TestAProgramThatMeetsAFullDisk(t *testing.T) {
	t.Parallel()
	a := assignment("command", self(t, "full", nil))
	require.ErrorIs(t, newWorld(t).run(t, a).Err, syscall.ENOSPC)
	a.Secrets = map[string]secret.Value{"KEY": secret.New("KEY", "n.csv", nil)}
	err := newWorld(t).run(t, a).Err
	require.ErrorIs(t, err, syscall.ENOSPC)
	require.NotContains(t, err.Error(), "n.csv")
	require.NotErrorIs(t, newWorld(t).run(t, assignment("command", self(t, "fail", nil))).Err, syscall.ENOSPC)
}

func TestCommandEndsItsGroup(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	pidFile := filepath.Join(t.TempDir(), "pid")
	a := assignment("command", self(t, "stubborn", nil))
	a.Payload = json.RawMessage(`"` + pidFile + `"`)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan operators.Outcome)
	go func() { done <- w.Run(ctx, a, nil) }()
	var pid int
	require.Eventually(t, func() bool {
		text, _ := os.ReadFile(pidFile)
		pid, _ = strconv.Atoi(string(text))
		return pid > 0
	}, time.Minute, time.Millisecond)

	cancel()
	out := <-done
	require.ErrorIs(t, out.Err, context.Canceled)
	require.True(t, out.Retryable)
	require.Eventually(t, func() bool {
		return gone(pid)
	}, time.Minute, time.Millisecond, "the child is ended with its parent")
}

// gone reports whether a process has ended, even if nobody has waited for it.
func gone(pid int) bool {
	if syscall.Kill(pid, 0) != nil {
		return true
	}
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	return err == nil && strings.Contains(string(stat), ") Z ")
}

// Nobody reads through the holes of a file that a program made to keep others waiting.
func TestCommandOutputIsBounded(t *testing.T) {
	t.Parallel()
	options := anyProgram
	options.Output = 16 << 20
	w := newWorld(t)
	registry, err := operators.Builtin(operators.Options{Engines: enginetest.Engines(), Threads: 1, Command: options})
	require.NoError(t, err)
	w.Registry = registry
	for _, program := range []string{"sparse", "many"} {
		a := assignment("command", self(t, program, nil))
		a.Outputs = []operators.AssignedOutput{{Name: "out", Generation: generation()}}
		out := w.run(t, a)
		require.ErrorContains(t, out.Err, "it wrote more than", program)
		require.False(t, out.Retryable, program)
	}
}

// What a program has in its work folder counts while it runs, files included that it removed and still holds open.
func TestCommandScratchIsBounded(t *testing.T) {
	t.Parallel()
	options := anyProgram
	options.Output = 16 << 20
	w := newWorld(t)
	registry, err := operators.Builtin(operators.Options{Engines: enginetest.Engines(), Threads: 1, Command: options})
	require.NoError(t, err)
	w.Registry = registry
	out := w.run(t, assignment("command", self(t, "holder", nil)))
	require.ErrorContains(t, out.Err, "it wrote more than it may: more than 16 MiB")
	require.False(t, out.Retryable)
	var said *fault.Error
	require.ErrorAs(t, out.Err, &said)
	require.Contains(t, said.Hint, "operators.command_output_mb")
}

// A Python program is told that there is no shared memory, in words that its own error lacks.
func TestCommandWithoutSharedMemorySaysSo(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, code := range []string{"import multiprocessing; multiprocessing.Lock()",
		"from multiprocessing import shared_memory; shared_memory.SharedMemory(create=True, size=10)"} {
		out := w.run(t, assignment("command", map[string]any{"argv": []string{"python3", "-c", code}}))
		require.ErrorContains(t, out.Err, "programs have no shared memory", code)
	}
	out := w.run(t, assignment("command", map[string]any{"argv": []string{"python3", "-c",
		"from concurrent.futures import ThreadPoolExecutor as P; print(list(P(2).map(abs, [-1])))"}}))
	require.NoError(t, out.Err)
}

func TestCommandIsOffByDefault(t *testing.T) {
	t.Parallel()
	registry, err := operators.Builtin(operators.Options{Engines: enginetest.Engines()})
	require.NoError(t, err)
	op, _ := registry.Get("command")
	fault := op.Spec().CheckJob(new(dag.Job))
	require.NotNil(t, fault)
	require.Contains(t, fault.Message, "disabled on this server")
	w := newWorld(t, op)
	out := w.run(t, assignment("command", map[string]any{"argv": []any{"touch", filepath.Join(t.TempDir(), "x")}}))
	require.ErrorContains(t, out.Err, "disabled on this server")
	require.False(t, out.Retryable)
}
