package dispatcher

import (
	"fmt"
	"maps"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/internal/fault"
)

// RuntimeKind says how a task gets to who runs it.
type RuntimeKind string

// The kinds of runtimes.
const (
	InProcess RuntimeKind = "in-process" // the server runs it
	Poll      RuntimeKind = "poll"       // workers ask for it
	SQS       RuntimeKind = "sqs"        // workers receive its id from a queue, and claim it
	Lambda    RuntimeKind = "lambda"     // it is claimed, and a function invoked with it
)

// Backend is where tasks of a runtime go.
type Backend struct {
	Kind RuntimeKind
	// Operators and Orgs (slugs) choose among the backends of one runtime; none: all.
	Operators, Orgs []string

	QueueURL string // SQS
	DLQURL   string // SQS; empty: as the queue's redrive policy says
	// ResendSeconds is how long after a message its task, still unclaimed, is announced again, and twice as long after that,
	// up to twelve times as long; default 300.
	ResendSeconds int
	Function      string // Lambda: name or ARN
	// Qualifier is a version or alias of the function; empty: $LATEST.
	Qualifier string
	// Concurrency bounds the invocations of the function that run at once; default 100.
	Concurrency int
	Endpoint    string // SQS and Lambda: of the service, where it is not AWS's own
	Region      string // SQS and Lambda; empty: as the AWS settings of the process say
}

// defaultConcurrency of a function; an AWS account starts with ten times as many.
const defaultConcurrency = 100

// takesOperator reports whether it runs an operator. What is a worker's own function the server cannot run.
func (b Backend) takesOperator(operator string) bool {
	if b.Kind == InProcess && (operator == dag.Handler || operator == dag.OwnCode) {
		return false
	}
	return len(b.Operators) == 0 || slices.Contains(b.Operators, operator)
}

func (b Backend) takesOrg(org string) bool { return len(b.Orgs) == 0 || slices.Contains(b.Orgs, org) }

// RuntimeMap says what the runtimes that DAG files name are on this server. Of several backends the first that takes a
// task's operator and org gets it.
type RuntimeMap map[string][]Backend

// Names are the mapped runtimes, sorted.
func (m RuntimeMap) Names() []string { return slices.Sorted(maps.Keys(m)) }

// Of are the runtimes that have a backend of this kind, sorted.
func (m RuntimeMap) Of(kind RuntimeKind) []string {
	var names []string
	for _, name := range m.Names() {
		if slices.ContainsFunc(m[name], func(b Backend) bool { return b.Kind == kind }) {
			names = append(names, name)
		}
	}
	return names
}

// Backend is where a task of the runtime goes, if it goes anywhere.
func (m RuntimeMap) Backend(runtime, operator, orgSlug string) (Backend, bool) {
	for _, b := range m[runtime] {
		if b.takesOperator(operator) && b.takesOrg(orgSlug) {
			return b, true
		}
	}
	return Backend{}, false
}

// Elsewhere are, by runtime, the operators that a runtime of the server's own process leaves to others.
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

// Runs are the mapped runtimes that take the operator, sorted. What users bring along never runs in a server's process.
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
	goodRuntimeName = regexp.MustCompile(`^[a-z][a-z0-9_-]{0,62}$`)
	goodFunction    = regexp.MustCompile(`^[A-Za-z0-9_:-]{1,256}$`)
)

// Check lists what is wrong with the map, and fills in defaults. operators are the known ones; nil: they are not checked.
func (m RuntimeMap) Check(operators []string) (problems []fault.Problem) {
	for _, name := range m.Names() {
		if !goodRuntimeName.MatchString(name) {
			problems = append(problems, fault.Problem{Location: "runtimes", Message: fmt.Sprintf("%q is not a runtime's name: use up to 63 of a-z, 0-9, _ and -, beginning with a letter", name)})
		}
		backends := m[name]
		if len(backends) == 0 {
			problems = append(problems, fault.Problem{Location: "runtimes." + name, Message: "is mapped to nothing"})
		}
		for i := range backends {
			where := "runtimes." + name
			if len(backends) > 1 {
				where = fmt.Sprintf("%s[%d]", where, i)
			}
			if kind := backends[0].Kind; backends[i].Kind != kind && !(backends[i].claimsHere() && backends[0].claimsHere()) {
				problems = append(problems, fault.Problem{Location: where, Message: fmt.Sprintf("is %s, and the entry before it %s: a runtime is of one kind, or of in-process and poll", backends[i].Kind, kind)})
			}
			for _, wrong := range backends[i].check(operators) {
				problems = append(problems, fault.Problem{Location: where + wrong.Location, Message: wrong.Message})
			}
			if shadow := slices.IndexFunc(backends[:i], func(b Backend) bool { return b.shadows(backends[i]) }); shadow >= 0 {
				problems = append(problems, fault.Problem{Location: where, Message: fmt.Sprintf("never gets a task: the entry [%d] before it takes all of them", shadow)})
			}
		}
		for _, operator := range stranded(backends) {
			problems = append(problems, fault.Problem{Location: "runtimes." + name,
				Message: fmt.Sprintf("tasks of %s have nowhere to go for orgs that are not named: end the list with an entry without `orgs`", operator)})
		}
	}
	return problems
}

// claimsHere reports whether its tasks are claimed by runtime and operator: those of the server's own process and of workers
// that poll keep out of each other's way.
func (b Backend) claimsHere() bool { return b.Kind == InProcess || b.Kind == Poll }

// shadows reports whether b takes every task that the other would.
func (b Backend) shadows(other Backend) bool {
	covers := func(all, some []string) bool {
		return len(all) == 0 || len(some) > 0 && !slices.ContainsFunc(some, func(s string) bool { return !slices.Contains(all, s) })
	}
	return covers(b.Operators, other.Operators) && covers(b.Orgs, other.Orgs)
}

// stranded are the operators that the backends take for some orgs only, so that a task of another org would wait for ever.
func stranded(backends []Backend) (operators []string) {
	named := map[string]bool{}
	var any []Backend // that take operators which nobody names
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

func (b *Backend) check(operators []string) (problems []fault.Problem) {
	wrong := func(field, format string, args ...any) {
		problems = append(problems, fault.Problem{Location: field, Message: fmt.Sprintf(format, args...)})
	}
	belongs := map[string]struct {
		set   bool
		kinds []RuntimeKind
	}{
		"queue_url":      {b.QueueURL != "", []RuntimeKind{SQS}},
		"dlq_url":        {b.DLQURL != "", []RuntimeKind{SQS}},
		"resend_seconds": {b.ResendSeconds != 0, []RuntimeKind{SQS}},
		"function":       {b.Function != "", []RuntimeKind{Lambda}},
		"qualifier":      {b.Qualifier != "", []RuntimeKind{Lambda}},
		"concurrency":    {b.Concurrency != 0, []RuntimeKind{Lambda}},
		"endpoint":       {b.Endpoint != "", []RuntimeKind{SQS, Lambda}},
		"region":         {b.Region != "", []RuntimeKind{SQS, Lambda}},
	}
	if !slices.Contains([]RuntimeKind{InProcess, Poll, SQS, Lambda}, b.Kind) {
		wrong("", "%q is no kind of runtime: in-process, poll, sqs or lambda", b.Kind)
		return problems
	}
	for _, field := range slices.Sorted(maps.Keys(belongs)) {
		if f := belongs[field]; f.set && !slices.Contains(f.kinds, b.Kind) {
			wrong("."+field, "does not belong to kind %s", b.Kind)
		}
	}
	switch b.Kind {
	case SQS:
		if !isURL(b.QueueURL) || strings.Count(b.QueueURL, "/") < 3 {
			wrong(".queue_url", "%q is not a queue's URL, such as https://sqs.eu-west-1.amazonaws.com/123456789012/tasks", b.QueueURL)
		}
		if b.DLQURL != "" && (!isURL(b.DLQURL) || b.DLQURL == b.QueueURL) {
			wrong(".dlq_url", "%q is not the URL of another queue", b.DLQURL)
		}
		if b.ResendSeconds < 0 || b.ResendSeconds > 86_400 {
			wrong(".resend_seconds", "%d is not between 1 and 86400", b.ResendSeconds)
		}
	case Lambda:
		if !goodFunction.MatchString(b.Function) {
			wrong(".function", "%q is not a function's name or ARN", b.Function)
		}
		if b.Concurrency == 0 {
			b.Concurrency = defaultConcurrency
		}
		if b.Concurrency < 1 || b.Concurrency > 10_000 {
			wrong(".concurrency", "%d is not between 1 and 10000", b.Concurrency)
		}
	}
	if b.Endpoint != "" && !isURL(b.Endpoint) {
		wrong(".endpoint", "%q is not a URL, such as http://127.0.0.1:9324", b.Endpoint)
	}
	for _, o := range b.Operators {
		if operators != nil && !slices.Contains(operators, o) {
			wrong(".operators", "there is no operator %q", o)
		}
	}
	return problems
}

func isURL(s string) bool {
	u, err := url.Parse(s)
	return err == nil && (u.Scheme == "http" || u.Scheme == "https") && u.Host != "" && u.User == nil
}
