package authz

import "fmt"

// Principal is the sort of party a route speaks with. None ever stands in for another: a worker's token opens no user's
// route, and a task's no worker's.
type Principal string

const (
	Anyone  Principal = "anyone" // nobody is asked who they are
	Sender  Principal = "sender" // whoever knows a webhook's path and key; the handler checks that
	User    Principal = "user"   // a person or a service token of kind user: a Caller
	AWorker Principal = "worker" // a service token of kind worker: a Worker
	ATask   Principal = "task"   // a capability token: a Capability
)

// Rule says whom a route lets in. Every route has one.
type Rule int

// The rules. The zero Rule is none, and registering a route with it panics.
const (
	Public Rule = iota + 1 // anyone: health, the OpenAPI document, static files
	Reader                 // any caller; what it sees is up to CanRead
	Writer
	Admin
	Hook     // whoever signs for it, which the handler checks, since the key is the webhook's
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

// Principal is the sort of party the rule lets in.
func (r Rule) Principal() Principal { return rules[r].principal }

// Role is the least role the rule asks a Caller for; it is empty where the principal is not User.
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
