package queue

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
)

// deleteLanes is how many calls may delete messages at the same time. With fewer calls, more messages share one.
const deleteLanes = 2

// deletion is a message to delete.
type deletion struct {
	message types.Message
	deleted chan struct{} // closed when err is the answer
	err     error
}

// delete removes a message, in one call with others. A message that stays does no harm: its task is not claimed again.
func (q *Queue) delete(m types.Message, log *slog.Logger) {
	x := &deletion{message: m, deleted: make(chan struct{})}
	q.done.Add(x)
	patience := time.NewTimer(callFor)
	defer patience.Stop()
	err := errors.New("the queue does not answer")
	select {
	case <-x.deleted:
		err = x.err
	case <-patience.C:
	}
	if err != nil {
		log.Warn("a message could not be deleted", "error", err)
	}
}

func (q *Queue) deleteAll(some []*deletion) {
	ctx, cancel := context.WithTimeout(context.Background(), callFor)
	defer cancel()
	entries := make([]types.DeleteMessageBatchRequestEntry, len(some))
	for i, x := range some {
		entries[i] = types.DeleteMessageBatchRequestEntry{Id: aws.String(strconv.Itoa(i)),
			ReceiptHandle: x.message.ReceiptHandle}
	}

	answer, err := q.client.DeleteMessageBatch(ctx, &sqs.DeleteMessageBatchInput{QueueUrl: &q.cfg.URL,
		Entries: entries})
	for _, x := range some {
		x.err = err
	}
	if err == nil {
		for _, no := range answer.Failed {
			if i, err := strconv.Atoi(aws.ToString(no.Id)); err == nil && i >= 0 && i < len(some) {
				some[i].err = fmt.Errorf("%s: %s", aws.ToString(no.Code), aws.ToString(no.Message))
			}
		}
	}

	for _, x := range some {
		close(x.deleted)
	}
}
