package web

import "github.com/dagctl/dagctl/internal/rest"

// rowsError returns the text of an error that a reader may see within a page.
func rowsError(err error) string {
	p := rest.ProblemOf(err)
	if p.Hint != "" {
		return p.Detail + "; " + p.Hint
	}
	return p.Detail
}
