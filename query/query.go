// Package query reads rows of datasets, all as of one moment, for callers who may see the datasets.
//
// Vocabulary: a preview is some rows of one dataset. A statement is a user's SQL over several datasets, which an
// engine runs that ends with it (see package engine). It owns no tables.
package query

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/engine"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/registry"
	"github.com/dagctl/dagctl/storage"
)

// Config has the settings of a Query.
type Config struct {
	Requests *pgxpool.Pool
	Registry *registry.Registry
	Storage  *storage.Storage
	Engines  *engine.Engines
	Limits   Limits // of users' SQL; the zero value is DefaultLimits
}

// Query reads datasets.
type Query struct {
	Config
	slots   *slots // for statements that run at once
	exports *slots // for exports
}

// New returns a Query. It returns an error if the config is not complete or its limits are not valid.
func New(c Config) (*Query, error) {
	if c.Requests == nil || c.Registry == nil || c.Storage == nil || c.Engines == nil {
		return nil, errors.New("query: requests, registry, storage and engines are needed")
	}
	if c.Limits == (Limits{}) {
		c.Limits = DefaultLimits
	}
	if err := c.Limits.Validate(); err != nil {
		return nil, err
	}
	return &Query{Config: c, slots: newSlots(c.Limits.Concurrent),
		exports: newSlots(c.Limits.Exports)}, nil
}

// Limits of a preview, which is for a look at the data and not for exports.
const (
	MaxRows   = 1000
	MaxOffset = 100_000
)

// Rows is part of a dataset, partition by partition in the order of their keys.
type Rows struct {
	Dataset string           `json:"dataset"`
	Version *uuid.UUID       `json:"dataset_version,omitempty" doc:"The live generation; absent if there is none"`
	Columns []storage.Column `json:"columns" nullable:"false"`
	Rows    [][]any          `json:"rows" nullable:"false"`
}

// Preview returns rows of one dataset, or of one of its partitions, as its readers see them.
func (q *Query) Preview(ctx context.Context, caller authz.Caller, name, partition string, limit,
	offset int) (Rows, error) {
	return q.PreviewVersion(ctx, caller, name, registry.Live, partition, limit, offset)
}

// PreviewVersion is like Preview, for any generation of the dataset. See registry.Live.
func (q *Query) PreviewVersion(ctx context.Context, caller authz.Caller, name, version, partition string, limit,
	offset int) (Rows, error) {
	const tries = 3
	for try := 1; ; try++ {
		rows, err := q.preview(ctx, caller, name, version, partition, limit, offset)
		// Storage that keeps only one revision may have replaced the pinned one: pin again.
		if fault.Is(err, fault.Conflict) && try < tries {
			continue
		}
		if err != nil {
			return Rows{}, fmt.Errorf("preview of %s: %w", name, err)
		}
		return rows, nil
	}
}

func (q *Query) preview(ctx context.Context, caller authz.Caller, name, version, partition string, limit,
	offset int) (Rows, error) {
	var (
		generation storage.Generation
		partitions []storage.Partition
		dataset    registry.Dataset
	)
	err := pg.InOrgTx(ctx, q.Requests, caller.OrgID, func(ctx context.Context, tx pgx.Tx) error {
		var err error
		generation, partitions, dataset, err = q.Registry.ResolveVersion(ctx, tx, caller, name, version)
		return err
	})
	if err != nil {
		return Rows{}, err
	}

	if partition != "" {
		partitions = slices.DeleteFunc(partitions, func(p storage.Partition) bool { return p.Key != partition })
		if len(partitions) == 0 {
			return Rows{}, fault.New(fault.NotFound, "dataset %s has no partition %q", dataset.Name, partition).
				WithHint("`dagctl datasets partitions %s` lists them", dataset.Name)
		}
	}
	answer := Rows{Dataset: dataset.Name, Version: dataset.Version, Columns: []storage.Column{}, Rows: [][]any{}}
	for _, c := range dataset.Columns {
		answer.Columns = append(answer.Columns, storage.Column{Name: c.Name, Type: c.Type})
	}

	if len(partitions) == 0 {
		return answer, nil
	}
	columns, rows, err := q.Storage.Preview(ctx, generation, partitions, limit, offset)
	if err != nil {
		read := registry.Readable{Name: dataset.Name, Generation: generation, Partitions: partitions}
		err = q.blame(ctx, caller, []registry.Readable{read}, err)
		key := cmp.Or(partition, q.missingIn(ctx, generation, partitions))
		return Rows{}, q.lost(ctx, generation, dataset.Name, key, err)
	}
	if len(columns) > 0 {
		answer.Columns = columns
	}
	if rows != nil {
		answer.Rows = rows
	}
	return answer, q.writeDown(ctx, caller, version, answer)
}

// writeDown records a preview in the audit log, before its rows leave.
func (q *Query) writeDown(ctx context.Context, caller authz.Caller, version string, answer Rows) error {
	d := read{Dataset: answer.Dataset, Version: *answer.Version, Columns: make([]string, len(answer.Columns))}
	for i, c := range answer.Columns {
		d.Columns[i] = c.Name
	}
	count := len(answer.Rows)
	u := use{Datasets: []read{d}, Rows: &count}
	if version != "" && version != registry.Live {
		u.At = version
	}
	return pg.InOrgTx(ctx, q.Requests, caller.OrgID, func(ctx context.Context, tx pgx.Tx) error {
		return u.write(ctx, tx, caller, "dataset.preview")
	})
}
