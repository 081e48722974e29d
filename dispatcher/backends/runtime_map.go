package backends

import (
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/late"
)

// RuntimeKind says how a task reaches the process that runs it.
type RuntimeKind string

// The kinds of runtimes.
const (
	InProcess RuntimeKind = "in-process" // the server runs it
	Poll      RuntimeKind = "poll"       // workers ask for it
	SQS       RuntimeKind = "sqs"        // workers receive its id from a queue, and claim it
	Lambda    RuntimeKind = "lambda"     // the server claims it, and invokes a function with it
)

// Backend is where tasks of a runtime go.
type Backend struct {
	Kind RuntimeKind
	// Operators and Orgs (slugs) choose among the backends of one runtime; an empty list takes all.
	Operators, Orgs []string

	QueueURL string // SQS
	DLQURL   string // SQS; empty: the one that the queue's redrive policy names
	// ResendSeconds is how long after a message its task is announced again if it is still unclaimed, and twice as long
	// after that, up to twelve times as long; default 300.
	ResendSeconds int
	// TasksPerMessage is how many tasks of one org a message may name; default 1. Workers from before blocks of tasks
	// read messages of one task only.
	TasksPerMessage int
	Function        string // Lambda: name or ARN
	// Qualifier is a version or alias of the function; empty: $LATEST.
	Qualifier string
	// Concurrency bounds the invocations of the function that run at once; default 100.
	Concurrency int
	Endpoint    string // SQS and Lambda: the service's URL, where it is not AWS's own
	Region      string // SQS and Lambda; empty: the region of the process's AWS settings
}

// defaultConcurrency is the default of Backend.Concurrency; an AWS account starts with ten times as many.
const defaultConcurrency = 100

// mostTasks is the largest Backend.TasksPerMessage.
const mostTasks = 10

// takesOperator reports whether the backend runs an operator. The server cannot run a worker's own function.
func (b Backend) takesOperator(operator string) bool {
	if b.Kind == InProcess && (operator == dag.Handler || operator == dag.OwnCode) {
		return false
	}
	return len(b.Operators) == 0 || slices.Contains(b.Operators, operator)
}

func (b Backend) takesOrg(org string) bool { return len(b.Orgs) == 0 || slices.Contains(b.Orgs, org) }

// RuntimeMap maps the runtimes that DAG files name to the backends of this server. A task goes to the first backend of
// its runtime that takes its operator and org.
type RuntimeMap map[string][]Backend

// Names returns the mapped runtimes, sorted.
func (m RuntimeMap) Names() []string { return slices.Sorted(maps.Keys(m)) }

// Of returns the runtimes that have a backend of this kind, sorted.
func (m RuntimeMap) Of(kind RuntimeKind) []string {
	var names []string
	for _, name := range m.Names() {
		if slices.ContainsFunc(m[name], func(b Backend) bool { return b.Kind == kind }) {
			names = append(names, name)
		}
	}
	return names
}

// Backend returns the backend that a task goes to, and whether there is one.
func (m RuntimeMap) Backend(runtime, operator, orgSlug string) (Backend, bool) {
	for _, b := range m[runtime] {
		if b.takesOperator(operator) && b.takesOrg(orgSlug) {
			return b, true
		}
	}
	return Backend{}, false
}

// Elsewhere returns, by runtime, the operators that a runtime of the server's own process leaves to other backends.
func (m RuntimeMap) Elsewhere(operators []string) map[string][]string {
	found := map[string][]string{}
	for _, runtime := range m.Of(InProcess) {
		for _, operator := range operators {
			if b, ok := m.Backend(runtime, operator, ""); ok && b.Kind != InProcess {
				found[runtime] = append(found[runtime], operator)
			}
		}
	}
	return found
}

// Remote reports whether any task leaves the server's process, and so needs a capability token.
func (m RuntimeMap) Remote() bool {
	return len(m.Of(Poll))+len(m.Of(SQS))+len(m.Of(Lambda)) > 0
}

// Runs returns the mapped runtimes that take the operator, sorted. Users' own code never runs in a server's process.
func (m RuntimeMap) Runs(operator string) []string {
	names := []string{}
	for _, name := range m.Names() {
		if slices.ContainsFunc(m[name], func(b Backend) bool { return b.takesOperator(operator) }) {
			names = append(names, name)
		}
	}
	return names
}

var (
	goodRuntimeName = late.Pattern(`^[a-z][a-z0-9_-]{0,62}$`)
	goodFunction    = late.Pattern(`^[A-Za-z0-9_:-]{1,256}$`)
)

// Check lists what is wrong with the map, and fills in defaults. operators holds the known ones; nil: they are not
// checked.
func (m RuntimeMap) Check(operators []string) (problems []fault.Problem) {
	wrong := func(where, format string, args ...any) {
		problems = append(problems, fault.Problem{Location: where, Message: fmt.Sprintf(format, args...)})
	}

	for _, name := range m.Names() {
		if !goodRuntimeName.MatchString(name) {
			wrong("runtimes", "%q is not a runtime's name: use up to 63 of a-z, 0-9, _ and -, beginning with a letter",
				name)
		}
		backends := m[name]
		if len(backends) == 0 {
			wrong("runtimes."+name, "is mapped to nothing")
		}

		for i := range backends {
			where := "runtimes." + name
			if len(backends) > 1 {
				where = fmt.Sprintf("%s[%d]", where, i)
			}
			b, first := &backends[i], backends[0]
			if b.Kind != first.Kind && !(b.claimsHere() && first.claimsHere()) {
				wrong(where, "is %s, and the entry before it %s: a runtime has one kind, or mixes in-process and poll",
					b.Kind, first.Kind)
			}
			for _, p := range b.check(operators) {
				wrong(where+p.Location, "%s", p.Message)
			}
			if shadow := slices.IndexFunc(backends[:i], func(a Backend) bool { return a.shadows(*b) }); shadow >= 0 {
				wrong(where, "never gets a task: the entry [%d] before it takes all of them", shadow)
			}
		}

		for _, operator := range stranded(backends) {
			wrong("runtimes."+name, "tasks of %s have nowhere to go for orgs that are not named: "+
				"end the list with an entry without `orgs`", operator)
		}
	}
	return problems
}

// claimsHere reports whether the backend's tasks are claimed by runtime and operator, so that the server's own process
// and workers that poll do not take each other's tasks.
func (b Backend) claimsHere() bool { return b.Kind == InProcess || b.Kind == Poll }

// shadows reports whether b takes every task that the other would.
func (b Backend) shadows(other Backend) bool {
	covers := func(all, some []string) bool {
		left := func(s string) bool { return !slices.Contains(all, s) }
		return len(all) == 0 || len(some) > 0 && !slices.ContainsFunc(some, left)
	}
	return covers(b.Operators, other.Operators) && covers(b.Orgs, other.Orgs)
}

// stranded lists the operators that the backends take for some orgs only: a task of another org would wait for ever.
func stranded(backends []Backend) (operators []string) {
	named := map[string]bool{}
	var any []Backend // these take operators that no backend names
	for _, b := range backends {
		if len(b.Operators) == 0 {
			any = append(any, b)
		}
		for _, o := range b.Operators {
			named[o] = true
		}
	}

	limited := func(takers []Backend) bool {
		return len(takers) > 0 && !slices.ContainsFunc(takers, func(b Backend) bool { return len(b.Orgs) == 0 })
	}
	if limited(any) {
		operators = append(operators, "any operator")
	}
	for _, o := range slices.Sorted(maps.Keys(named)) {
		takers := slices.DeleteFunc(slices.Clone(backends), func(b Backend) bool { return !b.takesOperator(o) })
		if limited(takers) && len(operators) == 0 {
			operators = append(operators, "operator "+o)
		}
	}
	return operators
}

// optionKinds holds, for each field of a backend that only some kinds have, those kinds and whether the field is set.
func (b *Backend) optionKinds() map[string]option {
	return map[string]option{
		"queue_url":         {b.QueueURL != "", []RuntimeKind{SQS}},
		"dlq_url":           {b.DLQURL != "", []RuntimeKind{SQS}},
		"resend_seconds":    {b.ResendSeconds != 0, []RuntimeKind{SQS}},
		"tasks_per_message": {b.TasksPerMessage != 0, []RuntimeKind{SQS}},
		"function":          {b.Function != "", []RuntimeKind{Lambda}},
		"qualifier":         {b.Qualifier != "", []RuntimeKind{Lambda}},
		"concurrency":       {b.Concurrency != 0, []RuntimeKind{Lambda}},
		"endpoint":          {b.Endpoint != "", []RuntimeKind{SQS, Lambda}},
		"region":            {b.Region != "", []RuntimeKind{SQS, Lambda}},
	}
}

// option is a field that only some kinds of backends have.
type option struct {
	set   bool
	kinds []RuntimeKind
}

// backendProblems collects what is wrong with one backend, by field.
type backendProblems []fault.Problem

func (p *backendProblems) wrong(field, format string, args ...any) {
	*p = append(*p, fault.Problem{Location: field, Message: fmt.Sprintf(format, args...)})
}

// check lists what is wrong with the backend, and fills in defaults.
func (b *Backend) check(operators []string) []fault.Problem {
	var p backendProblems
	if !slices.Contains([]RuntimeKind{InProcess, Poll, SQS, Lambda}, b.Kind) {
		p.wrong("", "%q is not a kind of runtime: use in-process, poll, sqs or lambda", b.Kind)
		return p
	}

	options := b.optionKinds()
	for _, field := range slices.Sorted(maps.Keys(options)) {
		if o := options[field]; o.set && !slices.Contains(o.kinds, b.Kind) {
			p.wrong("."+field, "does not belong to kind %s", b.Kind)
		}
	}
	switch b.Kind {
	case SQS:
		b.checkSQS(&p)
	case Lambda:
		b.checkLambda(&p)
	}

	if b.Endpoint != "" && !isURL(b.Endpoint) {
		p.wrong(".endpoint", "%q is not a URL, such as http://127.0.0.1:9324", b.Endpoint)
	}
	for _, o := range b.Operators {
		if operators != nil && !slices.Contains(operators, o) {
			p.wrong(".operators", "there is no operator %q", o)
		}
	}
	return p
}

func (b *Backend) checkSQS(p *backendProblems) {
	if !isURL(b.QueueURL) || strings.Count(b.QueueURL, "/") < 3 {
		p.wrong(".queue_url", "%q is not a queue's URL, such as https://sqs.eu-west-1.amazonaws.com/123456789012/tasks",
			b.QueueURL)
	}
	if b.DLQURL != "" && (!isURL(b.DLQURL) || b.DLQURL == b.QueueURL) {
		p.wrong(".dlq_url", "%q is not the URL of another queue", b.DLQURL)
	}
	if b.ResendSeconds < 0 || b.ResendSeconds > 86_400 {
		p.wrong(".resend_seconds", "%d is not between 1 and 86400", b.ResendSeconds)
	}
	if b.TasksPerMessage < 0 || b.TasksPerMessage > mostTasks {
		p.wrong(".tasks_per_message", "%d is not between 1 and %d", b.TasksPerMessage, mostTasks)
	}
}

func (b *Backend) checkLambda(p *backendProblems) {
	if !goodFunction.MatchString(b.Function) {
		p.wrong(".function", "%q is not a function's name or ARN", b.Function)
	}
	if b.Concurrency == 0 {
		b.Concurrency = defaultConcurrency
	}
	if b.Concurrency < 1 || b.Concurrency > 10_000 {
		p.wrong(".concurrency", "%d is not between 1 and 10000", b.Concurrency)
	}
}

func isURL(s string) bool {
	u, err := url.Parse(s)
	return err == nil && (u.Scheme == "http" || u.Scheme == "https") && u.Host != "" && u.User == nil
}
