package operators

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"

	"github.com/google/uuid"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/engine"
	"github.com/dagctl/dagctl/internal/clock"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/literal"
	"github.com/dagctl/dagctl/internal/workdir"
	"github.com/dagctl/dagctl/storage"
)

// Runner takes assignments from pinned inputs to sealed outputs. It is safe for concurrent use.
type Runner struct {
	Registry *Registry
	Storage  *storage.Storage
	Carrier  Carrier // nil: between Storage and the run's folders
	// Parent of the tasks' folders; on the storage's file system, files are moved instead of copied
	ScratchDir string
	Log        *slog.Logger

	// KeepLog returns a logger that also keeps a task's lines; end is called after the run. Nil: only Log gets them.
	KeepLog func(base *slog.Logger, org, task uuid.UUID, attempt int, redact func(string) string) (log *slog.Logger,
		end func())
}

// ErrTimedOut is the error of a run that was stopped at the time when its assignment ends.
var ErrTimedOut error = fault.New(fault.Unavailable, "the task ran longer than its timeout")

// errChecking marks the error of a run that was stopped while it checked what it had written.
var errChecking = errors.New("the output was written, and its checks did not end in time")

// permanent marks an error that a retry cannot mend.
type permanent struct{ err error }

func (p permanent) Error() string { return p.err.Error() }
func (p permanent) Unwrap() error { return p.err }

// Permanent marks an error that a retry cannot mend. It returns nil for nil.
func Permanent(err error) error {
	if err == nil {
		return nil
	}
	return permanent{err}
}

// IsPermanent reports whether a retry cannot mend the error: it is marked so, or its cause is the SQL or the data.
func IsPermanent(err error) bool {
	var p permanent
	return errors.As(err, &p) || engine.Deterministic(err) || fault.Is(err, fault.Invalid)
}

// Run runs the assignment. It always removes the scratch folder and returns an Outcome. Sealed outputs of a failed run
// stay at the attempt's locations; the record of the attempt leads to their removal.
func (r *Runner) Run(ctx context.Context, a Assignment, progress func(percent int, state string)) Outcome {
	if !a.TimeoutAt.IsZero() {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, a.TimeoutAt.Sub(clock.Now()), ErrTimedOut)
		defer cancel()
	}
	if progress == nil {
		progress = func(int, string) {}
	}
	a.Redactor = a.redactor()
	if tell := progress; len(a.Secrets) > 0 {
		progress = func(percent int, state string) { tell(percent, a.Redactor.Redact(state)) }
	}

	out, err := r.run(ctx, a, progress)
	if err == nil {
		return a.Redact(out)
	}
	if ctx.Err() != nil && !errors.Is(err, errChecking) {
		err = context.Cause(ctx)
	}
	return a.Redact(Outcome{Err: err, Retryable: ctx.Err() != nil || !IsPermanent(err)})
}

func (r *Runner) run(ctx context.Context, a Assignment, progress func(int, string)) (Outcome, error) {
	log := r.log(a)
	if r.KeepLog != nil {
		var end func()
		log, end = r.KeepLog(log, a.OrgID, a.TaskID, a.Attempt, a.Redactor.Redact)
		defer end()
	}

	op, ok := r.Registry.Get(a.Operator)
	if !ok {
		return Outcome{}, fault.New(fault.Unavailable, "operator %q is unknown here", a.Operator)
	}
	if v := op.Spec().Version; a.OperatorVersion != "" && a.OperatorVersion != v {
		return Outcome{}, fault.New(fault.Unavailable, "operator %s has version %s here; the task needs %s", a.Operator,
			v,
			a.OperatorVersion)
	}

	if op.Spec().NoFiles {
		return r.runWithoutFiles(ctx, op, a, progress, log)
	}

	dir, err := r.Scratch(a.TaskID, a.Attempt)
	if err != nil {
		return Outcome{}, err
	}
	defer dir.Remove()
	scratch := dir.Path

	w := r.workOf(a)
	w.tell = progress
	defer w.release()
	t, err := r.task(ctx, w, a, scratch, progress, log)
	if err != nil {
		return Outcome{}, err
	}

	result, err := runRecovered(ctx, op, t)
	if err != nil {
		return Outcome{}, err
	}
	if err := checkResult(&a, result); err != nil {
		return Outcome{}, err
	}
	if t.commits > 0 {
		w.release() // it waits for checks
		if a, err = t.Committer.Rest(ctx, a); err != nil {
			return Outcome{}, err
		}
	}
	out, err := r.carrier(t.work).Deliver(ctx, a, t.OutputDirs, result, filepath.Join(scratch, "seal"))
	if err != nil && result.From != "" {
		err = fmt.Errorf("%s: %w", result.From, err)
	}
	if err != nil {
		return Outcome{}, err
	}
	err = r.checkWritten(ctx, t, &out, scratch)
	return out, err
}

// runWithoutFiles runs an operator that needs no files, without touching the file system.
func (r *Runner) runWithoutFiles(
	ctx context.Context, op Operator, a Assignment, progress func(int, string), log *slog.Logger,
) (Outcome, error) {
	result, err := runRecovered(ctx, op, &Task{Assignment: a, Progress: progress, Log: log})
	if err == nil {
		err = checkResult(&a, result)
	}
	return Outcome{Result: result}, err
}

const maxResult = 64 << 10

// checkResult refuses what cannot be stored of what a run returned.
func checkResult(a *Assignment, result Result) error {
	if len(result.Result) > maxResult {
		return Permanent(fault.New(fault.TooLarge, "the result has %d bytes; %d are allowed", len(result.Result),
			maxResult))
	}
	texts := []json.RawMessage{result.Result, result.State}
	for i, task := range result.Tasks {
		if field, err := task.CheckNumbers(); err != nil {
			return Permanent(fault.New(fault.Invalid, "tasks[%d].%s: %w", i, field, err))
		}
		texts = append(texts, task.Payload, task.Metadata)
	}
	for _, text := range texts {
		if err := literal.Storable(text); err != nil {
			return Permanent(fault.New(fault.Invalid, "the run's result: %w", err))
		}
	}

	if n := literal.StoredOver(maxResult, result.Result); n > 0 {
		return Permanent(fault.New(fault.TooLarge, "the result takes %d bytes in the database; %d are allowed", n,
			maxResult))
	}
	return Permanent(a.RefuseSecrets(result.Tasks))
}

func (r *Runner) log(a Assignment) *slog.Logger {
	return slog.New(lateAttrs{logOr(r.Log).Handler(), []slog.Attr{slog.String("org", a.OrgSlug),
		slog.String("dag", a.DAG), slog.String("job", a.Job), slog.Any("task", a.TaskID),
		slog.Int("attempt", a.Attempt)}})
}

// task creates the task's folders and fetches its inputs.
func (r *Runner) task(
	ctx context.Context, w *work, a Assignment, scratch string, progress func(int, string), log *slog.Logger,
) (*Task, error) {
	t := &Task{Assignment: a, work: w, Scratch: filepath.Join(scratch, "scratch"), Progress: progress, Log: log,
		keyed: len(a.Inputs) > 0 && a.namesPartition()}
	if fetcher, ok := r.carrier(t.work).(codeFetcher); ok {
		t.fetchCode = func(ctx context.Context, dir string) error { return fetcher.FetchCode(ctx, a, dir) }
	}
	if a.Cursor != nil { // a copy for the run, which may change it
		began := *a.Cursor
		t.Cursor = &began
	}

	mkdir := func(path string) error { return os.Mkdir(path, 0o700) }
	// Folders that nobody writes to are not created: the file system is most of the cost of a short task.
	if op, _ := r.Registry.Get(a.Operator); !writesOutputsAlone(op) {
		if err := mkdir(t.Scratch); err != nil {
			return nil, fmt.Errorf("make scratch folder: %w", err)
		}
	}
	if r.Carrier != nil || slices.ContainsFunc(a.Outputs, func(o AssignedOutput) bool {
		return o.UpdateStrategy == dag.Append
	}) {
		if err := mkdir(filepath.Join(scratch, "seal")); err != nil {
			return nil, fmt.Errorf("make scratch folder: %w", err)
		}
	}

	for i, in := range a.Inputs {
		dir := filepath.Join(scratch, fmt.Sprintf("input%d", i))
		if r.Carrier != nil || r.Storage.Copies(in.Generation.Kind) { // otherwise nothing is written there
			if err := mkdir(dir); err != nil {
				return nil, fmt.Errorf("make scratch folder: %w", err)
			}
		}
		files, keys, err := r.carrier(t.work).Fetch(ctx, in, t.keyed, dir)
		if err != nil {
			return nil, fmt.Errorf("input %q: %w", in.As, err)
		}
		t.InputFiles, t.inputKeys = append(t.InputFiles, files), append(t.inputKeys, keys)
	}

	for i := range a.Outputs {
		dir := filepath.Join(scratch, fmt.Sprintf("output%d", i))
		if err := mkdir(dir); err != nil {
			return nil, fmt.Errorf("make scratch folder: %w", err)
		}
		t.OutputDirs = append(t.OutputDirs, dir)
	}
	return t, nil
}

// writesOutputsAlone reports whether the tasks of an operator leave their scratch folder empty.
func writesOutputsAlone(op Operator) bool {
	_, ok := op.(*sqlOperator)
	return ok
}

func logOr(log *slog.Logger) *slog.Logger {
	if log == nil {
		return slog.Default()
	}
	return log
}

// runRecovered turns a panic into a permanent error, because the same input would panic again.
func runRecovered(ctx context.Context, op Operator, t *Task) (result Result, err error) {
	defer func() {
		if p := recover(); p != nil {
			t.Log.ErrorContext(ctx, "operator panicked", "operator", t.Operator, "panic",
				t.redactor().Redact(fmt.Sprint(p)), "stack", t.redactor().Redact(string(debug.Stack())))
			err = Permanent(fault.New(fault.Internal, "operator %s panicked: %v", t.Operator, p))
		}
	}()
	return op.Run(ctx, t)
}

// scratchPrefix begins the names of tasks' folders.
const scratchPrefix = "run-"

// Scratch makes a folder for what belongs to one attempt while it runs. The caller removes it; if its process is
// killed, Sweep does.
func (r *Runner) Scratch(task uuid.UUID, attempt int) (*workdir.Dir, error) {
	f, err := workdir.Make(r.ScratchDir, fmt.Sprintf("%s%s-%d-", scratchPrefix, task, attempt))
	if err != nil {
		return nil, fmt.Errorf("make scratch folder: %w", err)
	}
	return f, nil
}

// Sweep removes the folders of tasks whose processes were killed.
func (r *Runner) Sweep() error { return workdir.Sweep(r.ScratchDir, scratchPrefix) }

// lateAttrs is a handler that formats a logger's attributes when a line is logged, not when the logger is made: most
// tasks log nothing.
type lateAttrs struct {
	slog.Handler
	attrs []slog.Attr
}

// Handle implements slog.Handler.
func (l lateAttrs) Handle(ctx context.Context, r slog.Record) error {
	return l.Handler.WithAttrs(l.attrs).Handle(ctx, r)
}

// WithAttrs implements slog.Handler.
func (l lateAttrs) WithAttrs(attrs []slog.Attr) slog.Handler {
	return lateAttrs{l.Handler, slices.Concat(l.attrs, attrs)}
}

// WithGroup implements slog.Handler. Only later attributes are in the group.
func (l lateAttrs) WithGroup(name string) slog.Handler {
	return lateAttrs{Handler: l.Handler.WithAttrs(l.attrs).WithGroup(name)}
}
