package dagfile

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/late"
)

// Server plans DAG files.
type Server interface {
	// Catalog returns what the server validates DAG files against.
	Catalog(ctx context.Context) (dag.Catalog, error)
	// Plan returns the error with which the server refuses to plan a valid document, beside the others.
	Plan(ctx context.Context, s Seen) error
}

// onServer has a server plan a valid document, beside those that are validated with it, and returns the problems that
// the plan is refused for. Another refusal is an error.
func (s Seen) onServer(ctx context.Context, server Server) (dag.Problems, error) {
	err := server.Plan(ctx, s)
	var refused *fault.Error
	if !errors.As(err, &refused) || len(refused.Problems) == 0 ||
		refused.Kind != fault.Invalid && refused.Kind != fault.Conflict {
		return nil, err
	}

	problems := make(dag.Problems, len(refused.Problems))
	for i, p := range refused.Problems {
		if p.Suggestion == "" {
			p.Suggestion = refused.Hint
		}
		problems[i] = s.problem(p)
	}
	return problems, nil
}

// inFile is the place that a server gives a problem of a DAG file.
var inFile = late.Pattern(`:(\d{1,9}):(\d{1,9})$`)

// problem returns a server's problem as one of the file. One without a line in it is put at the file's beginning, and
// says what it is about.
func (s Source) problem(p fault.Problem) dag.Problem {
	found := dag.Problem{Position: dag.Position{File: s.Path, Line: 1, Column: 1}, Code: dag.Code(p.Code),
		Message: p.Message, Suggestion: p.Suggestion, Width: 1}
	at := inFile.FindStringSubmatch(p.Location)
	if at == nil {
		if p.Location != "" {
			found.Message = p.Location + ": " + p.Message
		}
		return found
	}

	found.Line, _ = strconv.Atoi(at[1])
	found.Column, _ = strconv.Atoi(at[2])
	if lines := strings.Split(string(s.Text), "\n"); found.Line >= 1 && found.Line <= len(lines) {
		found.Source = strings.TrimSuffix(lines[found.Line-1], "\r")
		found.Width = max(1, utf8.RuneCountInString(strings.TrimRight(found.Source, " "))-found.Column+1)
	}
	return found
}
