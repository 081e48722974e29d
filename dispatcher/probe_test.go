package dispatcher

import (
	"cmp"
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/google/uuid"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/internal/duck"
	"github.com/dagctl/dagctl/operators"
)

// Operators of the tests.

// probe makes operators that do as a test says: "listed", a source of units that live in memory, and "hook", whose runs
// call a function of the test.
type probe struct {
	mu    sync.Mutex
	units map[string]map[string]string // list → partition → content
	fails map[string]error             // list → what its enumeration says instead
	hooks map[string]hook              // job → what its runs do
	asked func()                       // called by each enumeration, before it answers

	dir   string            // of the files below
	files map[string]string // content → a Parquet file of it
}

// hook is one run.
type hook func(ctx context.Context, t *operators.Task) (operators.Result, error)

func newProbe(dir string) *probe {
	return &probe{dir: dir, files: map[string]string{}, units: map[string]map[string]string{}, fails: map[string]error{}, hooks: map[string]hook{}}
}

func (p *probe) operators() []operators.Operator {
	return []operators.Operator{&listed{p}, &hooked{p, "hook", dag.EffectInternal}, &hooked{p, "act", dag.EffectExternal}}
}

// on has the runs of a job call f.
func (p *probe) on(job string, f hook) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.hooks[job] = f
}

// put changes a unit of a list; empty content takes it away.
func (p *probe) put(list, partition, content string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.units[list] == nil {
		p.units[list] = map[string]string{}
	}
	if content == "" {
		delete(p.units[list], partition)
		return
	}
	p.units[list][partition] = content
}

func (p *probe) fail(list string, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.fails[list] = err
}

// write makes the task's output one row with the content.
func (p *probe) write(ctx context.Context, t *operators.Task, content string) error {
	file, err := p.parquet(ctx, content)
	if err != nil {
		return err
	}
	bytes, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	for _, dir := range t.OutputDirs {
		if err := os.WriteFile(filepath.Join(dir, "part.parquet"), bytes, 0o600); err != nil {
			return err
		}
	}
	return nil
}

// parquet makes a file of one row, once for each content.
func (p *probe) parquet(ctx context.Context, content string) (string, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if file, ok := p.files[content]; ok {
		return file, nil
	}
	file := filepath.Join(p.dir, fmt.Sprintf("%d.parquet", len(p.files)))
	if err := copyToParquet(ctx, "SELECT "+duck.Literal(content)+" AS content", file); err != nil {
		return "", err
	}
	p.files[content] = file
	return file, nil
}

// contents reads the column content of the task's input.
func contents(ctx context.Context, t *operators.Task, input int) (found []string, err error) {
	if len(t.InputFiles[input]) == 0 {
		return nil, nil
	}
	err = inDuckDB(ctx, func(session *duck.Session) error {
		rows, err := session.Query(ctx, "SELECT content FROM "+duck.ReadParquet(t.InputFiles[input])+" ORDER BY content")
		if err != nil {
			return err
		}
		defer rows.Close()
		found, err = scanTexts(rows)
		return err
	})
	return found, err
}

func copyToParquet(ctx context.Context, query, file string) error {
	return inDuckDB(ctx, func(session *duck.Session) error {
		_, err := session.CopyToParquet(ctx, query, file)
		return err
	})
}

// The DuckDB of all tests, for one at a time: to start one takes longer than all else in a small task.
var (
	duckDB     = duck.Shared{Config: duck.Config{AnyPath: true, Threads: 1}}
	duckDBBusy sync.Mutex
)

func inDuckDB(ctx context.Context, fn func(*duck.Session) error) error {
	duckDBBusy.Lock()
	defer duckDBBusy.Unlock()
	session, err := duckDB.Get(ctx)
	if err != nil {
		return err
	}
	return fn(session)
}

func scanTexts(rows *sql.Rows) (found []string, err error) {
	for rows.Next() {
		var s string
		if err := rows.Scan(&s); err != nil {
			return nil, err
		}
		found = append(found, s)
	}
	return found, rows.Err()
}

// listed is a replayable source.
type listed struct{ p *probe }

func (o *listed) Spec() dag.OperatorSpec {
	return dag.OperatorSpec{Name: "listed", Version: "1.0.0", Source: true, Replayable: true, Effect: dag.EffectInternal,
		ConfigSchema: json.RawMessage(`{"type": "object", "required": ["list"], "properties": {"list": {"type": "string"}, "note": {"type": "string"}}}`)}
}

func (o *listed) Enumerate(_ context.Context, e operators.Enumeration) ([]operators.Unit, error) {
	o.p.mu.Lock()
	asked := o.p.asked
	o.p.mu.Unlock()
	if asked != nil {
		asked()
	}
	o.p.mu.Lock()
	defer o.p.mu.Unlock()
	list := e.Config["list"].(string)
	if err := o.p.fails[list]; err != nil {
		return nil, err
	}
	var units []operators.Unit
	for partition, content := range o.p.units[list] {
		units = append(units, operators.Unit{Partition: partition, Version: content})
	}
	slices.SortFunc(units, func(a, b operators.Unit) int { return cmp.Compare(a.Partition, b.Partition) })
	return units, nil
}

func (o *listed) Run(ctx context.Context, t *operators.Task) (operators.Result, error) {
	o.p.mu.Lock()
	content := o.p.units[t.Config["list"].(string)][t.Partition.Key]
	f := o.p.hooks[t.Job]
	o.p.mu.Unlock()
	if f != nil {
		return f(ctx, t)
	}
	if strings.HasPrefix(content, "bad") {
		return operators.Result{}, fmt.Errorf("content %q cannot be read", content)
	}
	return operators.Result{SourceVersion: content}, o.p.write(ctx, t, content)
}

// hooked does what the test says. Without a hook it writes what it read, and how it is called.
type hooked struct {
	p      *probe
	name   string
	effect dag.Effect
}

func (o *hooked) Spec() dag.OperatorSpec {
	return dag.OperatorSpec{Name: o.name, Version: "1.0.0", Source: true, Reactive: true, Effect: o.effect,
		ConfigSchema: json.RawMessage(`{"type": "object", "properties": {"tag": {"type": "string"}}}`)}
}

func (o *hooked) Run(ctx context.Context, t *operators.Task) (operators.Result, error) {
	o.p.mu.Lock()
	f := o.p.hooks[t.Job]
	o.p.mu.Unlock()
	if f != nil {
		return f(ctx, t)
	}
	parts := []string{}
	for i := range t.Inputs {
		read, err := contents(ctx, t, i)
		if err != nil {
			return operators.Result{}, err
		}
		parts = append(parts, strings.Join(read, "+"))
	}
	tag, _ := t.Config["tag"].(string)
	return operators.Result{}, o.p.write(ctx, t, tag+"("+strings.Join(parts, ",")+")")
}

// meeting lets a test hold a run where it is, and let it go on.
type meeting struct {
	arrived chan uuid.UUID
	leave   chan struct{}
}

func newMeeting() *meeting { return &meeting{make(chan uuid.UUID, 100), make(chan struct{})} }

// wait tells that a run has come, and holds it until the test lets it go or it is stopped.
func (m *meeting) wait(ctx context.Context, t *operators.Task) error {
	m.arrived <- t.TaskID
	select {
	case <-m.leave:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
