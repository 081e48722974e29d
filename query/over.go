package query

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/dagctl/dagctl/internal/duck"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/storage"
)

// Selected is the answer of Over. Each row is a JSON list of values.
type Selected struct {
	Columns   []storage.Column
	Rows      []json.RawMessage
	Truncated bool
}

// Over runs one SELECT over relations of an org that the caller provides, such as the inputs of a task. open puts the
// Parquet files of a named relation into dir, or returns an error. The statement runs like every query, but in the
// scope of the task's partition: see Run.
func (q *Query) Over(ctx context.Context, org string, scope duck.Scope, sql string, limit int,
	open func(ctx context.Context, name, dir string) ([]string, error)) (Selected, error) {
	s := Statement{SQL: sql, Limit: limit}
	return bounded(ctx, q, org, s, func(ctx context.Context, s Statement) (Selected, error) {
		return q.over(ctx, org, scope, s, open)
	})
}

func (q *Query) over(ctx context.Context, org string, scope duck.Scope, s Statement,
	open func(ctx context.Context, name, dir string) ([]string, error)) (Selected, error) {
	dir, err := os.MkdirTemp("", fmt.Sprintf("dagctl-query-%d-*", os.Getpid()))
	if err != nil {
		return Selected{}, err
	}
	defer os.RemoveAll(dir)

	child, names, err := q.begin(ctx, org, scope, dir, s)
	if err != nil {
		return Selected{}, err
	}
	defer child.Stop()

	relations := []relation{}
	for i, n := range names.Relations {
		own := filepath.Join(dir, fmt.Sprint(i))
		if err := os.MkdirAll(filepath.Join(own, "rows"), 0o700); err != nil {
			return Selected{}, err
		}
		files, err := open(ctx, n.Name, filepath.Join(own, "rows"))
		if err != nil {
			return Selected{}, fmt.Errorf("relation %q%s: %w", n.Name, n.Place, err)
		}
		if files, err = link(files, own, fmt.Sprint(i)); err != nil {
			return Selected{}, err
		}
		relations = append(relations, relation{Name: n.Name, Files: files})
	}

	out, err := child.answer(ctx, relations, nil)
	return Selected{out.Columns, out.Rows, out.Truncated}, err
}

// begin starts the process of a statement of an org and returns the relations that it reads.
func (q *Query) begin(ctx context.Context, org string, scope duck.Scope, dir string, s Statement,
) (*process, parsed, error) {
	l := q.Limits
	var names parsed
	folder, err := q.Storage.Folder(org)
	if err != nil {
		return nil, names, err
	}
	child, err := start(ctx, dir, []string{folder}, task{Scope: scope, SQL: s.SQL, Memory: l.Memory, Threads: l.Threads,
		CPU: time.Duration(l.Threads) * l.Timeout, Rows: s.Limit, Bytes: l.Bytes, Arrow: s.arrow != nil})
	if err != nil {
		return nil, names, err
	}
	if err = child.ask(ctx, child.task, &names); err == nil {
		err = names.Failure.err()
	}
	if err != nil {
		child.Stop()
		return nil, names, err
	}

	if len(names.Relations) > maxRelations {
		child.Stop()
		return nil, names, fault.New(fault.TooLarge, "the query reads %d relations; at most %d are allowed",
			len(names.Relations), maxRelations)
	}
	return child, names, nil
}
