package operators

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/dagctl/dagctl/internal/fault"
)

// commandCommits lets a running program commit. The program writes a CommandCommit as one line of JSON to file
// descriptor 3 and reads the answer, a CommandCommitted, as one line from file descriptor 4. Stdin ends with the task
// and stdout is the log, so neither can serve. A program that never commits can ignore all of this.
//
// A request that is wrong changes nothing; the answer and the task's log say what is wrong. The program is stopped if
// its attempt no longer counts, or if a commit fails for a reason of the server's.
type commandCommits struct {
	options Options
	t       *Task
	ctx     context.Context // of the run
	stop    context.CancelCauseFunc

	theirs  []*os.File // file descriptors 3 and 4 of the program
	asked   *os.File
	answers *os.File
	done    chan struct{} // closed when all requests are answered
	served  int
	failed  error // why a commit ended the program
}

// CommandChannel has the numbers of the file descriptors by which a program commits.
type CommandChannel struct {
	Ask    int `json:"ask"`
	Answer int `json:"answer"`
}

// CommandCommit is one request. {} commits all files in the folders of the outputs.
type CommandCommit struct {
	Outputs []CommandCommittedOutput `json:"outputs"`
	Events  []CommandEvent           `json:"events"`
	Tasks   []EnqueuedTask           `json:"tasks"`
	State   json.RawMessage          `json:"operator_state"`
}

// CommandCommittedOutput is what to publish of one output partition.
type CommandCommittedOutput struct {
	Name      string   `json:"name"` // optional if the job has one output
	Partition string   `json:"partition_key"`
	Files     []string `json:"files"` // names in the output's folder; omitted: all files
}

// CommandEvent is an event of the protocol, with the output by its name.
type CommandEvent struct {
	Output string     `json:"output"`
	Key    string     `json:"partition_key"`
	Start  *time.Time `json:"start"`
	End    *time.Time `json:"end"`
	Cursor *int64     `json:"cursor"`
	Scope  string     `json:"scope"`
	From   *int64     `json:"from"`
	To     *int64     `json:"to"`
	Reason string     `json:"reason"`
}

// CommandCommitted is the answer: the state after the commit, or why there was none.
type CommandCommitted struct {
	OK bool `json:"committed"`
	Committed
	Error *CommandRefusal `json:"error,omitempty"`
}

// CommandRefusal says what is wrong with a request; locations are paths in it, such as outputs[0].files[1].
type CommandRefusal struct {
	Message  string          `json:"message"`
	Hint     string          `json:"hint,omitempty"`
	Problems []fault.Problem `json:"problems,omitempty"`
}

// maxCommit is the longest request, in bytes.
const maxCommit = 8 << 20

// lastWords is how long requests are read after the program has ended. Its requests are in the pipe by then, and only a
// process that left its group can keep the pipe open.
const lastWords = time.Second

// openCommits opens the channel, or none if the run may not commit. stop ends the program.
func openCommits(ctx context.Context, o Options, t *Task, stop context.CancelCauseFunc) (*commandCommits, error) {
	c := &commandCommits{options: o, t: t, ctx: ctx, stop: stop}
	if t.Committer == nil {
		return c, nil
	}
	asked, ask, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	answer, answers, err := os.Pipe()
	if err != nil {
		return nil, errors.Join(err, asked.Close(), ask.Close())
	}
	c.theirs, c.asked, c.answers = []*os.File{ask, answer}, asked, answers
	return c, nil
}

// channel returns the description of the channel for the program.
func (c *commandCommits) channel() *CommandChannel {
	if c.theirs == nil {
		return nil
	}
	return &CommandChannel{Ask: 3, Answer: 4}
}

// serve starts answering requests. The program must have started.
func (c *commandCommits) serve() {
	if c.theirs == nil {
		return
	}
	for _, f := range c.theirs { // the program has copies
		_ = f.Close()
	}

	c.done = make(chan struct{})
	go func() {
		defer close(c.done)
		requests := bufio.NewScanner(c.asked)
		requests.Buffer(nil, maxCommit)
		for c.failed == nil && requests.Scan() {
			c.served++
			c.answer(requests.Bytes())
		}
		if errors.Is(requests.Err(), bufio.ErrTooLong) {
			c.fail(Permanent(fault.New(fault.TooLarge, "commit %d: the request is a line of more than %d bytes",
				c.served+1, maxCommit)))
		}
	}()
}

// end waits until all requests are answered. It returns the error of the commit that stopped the program, if one did.
func (c *commandCommits) end() error {
	if c.done == nil {
		return nil
	}
	until := time.Now().Add(lastWords)
	_ = errors.Join(c.asked.SetReadDeadline(until), c.answers.SetWriteDeadline(until))
	<-c.done
	return c.failed
}

func (c *commandCommits) close() {
	for _, f := range append(c.theirs, c.asked, c.answers) {
		_ = f.Close()
	}
}

// fail stops the program.
func (c *commandCommits) fail(err error) {
	c.failed = err
	c.stop(err)
}

// answer handles the request in a line.
func (c *commandCommits) answer(line []byte) {
	done, err := c.commit(line)
	said := CommandCommitted{OK: err == nil, Committed: done}
	if err != nil {
		said.Error = refusalOf(err)
		c.t.Log.Warn(fmt.Sprintf("commit %d: %s", c.served, said.Error.Message))
	}

	text, encoding := json.Marshal(said)
	if encoding != nil {
		c.fail(encoding)
		return
	}

	_, _ = c.answers.Write(append(text, '\n')) // a program that does not listen has ended or does not care
	if err != nil && !IsPermanent(err) {
		c.fail(fmt.Errorf("commit %d: %w", c.served, err))
	}
}

// refusalOf returns an error in the form that the program gets.
func refusalOf(err error) *CommandRefusal {
	r := &CommandRefusal{Message: err.Error()}
	var f *fault.Error
	if errors.As(err, &f) {
		r.Hint = f.Hint
		for _, p := range f.Problems {
			p.Location = strings.TrimPrefix(p.Location, "body.") // locations in calls of the protocol begin with it
			r.Problems = append(r.Problems, p)
		}
	}
	if len(r.Problems) > 0 {
		r.Message = r.Problems[0].Location + ": " + r.Problems[0].Message
	}
	return r
}

func (c *commandCommits) commit(line []byte) (Committed, error) {
	var asked CommandCommit
	decoder := json.NewDecoder(bytes.NewReader(line))
	decoder.DisallowUnknownFields()
	err := decoder.Decode(&asked)
	if err == nil && decoder.More() {
		err = errors.New("the line has more than one value")
	}
	if err != nil {
		return Committed{}, fault.New(fault.Invalid,
			"the request is not a line of JSON with outputs, events, tasks and operator_state: %s",
			strings.TrimPrefix(err.Error(), "json: ")).WithHint("{} commits all files in the folders of the outputs")
	}

	r := commitRequest{commandCommits: c, taken: map[string]string{}}
	commit := Commit{Tasks: asked.Tasks, State: asked.State, Outputs: r.outputs(asked.Outputs),
		Events: r.events(asked.Events)}
	if len(r.problems) > 0 {
		return Committed{}, &fault.Error{Kind: fault.Invalid, Message: r.problems[0].Location + ": " +
			r.problems[0].Message, Problems: r.problems}
	}

	dir := filepath.Join(c.t.Scratch, fmt.Sprintf("commit%d", c.served))
	if err := os.Mkdir(dir, 0o700); err != nil {
		return Committed{}, err
	}
	defer os.RemoveAll(dir)

	var texts []string
	for i := range commit.Outputs {
		if texts, err = r.convert(&commit.Outputs[i], i, dir, texts); err != nil {
			return Committed{}, err
		}
	}

	done, err := c.t.Commit(c.ctx, commit)
	if err != nil {
		return Committed{}, err
	}
	for _, file := range texts {
		if err := os.Remove(file); err != nil && !os.IsNotExist(err) {
			return Committed{}, err
		}
	}
	return done, nil
}

// commitRequest turns a request into a Commit and collects what is wrong with it.
type commitRequest struct {
	*commandCommits
	taken    map[string]string // file → the place in the request that names it
	problems []fault.Problem
}

func (r *commitRequest) wrong(where, format string, args ...any) {
	r.problems = append(r.problems, fault.Problem{Location: where, Message: fmt.Sprintf(format, args...)})
}

// output returns the index of the output with a name.
func (r *commitRequest) output(where, name string) (index int, ok bool) {
	if name == "" && len(r.t.Outputs) == 1 {
		return 0, true
	}
	index = slices.IndexFunc(r.t.Outputs, func(o AssignedOutput) bool { return o.Name == name })
	if index < 0 {
		names := make([]string, len(r.t.Outputs))
		for i, o := range r.t.Outputs {
			names[i] = o.Name
		}
		r.wrong(where, "the job has no output %q; it has %q", name, names)
	}
	return index, index >= 0
}

// outputs returns the files to commit, including text files.
func (r *commitRequest) outputs(asked []CommandCommittedOutput) []CommittedOutput {
	found := []CommittedOutput{}
	everything := asked == nil
	if everything {
		for _, o := range r.t.Outputs {
			asked = append(asked, CommandCommittedOutput{Name: o.Name})
		}
	}

	for i, o := range asked {
		where := fmt.Sprintf("outputs[%d]", i)
		index, ok := r.output(where+".name", o.Name)
		if !ok {
			continue
		}

		out := CommittedOutput{Output: index, Partition: o.Partition, Files: []string{}}
		dir := r.t.OutputDirs[index]
		if o.Files == nil {
			all, err := filesOf(dir)
			if err != nil {
				r.wrong(where, "its folder cannot be read: %v", err)
			}
			for _, format := range sortedKeys(all) {
				for _, file := range all[format] {
					r.take(&out, where, file)
				}
			}
		}
		for n, name := range o.Files {
			r.take(&out, fmt.Sprintf("%s.files[%d]", where, n), filepath.Join(dir, filepath.Base(name)), name)
		}

		if !everything || len(out.Files) > 0 {
			found = append(found, out)
		}
	}
	return found
}

// take adds a file to an output. named is the name in the request, if the request names the file.
func (r *commitRequest) take(out *CommittedOutput, where, file string, named ...string) {
	name := filepath.Base(file)
	info, err := os.Lstat(file)
	switch {
	case len(named) > 0 && named[0] != name:
		r.wrong(where, "%q is not the name of a file in the output's folder", named[0])
	case err != nil:
		r.wrong(where, "there is no file %q in the output's folder", name)
	case !info.Mode().IsRegular():
		r.wrong(where, "%q is not a regular file", name)
	case formatOf(name) == "":
		r.wrong(where, "%q is not *.parquet, *.csv or *.ndjson; the latter two may end in .gz or .zst", name)
	case r.taken[file] != "":
		r.wrong(where, "%q is already committed by %s", name, r.taken[file])
	default:
		r.taken[file] = where
		out.Files = append(out.Files, file)
	}
}

func (r *commitRequest) events(asked []CommandEvent) (events []Event) {
	for i, e := range asked {
		if index, ok := r.output(fmt.Sprintf("events[%d].output", i), e.Output); ok {
			events = append(events, Event{index, e.Key, e.Start, e.End, e.Cursor, e.Scope, e.From, e.To, e.Reason})
		}
	}
	return events
}

// convert replaces the text files of an output by Parquet files in dir. It appends the text files to texts.
func (r *commitRequest) convert(out *CommittedOutput, index int, dir string, texts []string) ([]string, error) {
	files := map[string][]string{}
	for _, file := range out.Files {
		files[formatOf(file)] = append(files[formatOf(file)], file)
	}

	out.Files = slices.Concat([]string{}, files["parquet"])
	for _, format := range textFormats {
		if len(files[format]) == 0 {
			continue
		}

		name := fmt.Sprintf("%d-%s", index, format)
		target := filepath.Join(dir, name+".parquet")
		rows, err := r.t.work.importText(r.ctx, format, files[format], target, r.t.Outputs[index].Standing, nil)
		if err != nil {
			if r.ctx.Err() != nil {
				return nil, context.Cause(r.ctx)
			}
			p := fault.Problem{Location: fmt.Sprintf("outputs[%d]", index), Message: err.Error()}
			return nil, &fault.Error{Kind: fault.Invalid, Message: p.Location + ": " + p.Message,
				Problems: []fault.Problem{p}}
		}

		final := filepath.Join(dir, ImportedName(name, format, rows))
		if err := os.Rename(target, final); err != nil {
			return nil, err
		}
		out.Files, texts = append(out.Files, final), append(texts, files[format]...)
	}
	return texts, nil
}
