package operators

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/engine"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/sandbox"
)

// udfOperator runs the user's own code, which came with the deploy: the job's `udf`, a folder or a bundle with an
// entrypoint. It runs only on workers, never in the server's process, and there in a sandbox (internal/sandbox):
// without network, secrets and environment, and with access only to its code (/code), its task (/task, where it
// starts) and the system's programs.
//
// The contract is that of the command operator: a CommandTask on stdin, files in the folders of the outputs, a Result
// on the last line of stdout, exit codes of sysexits.h. Its stderr, and its stdout without the last line, are the
// task's log.
type udfOperator struct{ options Options }

// UDFOptions configure how a worker runs users' code.
type UDFOptions struct {
	// Unconfined runs the code as an ordinary process, for machines that are the sandbox themselves, such as a Lambda
	// function's, and for developers' own machines.
	Unconfined bool
	// Alone confines the code without namespaces, on a machine that does nothing else: a Lambda function's. See
	// sandbox.Hide.
	Alone    bool
	Bare     bool     // confines the code without namespaces even where there are some
	Programs []string // more folders that it may read and run programs from, such as that of a Python
	MemoryMB int64    // the most that a job may request; 0: 4096
}

// ownPaths reports whether the code sees its folders under their real paths.
func (o UDFOptions) ownPaths() bool {
	return o.Unconfined || o.Alone || o.Bare || sandbox.Namespaces() != nil
}

// available returns an error that names the wall around users' code that this machine does not give, or nil.
func (o UDFOptions) available() error {
	switch {
	case o.Unconfined:
		return nil
	case o.Alone:
		return sandbox.AvailableAlone()
	}
	return sandbox.Available()
}

const (
	defaultUDFMemoryMB = 512
	mostUDFMemoryMB    = 4096
)

const udfSchema = `{
  "$schema": "https://json-schema.org/draft/2020-12/schema",
  "type": "object",
  "additionalProperties": false,
  "properties": {
    "args": {"type": "array", "maxItems": 100, "items": {"type": "string"},
      "description": "Arguments after the entrypoint."},
    "params": {"type": "object", "description": "For the code: on stdin, as params."},
    "input_format": {"enum": ["parquet", "csv", "ndjson"], "default": "parquet",
      "description": "The format of the files that it gets its inputs in: one of CSV or lines of JSON for each input."},
    "memory_mb": {"type": "integer", "minimum": 16, "maximum": 65536,
      "description": "Memory for the code and all processes that it starts. Default: 512."}
  }
}`

type udfConfig struct {
	Args        []string        `json:"args"`
	Params      json.RawMessage `json:"params"`
	InputFormat string          `json:"input_format"`
	MemoryMB    int64           `json:"memory_mb"`
}

// UDFTask is what the code reads on stdin. Its paths are those that the code sees.
type UDFTask struct {
	CommandTask
	Params json.RawMessage `json:"params,omitempty"`
}

func (o *udfOperator) Spec() dag.OperatorSpec {
	return dag.OperatorSpec{
		Name: dag.OwnCode, Version: "1.0.0", Source: true, Reactive: true, Effect: dag.EffectInternal,
		ConfigSchema: json.RawMessage(udfSchema), Operational: []string{"memory_mb"},
	}
}

// codeFetcher is a Carrier that can fetch the code of a task's job.
type codeFetcher interface {
	// FetchCode puts the code of the task's job into dir.
	FetchCode(ctx context.Context, a Assignment, dir string) error
}

func (o *udfOperator) Run(ctx context.Context, t *Task) (Result, error) {
	var c udfConfig
	if err := DecodeConfig(t.Config, &c); err != nil {
		return Result{}, Permanent(err)
	}
	if t.UDF == nil || t.fetchCode == nil {
		return Result{}, Permanent(fault.New(fault.Unavailable, "users' code cannot run here").
			WithHint("give the job a runtime whose workers do"))
	}

	if err := o.options.UDF.available(); err != nil {
		return Result{}, Permanent(err) // nothing of the code is fetched, and a retry finds the same machine
	}

	memory := c.MemoryMB
	if memory == 0 {
		memory = defaultUDFMemoryMB
	}
	most := o.options.UDF.MemoryMB
	if most == 0 {
		most = mostUDFMemoryMB
	}

	if memory > most {
		return Result{}, Permanent(fault.New(fault.TooLarge, "config.memory_mb is %d; this worker allows %d at most",
			memory, most))
	}
	u := udfRun{operator: o, t: t, config: c, memory: memory << 20,
		code: filepath.Join(t.Scratch, "code"), work: filepath.Join(t.Scratch, "task")}
	return u.run(ctx)
}

// udfRun is one run of the code.
type udfRun struct {
	operator   *udfOperator
	t          *Task
	config     udfConfig
	memory     int64
	code, work string
}

func (u *udfRun) run(ctx context.Context) (Result, error) {
	for _, dir := range []string{u.code, u.work} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			return Result{}, err
		}
	}

	u.t.Progress(0, "fetching the code")
	if err := u.t.fetchCode(ctx, u.code); err != nil {
		return Result{}, err
	}
	stdin, err := u.task(ctx)
	if err != nil {
		return Result{}, err
	}

	stdout := &tail{limit: 2 * maxResult}
	said, complained := u.t.printed()
	u.t.Progress(0, "running "+u.t.UDF.Entrypoint)
	if u.operator.options.UDF.Unconfined {
		err = u.unconfined(ctx, stdin, io.MultiWriter(stdout, said), complained)
	} else {
		err = u.confined(ctx, stdin, io.MultiWriter(stdout, said), complained)
	}

	said.end()
	complained.end()
	if err != nil {
		return Result{}, u.failure(ctx, err, &complained.tail)
	}
	for i, out := range u.t.Outputs {
		if err := moveOut(u.work, "outputs/"+out.Name, u.t.OutputDirs[i]); err != nil {
			return Result{}, Permanent(err)
		}
	}

	if err := convertOutputs(ctx, u.t); err != nil {
		return Result{}, err
	}
	return lastLine(stdout.String())
}

// task creates the task's folders and returns what the code reads on stdin.
func (u *udfRun) task(ctx context.Context) ([]byte, error) {
	format := cmp.Or(u.config.InputFormat, "parquet")
	task, err := commandTask(ctx, u.operator.options, u.t, u.seen("."), format)
	if err != nil {
		return nil, err
	}
	for i, in := range task.Inputs {
		dir := filepath.Join(u.work, "inputs", in.As)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return nil, err
		}
		for n, file := range in.Files {
			name := fmt.Sprintf("%d.%s", n, format)
			if err := engine.CopyFile(file, filepath.Join(dir, name), 0o644); err != nil {
				return nil, fmt.Errorf("input %q: %w", in.As, err)
			}
			task.Inputs[i].Files[n] = u.seen("inputs", in.As, name)
		}
	}

	for i, out := range task.Outputs {
		dir := filepath.Join(u.work, "outputs", out.Name)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return nil, err
		}
		task.Outputs[i].Dir = u.seen("outputs", out.Name)
	}
	return json.Marshal(UDFTask{task, u.config.Params})
}

// seen returns a path of the task's folder as the code sees it.
func (u *udfRun) seen(path ...string) string {
	if u.operator.options.UDF.ownPaths() {
		return filepath.Join(append([]string{u.work}, path...)...)
	}
	return filepath.Join(append([]string{"/task"}, path...)...)
}

// command returns the entrypoint with its arguments. A script whose first line names no interpreter runs with the one
// that its extension stands for.
func (u *udfRun) command(code string) []string {
	argv := strings.Fields(u.t.UDF.Entrypoint)
	name := filepath.Join(u.code, filepath.Clean("/"+argv[0]))
	if head, err := readHead(name, 4); err == nil && !strings.HasPrefix(head, "#!") && head != "\x7fELF" {
		switch filepath.Ext(name) {
		case ".py":
			argv = append([]string{"python3"}, argv...)
		case ".sh":
			argv = append([]string{"/bin/sh"}, argv...)
		}
	}

	for i, arg := range argv { // files of the code get their full path
		if rest := filepath.Clean("/" + arg); i < 2 && isRegular(filepath.Join(u.code, rest)) {
			argv[i] = filepath.Join(code, rest)
		}
	}
	return append(argv, u.config.Args...)
}

func (u *udfRun) confined(ctx context.Context, stdin []byte, stdout, stderr io.Writer) error {
	code, home, temporary := "/code", "/task", "/tmp"
	if u.operator.options.UDF.ownPaths() {
		code, home, temporary = u.code, u.work, u.work
	}
	return sandbox.Run(ctx, sandbox.Program{
		Command: u.command(code), Code: u.code, Work: u.work, Alone: u.operator.options.UDF.Alone,
		Bare:  u.operator.options.UDF.Bare,
		Stdin: bytes.NewReader(stdin), Stdout: stdout, Stderr: stderr,
		Env: []string{"PATH=" + strings.Join(append(u.bins(), "/usr/local/bin", "/usr/bin", "/bin"), ":"),
			"HOME=" + home, "TMPDIR=" + temporary, "LANG=C.UTF-8"},
		Expose: u.operator.options.UDF.Programs,
		Limits: sandbox.Limits{Memory: u.memory, Wall: noLimit},
	})
}

// noLimit: the task's own timeout, which ends ctx, is the only limit.
const noLimit = 1 << 62

func (u *udfRun) bins() (dirs []string) {
	for _, dir := range u.operator.options.UDF.Programs {
		dirs = append(dirs, filepath.Join(dir, "bin"))
	}
	return dirs
}

func (u *udfRun) unconfined(ctx context.Context, stdin []byte, stdout, stderr io.Writer) error {
	argv := u.command(u.code)
	path := os.Getenv("PATH")
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Dir, cmd.Stdin, cmd.Stdout, cmd.Stderr = u.work, bytes.NewReader(stdin), stdout, stderr
	cmd.Env = []string{"PATH=" + strings.Join(append(u.bins(), path), ":"), "HOME=" + u.work, "TMPDIR=" + u.work,
		"LANG=C.UTF-8"}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = grace
	if err := cmd.Start(); err != nil {
		return Permanent(fault.New(fault.Invalid, "start %s: %w", argv[0], err))
	}

	err := cmd.Wait()
	_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // what the code left running; there may be nothing
	return err
}

// failure returns why the code failed, with the end of its stderr. It is permanent if a retry cannot help.
func (u *udfRun) failure(ctx context.Context, err error, stderr *tail) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}

	code := -1
	var (
		inside  *sandbox.ExitError
		outside *exec.ExitError
	)
	switch {
	case errors.As(err, &inside):
		code = inside.Code
	case errors.As(err, &outside):
		code = outside.ExitCode()
	}

	wrapped := fmt.Errorf("%s: %w", u.t.UDF.Entrypoint, err)
	if text := strings.TrimSpace(stderr.String()); text != "" {
		wrapped = fullIn(text, fmt.Errorf("%s: %w\n%s", u.t.UDF.Entrypoint, err, text))
	}
	if slices.Contains(hopeless, code) || fault.Is(err, fault.TooLarge) || IsPermanent(err) {
		return Permanent(wrapped)
	}
	return wrapped
}
