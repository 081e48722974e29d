package dispatcher

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/lambda"
	"github.com/aws/aws-sdk-go-v2/service/sqs"

	"github.com/dagctl/dagctl/internal/fault"
)

// Queue is an SQS queue from which workers learn of tasks of a runtime. Where a runtime has several, a task goes to the
// first that takes it.
type Queue struct {
	URL       string
	Endpoint  string   // instead of AWS's own
	Region    string   // default: as in the URL, or else that of the AWS config
	DLQ       string   // URL of the queue for messages that nobody could handle
	Operators []string // that it takes; empty: all
	Orgs      []string // slugs of orgs that it takes; empty: all
}

// takes reports whether tasks of an operator and an org go to the queue.
func (q Queue) takes(operator, org string) bool {
	return (len(q.Operators) == 0 || slices.Contains(q.Operators, operator)) && (len(q.Orgs) == 0 || slices.Contains(q.Orgs, org))
}

// queueFor is the queue that tasks of an operator and an org go to. It is pure.
func queueFor(runtime string, queues []Queue, operator, org string) (Queue, error) {
	for _, q := range queues {
		if q.takes(operator, org) {
			return q, nil
		}
	}
	return Queue{}, fault.New(fault.Invalid, "runtime %s has no queue for operator %s of org %s", runtime, operator, org).
		WithHint("end the list of runtimes.%s in the server's config with a queue that has no `operators` and `orgs`", runtime)
}

// Function is a Lambda function that tasks of a runtime run in.
type Function struct {
	Name        string // or ARN
	Qualifier   string // version or alias; default: the latest
	Endpoint    string // instead of AWS's own
	Region      string // default: as in the ARN, or else that of the AWS config
	Concurrency int    // tasks that run in it at once, over all servers; default 100
}

// site is where an AWS service is reached.
type site struct{ endpoint, region string }

func (q Queue) site() site {
	region := q.Region
	if u, err := url.Parse(q.URL); err == nil && region == "" {
		if parts := strings.Split(u.Hostname(), "."); len(parts) > 3 && parts[0] == "sqs" { // sqs.REGION.amazonaws.com
			region = parts[1]
		}
	}
	return site{q.Endpoint, region}
}

func (f Function) site() site {
	region := f.Region
	if parts := strings.Split(f.Name, ":"); region == "" && len(parts) > 3 { // arn:aws:lambda:REGION:…
		region = parts[3]
	}
	return site{f.Endpoint, region}
}

// in is the site for a client: nil leaves the endpoint to AWS's own rules.
func (s site) in(c aws.Config) (endpoint *string, region string, err error) {
	if s.endpoint != "" {
		endpoint = &s.endpoint
	}
	if region = cmp.Or(s.region, c.Region); region == "" {
		return nil, "", errors.New("it has no region: set `region`, or AWS_REGION")
	}
	return endpoint, region, nil
}

// remotes are the clients of the queues and functions that tasks are handed to.
type remotes struct {
	queues    map[site]*sqs.Client
	functions map[site]*lambda.Client
}

func newRemotes(queues map[string][]Queue, functions map[string]Function, c aws.Config) (remotes, error) {
	r := remotes{queues: map[site]*sqs.Client{}, functions: map[site]*lambda.Client{}}
	for _, name := range slices.Sorted(maps.Keys(queues)) {
		for _, q := range queues[name] {
			endpoint, region, err := q.site().in(c)
			if err != nil {
				return r, fmt.Errorf("queue %s of runtime %s: %w", q.URL, name, err)
			}
			r.queues[q.site()] = sqs.NewFromConfig(c, func(o *sqs.Options) { o.BaseEndpoint, o.Region = endpoint, region })
		}
	}
	for _, name := range slices.Sorted(maps.Keys(functions)) {
		f := functions[name]
		endpoint, region, err := f.site().in(c)
		if err != nil {
			return r, fmt.Errorf("function %s of runtime %s: %w", f.Name, name, err)
		}
		r.functions[f.site()] = lambda.NewFromConfig(c, func(o *lambda.Options) {
			o.BaseEndpoint, o.Region = endpoint, region
			o.RetryMaxAttempts = 1 // what throttles is to be left alone, and the task has rules of its own for trying again
		})
	}
	return r, nil
}
