package query

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/engine"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/relations"
)

// asker asks an engine about one statement. No engine ever has a second statement: whatever one has done to its
// process, the process ends with it. The server trusts it as far as the caller: it names relations, which the server
// resolves with the caller's rights, and returns rows.
type asker struct {
	*engine.Engine
	scope  relations.Scope
	limits Limits
	s      Statement
}

// outcome is what a statement returned.
type outcome struct {
	engine.RowsRead
	List []json.RawMessage // the rows, each a list of values; none if they went elsewhere
	Plan string
	Size int64 // bytes of the rows; 0 if they went elsewhere
}

// as returns who reads with an engine: nobody else has the same rights.
func as(caller authz.Caller) string {
	roles := slices.Sorted(slices.Values(caller.OrgRoles))
	return caller.Actor + " " + string(caller.Role) + " " + fmt.Sprint(caller.Grants) + " " + strings.Join(roles, " ")
}

// begin takes an engine for a statement and returns the relations that it reads.
func (q *Query) begin(ctx context.Context, org uuid.UUID, of string, scope relations.Scope, s Statement,
) (*asker, []engine.Reading, error) {
	l := q.Limits
	within := l.Timeout
	if s.export {
		within = l.ExportTime
	}
	g, err := q.Engines.Take(ctx, engine.Purpose{Kind: engine.Query, Org: org.String(), Of: of,
		Limits: relations.Limits{Memory: l.Memory, Threads: l.Threads},
		CPU:    time.Duration(l.Threads)*within + 5*time.Second})
	if err != nil {
		return nil, nil, err
	}

	a := &asker{g, scope, l, s}
	var names []engine.Reading
	if s.whole != "" {
		err = a.failed(g.Do(ctx, engine.Reads{SQL: s.whole}, &names))
	}
	if err == nil {
		err = a.failed(g.Do(ctx, engine.Reads{SQL: s.SQL}, &names))
	}
	if err == nil && len(names) > maxRelations {
		err = fault.New(fault.TooLarge, "the query reads %d relations; at most %d are allowed", len(names),
			maxRelations)
	}
	if err != nil {
		g.Discard()
		return nil, nil, err
	}
	return a, names, nil
}

// rows runs the statement over relations. What it returns is in the outcome, unless the statement says where it goes.
func (a *asker) rows(ctx context.Context, of []relations.Relation) (out outcome, err error) {
	var lines bytes.Buffer
	to := a.s.to
	if to == nil {
		to = &lines
	}
	err = a.Stream(ctx, engine.Rows{Scope: a.scope, SQL: a.s.SQL, Relations: of, Rows: a.s.Limit, Bytes: a.limits.Bytes,
		As: a.s.as}, to, 2*a.limits.Bytes+16<<20, &out.RowsRead)
	if err == nil {
		err = out.Failed.Err()
	}
	if err != nil {
		return out, a.failed(err)
	}
	switch {
	case a.s.to != nil:
		return out, nil
	case a.s.as == engine.AsPlan:
		out.Plan = lines.String()
		return out, nil
	}

	out.Size = int64(lines.Len())
	for line := range bytes.Lines(lines.Bytes()) {
		out.List = append(out.List, json.RawMessage(line))
	}
	if len(out.List) != out.Count {
		return outcome{}, fmt.Errorf("an engine says that it returns %d rows, and returns %d", out.Count, len(out.List))
	}
	return out, nil
}

// failed returns an error that users may see. It holds neither rows nor paths: DuckDB's errors come without values, and
// name the files by their numbers.
func (a *asker) failed(err error) error {
	var known *fault.Error
	switch {
	case err == nil:
		return nil
	case errors.As(err, &known):
		return known
	case engine.OutOfMemory(err):
		return fault.New(fault.TooLarge, "the query needs more than the %d MB of memory that a query may use",
			a.limits.Memory>>20).
			WithHint("read fewer columns, filter before joining, or group first; or it is too complex for DuckDB: " +
				"simplify it")
	case engine.OfStatement(err):
		message, _, _ := strings.Cut(err.Error(), "\n\nStack Trace")
		return fault.New(fault.Invalid, "%s", fewCandidates(message))
	}
	return err
}

// mostCandidates is how many functions an error lists that would fit a name but not its arguments.
const mostCandidates = 5

// fewCandidates shortens the list of such functions in an error of DuckDB, which may fill a screen.
func fewCandidates(message string) string {
	const begins = "\tCandidate functions:\n"
	head, rest, found := strings.Cut(message, begins)
	if !found {
		return message
	}
	lines := strings.SplitAfter(rest, "\n")
	listed := slices.IndexFunc(lines, func(line string) bool { return !strings.HasPrefix(line, "\t") })
	if listed <= mostCandidates {
		return message
	}
	return head + begins + strings.Join(lines[:mostCandidates], "") +
		fmt.Sprintf("\tand %d others\n", listed-mostCandidates) + strings.Join(lines[listed:], "")
}
