package authz

import "fmt"

// Principal is the kind of party that a route is for. None can stand in for another: a worker's token opens no route
// for users, and a task's token no route for workers.
type Principal string

const (
	Anyone  Principal = "anyone" // no credential is needed
	Sender  Principal = "sender" // a party that knows a webhook's path and key, which the handler checks
	User    Principal = "user"   // a person or a service token of kind user: a Caller
	AWorker Principal = "worker" // a service token of kind worker: a Worker
	ATask   Principal = "task"   // a capability token: a Capability
)

// Rule is the principal and role that a route admits. Every route has one.
type Rule int

// The rules. The zero Rule is invalid: registering a route with it panics.
const (
	Public Rule = iota + 1 // anyone: health, the OpenAPI document, static files
	Reader                 // any caller; registry.VisibleTo decides what it sees
	Writer
	Admin
	Hook     // a party that signs the request, which the handler checks, because the key is the webhook's
	ByWorker // a worker, for what its token lets it claim
	ByTask   // a running attempt, for its own task
)

var rules = map[Rule]struct {
	name      string
	principal Principal
	role      Role
}{
	Public:   {"public", Anyone, ""},
	Reader:   {"reader", User, RoleReader},
	Writer:   {"writer", User, RoleWriter},
	Admin:    {"admin", User, RoleAdmin},
	Hook:     {"hook", Sender, ""},
	ByWorker: {"worker", AWorker, ""},
	ByTask:   {"task", ATask, ""},
}

// Principal returns the kind of party that the rule admits.
func (r Rule) Principal() Principal { return rules[r].principal }

// Role returns the least role that the rule requires of a Caller. It is empty if the principal is not User.
func (r Rule) Role() Role { return rules[r].role }

func (r Rule) String() string {
	if d, ok := rules[r]; ok {
		return d.name
	}
	return fmt.Sprintf("Rule(%d)", int(r))
}

// Route is one entry of the route table.
type Route struct {
	Method string // empty: every method
	Path   string
	Rule   Rule
}
