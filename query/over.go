package query

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/google/uuid"

	"github.com/dagctl/dagctl/internal/relations"
	"github.com/dagctl/dagctl/storage"
)

// Selected is the answer of Over. Each row is a JSON list of values.
type Selected struct {
	Columns   []storage.Column
	Rows      []json.RawMessage
	Truncated bool
}

// Given are relations of an org that the caller of Over provides, such as the inputs of a task.
type Given struct {
	Org   uuid.UUID
	Of    string // who reads them
	Scope relations.Scope
	// Open puts the Parquet files of a named relation into dir and returns them. If the relation is to be keyed, it
	// returns the partition of each file, too.
	Open func(ctx context.Context, name, dir string, keyed bool) (files, keys []string, err error)
}

// Over runs one SELECT over given relations. It runs like every query, but in their scope: see Run.
func (q *Query) Over(ctx context.Context, given Given, sql string, limit int) (Selected, error) {
	s := Statement{SQL: sql, Limit: limit}
	return bounded(ctx, q, given.Org.String(), s, func(ctx context.Context, s Statement) (Selected, error) {
		return q.over(ctx, given, s)
	})
}

func (q *Query) over(ctx context.Context, given Given, s Statement) (Selected, error) {
	a, names, err := q.begin(ctx, given.Org, given.Of, given.Scope, s)
	if err != nil {
		return Selected{}, err
	}
	defer a.Discard()

	list, keyed := []relations.Relation{}, relations.NamesPartition(s.SQL)
	for _, n := range names {
		own, err := a.Own()
		if err != nil {
			return Selected{}, err
		}
		files, keys, err := given.Open(ctx, n.Name, own, keyed)
		if err != nil {
			return Selected{}, fmt.Errorf("relation %q%s: %w", n.Name, n.Place, err)
		}
		if files, err = a.In(files...); err != nil {
			return Selected{}, err
		}
		list = append(list, relations.Relation{Name: n.Name, Files: files, Keyed: keyed, Keys: keys})
	}

	out, err := a.rows(ctx, list)
	return Selected{out.Columns, out.List, out.Truncated}, err
}
