package authz

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"github.com/dagctl/dagctl/internal/pg"
)

// Principal is the kind of party that a route is for. None can stand in for another: a worker's token opens no route
// for users, and a task's token no route for workers.
type Principal string

const (
	Anyone  Principal = "anyone" // no credential is needed
	Sender  Principal = "sender" // a party that knows a webhook's path and key, which the handler checks
	User    Principal = "user"   // a person or a service token of kind user: a Caller
	AWorker Principal = "worker" // a service token of kind worker: a Worker
	ATask   Principal = "task"   // a capability token: a Capability
	// AProvisioner is a service token of kind scim: a Provisioner.
	AProvisioner Principal = "provisioner"
)

// Rule is whom a route admits: a kind of party and, of Callers, those who may do the action to the object that the
// target finds. Every route has one; registering a route with the zero Rule panics.
type Rule struct {
	principal Principal
	action    Action
	target    Target
}

// The rules. Those for Callers are made with To.
var (
	Public   = Rule{principal: Anyone}  // health, the OpenAPI document, static files
	Hook     = Rule{principal: Sender}  // a party that signs the request: the key is the webhook's
	ByWorker = Rule{principal: AWorker} // a worker, for what its token lets it claim
	ByTask   = Rule{principal: ATask}   // a running attempt, for its own task
	// ByProvisioner is an identity provider, for the users and groups that it keeps.
	ByProvisioner = Rule{principal: AProvisioner}
	Reader        = To(Read, TheOrg) // any caller; registry.VisibleTo decides what it sees
	Admin         = To(Administer, TheOrg)
)

// To returns the rule of a route that does something to what the target finds.
func To(do Action, target Target) Rule { return Rule{principal: User, action: do, target: target} }

// Target says how the object of a route is found.
type Target string

const (
	TheOrg       Target = "org"      // it is the whole org
	TheDAG       Target = "dag"      // the parameter {dag} of the path names it
	TheJobs      Target = "job"      // the parameters {dag} and {job} of the path name a job, which may be a source
	TheDatasets  Target = "dataset"  // the parameter {name} of the path names a dataset, and its producer's DAG is it
	TheTasks     Target = "task"     // the parameter {id} of the path is a task's
	TheTimers    Target = "timer"    // the parameter {id} of the path is a timer's
	TheBackfills Target = "backfill" // the parameter {id} of the path is a backfill's of the DAG {dag}
	TheBulk      Target = "bulk"     // the parameter {id} of the path is a bulk action's, and its tasks' DAG is it
	// InBody says that the body or the query names it: the handler calls Authorize, and refuses what is hidden.
	InBody Target = "body"
)

// targetParams are the parameters of paths by which objects are found.
var targetParams = map[Target][]string{TheDAG: {"dag"}, TheJobs: {"dag", "job"}, TheDatasets: {"name"},
	TheTasks: {"id"}, TheTimers: {"id"}, TheBackfills: {"dag", "id"}, TheBulk: {"id"}}

// Finder returns the name of the DAG that something belongs to, empty if there is no such thing. What is hidden from
// the caller is as absent: the error is a fault.NotFound, so that nobody acts on what they may not look into. values
// are those of the target's parameters.
type Finder func(ctx context.Context, caller Caller, values ...string) (dag string, err error)

// reading returns the context in which a route runs for a caller: where the route only reads, row-level security hides
// what the caller may not read. Routes that change something see which names and tasks there are.
func (r Rule) reading(ctx context.Context, caller Caller) context.Context {
	if r.action != Read && r.action != Inspect || caller.May(ReadAll, WholeOrg) {
		return ctx
	}
	return pg.WithReader(ctx, pg.Reader{OrgRoles: caller.OrgRoles, Inspects: caller.patterns(Inspect)})
}

// shownBy returns the rule by which a page shows things: what GET shows of an action, before it is done, is read. A
// plan tells names to those who may make one.
func (r Rule) shownBy(method string) Rule {
	if safe(method) && r.action != Plan {
		r.action = Read
	}
	return r
}

// FindBy says how a target is found, and what is hidden. The slices that own the things say it when they add their
// routes.
func (api *API) FindBy(target Target, find Finder) { api.finders[target] = find }

// authorize refuses what the rule does not let the caller do, or does to what is hidden from the caller. It looks for
// the object only if that decides.
func (api *API) authorize(r *http.Request, rule Rule, caller Caller) error {
	find, hides := api.finders[rule.target]
	switch {
	case !caller.MaySomewhere(rule.action), rule.target == TheOrg:
		return Authorize(caller, rule.action, WholeOrg)
	case rule.target == InBody, !hides && caller.May(rule.action, WholeOrg), caller.May(ReadAll, WholeOrg):
		return nil
	}

	// Where the path names the DAG, the refusal for the DAG comes first, so that it is the same for what is hidden and
	// for what is not there.
	dag := r.PathValue("dag")
	if dag != "" && !caller.May(rule.action, OnDAG(dag)) {
		return Authorize(caller, rule.action, OnDAG(dag))
	}
	if hides {
		var values []string
		for _, param := range targetParams[rule.target] {
			values = append(values, r.PathValue(param))
		}
		var err error
		if dag, err = find(r.Context(), caller, values...); err != nil {
			return err
		}
	}
	return Authorize(caller, rule.action, OnDAG(dag))
}

// check panics if the rule of a route cannot be kept.
func (api *API) check(method, route string, rule Rule) {
	if _, known := leastRoles[rule.action]; rule.principal == "" || rule.principal == User && !known {
		panic(fmt.Sprintf("route %s %s has no rule", method, route))
	}
	for _, param := range targetParams[rule.target] {
		if !names(route, param) {
			panic(fmt.Sprintf("route %s %s: its object is a %s, but its path has no {%s}", method, route, rule.target,
				param))
		}
	}
	if rule.acts() {
		rule.requireShown(method, route)
	}
}

// acts reports whether the route does more to its object than to read it, for callers who may not read everything.
func (r Rule) acts() bool {
	return r.principal == User && r.action != Read && r.action != Inspect && r.action != Plan &&
		leastRoles[r.action] != leastRoles[ReadAll]
}

// hideable are the parameters of paths that name what may be hidden from callers.
var hideable = []string{"job", "name", "id"}

// requireShown panics if a route that acts names something that may be hidden from callers, and its rule does not say
// how that is found.
func (r Rule) requireShown(method, route string) {
	for _, param := range hideable {
		if names(route, param) && !slices.Contains(targetParams[r.target], param) {
			panic(fmt.Sprintf("route %s %s: {%s} may be hidden from its caller, and the rule %q does not find it",
				method, route, param, r))
		}
	}
}

// names reports whether the pattern of a route has a parameter.
func names(route, param string) bool {
	return strings.Contains(route, "{"+param+"}") || strings.Contains(route, "{"+param+"...")
}

// requireFinders panics if a route's object cannot be found.
func (api *API) requireFinders() {
	for _, r := range api.routes {
		if t := r.Rule.target; len(targetParams[t]) > 0 && t != TheDAG && api.finders[t] == nil {
			panic(fmt.Sprintf("route %s %s: nobody has said how a %s is found", r.Method, r.Path, t))
		}
	}
}

// Principal returns the kind of party that the rule admits.
func (r Rule) Principal() Principal { return r.principal }

// Action returns what the route does; empty if the principal is not User.
func (r Rule) Action() Action { return r.action }

// Target returns how the route's object is found; empty if the principal is not User.
func (r Rule) Target() Target { return r.target }

// describe adds to an operation, in the OpenAPI document, what a request needs for the rule to admit it.
func (r Rule) describe(op *huma.Operation) {
	op.Description = strings.TrimSpace(op.Description + "\n\n" + r.needs())
}

func (r Rule) needs() string {
	switch least := leastRoles[r.action]; {
	case r.principal == AWorker:
		return "Needs the token of a worker."
	case r.principal == ATask:
		return "Needs the capability of the attempt."
	case r.principal != User:
		return "Needs no credential."
	case r.target == TheOrg || least == RoleAdmin:
		return fmt.Sprintf("Needs the role %s.", least)
	default:
		return fmt.Sprintf("Needs the role %s, or a grant of it on the DAG.", least)
	}
}

func (r Rule) String() string {
	if r.principal == User {
		return fmt.Sprintf("%s %s", r.action, r.target)
	}
	return string(r.principal)
}

// Route is one entry of the route table.
type Route struct {
	Method string // empty: every method
	Path   string
	Rule   Rule
}
