package operators

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/dagctl/dagctl/engine"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/footer"
	"github.com/dagctl/dagctl/internal/relations"
	"github.com/dagctl/dagctl/internal/sqltext"
	"github.com/dagctl/dagctl/operators/textfile"
)

// Parquet files name their columns and types. Those of the first file stand, with the types that the config declares:
// the values of later files fit them by casts that lose nothing. A column that has no type in the first file, only
// NULLs, is open until a file shows its type, and VARCHAR until then.

// open is the type of a column of a reading that no file showed yet.
const open = "?"

// convertParquet writes the rows of Parquet files with the columns of the reading.
func (r reads) convertParquet(ctx context.Context, files []textfile.File, target string) (found readFiles, err error) {
	have := make([][]relations.Column, len(files))
	for i, f := range files {
		read, err := footer.Read(f.Path)
		if err != nil {
			return found, brokenParquet(f.Name, strings.ReplaceAll(err.Error(), filepath.Base(f.Path), f.Name))
		}
		have[i] = read.Columns
		for _, at := range read.Untyped {
			have[i][at].Type = open
		}
	}

	standing, err := r.standing()
	if err != nil {
		return found, err
	}
	reading, err := r.parquetReading(standing, files[0].Name, have[0])
	if err != nil {
		return found, err
	}
	settle(reading.Columns, have)
	for i, f := range files {
		if err := r.matchParquet(reading, f.Name, have[i]); err != nil {
			return found, err
		}
	}

	if err := r.refuseFiner(ctx, files); err != nil {
		return found, err
	}
	found.Rows, err = r.castParquet(ctx, files, reading, target)
	if err == nil && (standing == nil || !standing.Equal(reading)) {
		found.reading, err = json.Marshal(reading)
	}
	return found, err
}

func (r reads) refuseFiner(ctx context.Context, files []textfile.File) error {
	paths, names := make([]string, len(files)), make([]string, len(files))
	for i, f := range files {
		paths[i], names[i] = f.Path, f.Name
	}
	return r.task.work.refuseFiner(ctx, paths, names, r.task.Scratch)
}

// parquetReading returns the reading that stands, or the one that a first file with the given columns begins.
func (r reads) parquetReading(
	standing *textfile.Reading, name string, first []relations.Column,
) (reading textfile.Reading, err error) {
	if standing != nil {
		reading = *standing
		reading.Columns = slices.Clone(standing.Columns)
		return reading, nil
	}

	keep := r.Columns
	if len(keep) == 0 {
		keep = namesOf(first)
		for _, declared := range sortedKeys(r.Types) {
			if columnAt(first, declared) < 0 {
				keep = append(keep, declared)
			}
		}
	}
	reading = textfile.Reading{Format: r.Format, InferredFrom: name}
	for _, column := range keep {
		c := textfile.Column{Name: column}
		if at := columnAt(first, column); at >= 0 {
			c.Type = first[at].Type
		}
		for declared, t := range r.Types {
			if sqltext.Same(declared, column) {
				c.Type = t
			}
		}
		if c.Type == "" && r.optional(column) {
			c.Type = open
		}
		if c.Type == "" {
			return reading, fault.New(fault.Invalid, "column %q is not in %s, which has %s", column, name,
				someNames(first)).WithHint("name its type in `types`, or take it out of `columns`")
		}
		reading.Columns = append(reading.Columns, c)
	}
	return reading, nil
}

// settle gives open columns the types that files have.
func settle(columns []textfile.Column, files [][]relations.Column) {
	for i, c := range columns {
		for _, have := range files {
			if at := columnAt(have, c.Name); at >= 0 && columns[i].Type == open {
				columns[i].Type = have[at].Type
			}
		}
	}
}

// optional reports whether a file may lack a column.
func (r reads) optional(column string) bool {
	return slices.ContainsFunc(r.OptionalColumns, func(o string) bool { return sqltext.Same(o, column) })
}

// matchParquet refuses a file that lacks columns of the reading or has others.
func (r reads) matchParquet(reading textfile.Reading, name string, have []relations.Column) error {
	standing := columnsRead(reading)
	for _, c := range standing {
		if columnAt(have, c.Name) < 0 && !r.optional(c.Name) {
			return fault.New(fault.Invalid, "%s: column %q is missing; the file has %s", name, c.Name, someNames(have)).
				WithHint("the columns stand since the first file: list those that a file may lack as " +
					"`optional_columns`")
		}
	}

	for _, c := range have {
		if len(r.Columns) == 0 && columnAt(standing, c.Name) < 0 {
			return fault.New(fault.Invalid, "%s: column %q is new; the dataset has %s", name, c.Name,
				someNames(standing)).
				WithHint("name its type in `types` to have it, and list it in `optional_columns` if older files lack " +
					"it; or list the columns to keep as `columns`")
		}
	}
	return nil
}

// castParquet writes the rows of files that match the reading.
func (r reads) castParquet(
	ctx context.Context, files []textfile.File, reading textfile.Reading, target string,
) (int64, error) {
	g, err := r.task.work.engine(ctx)
	if err != nil {
		return 0, err
	}
	inside := g.Out(filepath.Base(target))
	q := engine.Convert{Columns: columnsRead(reading), Target: inside}
	for _, f := range files {
		linked, err := g.In(f.Path)
		if err != nil {
			return 0, err
		}
		q.Files = append(q.Files, linked...)
	}
	if err := r.task.openInputs(ctx); err != nil { // it has none, but a zone
		return 0, err
	}

	var converted engine.Converted
	err = g.Do(ctx, q, &converted)
	switch m := converted.Misfit; {
	case err == nil && m != nil:
		return 0, fault.New(fault.Unavailable, "%s row %d, column %s: %q does not fit %s", files[m.Part].Name, m.Row,
			m.Column.Name, m.Value, m.Column.Type).
			WithHint("mend the file; or name a type in `types` that holds the values of all files")
	case err == nil:
		return converted.Rows, g.Fetch(inside, target)
	case ctx.Err() != nil || engine.OutOfMemory(err) || engine.Deterministic(err):
		return 0, err
	}

	names := make([]string, len(files))
	for i, f := range files {
		names[i] = f.Name
	}
	return 0, brokenParquet(strings.Join(names[:min(3, len(names))], ", "), err.Error())
}

// brokenParquet returns the error of a Parquet file that cannot be read. It may still be being written.
func brokenParquet(name, why string) error {
	return fault.New(fault.Unavailable, "%s", why).
		WithHint("write %s anew, under another name first, and rename it once it is complete; a Parquet file without "+
			"rows has a footer with its columns", name)
}

func columnsRead(r textfile.Reading) []relations.Column {
	columns := make([]relations.Column, len(r.Columns))
	for i, c := range r.Columns {
		columns[i] = relations.Column(c)
		if c.Type == open {
			columns[i].Type = "VARCHAR"
		}
	}
	return columns
}

func columnAt(columns []relations.Column, name string) int {
	return slices.IndexFunc(columns, func(c relations.Column) bool { return sqltext.Same(c.Name, name) })
}

func namesOf(columns []relations.Column) []string {
	names := make([]string, len(columns))
	for i, c := range columns {
		names[i] = c.Name
	}
	return names
}

// someNames lists the names of columns, for an error.
func someNames(columns []relations.Column) string {
	return strings.Join(namesOf(columns[:min(30, len(columns))]), ", ")
}

// refuseFiner refuses Parquet files with instants that are finer than microseconds, which TIMESTAMP WITH TIME ZONE does
// not have: DuckDB would cut them. names are what errors call the files; scratch is a folder, which need not be there.
func (w *work) refuseFiner(ctx context.Context, files, names []string, scratch string) error {
	for i, file := range files {
		f, err := footer.Read(file)
		if err != nil || len(f.Zoned) == 0 {
			continue // what is wrong with it is said when it is read
		}
		if err := os.MkdirAll(scratch, 0o700); err != nil {
			return err
		}
		local := filepath.Join(scratch, "local-"+strconv.Itoa(i)+".parquet")
		if err := f.CopyAsLocal(file, local); err != nil {
			return err
		}
		finer, err := w.finer(ctx, f, local)
		if err := os.Remove(local); err != nil {
			return err
		}
		if err != nil {
			return err
		}
		if finer != nil {
			return fault.New(fault.Invalid, "%s: column %s has the instant %s, in UTC, which is finer than "+
				"microseconds", names[i], finer.Column.Name, finer.Value).
				WithHint("round it before it is written, or write a time without a zone, which may have nanoseconds")
		}
	}
	return nil
}

// finer returns the first instant that is finer than microseconds in a copy of a file that has them as local times.
func (w *work) finer(ctx context.Context, zoned footer.Footer, local string) (finer *relations.Misfit, err error) {
	copied, err := footer.Read(local)
	if err != nil {
		return nil, fmt.Errorf("read instants as local times: %w", err)
	}
	var wanted []relations.Column
	for i, c := range copied.Columns {
		if was := zoned.Columns[i]; c.Type != was.Type {
			c.Type = inMicroseconds(sqltext.TypeOf(was.Type), sqltext.TypeOf(c.Type)).String()
			wanted = append(wanted, c)
		}
	}

	g, err := w.engine(ctx)
	if err != nil {
		return nil, err
	}
	inside, err := g.In(local)
	if err != nil {
		return nil, err
	}
	return finer, g.Do(ctx, engine.Fit{Parts: [][]string{inside}, Columns: wanted}, &finer)
}

// inMicroseconds returns a type with TIMESTAMP in place of the TIMESTAMP_NS of what was an instant.
func inMicroseconds(was, is sqltext.Type) sqltext.Type {
	if was.Kind == sqltext.ScalarType && was.Name != is.Name {
		return sqltext.Type{Name: "TIMESTAMP"}
	}
	fields := append([]sqltext.TypeField{}, is.Fields...)
	for i := range fields {
		fields[i].Type = inMicroseconds(was.Fields[i].Type, is.Fields[i].Type)
	}
	is.Fields = fields
	return is
}
