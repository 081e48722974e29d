package inside

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/dag/names"
	"github.com/dagctl/dagctl/engine"
	"github.com/dagctl/dagctl/internal/duck"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/relations"
	"github.com/dagctl/dagctl/internal/sqltext"
)

// mostFaults is how many names at fault are looked for in one statement.
const mostFaults = 20

// bind binds the statements of jobs, each over what those before it write.
func (h *host) bind(ctx context.Context, q engine.Bind) (bound engine.Bound, err error) {
	bound.Jobs = make([]names.Bound, len(q.Jobs))
	for i, job := range q.Jobs {
		if bound.Jobs[i], err = h.bindJob(ctx, job, bound.Jobs[:i]); err != nil {
			return bound, err
		}
	}
	return bound, nil
}

func (h *host) bindJob(ctx context.Context, job names.Job, earlier []names.Bound) (bound names.Bound, err error) {
	over := scope{known: map[string][]duck.Column{}, timeless: job.Timeless}
	for _, in := range job.Inputs {
		columns := in.Columns
		if at := in.Earlier - 1; at >= 0 && at < len(earlier) && in.Output < len(earlier[at].Outputs) {
			columns = earlier[at].Outputs[in.Output]
		}
		over.add(in.Name, columns)
	}

	bound.Outputs = job.Outputs
	if job.Queries != nil {
		bound.Outputs = make([][]dag.Column, len(job.Queries))
	}
	for i, query := range job.Queries {
		columns, faults, err := h.bindStatement(ctx, query, over)
		if err != nil {
			return bound, err
		}
		if written, err := written(columns); err != nil {
			faults = append(faults, faultOf(err))
		} else {
			bound.Outputs[i] = written
		}
		bound.Queries = append(bound.Queries, faults)
	}

	for _, check := range job.Checks {
		with := scope{known: maps.Clone(over.known), open: slices.Clone(over.open), timeless: over.timeless}
		var output []dag.Column
		if check.Output < len(bound.Outputs) {
			output = bound.Outputs[check.Output]
		}
		with.add(engine.Output, output)
		_, faults, err := h.bindStatement(ctx, check.SQL, with)
		if err != nil {
			return bound, err
		}
		bound.Checks = append(bound.Checks, faults)
	}
	return bound, nil
}

// scope is what a statement may read.
type scope struct {
	known    map[string][]duck.Column // columns by relation, some of them without types
	open     []string                 // relations of which nothing is known
	timeless bool
}

// add adds a relation; nil: its columns are not known.
func (s *scope) add(name string, columns []dag.Column) {
	if columns == nil {
		s.open = append(s.open, name)
		return
	}
	list := make([]duck.Column, len(columns))
	for i, c := range columns {
		list[i] = duck.Column(c)
	}
	s.known[name] = list
}

// typed reports whether all columns of all relations are known with their types.
func (s *scope) typed() bool {
	if len(s.open) > 0 {
		return false
	}
	for _, columns := range s.known {
		if slices.ContainsFunc(columns, func(c duck.Column) bool { return c.Type == "" }) {
			return false
		}
	}
	return true
}

// tells reports whether all types in a statement are known: those of variables are, where partitions have times.
func (s *scope) tells(sql string) bool {
	return s.typed() && (!s.timeless || !strings.Contains(strings.ToLower(sql), "getvariable"))
}

// bindStatement returns the columns of a statement's result, nil if they are not known, and what is at fault in it.
func (h *host) bindStatement(
	ctx context.Context, sql string, over scope,
) (columns []duck.Column, faults []names.Fault, err error) {
	var q *duck.Select
	typed := over.tells(sql)
	if !typed {
		if _, q, err = h.parse(ctx, sql); err != nil {
			if _, refused := errors.AsType[*fault.Error](err); refused {
				err = nil // those who look at its form have said it
			}
			return nil, nil, err
		}
		over = over.readBy(q)
		typed = over.tells(sql)
	}

	tables := maps.Clone(over.known)
	for _, name := range over.open {
		tables[name] = q.Guess(name, over.known)
	}
	keyed := keyedOf(sql, tables)
	columns, faults, err = h.bindAgain(ctx, sql, tables, func(why *duck.Unbindable, first bool) bool {
		return typed && (first || why.Column != "" || why.Sure) || !typed && over.sure(q, why)
	}, over.known)
	if err == nil && len(keyed) > 0 && columns != nil {
		columns, faults, err = h.bindStarless(ctx, sql, tables, keyed)
	}
	if err != nil || typed {
		return columns, faults, err
	}
	return over.result(q, columns, len(faults) > 0), faults, nil
}

// keyedOf adds the column of the partitions of rows to the relations that have none of that name, if a statement may
// ask for it, and returns their names.
func keyedOf(sql string, tables map[string][]duck.Column) (keyed []string) {
	if !relations.NamesPartition(sql) {
		return nil
	}
	for name, columns := range tables {
		if !duck.Known(columns, relations.Partition) && !sqltext.Same(name, engine.Output) {
			column := duck.Column{Name: relations.Partition, Type: "VARCHAR"}
			tables[name], keyed = append(slices.Clone(columns), column), append(keyed, name)
		}
	}
	return keyed
}

// bindStarless binds a statement that has no faults once more, with stars that leave out what they do not show.
func (h *host) bindStarless(
	ctx context.Context, sql string, tables map[string][]duck.Column, keyed []string,
) (columns []duck.Column, faults []names.Fault, err error) {
	session, q, err := h.parse(ctx, sql)
	if err != nil {
		return nil, nil, err
	}
	sql, err = session.Starless(ctx, q, func(relation string) bool {
		return slices.ContainsFunc(keyed, func(name string) bool { return sqltext.Same(name, relation) })
	})
	if refused, ok := errors.AsType[*fault.Error](err); ok {
		return nil, []names.Fault{faultOf(refused)}, nil
	}
	if err != nil {
		return nil, nil, err
	}

	columns, faults, err = h.bindAgain(ctx, sql, tables, func(why *duck.Unbindable, first bool) bool {
		return first && sqltext.Same(why.Column, relations.Partition)
	}, tables)
	for i := range faults { // their places are those in another text
		faults[i].Offset, faults[i].Width, faults[i].Unknown = -1, 0, ""
		faults[i].Hint = "no * shows " + relations.Partition + ": a subquery has to name it"
	}
	return columns, faults, err
}

// readBy returns the relations that a statement reads.
func (s *scope) readBy(q *duck.Select) scope {
	read := scope{known: maps.Clone(s.known), open: slices.Clone(s.open), timeless: s.timeless}
	maps.DeleteFunc(read.known, func(name string, _ []duck.Column) bool { return !q.Reads(name) })
	read.open = slices.DeleteFunc(read.open, func(name string) bool { return !q.Reads(name) })
	return read
}

// sure reports whether a statement cannot be bound whatever the relations and columns are of which less is known.
func (s *scope) sure(q *duck.Select, why *duck.Unbindable) bool {
	switch {
	case why.Sure:
		return true
	case why.Column == "":
		return false // a type may be to blame
	case why.Table != "":
		return q.Only(why.Table, s.known)
	}
	return len(s.open) == 0
}

// result returns the columns of a statement of whose relations not all is known: their names, if the statement says
// them or its relations do.
func (s *scope) result(q *duck.Select, bound []duck.Column, faulty bool) []duck.Column {
	if len(s.open) > 0 || bound == nil || faulty {
		bound = nil
		for _, name := range q.ResultNames() {
			bound = append(bound, duck.Column{Name: name})
		}
	}
	untyped := slices.Clone(bound)
	for i := range untyped {
		untyped[i].Type = ""
	}
	return untyped
}

// bindAgain binds a statement, and binds it again without each name that is at fault, to find all of them.
func (h *host) bindAgain(ctx context.Context, sql string, over map[string][]duck.Column,
	counts func(why *duck.Unbindable, first bool) bool, known map[string][]duck.Column,
) (columns []duck.Column, faults []names.Fault, err error) {
	said := map[string]bool{}
	for n := range mostFaults {
		binder, err := h.binding(ctx)
		if err != nil {
			return nil, nil, err
		}
		columns, why, err := binder.Bind(ctx, sql, over)
		if err != nil {
			if ctx.Err() != nil {
				return nil, nil, err
			}
			return nil, faults, nil // nothing else is known
		}
		if why == nil && n == 0 {
			return columns, nil, nil
		}
		if why == nil || !counts(why, n == 0) {
			return nil, faults, nil
		}

		name := sqltext.Lower(why.Table + "." + why.Column + why.Message)
		if !said[name] {
			said[name] = true
			faults = append(faults, unbound(why, known))
		}
		again, possible := why.Without(sql)
		if !possible {
			return nil, faults, nil
		}
		sql = again
	}
	return nil, faults, nil
}

// unbound says why a statement cannot be bound.
func unbound(why *duck.Unbindable, known map[string][]duck.Column) names.Fault {
	f := names.Fault{Offset: why.Offset, Width: why.Width}
	switch {
	case why.Sure:
		f.Message = lowerFirst(why.Message)
		if why.Meant != "" {
			f.Hint = "did you mean " + why.Meant + "?"
		}
	case why.Column == "":
		f.Message, f.Hint = lowerFirst(why.Message), "the types are those of the inputs' columns; a cast may help"
	default:
		f.Message, f.Unknown = fmt.Sprintf("there is no column %q", why.Column), why.Column
		if why.Table != "" {
			f.Message = fmt.Sprintf("%q has no column %q", why.Table, why.Column)
		}
		f.Known = columnsOf(why.Table, known)
	}
	return f
}

// columnsOf returns the names of the columns of a relation, or of all where a statement calls it otherwise.
func columnsOf(table string, known map[string][]duck.Column) (list []string) {
	for _, name := range slices.Sorted(maps.Keys(known)) {
		if sqltext.Same(name, table) {
			list = nil
		}
		for _, c := range known[name] {
			if !slices.Contains(list, c.Name) {
				list = append(list, c.Name)
			}
		}
		if sqltext.Same(name, table) {
			return list
		}
	}
	return list
}

func lowerFirst(text string) string {
	if text == "" {
		return text
	}
	return strings.ToLower(text[:1]) + text[1:]
}

// written returns columns as they are stored. Those without types stay so.
func written(columns []duck.Column) ([]dag.Column, error) {
	if columns == nil {
		return nil, nil
	}

	list := make([]dag.Column, len(columns))
	for i, c := range columns {
		list[i] = dag.Column(c)
		if c.Type == "" {
			continue
		}
		stored, err := sqltext.Written(c)
		if err != nil {
			return nil, err
		}
		list[i] = dag.Column(stored)
	}
	return list, nil
}

// faultOf returns an error as a fault of a statement as a whole.
func faultOf(err error) names.Fault {
	f := names.Fault{Offset: -1, Message: fault.Text(err)}
	if known, ok := errors.AsType[*fault.Error](err); ok {
		f.Message, f.Hint = known.Message, known.Hint
	}
	return f
}
