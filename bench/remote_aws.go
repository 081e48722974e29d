package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/lambda"
	lambdatypes "github.com/aws/aws-sdk-go-v2/service/lambda/types"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	sqstypes "github.com/aws/aws-sdk-go-v2/service/sqs/types"
	"golang.org/x/sync/errgroup"

	"github.com/dagctl/dagctl/dispatcher/backends"
	"github.com/dagctl/dagctl/internal/testaws"
)

// The services between server and workers, and their speed by themselves.

const (
	messagesAtOnce  = 10 // the most that SQS accepts and returns in one call
	queueClients    = 8  // concurrent clients of SQS
	functionsAtOnce = 8
)

// startQueue starts an SQS server with one queue.
func (e *elsewhere) startQueue(ctx context.Context) (at runtimeAt, err error) {
	endpoint, stop, err := testaws.ServeSQS()
	if err != nil {
		return at, err
	}
	client := sqs.NewFromConfig(e.amazon(), func(o *sqs.Options) { o.BaseEndpoint = &endpoint })
	made := func(name string) (string, error) {
		queue, err := client.CreateQueue(ctx, &sqs.CreateQueueInput{QueueName: aws.String(name)})
		if err != nil {
			return "", errors.Join(fmt.Errorf("create a queue: %w", err), stop())
		}
		return *queue.QueueUrl, nil
	}

	url, err := made("tasks")
	if err != nil {
		return at, err
	}
	bare, err := made("bare")
	if err != nil {
		return at, err
	}

	limit := func(ctx context.Context, n int) (float64, error) {
		return queueLimit(ctx, sqs.NewFromConfig(e.amazon(), func(o *sqs.Options) {
			o.BaseEndpoint = &endpoint
		}), bare, n)
	}

	return runtimeAt{Backend: backends.Backend{Kind: backends.SQS, QueueURL: url, Endpoint: endpoint,
		Region: testaws.Region, TasksPerMessage: e.bench.options.block},
		worker: true, limit: limit, stop: stop}, nil
}

// queueLimit sends, receives and deletes messages in the largest batches that SQS allows. It returns messages a second.
func queueLimit(ctx context.Context, client *sqs.Client, queue string, n int) (perSecond float64, err error) {
	start := time.Now()
	g, sending := errgroup.WithContext(ctx)
	g.SetLimit(queueClients)
	for left := n; left > 0; left -= messagesAtOnce {
		entries := make([]sqstypes.SendMessageBatchRequestEntry, min(left, messagesAtOnce))
		for i := range entries {
			entries[i] = sqstypes.SendMessageBatchRequestEntry{Id: aws.String(strconv.Itoa(i)),
				MessageBody: aws.String(`{"task_id": "00000000-0000-0000-0000-000000000000"}`)}
		}
		g.Go(func() error {
			_, err := client.SendMessageBatch(sending, &sqs.SendMessageBatchInput{QueueUrl: &queue, Entries: entries})
			return err
		})
	}

	if err := g.Wait(); err != nil {
		return 0, err
	}
	var got atomic.Int64
	g, receiving := errgroup.WithContext(ctx)
	for range queueClients {
		g.Go(func() error {
			for int(got.Load()) < n {
				received, err := client.ReceiveMessage(receiving, &sqs.ReceiveMessageInput{QueueUrl: &queue,
					MaxNumberOfMessages: messagesAtOnce})
				if err != nil {
					return err
				}

				if len(received.Messages) == 0 {
					continue
				}
				done := make([]sqstypes.DeleteMessageBatchRequestEntry, len(received.Messages))
				for i, m := range received.Messages {
					done[i] = sqstypes.DeleteMessageBatchRequestEntry{Id: aws.String(strconv.Itoa(i)),
						ReceiptHandle: m.ReceiptHandle}
				}

				if _, err := client.DeleteMessageBatch(receiving, &sqs.DeleteMessageBatchInput{QueueUrl: &queue,
					Entries: done}); err != nil {
					return err
				}
				got.Add(int64(len(done)))
			}
			return nil
		})
	}

	if err := g.Wait(); err != nil {
		return 0, err
	}
	return float64(n) / time.Since(start).Seconds(), nil
}

// The functions: one completes the task that it is invoked with, the other only makes a call.
const (
	completes = `export const handler = async (claim) => {
	const answer = await fetch(claim.base_url + "/v1/task/complete", { method: "POST",
		headers: { "Content-Type": "application/json", "X-Dagctl-Protocol": "1",
			"X-Dagctl-Task-Capability": claim.capability_token },
		body: JSON.stringify({ task_id: claim.task.task_id, attempt: claim.attempt,
			lease_token: claim.lease_token, status: "Completed" }) })
	if (!answer.ok) throw new Error(await answer.text())
	await answer.arrayBuffer()
}`
	tells = `export const handler = async (event) => {
	await (await fetch(event.url, { method: "POST", body: "{}" })).arrayBuffer()
}`
)

// startFunction starts a Lambda endpoint.
func (e *elsewhere) startFunction(context.Context) (at runtimeAt, err error) {
	folder, err := os.MkdirTemp(e.bench.folder, "functions-*")
	if err != nil {
		return at, err
	}
	endpoint, stop, err := testaws.ServeLambda(folder, map[string]testaws.Function{"completes": {Code: completes},
		"tells": {Code: tells}},
		func(line string) { fmt.Fprintln(e.bench.stderr, "lambda:", line) })
	if err != nil {
		return at, err
	}

	limit := func(ctx context.Context, n int) (float64, error) {
		client := lambda.NewFromConfig(e.amazon(), func(o *lambda.Options) { o.BaseEndpoint = &endpoint })
		if _, err := functionLimit(ctx, client, functionsAtOnce); err != nil { // to start the function's processes
			return 0, err
		}
		return functionLimit(ctx, client, n)
	}

	return runtimeAt{Backend: backends.Backend{Kind: backends.Lambda, Function: "completes",
		Concurrency: functionsAtOnce, Endpoint: endpoint, Region: testaws.Region},
		limit: limit, stop: stop}, nil
}

// functionLimit invokes a function with so many events and counts its calls. It returns events a second.
func functionLimit(ctx context.Context, client *lambda.Client, n int) (perSecond float64, err error) {
	heard := make(chan struct{}, n)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		heard <- struct{}{}
	}))
	defer server.Close()

	payload := []byte(`{"url": "` + server.URL + `"}`)
	start := time.Now()
	g, invoking := errgroup.WithContext(ctx)
	running := make(chan struct{}, functionsAtOnce)
	g.Go(func() error {
		for range n {
			select {
			case <-heard:
				<-running
			case <-invoking.Done():
				return context.Cause(invoking)
			}
		}
		return nil
	})

	for range n {
		select {
		case running <- struct{}{}:
		case <-invoking.Done():
			return 0, g.Wait()
		}
		g.Go(func() error {
			_, err := client.Invoke(invoking, &lambda.InvokeInput{FunctionName: aws.String("tells"),
				InvocationType: lambdatypes.InvocationTypeEvent, Payload: payload})
			return err
		})
	}

	if err := g.Wait(); err != nil {
		return 0, err
	}
	return float64(n) / time.Since(start).Seconds(), nil
}
