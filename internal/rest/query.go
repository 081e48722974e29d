package rest

import (
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/spelling"
)

const anyQueryKey = "dagctl.anyQuery"

// WithAnyQuery lets requests of an operation have query parameters that it does not know: those whose address another
// system makes, which may add its own.
func WithAnyQuery(op huma.Operation) huma.Operation {
	metadata := map[string]any{}
	maps.Copy(metadata, op.Metadata)
	metadata[anyQueryKey] = true
	op.Metadata = metadata
	return op
}

// refuseUnknown refuses requests with query parameters that the operation does not have, or has once: a filter that is
// misspelt must not list everything.
func refuseUnknown(hc huma.Context, next func(huma.Context)) {
	op := hc.Operation()
	if op.Metadata[anyQueryKey] == true {
		next(hc)
		return
	}

	address := hc.URL()
	var known, lists []string
	for _, p := range op.Parameters {
		if p.In == "query" {
			known = append(known, p.Name)
			if p.Schema != nil && p.Schema.Type == huma.TypeArray {
				lists = append(lists, p.Name)
			}
		}
	}
	problems := unknownIn(address.Query(), known)
	if len(problems) == 0 {
		problems = repeatedIn(address.Query(), lists)
	}
	if len(problems) > 0 {
		r, w := humago.Unwrap(hc)
		WriteProblem(w, r.WithContext(hc.Context()), &Problem{Status: http.StatusUnprocessableEntity,
			Detail: summary(problems), Hint: problems[0].Suggestion, Errors: problems})
		return
	}
	next(hc)
}

// repeatedIn lists the parameters that a query has more than once and that are no lists: one value would be taken, and
// nobody knows which.
func repeatedIn(query url.Values, lists []string) (problems []fault.Problem) {
	for _, name := range slices.Sorted(maps.Keys(query)) {
		if n := len(query[name]); n > 1 && !slices.Contains(lists, name) {
			problems = append(problems, fault.Problem{Location: "query." + name,
				Message: fmt.Sprintf("is given %d times, and has one value", n), Suggestion: "give it once"})
		}
	}
	return problems
}

// unknownIn lists the parameters of a query that are not known, with those that they may be meant for.
func unknownIn(query url.Values, known []string) (problems []fault.Problem) {
	for _, name := range slices.Sorted(maps.Keys(query)) {
		if slices.Contains(known, name) {
			continue
		}
		p := fault.Problem{Location: "query." + name, Message: "is no parameter of this request"}
		switch near := spelling.Nearest(name, known); {
		case near != "":
			p.Suggestion = `did you mean "` + near + `"?`
		case len(known) > 0:
			p.Suggestion = "its parameters are " + strings.Join(slices.Sorted(slices.Values(known)), ", ")
		default:
			p.Suggestion = "leave it out: the request has no query"
		}
		problems = append(problems, p)
	}
	return problems
}
