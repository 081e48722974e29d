package duck

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/dagctl/dagctl/internal/child"
)

// A binder describes statements over relations of which only the columns are known. DuckDB computes constants while it
// binds a statement, and some statements that users can write end its process or take minutes. So a child binds, and
// the server outlives it. A process that does not call BinderMain, such as most tests, binds by itself.

// binderArg is the argument that makes a process bind statements.
const binderArg = "binder-child"

// bindWithin is how long a statement may take to bind: others wait meanwhile.
const bindWithin = 2 * time.Second

// binderMemory is the memory of the child's DuckDB, in bytes.
const binderMemory = 256 << 20

// BinderMain binds statements and ends the process, if the process was started for that. main must call it first.
func BinderMain() { child.Main(binderArg, bindAll) }

// binding is what a child is asked, and bound what it answers.
type (
	binding struct {
		SQL       string
		Relations map[string][]Column
	}
	bound struct {
		Columns []Column
		Error   string
	}
)

// Binder is the one binder of a process. Its child starts with the first statement, and again after one that ended it.
type Binder struct {
	mu    sync.Mutex
	child *child.Process
	local Shared // where this process cannot have children
}

// Describe returns the columns of a statement.
func (b *Binder) Describe(ctx context.Context, sql string, relations map[string][]Column) ([]Column, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	question := binding{sql, relations}
	if !child.Can(binderArg) {
		b.local.Config = binderConfig()
		session, err := b.local.Get(ctx)
		if err != nil {
			return nil, err
		}
		return question.bind(ctx, session)
	}

	if b.child == nil {
		started, err := child.Start(context.WithoutCancel(ctx), child.Config{Kind: binderArg, Dir: os.TempDir(),
			Memory: 3 * binderMemory})
		if err != nil {
			return nil, fmt.Errorf("start to bind: %w", err)
		}
		b.child = started
	}
	var answer bound
	timer := time.AfterFunc(bindWithin, b.child.Kill)
	err := b.child.Ask(question, &answer)
	if !timer.Stop() && err == nil {
		err = context.DeadlineExceeded // it is being killed
	}
	if err != nil {
		err = errors.Join(fmt.Errorf("bind: %w", err), b.child.Stop())
		b.child = nil
		return nil, err
	}
	if answer.Error != "" {
		return nil, errors.New(answer.Error)
	}
	return answer.Columns, nil
}

// binderConfig is the session of a binder: it can read nothing, and knows the variables of a run.
func binderConfig() Config {
	at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	return Config{Threads: 1, MemoryLimit: binderMemory,
		Variables: map[string]any{"partition": "", "start": at, "end": at.AddDate(0, 0, 1)}}
}

func (q binding) bind(ctx context.Context, session *Session) ([]Column, error) {
	parsed, err := session.Parse(ctx, q.SQL)
	if err != nil {
		return nil, err
	}
	return session.DescribeOver(ctx, parsed, q.Relations)
}

// bindAll answers one question after the other.
func bindAll(in io.Reader, out io.Writer) int {
	ctx, shared := context.Background(), Shared{Config: binderConfig()}
	from, to := json.NewDecoder(in), json.NewEncoder(out)
	for {
		var question binding
		if from.Decode(&question) != nil {
			return 0
		}
		var answer bound
		session, err := shared.Get(ctx)
		if err == nil {
			answer.Columns, err = question.bind(ctx, session)
		}
		if err != nil {
			answer.Error = err.Error()
		}

		if to.Encode(answer) != nil {
			return 1
		}
	}
}
