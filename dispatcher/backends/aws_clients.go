package backends

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

// site identifies the endpoint of an AWS service.
type site struct{ endpoint, region string }

// site returns where the backend's queue or function is. Queue URLs and functions' ARNs name their region.
func (b Backend) site() site {
	region := b.Region
	if u, err := url.Parse(b.QueueURL); err == nil && region == "" {
		if parts := strings.Split(u.Hostname(), "."); len(parts) > 3 && parts[0] == "sqs" { // sqs.REGION.amazonaws.com
			region = parts[1]
		}
	}
	if parts := strings.Split(b.Function, ":"); region == "" && len(parts) > 3 && parts[0] == "arn" {
		region = parts[3] // arn:aws:lambda:REGION:…
	}
	return site{b.Endpoint, region}
}

// in returns a client's endpoint, nil for AWS's own, and its region.
func (s site) in(c aws.Config) (endpoint *string, region string, err error) {
	if s.endpoint != "" {
		endpoint = &s.endpoint
	}
	if region = cmp.Or(s.region, c.Region); region == "" {
		return nil, "", fault.New(fault.Invalid, "its region is not known").
			WithHint("set `region` beside it in the server's config, or AWS_REGION")
	}
	return endpoint, region, nil
}

// backendClients holds the clients of the queues and functions that tasks are handed to.
type backendClients struct {
	queues    map[site]*sqs.Client
	functions map[site]*lambda.Client
}

// newBackendClients returns a client for each site in the map.
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
				clients.queues[b.site()] = sqs.NewFromConfig(c, func(o *sqs.Options) {
					o.BaseEndpoint, o.Region = endpoint, region
				})
				continue
			}
			clients.functions[b.site()] = lambda.NewFromConfig(c, func(o *lambda.Options) {
				o.BaseEndpoint, o.Region = endpoint, region
				// A function that throttles is to be left alone, and tasks have their own rules for retries.
				o.RetryMaxAttempts = 1
			})
		}
	}
	return clients, nil
}
