package web

import (
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/rest"
)

// form is what a browser sent.
type form struct{ url.Values }

// Limits of fields, in bytes.
const (
	maxField = 500
	maxArea  = 50_000 // of those with several lines
)

// areas are the fields that may be longer than others.
var areas = []string{"claims", "grants", "payload", "value"}

// readForm returns the fields of a request's form. All are texts that the database can store.
func readForm(r *http.Request) (form, error) {
	tooLarge := (*http.MaxBytesError)(nil)
	if err := r.ParseForm(); errors.As(err, &tooLarge) {
		return form{}, err
	} else if err != nil {
		return form{}, fault.New(fault.Invalid, "the form cannot be read: %w", err)
	}

	for name, values := range r.PostForm {
		most := maxField
		if slices.Contains(areas, name) {
			most = maxArea
		}
		for _, value := range values {
			if !utf8.ValidString(value) || strings.ContainsRune(value, 0) {
				return form{}, fault.New(fault.Invalid, "the field %q is not valid UTF-8 text", name)
			}
			if len(value) > most {
				return form{}, fault.New(fault.Invalid, "the field %q has more than %d bytes", name, most)
			}
		}
	}
	return form{r.PostForm}, nil
}

// needs refuses a form that lacks a field: what it did not say would be taken for nothing, and be taken away. Boxes
// that are not ticked are no fields, so that they cannot be needed.
func (f form) needs(names ...string) error {
	for _, name := range names {
		if !f.Has(name) {
			return fault.New(fault.Invalid, "the form lacks the field %q", name).
				WithHint("load the page again, and send its form whole")
		}
	}
	return nil
}

// words returns the words of a field, which spaces or commas separate.
func words(text string) []string {
	return strings.FieldsFunc(text, func(c rune) bool { return c == ',' || c == ' ' || c == '\n' || c == '\r' })
}

// wrongWith returns what a page shows beside its form of an error; nil if there is none, or if the error is not about
// the form.
func wrongWith(err error) *rest.Problem {
	if err == nil {
		return nil
	}
	p := rest.ProblemOf(err)
	if p.Status >= 500 || p.Status == http.StatusTooManyRequests || p.Status == http.StatusUnauthorized {
		return nil
	}
	return p
}

// rights is the part of a form that says what somebody may do.
type rights struct {
	Role     string
	ByRules  bool     // the role may be empty: what trust rules give
	Grants   string   // as they are written: ROLE:DAGS, with spaces or commas between
	OrgRoles []string // chosen ones
	Offered  []string // those that the org has
}

// rightsOf returns what a form gives.
func rightsOf(f form) rights {
	return rights{Role: f.Get("role"), Grants: f.Get("grants"), OrgRoles: f.Values["org_roles"]}
}

// grants returns the grants, as far as they can be read: what is none of them is refused by those who take them.
func (g rights) grants() []authz.Grant { return authz.ParseGrants(words(g.Grants)) }

// offering returns the rights with the org roles to choose from, which include those chosen: what a form did not show,
// it would take away.
func (g rights) offering(all []string) rights {
	g.Offered = slices.Concat(all, g.OrgRoles)
	slices.Sort(g.Offered)
	g.Offered = slices.Compact(g.Offered)
	return g
}

// Roles returns the roles to choose from.
func (g rights) Roles() []authz.Role {
	return []authz.Role{authz.RoleReader, authz.RoleProposer, authz.RoleWriter, authz.RoleAdmin}
}

// Has reports whether an org role is chosen.
func (g rights) Has(orgRole string) bool { return slices.Contains(g.OrgRoles, orgRole) }
