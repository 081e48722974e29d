package web

import "github.com/dagctl/dagctl/internal/rest"

// rowsError is what a reader may know of an error inside a page.
func rowsError(err error) string {
	p := rest.ProblemOf(err)
	if p.Hint != "" {
		return p.Detail + "; " + p.Hint
	}
	return p.Detail
}
