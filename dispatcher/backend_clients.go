package dispatcher

import (
	"cmp"
	"fmt"
	"net/url"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/lambda"
	"github.com/aws/aws-sdk-go-v2/service/sqs"

	"github.com/dagctl/dagctl/internal/fault"
)

// site is where a service of AWS is reached.
type site struct{ endpoint, region string }

// site is where the backend's queue or function is. Queue URLs and functions' ARNs name their region.
func (b Backend) site() site {
	region := b.Region
	if u, err := url.Parse(b.QueueURL); err == nil && region == "" {
		if parts := strings.Split(u.Hostname(), "."); len(parts) > 3 && parts[0] == "sqs" { // sqs.REGION.amazonaws.com
			region = parts[1]
		}
	}
	if parts := strings.Split(b.Function, ":"); region == "" && len(parts) > 3 && parts[0] == "arn" { // arn:aws:lambda:REGION:…
		region = parts[3]
	}
	return site{b.Endpoint, region}
}

// in tells a client its endpoint, nil for AWS's own, and its region.
func (s site) in(c aws.Config) (endpoint *string, region string, err error) {
	if s.endpoint != "" {
		endpoint = &s.endpoint
	}
	if region = cmp.Or(s.region, c.Region); region == "" {
		return nil, "", fault.New(fault.Invalid, "its region is not known").WithHint("set `region` beside it in the server's config, or AWS_REGION")
	}
	return endpoint, region, nil
}

// backendClients reach the queues and functions that tasks are handed to.
type backendClients struct {
	queues    map[site]*sqs.Client
	functions map[site]*lambda.Client
}

func newBackendClients(runtimes RuntimeMap, c aws.Config) (backendClients, error) {
	clients := backendClients{queues: map[site]*sqs.Client{}, functions: map[site]*lambda.Client{}}
	for _, name := range runtimes.Names() {
		for _, b := range runtimes[name] {
			if b.Kind != SQS && b.Kind != Lambda {
				continue
			}
			endpoint, region, err := b.site().in(c)
			if err != nil {
				return clients, fmt.Errorf("runtime %s, %s%s: %w", name, b.QueueURL, b.Function, err)
			}
			if b.Kind == SQS {
				clients.queues[b.site()] = sqs.NewFromConfig(c, func(o *sqs.Options) { o.BaseEndpoint, o.Region = endpoint, region })
				continue
			}
			clients.functions[b.site()] = lambda.NewFromConfig(c, func(o *lambda.Options) {
				o.BaseEndpoint, o.Region = endpoint, region
				o.RetryMaxAttempts = 1 // what throttles is to be left alone, and tasks have rules of their own for trying again
			})
		}
	}
	return clients, nil
}
