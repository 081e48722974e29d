package operators

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/internal/child"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/sandbox"
	"github.com/dagctl/dagctl/storage"
)

// commandOperator runs a program of the user's, for the orgs that the server's config lists. The program runs behind
// walls (sandbox.Start): it reaches the files of its task, the org's sources, the programs of the system and the
// network, and nothing of the server or of other orgs.
//
// A program of the repository is named by a path with a slash, relative to one of the folders that the org's sources
// may read (in `dagctl dev` the folder of the DAG file): `argv: [./scripts/load]`, or, for an interpreter on PATH,
// `argv: [python3, ./scripts/load.py]`. An argument that begins with ./ and names no such file stays as it is. Links
// cannot lead out of the folders. The content of the file is not hashed: give the job a `code_version` that changes
// with it.
//
// The program starts in an empty folder, in a process group of its own. Its environment is PATH, HOME, TMPDIR, LANG and
// what `env` adds. On stdin it gets one JSON object, a CommandTask; its inputs hold only the rows that pass their
// `where`. It writes each output as files into the output's folder: *.parquet, or *.csv and *.ndjson (also .gz and
// .zst), which are converted. An empty folder means that the output has no rows, in the end: the partition is emptied,
// unless the Result is unchanged.
//
// If the last line of stdout is a JSON object with any of result, operator_state, source_version and unchanged, it is
// the Result. Exit code 0 is success; 64 (usage), 65 (data) and 78 (config) of sysexits.h mean that a retry cannot
// help; any other code is a failure that is retried. The error includes the end of stderr. The program's output is the
// task's log.
//
// A running program may ask for commits: see commandCommits.
//
// When the task is canceled or times out, the group gets SIGTERM, and SIGKILL after a grace period of a second.
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
	Metadata  json.RawMessage `json:"metadata,omitempty"`
	State     json.RawMessage `json:"operator_state,omitempty"`
	Cursor    *CursorPosition `json:"cursor,omitempty"` // outputs by cursor: it must write beyond this position
	Inputs    []CommandInput  `json:"inputs"`
	Outputs   []CommandOutput `json:"outputs"`
	Commit    *CommandChannel `json:"commit,omitempty"` // where it asks for commits while it runs
	Scratch   string          `json:"scratch"`          // also the working directory
	TimeoutAt *time.Time      `json:"timeout_at,omitempty"`
}

// CommandInput is one input: local files, to be read only. They lack the rows that its `where` and its slice
// exclude.
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
    "argv": {"type": "array", "minItems": 1, "items": {"type": "string"},
      "description": "Program and arguments: on PATH, absolute, or ./path in a folder of the org's sources. No shell."},
    "env": {"type": "object", "propertyNames": {"pattern": "^[A-Za-z_][A-Za-z0-9_]*$"},
      "additionalProperties": {"type": "string"},
      "description": "Environment variables. A value may be {secret: NAME}."},
    "input_format": {"enum": ["parquet", "csv", "ndjson"], "default": "parquet",
      "description": "The format of the files that it gets its inputs in: one of CSV or lines of JSON for each input."}
  }
}`

type commandConfig struct {
	Argv        []string       `json:"argv"`
	Env         map[string]any `json:"env"`
	InputFormat string         `json:"input_format"`
}

func (o *commandOperator) Spec() dag.OperatorSpec {
	return dag.OperatorSpec{
		Name: "command", Version: "1.0.0", Source: true, Reactive: true, Effect: dag.EffectInternal,
		ConfigSchema: json.RawMessage(commandSchema),
		SecretsTo:    func(map[string]any) string { return dag.ToProgram },
		CheckJob:     o.checkJob(""),
	}
}

// checkJob returns the function that refuses jobs of an org that may run no programs; "" is an org that is not known.
func (o *commandOperator) checkJob(org string) func(*dag.Job) *dag.ConfigError {
	return func(*dag.Job) *dag.ConfigError {
		if err := o.options.Command.allowed(org); err != nil {
			return &dag.ConfigError{Key: "argv", Message: fault.Text(err)}
		}
		return nil
	}
}

// ForOrg implements PerOrg. It returns the catalog that refuses the programs of an org that may run none.
func (o *commandOperator) ForOrg(c dag.Catalog, org dag.Org) dag.Catalog {
	spec := c.Operators["command"]
	spec.CheckJob = o.checkJob(org.Slug)
	c.Operators = maps.Clone(c.Operators)
	c.Operators[spec.Name] = spec
	return c
}

// grace is how long a program may take to end after SIGTERM.
const grace = time.Second

func (o *commandOperator) Run(ctx context.Context, t *Task) (Result, error) {
	if err := o.options.Command.allowed(t.OrgSlug); err != nil {
		return Result{}, Permanent(err)
	}
	var c commandConfig
	if err := DecodeConfig(t.Config, &c); err != nil || len(c.Argv) == 0 {
		return Result{}, Permanent(fault.New(fault.Invalid, "config.argv must name a program"))
	}

	runCtx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	p, err := o.prepare(runCtx, t, c, stop)
	if err != nil {
		return Result{}, err
	}
	defer p.commits.close()

	exceeded := func(limit error) { stop(o.options.Command.passed(filepath.Base(p.name), limit)) }
	if err := p.start(t, exceeded); err != nil {
		return Result{}, err
	}
	ended := p.wait(t.Drain)
	// A commit that failed stopped the program, so its error comes first, unless the whole run was stopped.
	if failed := p.commits.end(); failed != nil && ctx.Err() == nil {
		return Result{}, failed
	}
	if ended != nil {
		if cause := context.Cause(runCtx); ctx.Err() == nil && cause != nil {
			return Result{}, cause // it passed a limit
		}
		said := strings.ToLower(p.complained.tail.String())
		if endedBy(ended, syscall.SIGXFSZ) || strings.Contains(said, "file too large") {
			ended = o.options.Command.tooMuch()
		}
		return Result{}, commandError(ctx, p.name, ended, &p.complained.tail)
	}

	if err := o.options.Command.checkOutput(t.OutputDirs); err != nil {
		return Result{}, err
	}
	if err := convertOutputs(ctx, t); err != nil {
		return Result{}, err
	}
	return lastLine(p.stdout.String())
}

// program is one run of a command: its process, what it printed, and the channel on which it commits.
type program struct {
	name    string // as the config has it
	cmd     *exec.Cmd
	walls   sandbox.Walls
	release func() // once it has ended
	commits *commandCommits

	stdout           *tail    // as it is, because its last line is the Result
	said, complained *printed // what it prints, as others may see it
}

// prepare builds the process: its folder, its task on stdin, its environment and its channel for commits, which the
// caller closes. stop ends the run when a commit fails.
func (o *commandOperator) prepare(
	ctx context.Context, t *Task, c commandConfig, stop context.CancelCauseFunc,
) (_ *program, err error) {
	argv, err := resolveArgv(c.Argv, t.Roots)
	if err != nil {
		return nil, err
	}
	work := filepath.Join(t.Scratch, "work")
	if err := os.Mkdir(work, 0o700); err != nil {
		return nil, err
	}
	task, err := commandTask(ctx, o.options, t, work, cmp.Or(c.InputFormat, "parquet"))
	if err != nil {
		return nil, err
	}

	channel, err := openCommits(ctx, o.options, t, stop)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			channel.close()
		}
	}()
	task.Commit = channel.channel()
	stdin, err := json.Marshal(task)
	if err != nil {
		return nil, err
	}
	env, err := environment(t, c, work)
	if err != nil {
		return nil, Permanent(err)
	}

	p := &program{name: c.Argv[0], cmd: exec.CommandContext(ctx, argv[0], argv[1:]...), commits: channel,
		stdout: &tail{limit: 2 * maxResult}}
	p.said, p.complained = t.printed()
	p.cmd.Dir, p.cmd.Env, p.cmd.Stdin, p.cmd.ExtraFiles = work, env, bytes.NewReader(stdin), channel.theirs
	p.cmd.Stdout, p.cmd.Stderr = io.MultiWriter(p.stdout, p.said), p.complained
	// The program leads a process group, so that what it starts gets its signals too.
	p.walls = o.options.Command.walls(t, task)
	p.cmd.Cancel = func() error { return p.signal(syscall.SIGTERM) }
	p.cmd.WaitDelay = grace
	return p, nil
}

// signal sends a signal to the program and to all that it started.
func (p *program) signal(s syscall.Signal) error { return syscall.Kill(-p.cmd.Process.Pid, s) }

// start starts the program and serves its commits. exceeded is called with the limit that the program passed.
func (p *program) start(t *Task, exceeded func(error)) error {
	release, err := sandbox.Start(p.cmd, p.walls, exceeded)
	if err != nil {
		return Permanent(fmt.Errorf("start %s: %w", p.name, err))
	}
	p.release = release
	t.Progress(0, "running "+filepath.Base(p.name))
	p.commits.serve()
	return nil
}

// wait waits for the program's end. When the task is drained, the program gets SIGTERM and ends by itself: what it
// wrote until then counts.
func (p *program) wait(drain <-chan struct{}) error {
	ended := make(chan struct{})
	go func() {
		select {
		case <-drain:
			_ = p.signal(syscall.SIGTERM)
		case <-ended:
		}
	}()
	err := p.cmd.Wait()
	close(ended)

	p.release() // ends what the program left running
	p.said.end()
	p.complained.end()
	return err
}

// commandTask returns the task that a program starting in the folder work reads on stdin, with inputs of a format.
func commandTask(ctx context.Context, o Options, t *Task, work, format string) (CommandTask, error) {
	task := CommandTask{
		TaskID: t.TaskID.String(), Attempt: t.Attempt, Org: t.OrgSlug, DAG: t.DAG, Job: t.Job, Partition: t.Partition,
		Payload: t.Payload, Metadata: t.Metadata, State: t.State, Cursor: t.Cursor,
		Inputs: []CommandInput{}, Outputs: []CommandOutput{}, Scratch: work,
	}

	if !t.TimeoutAt.IsZero() {
		task.TimeoutAt = &t.TimeoutAt
	}
	for i, in := range t.Inputs {
		files, err := filtered(ctx, t, i, format)
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

// environment returns the program's environment, which takes only PATH from this process.
func environment(t *Task, c commandConfig, home string) ([]string, error) {
	env := []string{"PATH=" + os.Getenv("PATH"), "HOME=" + home, "TMPDIR=" + home, "LANG=C.UTF-8"}
	for _, name := range sortedKeys(c.Env) {
		value, sealed, isSecret, err := t.SecretFor(c.Env[name], "config.env."+name)
		if err == nil && isSecret {
			value, err = sealed.ForProgram(t.DAG + "/" + t.Job)
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

// endedBy reports whether a signal ended a program.
func endedBy(err error, signal syscall.Signal) bool {
	var exit *exec.ExitError
	if !errors.As(err, &exit) {
		return false
	}
	status, ok := exit.Sys().(syscall.WaitStatus)
	return ok && status.Signaled() && status.Signal() == signal
}

func commandError(ctx context.Context, name string, err error, stderr *tail) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if wantsSharedMemory(stderr.String()) {
		err = fmt.Errorf("%w: programs have no shared memory and no named semaphores (/dev/shm), so Python's "+
			"multiprocessing has no locks, queues and pools: use threads, or subprocess", err)
	}
	wrapped := fmt.Errorf("%s: %w", filepath.Base(name), err)
	if text := strings.TrimSpace(stderr.String()); text != "" {
		wrapped = fullIn(text, fmt.Errorf("%s: %w\n%s", filepath.Base(name), err, text))
	}

	var exit *exec.ExitError
	if errors.As(err, &exit) && slices.Contains(hopeless, exit.ExitCode()) {
		return Permanent(wrapped)
	}
	return wrapped
}

// fullIn returns the error of a program, whose folders are beside the storage. If its last words say so, the error is
// that of a full disk.
func fullIn(said string, err error) error {
	if full := child.SaidIn(said, syscall.ENOSPC, syscall.EDQUOT); full != nil {
		return because{err, full}
	}
	return err
}

// because is an error with a cause that its text has already.
type because struct {
	error
	cause error
}

func (b because) Unwrap() []error { return []error{b.error, b.cause} }

// wantsSharedMemory reports whether a program's last words are about shared memory or named semaphores.
func wantsSharedMemory(said string) bool {
	return slices.ContainsFunc([]string{"/dev/shm", "SemLock", "shm_open", "sem_open"}, func(word string) bool {
		return strings.Contains(said, word)
	})
}

// textFormats are the formats of a program's files that are converted to Parquet.
var textFormats = []string{"csv", "ndjson"}

// convertOutputs converts the text files that the program wrote to Parquet.
func convertOutputs(ctx context.Context, t *Task) error {
	for i, dir := range t.OutputDirs {
		files, err := filesOf(dir)
		if err != nil {
			return err
		}
		if err := nothingElse(t.Outputs[i].Name, dir); err != nil {
			return err
		}

		for _, format := range textFormats {
			if len(files[format]) == 0 {
				continue
			}
			target := filepath.Join(dir, "from-"+format+".parquet")
			rows, err := t.work.importText(ctx, format, files[format], target, t.Outputs[i].Standing, nil)
			if err != nil {
				return Permanent(fmt.Errorf("output %q: %w", t.Outputs[i].Name, err))
			}
			if err := os.Rename(target, filepath.Join(dir, ImportedName("from-"+format, format, rows))); err != nil {
				return err
			}
		}
	}
	return nil
}

// nothingElse returns an error if an output's folder has something beside files of rows that may have been meant as
// one: its rows would be missing. Names that begin with a dot or an underscore are a program's own.
func nothingElse(output, dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		own := strings.HasPrefix(e.Name(), ".") || strings.HasPrefix(e.Name(), "_")
		if !own && (e.IsDir() || formatOf(e.Name()) == "") {
			return Permanent(fault.New(fault.Invalid, "output %q: %s is not *.parquet, *.csv or *.ndjson", output,
				e.Name()).WithHint("name the file by its format, in the output's folder itself; the latter two may " +
				"end in .gz or .zst. An output without rows has no file"))
		}
	}
	return nil
}

// filesOf returns the files of an output's folder by format, sorted by name.
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

// formatOf returns the format of a program's file by its name: parquet, csv, ndjson, or "" for other files.
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

// lastLine reads a Result from the last line of stdout. It returns an empty Result if the line is not one.
func lastLine(stdout string) (Result, error) {
	text := strings.TrimSpace(stdout)
	text = text[strings.LastIndexByte(text, '\n')+1:]
	var fields map[string]json.RawMessage
	if json.Unmarshal([]byte(text), &fields) != nil {
		return Result{}, nil
	}
	var result Result
	if err := json.Unmarshal([]byte(text), &result); err != nil {
		return Result{}, Permanent(fault.New(fault.Invalid, "the last line of stdout is not a result: %w", err))
	}
	result.Columns = nil // the platform derives lineage; a program cannot claim any
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
