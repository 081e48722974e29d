// Package remotequery has what sources have in common that run one SELECT on a database of the user's and publish its
// rows, whatever the kind of the database.
//
// Vocabulary: a placeholder stands for a value of the partition that is made and travels as a parameter. A column is
// read as the DuckDB type that holds all values of its type, or as one that the config declares or that stands since
// the first run: a value that such a type does not hold is refused. It owns no tables.
package remotequery

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/internal/dial"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/relations"
	"github.com/dagctl/dagctl/internal/remotedb"
	"github.com/dagctl/dagctl/operators"
	"github.com/dagctl/dagctl/operators/textfile"
)

// Database is a kind of database and the operator that reads it.
type Database struct {
	Operator  string // its name
	Version   string // semantic, of the operator
	Address   string // the part of the config schema that describes the address
	SecretsTo func(config map[string]any) string
	// Parse reads a config that fits the schema.
	Parse func(config map[string]any) (Asked, *dag.ConfigError)
}

// Asked is a config that was read.
type Asked struct {
	Config
	Statement Statement
	Host      string
	// Read runs the statement and writes its rows to a new file in PostgreSQL's binary COPY format. standing are the
	// columns that stand since an earlier run; nil: none do.
	Read func(ctx context.Context, d *dial.Dialer, t *operators.Task, standing []textfile.Column, file string) (Answer,
		error)
}

// Answer is what a query returned.
type Answer struct {
	Columns []relations.Column
	Hash    string // of the columns and the rows, in their order
}

type operator struct {
	Database
	options operators.Options
	dialer  *dial.Dialer
}

// New returns the operator of a kind of database.
func New(o operators.Options, kind Database) (operators.Operator, error) {
	d, err := dial.New(dial.Config{Allowed: o.AllowedAddresses})
	return &operator{kind, o, d}, err
}

func (o *operator) Spec() dag.OperatorSpec {
	return dag.OperatorSpec{
		Name: o.Operator, Version: o.Version, Source: true, Effect: dag.EffectInternal, Splits: true,
		ConfigSchema: json.RawMessage(schema(o.Address)),
		Operational:  append([]string{"max_bytes"}, remotedb.Operational...),
		CheckJob:     o.checkJob,
		Shape:        o.shape,
		Reading: func(given map[string]any) any {
			return map[string]any{"query": given["query"], "types": given["types"], "columns": given["columns"]}
		},
		SecretsTo: o.SecretsTo,
		Canonical: func(given map[string]any) (any, *dag.ConfigError) {
			_, err := o.Parse(given)
			return given, err
		},
	}
}

// checkJob refuses placeholders that no partition of the job has a value for.
func (o *operator) checkJob(job *dag.Job) *dag.ConfigError {
	if len(job.Outputs) != 1 {
		return &dag.ConfigError{Message: o.Operator + " has one output"}
	}
	a, refused := o.Parse(job.Config)
	if refused != nil {
		return refused
	}

	ranged := slices.Contains(a.Statement.Uses, "start") || slices.Contains(a.Statement.Uses, "end")
	switch {
	case ranged && job.TasksBy().Kind != dag.ByTime:
		return &dag.ConfigError{Key: "query", Message: "{start} and {end} need partitions of time: `partition_by: { " +
			"time: day }`"}
	case job.PartitionBy.Kind == dag.ByCursor || job.PartitionBy.Kind == dag.ByRange:
		return &dag.ConfigError{Message: o.Operator + " makes partitions of time or by key, or one for all rows"}
	}
	return nil
}

// shape is the Shape: the columns that the config names, and the types that it declares.
func (o *operator) shape(job *dag.Job, _ [][]dag.Column) (s dag.Shape, err error) {
	a, refused := o.Parse(job.Config)
	if refused != nil {
		return s, nil
	}
	for _, name := range a.Columns {
		if len(s.Writes) == 0 {
			s.Writes = [][]dag.Column{nil}
		}
		s.Writes[0] = append(s.Writes[0], dag.Column{Name: name, Type: a.declared(name)})
	}
	if len(s.Writes) > 0 {
		return s, nil
	}

	for name := range a.Types {
		s.Types = append(s.Types, dag.Column{Name: name, Type: a.declared(name)})
	}
	slices.SortFunc(s.Types, func(a, b dag.Column) int { return strings.Compare(a.Name, b.Name) })
	return s, nil
}

// state is what the source remembers of the last answer.
type state struct {
	Request string `json:"request"` // hash of config and partition: another request has another answer
	SHA256  string `json:"sha256"`  // of the columns and rows
}

// Run implements operators.Operator. If the rows are those of the last run, it publishes nothing.
func (o *operator) Run(ctx context.Context, t *operators.Task) (operators.Result, error) {
	a, refused := o.Parse(t.Config)
	if refused != nil {
		return operators.Result{}, operators.Permanent(operators.ConfigError(refused))
	}
	if err := ctx.Err(); err != nil {
		return operators.Result{}, err
	}
	standing, err := standingOf(t)
	if err != nil {
		return operators.Result{}, err
	}

	t.Progress(0, "asking "+a.Host)
	file := filepath.Join(t.Scratch, "rows.pgcopy")
	answer, err := a.Read(ctx, o.dialer, t, standing, file)
	if err != nil {
		if fault.Is(err, fault.Forbidden) {
			err = operators.Permanent(err)
		}
		return operators.Result{}, err
	}

	now := state{requestOf(t), answer.Hash}
	var last state
	same := len(t.State) > 0 && json.Unmarshal(t.State, &last) == nil && last == now && standing != nil &&
		!t.Purged()
	result := operators.Result{SourceVersion: "sha256:" + answer.Hash, Unchanged: same}
	if !t.Asked { // then rows are compared, and partitions are read side by side
		result.State, err = json.Marshal(now)
	}
	if err != nil || same {
		return result, err
	}

	t.Progress(50, "writing rows")
	reading := textfile.Reading{Format: textfile.Database}
	for _, column := range answer.Columns {
		reading.Columns = append(reading.Columns, textfile.Column(column))
	}
	target := filepath.Join(t.OutputDirs[0], "part.parquet")
	rows, err := o.options.Engines.CopyIn(ctx, t.OrgID.String(), answer.Columns, file, target)
	if err != nil {
		return result, err
	}

	if standing == nil || !slices.Equal(standing, reading.Columns) {
		if result.Reading, err = json.Marshal(reading); err != nil {
			return result, err
		}
	}
	result.Result, err = json.Marshal(map[string]int64{"rows": rows})
	return result, errors.Join(err, os.Remove(file))
}

// standingOf returns the columns that stand since an earlier run; nil if none do.
func standingOf(t *operators.Task) ([]textfile.Column, error) {
	if len(t.Reading) == 0 {
		return nil, nil
	}
	var r textfile.Reading
	if err := json.Unmarshal(t.Reading, &r); err != nil {
		return nil, fmt.Errorf("standing columns: %w", err)
	}
	return r.Columns, nil
}

func requestOf(t *operators.Task) string {
	text, _ := json.Marshal([]any{t.Config, t.Partition, t.PartitionBy}) // it came from JSON
	hash := sha256.Sum256(text)
	return hex.EncodeToString(hash[:])
}

// File is a file that an answer is written to.
type File struct {
	to   *bufio.Writer
	file *os.File
	hash hash.Hash
}

// Create makes a new file for rows of some columns.
func Create(path string, columns []relations.Column) (*File, error) {
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, err
	}
	f := &File{file: file, hash: sha256.New()}
	f.to = bufio.NewWriterSize(io.MultiWriter(file, f.hash), 1<<16)
	return f, json.NewEncoder(f.hash).Encode(named(columns))
}

func (f *File) Write(piece []byte) (int, error) { return f.to.Write(piece) }

// End completes the file and returns the hash of the columns and of what was written.
func (f *File) End() (string, error) {
	err := errors.Join(f.to.Flush(), f.file.Close())
	return hex.EncodeToString(f.hash.Sum(nil)), err
}

// Close closes the file wherever it stands.
func (f *File) Close() error { return f.file.Close() }

func named(columns []relations.Column) (list [][2]string) {
	for _, c := range columns {
		list = append(list, [2]string{c.Name, c.Type})
	}
	return list
}
