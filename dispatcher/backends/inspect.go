package backends

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/lambda"
	lambdatypes "github.com/aws/aws-sdk-go-v2/service/lambda/types"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
	"github.com/aws/smithy-go"

	"github.com/dagctl/dagctl/dispatcher"
)

// Finding is one result of inspecting a queue or function.
type Finding struct {
	Runtime string
	Detail  string // what was found, or what is wrong
	Hint    string // how to mend it
	OK      bool
}

// inspectTime bounds each call of an inspection.
const inspectTime = 10 * time.Second

// leastReceives is how often a queue must at least hand out a message before it counts as dead: workers that are
// stopped, and messages that come twice, cost receives too.
const leastReceives = 3

// Inspect reports whether the queues and functions of the map exist, are set up as tasks need them, and are open to
// this process. It changes nothing. Each backend gets at least one finding.
func (m RuntimeMap) Inspect(ctx context.Context, c aws.Config) (all []Finding) {
	for _, runtime := range m.Names() {
		for _, b := range m[runtime] {
			if b.Kind != SQS && b.Kind != Lambda {
				continue
			}
			found := inspectBackend(ctx, runtime, b, c)
			for i := range found {
				found[i].Runtime = runtime
			}
			all = append(all, found...)
		}
	}
	return all
}

// inspectBackend inspects the queue or function of one backend.
func inspectBackend(ctx context.Context, runtime string, b Backend, c aws.Config) []Finding {
	clients, err := newBackendClients(RuntimeMap{runtime: {b}}, c)
	if err != nil {
		return []Finding{{Detail: err.Error(), Hint: "set `region` beside it in the server's config, or AWS_REGION"}}
	}
	if b.Kind == Lambda {
		return inspectFunction(ctx, b, clients.functions[b.site()])
	}
	return inspectQueue(ctx, b, clients.queues[b.site()])
}

// inspectQueue inspects a queue and its dead letter queue.
func inspectQueue(ctx context.Context, b Backend, client *sqs.Client) []Finding {
	queue, err := queueAttributes(ctx, client, b.QueueURL)
	if err != nil {
		return []Finding{refusedBy("queue "+b.QueueURL, err, "sqs:GetQueueAttributes",
			"create it, a standard queue with a redrive policy: docs/aws.md")}
	}

	var found []Finding
	wrong := func(hint, format string, args ...any) {
		found = append(found, Finding{Detail: "queue " + b.QueueURL + ": " + fmt.Sprintf(format, args...), Hint: hint})
	}

	if queue["FifoQueue"] == "true" {
		wrong("use a standard queue: the org of a task makes it a fair one",
			"it is a FIFO queue: one task would hold up all others of its org")
	}
	lease := int(dispatcher.DefaultLease.Seconds())
	if seconds, err := strconv.Atoi(queue["VisibilityTimeout"]); err == nil && seconds < lease {
		wrong(fmt.Sprintf("set VisibilityTimeout to %d or more", lease),
			"a message comes back after %d s, before the lease of its task can have run out (%d s)", seconds, lease)
	}
	if queue["DelaySeconds"] != "0" && queue["DelaySeconds"] != "" {
		wrong("set DelaySeconds to 0", "it delays each task by %s s", queue["DelaySeconds"])
	}
	found = append(found, inspectRedrive(ctx, b, client, queue["RedrivePolicy"])...)
	if len(found) == 0 {
		found = []Finding{{OK: true, Detail: fmt.Sprintf("queue %s: visibility %s s, about %s messages",
			b.QueueURL, queue["VisibilityTimeout"], queue["ApproximateNumberOfMessages"])}}
	}
	return found
}

// inspectRedrive inspects where messages go that no worker could handle.
func inspectRedrive(ctx context.Context, b Backend, client *sqs.Client, policy string) []Finding {
	const example = `set RedrivePolicy to {"deadLetterTargetArn": "ARN of another queue", "maxReceiveCount": "5"}`
	what := "queue " + b.QueueURL
	if policy == "" {
		return []Finding{{Hint: example,
			Detail: what + ": it has no redrive policy: a message that nobody can handle comes back for ever"}}
	}

	var redrive struct {
		Target   string          `json:"deadLetterTargetArn"`
		Receives json.RawMessage `json:"maxReceiveCount"` // a number, or one in quotes
	}
	if err := json.Unmarshal([]byte(policy), &redrive); err != nil {
		return []Finding{{Detail: what + ": its redrive policy cannot be read: " + err.Error(), Hint: example}}
	}

	var found []Finding
	receives := strings.Trim(string(redrive.Receives), `"`)
	if n, err := strconv.Atoi(receives); err != nil || n < leastReceives {
		found = append(found, Finding{
			Detail: fmt.Sprintf("%s: a message is dead after %s receives, and workers that are stopped cost some",
				what, receives),
			Hint: fmt.Sprintf("set maxReceiveCount to %d or more", max(leastReceives, 5)),
		})
	}

	url := b.DLQURL
	if url == "" {
		name := redrive.Target[strings.LastIndex(redrive.Target, ":")+1:]
		call, cancel := context.WithTimeout(ctx, inspectTime)
		defer cancel()
		got, err := client.GetQueueUrl(call, &sqs.GetQueueUrlInput{QueueName: &name})
		if err != nil {
			return append(found, refusedBy(what+": its dead letter queue "+redrive.Target, err, "sqs:GetQueueUrl",
				"create it, or name another one in the redrive policy"))
		}
		url = aws.ToString(got.QueueUrl)
	}

	return append(found, inspectDLQ(ctx, client, what, url, redrive.Target)...)
}

// inspectDLQ inspects the dead letter queue at url; target is the ARN that the redrive policy names.
func inspectDLQ(ctx context.Context, client *sqs.Client, what, url, target string) []Finding {
	dead, err := queueAttributes(ctx, client, url)
	switch {
	case err != nil:
		return []Finding{refusedBy("dead letter queue "+url, err, "sqs:GetQueueAttributes",
			"create it, or name another one")}
	case dead["QueueArn"] != target:
		return []Finding{{
			Detail: fmt.Sprintf("%s: its dead messages go to %s, and not to %s", what, target, url),
			Hint:   "change dlq_url in the server's config, or the queue's redrive policy",
		}}
	case dead["ApproximateNumberOfMessages"] != "0":
		return []Finding{{OK: true,
			Detail: fmt.Sprintf("dead letter queue %s: about %s messages", url, dead["ApproximateNumberOfMessages"]),
			Hint: "they name tasks that workers could not handle, or are none of ours; look at one, " +
				"then purge the queue: tasks are announced until claimed",
		}}
	}
	return nil
}

// queueAttributes returns all attributes of a queue.
func queueAttributes(ctx context.Context, client *sqs.Client, url string) (map[string]string, error) {
	ctx, cancel := context.WithTimeout(ctx, inspectTime)
	defer cancel()
	all := []types.QueueAttributeName{types.QueueAttributeNameAll}
	got, err := client.GetQueueAttributes(ctx, &sqs.GetQueueAttributesInput{QueueUrl: &url, AttributeNames: all})
	if err != nil {
		return nil, err
	}
	return got.Attributes, nil
}

// inspectFunction inspects a function with a dry run, and its settings for asynchronous invocations.
func inspectFunction(ctx context.Context, b Backend, client *lambda.Client) []Finding {
	what := "function " + b.Function
	var qualifier *string
	if b.Qualifier != "" {
		what += ":" + b.Qualifier
		qualifier = &b.Qualifier
	}

	ctx, cancel := context.WithTimeout(ctx, inspectTime)
	defer cancel()
	dryRun := &lambda.InvokeInput{
		FunctionName: &b.Function, Qualifier: qualifier, InvocationType: lambdatypes.InvocationTypeDryRun,
	}
	if _, err := client.Invoke(ctx, dryRun); err != nil {
		return []Finding{refusedBy(what, err, "lambda:InvokeFunction", "create it: docs/aws.md")}
	}

	hint := fmt.Sprintf("aws lambda put-function-event-invoke-config --function-name %s "+
		"--maximum-retry-attempts 0 --maximum-event-age-in-seconds 60", b.Function)
	if qualifier != nil {
		hint += " --qualifier " + b.Qualifier
	}
	events, err := client.GetFunctionEventInvokeConfig(ctx,
		&lambda.GetFunctionEventInvokeConfigInput{FunctionName: &b.Function, Qualifier: qualifier})
	switch {
	case err != nil && !isCode(err, "ResourceNotFoundException"):
		return []Finding{refusedBy(what+": its settings for events", err, "lambda:GetFunctionEventInvokeConfig", hint)}
	case err != nil || events.MaximumRetryAttempts == nil || *events.MaximumRetryAttempts != 0:
		return []Finding{{Hint: hint,
			Detail: what + ": Lambda invokes it again when it fails; an attempt is one invocation"}}
	}
	return []Finding{{OK: true, Detail: fmt.Sprintf(
		"%s: may be invoked, without retries of Lambda's own; at most %d tasks at once", what, b.Concurrency)}}
}

// refusedBy returns the finding that something could not be inspected, with the reason and what to do.
func refusedBy(what string, err error, permission, missing string) Finding {
	f := Finding{Detail: what + ": " + err.Error()}
	var answer interface{ HTTPStatusCode() int }
	switch {
	case isCode(err, "AccessDenied", "AccessDeniedException", "AuthorizationErrorException"):
		f.Detail, f.Hint = what+": this process may not look at it", "allow "+permission+" on it"
	case isCode(err, "ResourceNotFoundException", "QueueDoesNotExist", "AWS.SimpleQueueService.NonExistentQueue"):
		f.Detail, f.Hint = what+": there is none", missing
	case errors.As(err, &answer) && answer.HTTPStatusCode() == http.StatusForbidden:
		f.Hint = "allow " + permission + " on it, and look at the credentials"
	default:
		f.Hint = "look at `endpoint` and `region` in the server's config, and at the credentials"
	}
	return f
}

// isCode reports whether AWS answered with one of the error codes.
func isCode(err error, codes ...string) bool {
	var named smithy.APIError
	if !errors.As(err, &named) {
		return false
	}
	for _, code := range codes {
		if named.ErrorCode() == code || strings.HasSuffix(named.ErrorCode(), "#"+code) {
			return true
		}
	}
	return false
}
