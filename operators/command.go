package operators

import (
	"bytes"
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
	"time"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/storage"
)

// commandOperator runs a program of the user's. Because that has this process's rights, it is off unless the server's
// config turns it on.
//
// A program of the repository is named by a path with a slash, relative to one of the folders that the org's sources
// may read (in `dagctl dev` the folder of the DAG file): `argv: [./scripts/load]`, or, for an interpreter on PATH,
// `argv: [python3, ./scripts/load.py]`. An argument that begins with ./ and is no such file is left as it is. No link
// leads out of the folders. What the file holds is not hashed: give the job a `code_version` that changes with it.
//
// The program starts in an empty folder, in a process group of its own, with PATH, HOME, TMPDIR, LANG and what `env`
// says as its only environment. On stdin it gets one JSON object, a CommandTask; its inputs hold only the rows that
// their `where` leaves. It writes each output as files into the output's folder: *.parquet, or *.csv and *.ndjson (also .gz and .zst), which are converted. A folder left empty
// means that the output is not written.
//
// If the last line of stdout is a JSON object with any of result, operator_state, source_version and unchanged, it is
// taken as a Result. Exit code 0 is success; 64 (usage), 65 (data) and 78 (config) of sysexits.h mean that a retry
// cannot help; any other is a failure that is retried. The end of stderr is part of the error. What it prints is the task's log.
//
// While it goes on it may ask for commits: see commandCommits.
//
// When the task is canceled or times out the group gets SIGTERM, and SIGKILL after a grace of five seconds.
type commandOperator struct{ options Options }

// CommandTask is what a command reads on stdin.
type CommandTask struct {
	TaskID    string          `json:"task_id"`
	Attempt   int             `json:"attempt"`
	Org       string          `json:"org"`
	DAG       string          `json:"dag_name"`
	Job       string          `json:"job_name"`
	Partition *PartitionRange `json:"partition,omitempty"`
	Payload   json.RawMessage `json:"payload,omitempty"`
	State     json.RawMessage `json:"operator_state,omitempty"`
	Cursor    *CursorPosition `json:"cursor,omitempty"` // outputs by cursor: what it writes lies beyond
	Inputs    []CommandInput  `json:"inputs"`
	Outputs   []CommandOutput `json:"outputs"`
	Commit    *CommandChannel `json:"commit,omitempty"` // where it asks for commits on its way
	Scratch   string          `json:"scratch"`          // also the working directory
	TimeoutAt *time.Time      `json:"timeout_at,omitempty"`
}

// CommandInput is one input: local Parquet files, to be read only. What its `where` and its slice leave out is not in them.
type CommandInput struct {
	As         string           `json:"as"`
	Partitions []string         `json:"partitions"`
	Files      []string         `json:"files"`
	Schema     []storage.Column `json:"schema,omitempty"`
}

// CommandOutput is one output: a folder to write files into.
type CommandOutput struct {
	Name string `json:"name"`
	Dir  string `json:"dir"`
}

const commandSchema = `{
  "$schema": "https://json-schema.org/draft/2020-12/schema",
  "type": "object",
  "additionalProperties": false,
  "required": ["argv"],
  "properties": {
    "argv": {"type": "array", "minItems": 1, "items": {"type": "string"}, "description": "The program and its arguments: found on PATH, an absolute path, or ./a/path in a folder that the org's sources may read. No shell is involved."},
    "env": {"type": "object", "propertyNames": {"pattern": "^[A-Za-z_][A-Za-z0-9_]*$"}, "additionalProperties": {"type": "string"}, "description": "Environment variables. A value may be {secret: NAME}."}
  }
}`

type commandConfig struct {
	Argv []string       `json:"argv"`
	Env  map[string]any `json:"env"`
}

func (o *commandOperator) Spec() dag.OperatorSpec {
	return dag.OperatorSpec{
		Name: "command", Version: "1.0.0", Source: true, Reactive: true, Effect: dag.EffectInternal,
		ConfigSchema: json.RawMessage(commandSchema),
		SecretsTo:    func(map[string]any) string { return dag.ToProgram },
		Canonical: func(config map[string]any) (any, *dag.ConfigError) {
			if err := o.allowed(); err != nil {
				return nil, &dag.ConfigError{Key: "argv", Message: withHint(err)}
			}
			return config, nil
		},
	}
}

func (o *commandOperator) allowed() error {
	if o.options.AllowCommand {
		return nil
	}
	return fault.New(fault.Forbidden, "the command operator is off on this server").WithHint("it is turned on in the server's config")
}

// grace is how long a program may take to end after SIGTERM.
const grace = 5 * time.Second

func (o *commandOperator) Run(ctx context.Context, t *Task) (Result, error) {
	if err := o.allowed(); err != nil {
		return Result{}, Permanent(err)
	}
	var c commandConfig
	if err := decodeConfig(t.Config, &c); err != nil || len(c.Argv) == 0 {
		return Result{}, Permanent(fault.New(fault.Invalid, "config.argv must name a program"))
	}
	argv, err := resolveArgv(c.Argv, t.Roots)
	if err != nil {
		return Result{}, err
	}
	work := filepath.Join(t.Scratch, "work")
	if err := os.Mkdir(work, 0o700); err != nil {
		return Result{}, err
	}
	task, err := commandTask(ctx, o.options, t, work)
	if err != nil {
		return Result{}, err
	}
	runCtx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	commits, err := openCommits(runCtx, o.options, t, stop)
	if err != nil {
		return Result{}, err
	}
	defer commits.close()
	task.Commit = commits.channel()
	stdin, err := json.Marshal(task)
	if err != nil {
		return Result{}, err
	}
	cmd := exec.CommandContext(runCtx, argv[0], argv[1:]...)
	if cmd.Env, err = environment(t, c, work); err != nil {
		return Result{}, Permanent(err)
	}
	stdout, stderr := &tail{limit: 2 * maxResult}, &tail{limit: 8 << 10}
	said, complained := t.lines()
	cmd.Dir, cmd.Stdin, cmd.ExtraFiles = work, bytes.NewReader(stdin), commits.theirs
	cmd.Stdout, cmd.Stderr = io.MultiWriter(stdout, said), io.MultiWriter(stderr, complained)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
	cmd.WaitDelay = grace
	if err := cmd.Start(); err != nil {
		return Result{}, Permanent(fault.New(fault.Invalid, "start %s: %w", c.Argv[0], err))
	}
	t.Progress(0, "running "+filepath.Base(c.Argv[0]))
	commits.serve()
	ended := make(chan struct{})
	go func() {
		select {
		case <-t.Drain: // it ends by itself, and what it wrote until then counts
			_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM)
		case <-ended:
		}
	}()
	err = cmd.Wait()
	close(ended)
	// Whatever of the group is left has no business here any more; there may be nothing.
	_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
	said.end()
	complained.end()
	if failed := commits.end(); failed != nil && ctx.Err() == nil {
		return Result{}, failed
	}
	if err != nil {
		return Result{}, commandError(ctx, c.Argv[0], err, stderr)
	}
	if err := convertOutputs(ctx, o.options, t); err != nil {
		return Result{}, err
	}
	return lastLine(stdout.String())
}

// commandTask is what a program that starts in the folder work gets to know.
func commandTask(ctx context.Context, o Options, t *Task, work string) (CommandTask, error) {
	task := CommandTask{
		TaskID: t.TaskID.String(), Attempt: t.Attempt, Org: t.OrgSlug, DAG: t.DAG, Job: t.Job, Partition: t.Partition,
		Payload: t.Payload, State: t.State, Cursor: t.Cursor, Inputs: []CommandInput{}, Outputs: []CommandOutput{}, Scratch: work,
	}
	if !t.TimeoutAt.IsZero() {
		task.TimeoutAt = &t.TimeoutAt
	}
	for i, in := range t.Inputs {
		files, err := filtered(ctx, o, t, i)
		if err != nil {
			return CommandTask{}, err
		}
		input := CommandInput{As: in.As, Partitions: []string{}, Files: files, Schema: in.Schema}
		for _, p := range in.Partitions {
			input.Partitions = append(input.Partitions, p.Key)
		}
		task.Inputs = append(task.Inputs, input)
	}
	for i, output := range t.Outputs {
		task.Outputs = append(task.Outputs, CommandOutput{Name: output.Name, Dir: t.OutputDirs[i]})
	}
	return task, nil
}

// environment is all that the program sees of this process: where programs are.
func environment(t *Task, c commandConfig, home string) ([]string, error) {
	env := []string{"PATH=" + os.Getenv("PATH"), "HOME=" + home, "TMPDIR=" + home, "LANG=C.UTF-8"}
	for _, name := range sortedKeys(c.Env) {
		value, sealed, isSecret, err := t.secretFor(c.Env[name], "config.env."+name)
		if err == nil && isSecret {
			value, err = sealed.ForProgram()
		}
		if err != nil {
			return nil, err
		}
		env = append(env, name+"="+value)
	}
	return env, nil
}

// hopeless are the exit codes after which a retry cannot help: EX_USAGE, EX_DATAERR and EX_CONFIG of sysexits.h.
var hopeless = []int{64, 65, 78}

func commandError(ctx context.Context, name string, err error, stderr *tail) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	wrapped := fmt.Errorf("%s: %w", filepath.Base(name), err)
	if text := strings.TrimSpace(stderr.String()); text != "" {
		wrapped = fmt.Errorf("%s: %w\n%s", filepath.Base(name), err, text)
	}
	var exit *exec.ExitError
	if errors.As(err, &exit) && slices.Contains(hopeless, exit.ExitCode()) {
		return Permanent(wrapped)
	}
	return wrapped
}

// textFormats are what of a program's files is converted.
var textFormats = []string{"csv", "ndjson"}

// convertOutputs makes Parquet of what the program wrote as text.
func convertOutputs(ctx context.Context, o Options, t *Task) error {
	for i, dir := range t.OutputDirs {
		files, err := filesOf(dir)
		if err != nil {
			return err
		}
		for _, format := range textFormats {
			if len(files[format]) == 0 {
				continue
			}
			target := filepath.Join(dir, "from-"+format+".parquet")
			if _, err := (tabular{Format: format}).convert(ctx, t.Scratch, o, files[format], target); err != nil {
				return Permanent(fmt.Errorf("output %q: %w", t.Outputs[i].Name, err))
			}
		}
	}
	return nil
}

// filesOf lists the files of a folder that are an output's content, sorted, by their format.
func filesOf(dir string) (map[string][]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	files := map[string][]string{}
	for _, e := range entries {
		if format := formatOf(e.Name()); format != "" {
			files[format] = append(files[format], filepath.Join(dir, e.Name()))
		}
	}
	return files, nil
}

// formatOf is how a program's file is read, by its name: parquet, csv or ndjson; empty: not at all.
func formatOf(name string) string {
	plain := strings.TrimSuffix(strings.TrimSuffix(name, ".gz"), ".zst")
	for _, format := range textFormats {
		if strings.HasSuffix(plain, "."+format) {
			return format
		}
	}
	if strings.HasSuffix(name, ".parquet") {
		return "parquet"
	}
	return ""
}

// lastLine reads a Result from the last line of stdout, if it is one.
func lastLine(stdout string) (Result, error) {
	text := strings.TrimSpace(stdout)
	text = text[strings.LastIndexByte(text, '\n')+1:]
	var fields map[string]json.RawMessage
	if json.Unmarshal([]byte(text), &fields) != nil {
		return Result{}, nil
	}
	var result Result
	if err := json.Unmarshal([]byte(text), &result); err != nil {
		return Result{}, Permanent(fault.New(fault.Invalid, "the last line of stdout is no result: %w", err))
	}
	result.Columns = nil // lineage is what the platform knows, not what a program claims
	return result, nil
}

// tail keeps the end of what is written to it.
type tail struct {
	limit int
	text  []byte
}

func (w *tail) Write(p []byte) (int, error) {
	w.text = append(w.text, p...)
	if excess := len(w.text) - w.limit; excess > 0 {
		w.text = append(w.text[:0], w.text[excess:]...)
	}
	return len(p), nil
}

func (w *tail) String() string { return strings.ToValidUTF8(string(w.text), "\uFFFD") }
