package dispatchertest

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
	"github.com/dagctl/dagctl/internal/sqltext"
	"github.com/dagctl/dagctl/operators"
)

// Probe makes the operators of the tests: "listed", a source of units that live in memory, and "hook" and "act", whose
// runs call a function of the test; act has external effects.
type Probe struct {
	mu          sync.Mutex
	units       map[string]map[string]string // list → partition → content
	fails       map[string]error             // list → the error of its enumeration
	Hooks       map[string]Hook              // job → what its runs do
	Enumerating func()                       // called by each enumeration, before it answers
	frozen      map[string]chan struct{}     // list → closed when its enumeration may answer

	known map[string]string // bytes of a file that Write has written → its content
}

// Hook is the run of a task.
type Hook func(ctx context.Context, t *operators.Task) (operators.Result, error)

func newProbe() *Probe {
	return &Probe{known: map[string]string{}, units: map[string]map[string]string{},
		fails: map[string]error{}, Hooks: map[string]Hook{}, frozen: map[string]chan struct{}{}}
}

func (p *Probe) operators() []operators.Operator {
	return []operators.Operator{&listed{p}, &hooked{p, "hook", dag.EffectInternal},
		&hooked{p, "act", dag.EffectExternal}}
}

// On makes the runs of a job call f.
func (p *Probe) On(job string, f Hook) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.Hooks[job] = f
}

// Put sets a unit of a list; empty content removes it.
func (p *Probe) Put(list, partition, content string) {
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

// Fail makes the enumeration of a list fail with err, or succeed again if err is nil.
func (p *Probe) Fail(list string, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.fails[list] = err
}

// Freeze keeps the enumerations of a list from answering until the returned function is called.
func (p *Probe) Freeze(list string) (thaw func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	until := make(chan struct{})
	p.frozen[list] = until
	return func() { close(until) }
}

// Write writes one row with the content to each output of the task.
func (p *Probe) Write(ctx context.Context, t *operators.Task, content string) error {
	bytes, err := parquet(ctx, content, t.OutputDirs)
	if err != nil {
		return err
	}
	p.mu.Lock()
	p.known[string(bytes)] = content
	p.mu.Unlock()
	for _, dir := range t.OutputDirs {
		if err := os.WriteFile(filepath.Join(dir, "part.parquet"), bytes, 0o600); err != nil {
			return err
		}
	}
	return nil
}

// made holds the Parquet files of one row that tests have made, by its content.
var made sync.Map

// parquet returns a file of one row, which DuckDB makes once for each content, in one of the folders.
func parquet(ctx context.Context, content string, dirs []string) ([]byte, error) {
	if bytes, ok := made.Load(content); ok || len(dirs) == 0 {
		file, _ := bytes.([]byte)
		return file, nil
	}
	file := filepath.Join(dirs[0], "part.parquet")
	if err := CopyToParquet(ctx, "SELECT "+sqltext.Literal(content)+" AS content", file); err != nil {
		return nil, err
	}
	bytes, err := os.ReadFile(file)
	if err == nil {
		made.Store(content, bytes)
	}
	return bytes, err
}

// Known returns the content of a file that Write has written, without asking DuckDB; false if it is another file.
func (p *Probe) Known(file string) (string, bool) {
	bytes, err := os.ReadFile(file)
	if err != nil {
		return "", false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	content, ok := p.known[string(bytes)]
	return content, ok
}

// Contents returns the contents of an input of the task in order, as the function of the same name does. It is faster
// where Write has written them.
func (p *Probe) Contents(ctx context.Context, t *operators.Task, input int) (found []string, err error) {
	for _, file := range t.InputFiles[input] {
		content, ok := p.Known(file)
		if !ok {
			return Contents(ctx, t, input)
		}
		found = append(found, content)
	}
	slices.Sort(found)
	return found, nil
}

// Contents reads the column content of an input of the task.
func Contents(ctx context.Context, t *operators.Task, input int) (found []string, err error) {
	if len(t.InputFiles[input]) == 0 {
		return nil, nil
	}
	err = inDuckDB(ctx, func(session *duck.Session) error {
		rows, err := session.Query(ctx, "SELECT content FROM "+duck.ReadParquet(t.InputFiles[input])+
			" ORDER BY content")
		if err != nil {
			return err
		}
		defer rows.Close()
		found, err = scanTexts(rows)
		return err
	})
	return found, err
}

// CopyToParquet writes the rows of a query to a Parquet file.
func CopyToParquet(ctx context.Context, query, file string) error {
	return inDuckDB(ctx, func(session *duck.Session) error {
		_, err := session.CopyToParquet(ctx, query, file)
		return err
	})
}

// All tests take turns with one DuckDB: starting one takes longer than everything else in a small task.
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
type listed struct{ p *Probe }

func (o *listed) Spec() dag.OperatorSpec {
	return dag.OperatorSpec{Name: "listed", Version: "1.0.0", Source: true, Replayable: true,
		Effect:       dag.EffectInternal,
		ConfigSchema: json.RawMessage(`{"type": "object", "required": ["list"], "properties": {"list": {"type": "string"}, "note": {"type": "string"}}}`)}
}

func (o *listed) Enumerate(ctx context.Context, e operators.Enumeration) ([]operators.Unit, error) {
	o.p.mu.Lock()
	asked, frozen := o.p.Enumerating, o.p.frozen[e.Config["list"].(string)]
	o.p.mu.Unlock()
	if frozen != nil {
		select {
		case <-frozen:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
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
	f := o.p.Hooks[t.Job]
	o.p.mu.Unlock()
	if f != nil {
		return f(ctx, t)
	}
	if strings.HasPrefix(content, "bad") {
		return operators.Result{}, fmt.Errorf("content %q cannot be read", content)
	}
	return operators.Result{SourceVersion: content}, o.p.Write(ctx, t, content)
}

// hooked runs the hook of its job. Without a hook it writes its tag and what it read.
type hooked struct {
	p      *Probe
	name   string
	effect dag.Effect
}

func (o *hooked) Spec() dag.OperatorSpec {
	return dag.OperatorSpec{Name: o.name, Version: "1.0.0", Source: true, Reactive: true, Effect: o.effect,
		ConfigSchema: json.RawMessage(`{"type": "object", "properties": {"tag": {"type": "string"}}}`)}
}

func (o *hooked) Run(ctx context.Context, t *operators.Task) (operators.Result, error) {
	o.p.mu.Lock()
	f := o.p.Hooks[t.Job]
	o.p.mu.Unlock()
	if f != nil {
		return f(ctx, t)
	}
	parts := []string{}
	for i := range t.Inputs {
		read, err := o.p.Contents(ctx, t, i)
		if err != nil {
			return operators.Result{}, err
		}
		parts = append(parts, strings.Join(read, "+"))
	}
	tag, _ := t.Config["tag"].(string)
	return operators.Result{}, o.p.Write(ctx, t, tag+"("+strings.Join(parts, ",")+")")
}

// Meeting lets a test hold runs at one place until it lets them go.
type Meeting struct {
	Arrived chan uuid.UUID
	Leave   chan struct{}
}

// NewMeeting returns a meeting that up to 100 runs can attend.
func NewMeeting() *Meeting { return &Meeting{make(chan uuid.UUID, 100), make(chan struct{})} }

// Wait reports that a run has arrived and holds it until the test lets it go or the run is canceled.
func (m *Meeting) Wait(ctx context.Context, t *operators.Task) error {
	m.Arrived <- t.TaskID
	select {
	case <-m.Leave:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
