package query

import (
	"context"
	"fmt"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/engine"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/internal/relations"
	"github.com/dagctl/dagctl/registry"
	"github.com/dagctl/dagctl/storage"
)

// Limits of a comparison.
const (
	diffPartitions    = 200              // partitions that are listed
	diffKeyPartitions = 20               // partitions whose keys are compared
	diffKeyBytes      = int64(256 << 20) // bytes of both sides whose keys are compared
	diffSample        = 20               // keys that are shown
)

// Diff is what differs between two generations of a dataset.
type Diff struct {
	Dataset    string          `json:"dataset"`
	From       DiffSide        `json:"from"`
	To         DiffSide        `json:"to"`
	Columns    []ColumnDiff    `json:"columns" nullable:"false" doc:"Columns of one side only, or of different types"`
	Differ     int64           `json:"partitions_differ" doc:"Partitions of one side only, or of different row counts"`
	Same       int64           `json:"partitions_same" doc:"Partitions with the same number of rows on both sides"`
	Partitions []PartitionDiff `json:"partitions" nullable:"false" doc:"The first 200 keys that differ"`
	Keys       *KeyDiff        `json:"keys,omitempty" doc:"If the dataset has a unique key"`
}

// DiffSide is one of the two generations.
type DiffSide struct {
	Name       string    `json:"name" doc:"As requested"`
	Version    uuid.UUID `json:"dataset_version"`
	Partitions int64     `json:"partitions"`
	Rows       int64     `json:"rows"`
}

// ColumnDiff is one column. An empty type means that the side has no such column.
type ColumnDiff struct {
	Name string `json:"name"`
	From string `json:"from,omitempty"`
	To   string `json:"to,omitempty"`
}

// PartitionDiff is the number of rows of one partition. Nil means that the side has no such partition.
type PartitionDiff struct {
	Key  string `json:"key"`
	From *int64 `json:"rows_from,omitempty"`
	To   *int64 `json:"rows_to,omitempty"`
}

// KeyDiff compares rows by their unique key, in the first partitions that both sides have.
type KeyDiff struct {
	Columns    []string    `json:"columns"`
	Partitions int         `json:"partitions" doc:"The number of partitions compared"`
	OnlyFrom   int64       `json:"only_from"`
	OnlyTo     int64       `json:"only_to"`
	Changed    int64       `json:"changed"`
	Sample     []KeyChange `json:"sample" nullable:"false"`
}

// KeyChange is one key that differs.
type KeyChange struct {
	Change    string `json:"change" enum:"only_from,only_to,changed"`
	Partition string `json:"partition"`
	Key       []any  `json:"key"`
}

// side is a generation to compare.
type side struct {
	DiffSide
	generation storage.Generation
	partitions []storage.Partition
	columns    []registry.ColumnInfo
	rows       map[string]int64
}

// Diff compares two generations of a dataset; see registry.Live for how they are named. It is for writers.
func (q *Query) Diff(ctx context.Context, caller authz.Caller, name, from, to string) (Diff, error) {
	diff := Diff{Columns: []ColumnDiff{}, Partitions: []PartitionDiff{}}
	var sides [2]side
	err := pg.InOrgTx(ctx, q.Requests, caller.OrgID, func(ctx context.Context, tx pgx.Tx) error {
		for i, which := range []string{from, to} {
			generation, partitions, dataset, err := q.Registry.ResolveVersion(ctx, tx, caller, name, which)
			if err != nil {
				return err
			}
			s := &sides[i]
			*s = side{DiffSide: DiffSide{Name: which, Version: generation.Version, Partitions: int64(len(partitions))},
				generation: generation, partitions: partitions, columns: dataset.Columns}
			if s.rows, err = registry.RowsByPartition(ctx, tx, generation.Version); err != nil {
				return err
			}
			for _, n := range s.rows {
				s.Rows += n
			}
			diff.Dataset = dataset.Name
		}
		return nil
	})
	if err != nil {
		return Diff{}, fmt.Errorf("compare versions of %s: %w", name, err)
	}

	diff.From, diff.To = sides[0].DiffSide, sides[1].DiffSide
	if diff.From.Version == diff.To.Version {
		diff.Same = diff.From.Partitions
		return diff, nil
	}

	diff.Columns = columnDiffs(sides[0].columns, sides[1].columns)
	diff.comparePartitions(sides[0].rows, sides[1].rows)
	if diff.Keys, err = q.compareKeys(ctx, caller, sides[0], sides[1]); err != nil {
		return Diff{}, fmt.Errorf("compare versions of %s: %w", name, err)
	}
	return diff, nil
}

func columnDiffs(from, to []registry.ColumnInfo) []ColumnDiff {
	diffs := []ColumnDiff{}
	typeIn := func(columns []registry.ColumnInfo, name string) string {
		if i := slices.IndexFunc(columns, func(c registry.ColumnInfo) bool { return c.Name == name }); i >= 0 {
			return columns[i].Type
		}
		return ""
	}

	for _, c := range from {
		if t := typeIn(to, c.Name); t != c.Type {
			diffs = append(diffs, ColumnDiff{Name: c.Name, From: c.Type, To: t})
		}
	}
	for _, c := range to {
		if typeIn(from, c.Name) == "" {
			diffs = append(diffs, ColumnDiff{Name: c.Name, To: c.Type})
		}
	}
	return diffs
}

func (d *Diff) comparePartitions(from, to map[string]int64) {
	keys := make([]string, 0, len(from)+len(to))
	for key := range from {
		keys = append(keys, key)
	}
	for key := range to {
		if _, both := from[key]; !both {
			keys = append(keys, key)
		}
	}

	slices.Sort(keys)
	for _, key := range keys {
		p := PartitionDiff{Key: key}
		if n, ok := from[key]; ok {
			p.From = &n
		}
		if n, ok := to[key]; ok {
			p.To = &n
		}
		if p.From != nil && p.To != nil && *p.From == *p.To {
			d.Same++
			continue
		}
		if d.Differ++; len(d.Partitions) < diffPartitions {
			d.Partitions = append(d.Partitions, p)
		}
	}
}

// compareKeys compares the rows of the first partitions that both sides have, by the unique key that both have.
func (q *Query) compareKeys(ctx context.Context, caller authz.Caller, from, to side) (*KeyDiff, error) {
	key := from.generation.UniqueKey
	if len(key) == 0 || !slices.Equal(key, to.generation.UniqueKey) {
		return nil, nil
	}
	diff := &KeyDiff{Columns: key, Sample: []KeyChange{}}
	shared := sharedColumns(from.columns, to.columns)
	others := make(map[string]storage.Partition, len(to.partitions))
	for _, b := range to.partitions {
		others[b.Key] = b
	}

	g, err := q.Engines.Take(ctx, engine.Purpose{Kind: engine.Query, Org: caller.OrgID.String(), Of: as(caller),
		Spills: true, Limits: relations.Limits{Memory: 512 << 20, Threads: 1}})
	if err != nil {
		return nil, err
	}
	defer g.Discard()

	budget := diffKeyBytes
	for _, a := range from.partitions {
		b, both := others[a.Key]
		if !both {
			continue
		}
		if budget -= sizeOf(a) + sizeOf(b); budget < 0 || diff.Partitions == diffKeyPartitions {
			break
		}
		if err := q.comparePartition(ctx, g, from.generation, to.generation, a, b, shared, diff); err != nil {
			return nil, fmt.Errorf("partition %q: %w", a.Key, err)
		}
		diff.Partitions++
	}
	return diff, nil
}

// sizeOf returns the bytes that a partition takes of the budget. Rows in Postgres storage count as few bytes; there,
// the number of partitions is the limit.
func sizeOf(p storage.Partition) (bytes int64) {
	for _, f := range p.Files {
		bytes += f.Bytes
	}
	return bytes
}

// sharedColumns returns the columns that have the same type on both sides.
func sharedColumns(from, to []registry.ColumnInfo) (names []string) {
	for _, c := range from {
		if slices.ContainsFunc(to, func(o registry.ColumnInfo) bool { return o.Name == c.Name && o.Type == c.Type }) {
			names = append(names, c.Name)
		}
	}
	return names
}

func (q *Query) comparePartition(ctx context.Context, g *engine.Engine, from, to storage.Generation,
	a, b storage.Partition, shared []string, diff *KeyDiff) error {
	var files [2][]string
	for i, open := range []struct {
		generation storage.Generation
		partition  storage.Partition
	}{{from, a}, {to, b}} {
		own, err := g.Own() // both sides may have files of the same name
		if err != nil {
			return err
		}
		local, err := q.Storage.Open(ctx, open.generation, []storage.Partition{open.partition}, own)
		if err != nil {
			return err
		}
		if files[i], err = g.In(local[0]...); err != nil {
			return err
		}
	}

	var found engine.Compared
	if err := g.Do(ctx, engine.Compare{From: files[0], To: files[1], Key: diff.Columns, Shared: shared,
		Sample: diffSample - len(diff.Sample)}, &found); err != nil {
		return err
	}
	diff.OnlyFrom += found.OnlyFrom
	diff.OnlyTo += found.OnlyTo
	diff.Changed += found.Changed
	rows, err := cellsOf(found.Sample)
	if err != nil {
		return err
	}
	for _, row := range rows {
		diff.Sample = append(diff.Sample, KeyChange{Change: fmt.Sprint(row[0]), Partition: a.Key, Key: row[1:]})
	}
	return nil
}
