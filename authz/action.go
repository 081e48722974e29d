package authz

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/dagctl/dagctl/internal/fault"
)

// Action is what somebody wants to do. What may be done without a Caller (deliveries to webhooks, calls of workers and
// tasks) is no Action.
type Action string

// The actions. Each has one line in the table below.
const (
	Read       Action = "read"       // see what visibility shows: DAGs, tasks, published datasets with their rows
	Inspect    Action = "inspect"    // see also unpublished datasets, versions that do not serve, documents, and errors
	Plan       Action = "plan"       // see what a deploy would do, and upload code for it
	Operate    Action = "operate"    // run, retry, cancel, backfill, pause, invalidate, publish events, set timers
	Deploy     Action = "deploy"     // change what serves or may serve again
	Administer Action = "administer" // tokens, org roles, visibility, secrets, purges, the org's pause, audit
	ReadAll    Action = "read-all"   // read every dataset of the org, whatever its read roles
)

// leastRoles is the table of actions: the least role that may do each.
var leastRoles = map[Action]Role{
	Read:       RoleReader,
	Inspect:    RoleProposer,
	Plan:       RoleProposer,
	Operate:    RoleWriter,
	Deploy:     RoleWriter,
	Administer: RoleAdmin,
	ReadAll:    RoleAdmin,
}

// Object is what an action is on. The zero Object is the whole org.
type Object struct {
	DAG string // what is on a DAG is on all that belongs to it: jobs, tasks, timers, datasets
}

// WholeOrg is the object of what concerns no single DAG.
var WholeOrg = Object{}

// OnDAG returns the object of what concerns one DAG.
func OnDAG(name string) Object { return Object{DAG: name} }

// Grant gives a role on some DAGs only.
type Grant struct {
	Role Role   `json:"role" enum:"proposer,writer"`
	DAGs string `json:"dags" maxLength:"63" example:"sales-*" doc:"Name or pattern of names, in which * stands for any text"`
}

// String returns the grant as it is stored, and as commands take it: ROLE:PATTERN.
func (g Grant) String() string { return string(g.Role) + ":" + g.DAGs }

// ParseGrant reads a grant as String writes it.
func ParseGrant(text string) Grant {
	role, dags, _ := strings.Cut(text, ":")
	return Grant{Role(role), dags}
}

// GrantTexts returns grants as they are stored.
func GrantTexts(all []Grant) []string {
	texts := make([]string, len(all))
	for i, g := range all {
		texts[i] = g.String()
	}
	return texts
}

// ParseGrants reads grants as they are stored.
func ParseGrants(texts []string) (all []Grant) {
	for _, text := range texts {
		all = append(all, ParseGrant(text))
	}
	return all
}

// likePattern makes a pattern one of LIKE: what means something there is escaped.
var likePattern = strings.NewReplacer(`_`, `\_`, `%`, `\%`, `*`, `%`)

func (g Grant) like() string { return likePattern.Replace(g.DAGs) }

// covers reports whether the grant is for an object.
func (g Grant) covers(on Object) bool {
	matches, err := path.Match(g.DAGs, on.DAG)
	return on.DAG != "" && err == nil && matches
}

// May reports whether the caller may do something to an object.
func (c Caller) May(do Action, on Object) bool {
	least, known := leastRoles[do]
	if !known {
		return false
	}
	return c.is(least) || slices.ContainsFunc(c.Grants, func(g Grant) bool {
		return g.Role.atLeast(least) && g.covers(on)
	})
}

// Administers reports whether the caller may administer the org, for pages.
func (c Caller) Administers() bool { return c.May(Administer, WholeOrg) }

// MaySomewhere reports whether there may be an object to which the caller may do something.
func (c Caller) MaySomewhere(do Action) bool {
	least, known := leastRoles[do]
	return known && (c.is(least) || slices.ContainsFunc(c.Grants, func(g Grant) bool { return g.Role.atLeast(least) }))
}

// Authorize refuses what the caller may not do. Everything that is not read is decided here; who reads which dataset is
// registry's to say.
func Authorize(c Caller, do Action, on Object) error {
	if c.May(do, on) {
		return nil
	}
	where := ""
	if on.DAG != "" {
		where = fmt.Sprintf(" or a grant of it on DAG %s", on.DAG)
	} else if c.MaySomewhere(do) {
		where = " for the whole org"
	}
	return &lacksRole{action: do, error: fault.New(fault.Forbidden, "this needs the role %s%s, but %s has %s",
		leastRoles[do], where, c.Actor, c.roles()).
		WithHint("ask an admin of the org %s", c.OrgSlug)}
}

// lacksRole is the error of a caller who lacks the role for an action.
type lacksRole struct {
	error
	action Action
}

func (l *lacksRole) Unwrap() error { return l.error }

// roles says what the caller has, for people.
func (c Caller) roles() string {
	text := string(c.Role)
	for _, g := range c.Grants {
		text += fmt.Sprintf(", and %s on %s", g.Role, g.DAGs)
	}
	return text
}

// MayOnDAGs returns an SQL condition under which the caller may do something to a DAG, whose name is in a column.
func (c Caller) MayOnDAGs(do Action, column string, args *[]any) string {
	if c.May(do, WholeOrg) {
		return "true"
	}
	if !c.MaySomewhere(do) {
		return "false"
	}

	*args = append(*args, c.patterns(do))
	return fmt.Sprintf("%s LIKE ANY($%d::text[])", column, len(*args))
}

// patterns returns patterns of LIKE for the DAGs to which the caller may do something.
func (c Caller) patterns(do Action) []string {
	if c.May(do, WholeOrg) {
		return []string{"%"}
	}

	patterns := []string{}
	for _, g := range c.Grants {
		if g.Role.atLeast(leastRoles[do]) {
			patterns = append(patterns, g.like())
		}
	}
	return patterns
}
