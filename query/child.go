package query

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/dagctl/dagctl/internal/child"
	"github.com/dagctl/dagctl/internal/duck"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/relations"
	"github.com/dagctl/dagctl/internal/sqltext"
	"github.com/dagctl/dagctl/storage"
)

// A child is a process of this same binary that runs one query behind walls (internal/child), in a folder that holds
// links to the query's files, with numbers as names. It exchanges four JSON values with its parent: task (in), parsed
// (out), relations (in), outcome (out). If the rows are wanted as Arrow, they are a stream of bytes before the
// outcome. It ends when its stdin ends.

// childArg is the argument that makes a process a child.
const childArg = "query-child"

// Child runs the query and ends the process, if the process was started as a child. main must call it first, and so
// must TestMain of packages that run queries.
func Child() { child.Main(childArg, runQuery) }

// task is the child's task.
type task struct {
	Scope   duck.Scope
	SQL     string
	Memory  int64
	Threads int
	CPU     time.Duration
	Rows    int
	Bytes   int64
	Arrow   bool // the rows are wanted as a stream of Arrow
}

// parsed has the relations that the statement reads.
type parsed struct {
	Relations []relationName
	Failure   *failure
}

type relationName struct {
	Name  string // in lower case, like names of datasets
	Place string
}

// relation is one relation: files in the child's folder or, without files, its columns.
type relation struct {
	Name   string
	Files  []string
	Schema []storage.Column
}

// outcome is the child's answer.
type outcome struct {
	Columns   []storage.Column
	Rows      []json.RawMessage // each a list of values; none if they are a stream
	Count     int               // of rows
	Truncated bool
	Read      map[string][]string // the columns that may have been read, by relation
	Failure   *failure
}

// failure is an error on its way to the parent.
type failure struct {
	Kind          fault.Kind
	Message, Hint string
}

func runQuery(in io.Reader, out io.Writer) int {
	var t task
	from, to := json.NewDecoder(in), json.NewEncoder(out)
	if err := from.Decode(&t); err != nil {
		return 1
	}
	ctx := context.Background()
	names, err := parse(ctx, t)
	if to.Encode(parsed{Relations: names, Failure: failureOf(err, t)}) != nil || err != nil {
		return 1
	}

	var relations []relation
	if err := from.Decode(&relations); err != nil {
		return 1 // the parent decided not to go on
	}
	go func() { // stdin ends when the parent dies or no longer waits for the answer
		_, _ = io.Copy(io.Discard, in)
		os.Exit(1)
	}()
	answer, err := answer(ctx, t, relations, out)
	answer.Failure = failureOf(err, t)
	if to.Encode(answer) != nil {
		return 1
	}
	return 0
}

func parse(ctx context.Context, t task) ([]relationName, error) {
	session, err := duck.OpenData(ctx, duck.Data{Scope: relations.UTC,
		Limits: duck.Limits{Memory: t.Memory, Threads: 1}})
	if err != nil {
		return nil, err
	}
	defer session.Close()
	statement, err := session.Parse(ctx, t.SQL)
	if err != nil {
		return nil, err
	}

	var names []relationName
	for _, name := range statement.Relations {
		names = append(names, relationName{strings.ToLower(name), statement.Place(name)})
	}
	return names, nil
}

// answer runs the statement over the relations. Nothing else exists in its session.
func answer(ctx context.Context, t task, relations []relation, out io.Writer) (answer outcome, err error) {
	if t.Arrow {
		stream := child.Parts(out)
		defer func() { err = errors.Join(err, stream.Close()) }()
		out = stream
	}
	answer.Read = map[string][]string{}
	dir, err := os.Getwd()
	if err != nil {
		return answer, err
	}
	var paths []string
	for _, r := range relations {
		for _, file := range r.Files {
			paths = append(paths, filepath.Join(dir, file))
		}
	}

	session, err := duck.OpenData(ctx, duck.Data{Scope: t.Scope, Files: paths,
		Limits: duck.Limits{Memory: t.Memory, Threads: t.Threads}})
	if err != nil {
		return answer, err
	}
	defer session.Close()
	columns := map[string][]storage.Column{}
	for _, r := range relations {
		if err := session.Create(ctx, duck.Relation{Name: r.Name, Files: r.Files, Schema: r.Schema}); err != nil {
			return answer, err
		}
		if columns[r.Name], err = session.Describe(ctx, "FROM "+sqltext.Quote(r.Name)); err != nil {
			return answer, err
		}
	}

	statement, err := session.Parse(ctx, t.SQL)
	if err != nil {
		return answer, err
	}
	answer.Read = statement.Columns(columns)
	view, err := session.View(ctx, statement)
	if err != nil {
		return answer, err
	}

	if t.Arrow {
		err = answer.stream(ctx, session, view, t, out)
	} else {
		err = answer.gather(ctx, session, view, t)
	}
	return answer, err
}

// stream writes the rows as Arrow.
func (o *outcome) stream(ctx context.Context, session *duck.Session, view string, t task, out io.Writer) error {
	done, err := session.WriteArrow(ctx, view, out, duck.ArrowLimits{Rows: int64(t.Rows), Bytes: t.Bytes})
	o.Columns, o.Count, o.Truncated = done.Columns, int(done.Rows), done.Truncated
	return err
}

// gather reads the rows as JSON.
func (o *outcome) gather(ctx context.Context, session *duck.Session, view string, t task) (err error) {
	size := int64(0)
	o.Columns, err = duck.EachJSONRow(ctx, session, view, t.Rows+1, 0, func(row []any) error {
		text, err := json.Marshal(row)
		if err != nil {
			return err
		}
		size += int64(len(text))
		if len(o.Rows) == t.Rows || size > t.Bytes && len(o.Rows) > 0 {
			o.Truncated = true
			return duck.ErrEnough
		}
		if size > t.Bytes {
			return fault.New(fault.TooLarge, "the first row alone has more than the %d MB that an answer may have",
				t.Bytes>>20)
		}
		o.Rows = append(o.Rows, text)
		o.Count = len(o.Rows)
		return nil
	})
	return err
}

// failureOf returns an error that users may see. It holds neither rows nor paths: DuckDB's errors come without values
// (duck.WithoutValues), and name the files by their numbers.
func failureOf(err error, t task) *failure {
	var known *fault.Error
	switch {
	case err == nil:
		return nil
	case errors.As(err, &known):
		return &failure{known.Kind, known.Message, known.Hint}
	case duck.OutOfMemory(err):
		f := outOfMemory(t.Memory)
		return &failure{f.Kind, f.Message, f.Hint}
	case duck.OfStatement(err):
		message, _, _ := strings.Cut(err.Error(), "\n\nStack Trace")
		return &failure{fault.Invalid, message, ""}
	}
	return &failure{fault.Internal, err.Error(), ""}
}

func outOfMemory(limit int64) *fault.Error {
	return fault.New(fault.TooLarge, "the query needs more than the %d MB of memory that a query may use", limit>>20).
		WithHint("read fewer columns, filter before joining, or group first")
}
