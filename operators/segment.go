package operators

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/engine"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/footer"
	"github.com/dagctl/dagctl/storage"
)

// Which partitions a run has made is known from its rows only, where the output is cut by one of its columns: the
// segment of a cursor, and the partitions of time that its rows are split into.

// segment returns the segment of a cursor that a run has made: from the cursor's old position up to the highest
// position written, or further if the operator says that there is nothing in between. It is empty if no row is new.
func (w *work) segment(ctx context.Context, a Assignment, dirs []string, result Result) (key string, err error) {
	after := a.Cursor.Value
	column, upTo := a.PartitionBy.Column, after
	if result.Cursor != nil {
		upTo = *result.Cursor
	}

	for i, output := range a.Outputs {
		written, err := writtenTo(dirs[i])
		if err != nil {
			return "", err
		}
		if len(written.files) == 0 {
			continue
		}

		g, err := w.engine(ctx)
		if err != nil {
			return "", err
		}
		files, err := g.In(written.files...)
		if err != nil {
			return "", err
		}
		var at engine.Positioned
		if err := g.Do(ctx, engine.Positions{Files: files, Column: column}, &at); err != nil {
			return "", fmt.Errorf("output %q: positions of cursor %s: %w", output.Name, column, err)
		}

		refuse := func(format string, args ...any) error {
			return Permanent(fault.New(fault.Invalid, "output %q: "+format, append([]any{output.Name}, args...)...))
		}
		switch {
		case at.Nulls > 0:
			return "", refuse("%d rows have no %s, the cursor column", at.Nulls, column)
		case at.Lowest != nil && *at.Lowest <= after:
			return "", refuse("a row has %s %d, but the rows up to %d exist already", column, *at.Lowest, after)
		case result.Cursor != nil && at.Highest != nil && *at.Highest > *result.Cursor:
			return "", refuse("a row has %s %d, beyond the run's own cursor %d", column, *at.Highest,
				*result.Cursor)
		}

		if at.Highest != nil {
			upTo = max(upTo, *at.Highest)
		}
	}

	if upTo <= after {
		return "", nil
	}
	if upTo == math.MaxInt64 {
		return "", Permanent(fault.New(fault.Invalid, "nothing can follow %s %d, the highest number of 64 bits", column,
			upTo))
	}
	return dag.Segment(after, upTo), nil
}

// Splits knows the partitions of the output that a run splits its rows into.
type Splits interface {
	// Newest returns the newest revision of each partition that has one.
	Newest(ctx context.Context) (map[string]NewestRevision, error)
	// Columns returns the columns that the output had last; none if it never had any.
	Columns(ctx context.Context, output int) ([]storage.Column, error)
	// Reserve records, under the fence of the attempt, where partitions are about to be written.
	Reserve(ctx context.Context, places []storage.Attempt) error
}

// NewestRevision is what is known of a partition's newest revision.
type NewestRevision struct {
	Revision int64
	RowsHash string
	Purged   bool
}

// Split says what a run found that splits its rows.
type Split struct {
	// Stands has the newest revisions of the partitions that the run leaves alone: their rows are the same.
	Stands map[string]int64
}

// noRowsHash is the RowsHash of a partition without rows.
const noRowsHash = "rows:0"

// split seals the rows of a run that belong to many partitions: those partitions whose rows are not those of their
// newest revision, and, without rows, those that had rows and are no more among the new ones.
func (c storageCarrier) split(
	ctx context.Context, a Assignment, dir string, result Result, scratch string,
) (out Outcome, err error) {
	out.Result = result
	if a.Splits == nil {
		return out, fault.New(fault.Internal, "nobody knows the partitions of the output")
	}
	found, err := writtenTo(dir)
	if err != nil {
		return out, err
	}
	parts, columns, err := c.work.parts(ctx, a, found)
	if err != nil {
		return out, err
	}
	newest, err := a.Splits.Newest(ctx)
	if err != nil {
		return out, err
	}

	var emptied int
	partitions := len(parts)
	parts, out.Split, emptied = changedParts(parts, newest)
	if columns == nil && emptied > 0 {
		if columns, err = a.Splits.Columns(ctx, 0); err != nil {
			return out, err
		}
	}
	files, err := c.work.cut(ctx, a, found.files, columns, parts, scratch)
	if err != nil {
		return out, err
	}

	places := make([]storage.Attempt, len(parts))
	for i, p := range parts {
		places[i] = storage.Attempt{Generation: a.Outputs[0].Generation, Partition: p.Key, Task: a.TaskID,
			Number: a.Attempt, Output: a.Outputs[0].Index, Part: a.Part*partsOfCommit + i + 1}
	}
	if len(places) > 0 {
		if err := a.Splits.Reserve(ctx, places); err != nil {
			return out, err
		}
	}
	for i, place := range places {
		w := Written{Output: place.Output, Partition: place.Partition, RowsHash: parts[i].Hash}
		if w.Manifest, err = c.storage.Seal(ctx, place, files[i:i+1]); err != nil {
			return out, err
		}
		out.Written = append(out.Written, w)
	}
	out.Result.Result = withCounts(result.Result, partitions, len(parts), emptied)
	return out, nil
}

// partsOfCommit is more than the partitions of one commit.
const partsOfCommit = 1 << 20

// changedParts returns the partitions that get a new revision: those with other rows than their newest one, and those
// that lose their rows. A partition that was purged has no rows to lose. It is pure.
func changedParts(
	parts []engine.Part, newest map[string]NewestRevision,
) (changed []engine.Part, s *Split, emptied int) {
	s = &Split{Stands: map[string]int64{}}
	there := map[string]bool{}
	for _, p := range parts {
		there[p.Key] = true
		if was, ok := newest[p.Key]; ok && was.RowsHash == p.Hash {
			s.Stands[p.Key] = was.Revision
		} else {
			changed = append(changed, p)
		}
	}

	for _, key := range sortedKeys(newest) {
		was := newest[key]
		switch {
		case there[key]:
		case was.Purged, was.RowsHash == noRowsHash:
			s.Stands[key] = was.Revision
		default:
			changed = append(changed, engine.Part{Key: key, Hash: noRowsHash})
			emptied++
		}
	}
	return changed, s, emptied
}

// parts returns the partitions that the rows of a run belong to, and the columns of the rows; nil if there is no row.
func (w *work) parts(
	ctx context.Context, a Assignment, found written,
) (parts []engine.Part, columns []storage.Column, err error) {
	if len(found.files) == 0 {
		return nil, nil, nil
	}
	g, err := w.engine(ctx)
	if err != nil {
		return nil, nil, err
	}
	files, err := g.In(found.files...)
	if err != nil {
		return nil, nil, err
	}

	most := dag.MaxSplit
	if a.Outputs[0].Generation.Kind == storage.Postgres {
		most = dag.MaxSplitTables
	}
	var parted engine.Parted
	if err := g.Do(ctx, engine.Parts{Files: files, Column: a.SplitBy, By: a.PartitionBy, Most: most},
		&parted); err != nil {
		return nil, nil, err
	}
	if err := unsplit(a, parted, most); err != nil {
		return nil, nil, Permanent(err)
	}

	columns, err = nameColumns(found.files[0], parted.Parts)
	return parted.Parts, columns, err
}

// nameColumns adds the columns of a file to the hashes of parts of its rows, and returns them.
func nameColumns(file string, parts []engine.Part) ([]storage.Column, error) {
	read, err := footer.Read(file)
	if err != nil {
		return nil, err
	}
	text, err := json.Marshal(read.Columns)
	if err != nil {
		return nil, err
	}
	named := sha256.Sum256(text)
	for i := range parts {
		parts[i].Hash += fmt.Sprintf(":%x", named[:8])
	}
	return read.Columns, nil
}

// sameRows returns the hash of the rows of files, and reports whether the newest revision of the output partition has
// the same ones.
func (w *work) sameRows(
	ctx context.Context, a Assignment, output AssignedOutput, from []string,
) (hash string, same bool, err error) {
	g, err := w.engine(ctx)
	if err != nil {
		return "", false, err
	}
	files, err := g.In(from...)
	if err != nil {
		return "", false, err
	}
	var all engine.Parted
	if err := g.Do(ctx, engine.Parts{Files: files}, &all); err != nil {
		return "", false, err
	}
	if _, err := nameColumns(from[0], all.Parts); err != nil || a.NoRows == nil {
		return all.Parts[0].Hash, false, err
	}

	hash = all.Parts[0].Hash
	was, err := a.NoRows.RowsHash(ctx, output.Index, partitionOf(a))
	return hash, was == hash, err
}

// unsplit returns why rows cannot be split; nil: they can.
func unsplit(a Assignment, p engine.Parted, most int) error {
	refuse := func(hint, format string, args ...any) error {
		return fault.New(fault.Invalid, "the rows cannot be split by column %q: "+format,
			append([]any{a.SplitBy}, args...)...).WithHint("%s", hint)
	}

	switch {
	case p.Missing:
		return refuse("`partition_by` names a column of the output", "there is no such column")
	case p.Type != "":
		return refuse("cast it in the query, or declare it in `types` of the source", "it is %s, and %s", p.Type,
			a.PartitionBy.SplitMismatch(p.Type))
	case p.Nulls > 0:
		return refuse("leave such rows out in the query, or mend the file", "%d of %d rows have no value there",
			p.Nulls, p.Rows)
	case p.Infinite > 0:
		return refuse("leave such rows out in the query, or mend the file",
			"%d of %d rows have an infinite value there", p.Infinite, p.Rows)
	case p.Outside != "":
		return refuse("split by another zone, or mend the rows", "its values of %s are in no partition of that name: "+
			"there is no such %s in %s, or its clocks show it twice", p.Outside, a.PartitionBy.Unit,
			a.PartitionBy.Timezone)
	case p.Count > 0:
		return refuse("split by a longer unit of time, or split less rows at once",
			"they belong to %d partitions, and one task makes %d at most", p.Count, most)
	}
	return nil
}

// cut writes the rows of partitions to a file each, in the order of the partitions.
func (w *work) cut(
	ctx context.Context, a Assignment, from []string, columns []storage.Column, parts []engine.Part, scratch string,
) (files []string, err error) {
	if len(parts) == 0 {
		return nil, nil
	}
	if err := os.MkdirAll(scratch, 0o700); err != nil {
		return nil, err
	}
	g, err := w.engine(ctx)
	if err != nil {
		return nil, err
	}

	q := engine.Cut{Column: a.SplitBy, By: a.PartitionBy, Sorted: g.Out("sorted.parquet")}
	for i, p := range parts {
		files = append(files, filepath.Join(scratch, fmt.Sprintf("split%05d.parquet", i)))
		inside := g.Out(filepath.Base(files[i]))
		if p.Rows > 0 {
			q.Keys, q.Targets = append(q.Keys, p.Key), append(q.Targets, inside)
			continue
		}
		if err := g.Do(ctx, engine.Empty{Columns: columns, Target: inside}, nil); err != nil {
			return nil, err
		}
	}
	if len(q.Keys) > 0 {
		if q.Files, err = g.In(from...); err != nil {
			return nil, err
		}
		if err := g.Do(ctx, q, nil); err != nil {
			return nil, err
		}
		if err := os.Remove(q.Sorted); err != nil {
			return nil, err
		}
	}
	for _, file := range files {
		if err := g.Fetch(g.Out(filepath.Base(file)), file); err != nil {
			return nil, err
		}
	}
	return files, nil
}

// withCounts adds to the result of a run how many partitions have rows, and how many of all changed and were emptied.
func withCounts(result json.RawMessage, partitions, changed, emptied int) json.RawMessage {
	fields := map[string]json.RawMessage{}
	if len(result) > 0 && json.Unmarshal(result, &fields) != nil {
		return result
	}
	for name, n := range map[string]int{"partitions": partitions, "changed": changed, "emptied": emptied} {
		fields[name] = json.RawMessage(strconv.Itoa(n))
	}
	text, err := json.Marshal(fields)
	if err != nil {
		return result
	}
	return text
}

// TasksBy returns how the job's work is cut into tasks, as dag.Job has it.
func (a Assignment) TasksBy() dag.Partitioning {
	if a.SplitBy != "" {
		return dag.Partitioning{}
	}
	return a.PartitionBy
}
