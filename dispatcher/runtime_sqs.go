package dispatcher

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/registry"
)

// A task of a runtime with queues is announced to its workers by a message that says its id and nothing else. Its outbox
// row, one for each task, is written where the task becomes ready (insertReady) and goes through three states: Pending
// until a message was sent; Done from then on, until it is found that the task was claimed, which removes it, or that it
// was not for so long that the message may be lost, which makes it Pending again; Failed after too many tries, which ends
// when a later one succeeds. So a message may be lost, doubled, or late: what is ready is announced until it is claimed.

const (
	messageBatch = 10              // messages that SQS takes at once
	sendBatch    = 500             // rows that one round takes
	sendAtOnce   = 8               // calls to SQS at the same time
	sendTime     = 5 * time.Second // of one call, the SDK's own retries included
	sendLease    = 2 * sendTime    // a process that took rows is given up after this; where it sends for longer, messages come twice
	resendAfter  = 5 * time.Minute // a task that was announced and is not claimed is announced again, unless its backend says when, doubling up to
	resendAtMost = 12              // times that
)

// taskMessage is the body of a message.
type taskMessage struct {
	TaskID uuid.UUID `json:"task_id"`
}

// enqueuePayload is what the outbox row of a message says.
type enqueuePayload struct {
	TaskID  uuid.UUID `json:"task_id"`
	Runtime string    `json:"runtime"`
}

// announcement is a message to be sent.
type announcement struct {
	row     outboxRow
	task    uuid.UUID
	org     uuid.UUID
	origin  uuid.UUID
	runtime string
}

// queuedRuntimes are the names of runtimes that have queues.
func (d *Dispatcher) queuedRuntimes() []string { return d.Backends.Of(SQS) }

// sendTasks announces a batch of ready tasks. No transaction is open meanwhile: a queue may take its time.
func (d *Dispatcher) sendTasks(ctx context.Context, now time.Time) (more bool, err error) {
	lease := now.Add(sendLease).Truncate(time.Microsecond) // as precise as PostgreSQL
	taken, err := d.takeMessages(ctx, now, lease)
	if err != nil || len(taken) == 0 {
		return false, err
	}
	wanted, jobs, err := d.announcements(ctx, taken, lease)
	if err != nil {
		return false, err
	}
	var failed []error
	byQueue := map[string][]announcement{}
	queues := map[string]Backend{}
	for _, a := range wanted {
		operator, org := jobs[a.origin].Def.Operator, jobs[a.origin].OrgSlug
		q, ok := d.Backends.Backend(a.runtime, operator, org)
		if !ok || q.Kind != SQS {
			failed = append(failed, d.notSent(ctx, []announcement{a}, fmt.Errorf("runtime %s has no queue for operator %s of org %s", a.runtime, operator, org)))
			continue
		}
		key := q.Endpoint + " " + q.QueueURL
		byQueue[key], queues[key] = append(byQueue[key], a), q
	}
	g := new(errgroup.Group)
	for key, all := range byQueue {
		g.Go(func() error { return d.sendTo(ctx, queues[key], all, lease) })
	}
	return len(taken) == sendBatch, errors.Join(append(failed, g.Wait())...)
}

// sendTo announces tasks on a queue. The first batch tells whether it answers: one that does not is left alone at once.
func (d *Dispatcher) sendTo(ctx context.Context, q Backend, all []announcement, lease time.Time) error {
	first := all[:min(len(all), messageBatch)]
	if err := d.sendMessages(ctx, q, first, lease); err != nil {
		return d.notSent(ctx, all, err)
	}
	g := new(errgroup.Group)
	g.SetLimit(sendAtOnce)
	for batch := range slices.Chunk(all[len(first):], messageBatch) {
		g.Go(func() error {
			if err := d.sendMessages(ctx, q, batch, lease); err != nil {
				return d.notSent(ctx, batch, err)
			}
			return nil
		})
	}
	return g.Wait()
}

// notSent has messages tried again later.
func (d *Dispatcher) notSent(ctx context.Context, all []announcement, cause error) error {
	if ctx.Err() != nil {
		return ctx.Err() // it is not the queue's fault
	}
	rows := make([]outboxRow, len(all))
	for i, a := range all {
		rows[i] = a.row
		d.metrics.notSent.WithLabelValues(a.runtime).Inc()
	}
	return d.postpone(ctx, rows, cause, time.Now())
}

// takeMessages takes rows that are due, of runtimes that this process has queues for.
func (d *Dispatcher) takeMessages(ctx context.Context, now, lease time.Time) ([]outboxRow, error) {
	rows, err := d.Pool.Query(ctx, `
		UPDATE outbox SET available_at = $2 WHERE id IN (
			SELECT id FROM outbox
			WHERE status = 'Pending' AND available_at <= $1 AND kind = 'enqueue_task' AND payload->>'runtime' = ANY($3)
			ORDER BY available_at, id LIMIT $4 FOR UPDATE SKIP LOCKED)
		RETURNING id, org_id, payload, attempts`, now, lease, d.queuedRuntimes(), sendBatch)
	if err != nil {
		return nil, fmt.Errorf("take messages: %w", err)
	}
	taken, err := pgx.CollectRows(rows, pgx.RowToStructByPos[outboxRow])
	if err != nil {
		return nil, fmt.Errorf("take messages: %w", err)
	}
	return taken, nil
}

// announcements are the rows whose tasks are still to be claimed, with their jobs; the other rows are removed.
func (d *Dispatcher) announcements(ctx context.Context, taken []outboxRow, lease time.Time) (wanted []announcement, jobs map[uuid.UUID]*registry.Job, err error) {
	rows := map[uuid.UUID]announcement{}
	for _, row := range taken {
		var p enqueuePayload
		if err := json.Unmarshal(row.Payload, &p); err != nil {
			return nil, nil, fmt.Errorf("outbox row %d: %w", row.ID, err)
		}
		rows[p.TaskID] = announcement{row: row, task: p.TaskID, runtime: p.Runtime}
	}
	err = pg.InTx(ctx, d.Pool, func(ctx context.Context, tx pgx.Tx) error {
		wanted = nil
		found, err := tx.Query(ctx, `SELECT task_id, org_id, job_id FROM ready WHERE task_id = ANY($1)`, slices.Collect(maps.Keys(rows)))
		if err != nil {
			return err
		}
		var (
			task, org, origin uuid.UUID
			origins           []uuid.UUID
			keep              = []int64{} // nil would be NULL
		)
		if _, err := pgx.ForEachRow(found, []any{&task, &org, &origin}, func() error {
			a := rows[task]
			a.org, a.origin = org, origin
			wanted, origins, keep = append(wanted, a), append(origins, origin), append(keep, a.row.ID)
			return nil
		}); err != nil {
			return err
		}
		if len(wanted) < len(taken) {
			if _, err := tx.Exec(ctx, `DELETE FROM outbox WHERE id = ANY($1) AND NOT id = ANY($2) AND available_at = $3`, outboxIDs(taken), keep, lease); err != nil {
				return err
			}
		}
		jobs, err = d.Registry.Jobs(ctx, tx, dedupeIDs(origins))
		return err
	})
	if err != nil {
		return nil, nil, fmt.Errorf("messages to send: %w", err)
	}
	return wanted, jobs, nil
}

// sendMessages sends a batch. What the queue does not take of it is tried again, each by itself; an error is one of the
// call, and then nothing was sent as far as one knows.
func (d *Dispatcher) sendMessages(ctx context.Context, q Backend, batch []announcement, lease time.Time) error {
	entries := make([]types.SendMessageBatchRequestEntry, len(batch))
	for i, a := range batch {
		body, err := json.Marshal(taskMessage{a.task})
		if err != nil {
			return err
		}
		// The org as the group makes the queue a fair one: an org with a long backlog does not keep others waiting.
		entries[i] = types.SendMessageBatchRequestEntry{Id: aws.String(strconv.Itoa(i)), MessageBody: aws.String(string(body)),
			MessageGroupId: aws.String(a.org.String())}
	}
	callCtx, cancel := context.WithTimeout(ctx, sendTime)
	defer cancel()
	answer, err := d.clients.queues[q.site()].SendMessageBatch(callCtx, &sqs.SendMessageBatchInput{QueueUrl: &q.QueueURL, Entries: entries})
	if err != nil {
		return fmt.Errorf("send to %s: %w", q.QueueURL, err)
	}
	refused := map[int]error{}
	for _, no := range answer.Failed {
		if i, err := strconv.Atoi(aws.ToString(no.Id)); err == nil {
			refused[i] = fmt.Errorf("%s did not take the message: %s: %s", q.QueueURL, aws.ToString(no.Code), aws.ToString(no.Message))
		}
	}
	var sent []outboxRow
	var failed []error
	for i, a := range batch {
		if cause, no := refused[i]; no {
			failed = append(failed, d.notSent(ctx, []announcement{a}, cause))
			continue
		}
		sent = append(sent, a.row)
		d.metrics.sent.WithLabelValues(a.runtime).Inc()
	}
	if err := errors.Join(append(failed, d.markSent(ctx, sent, q.resend(), lease, time.Now()))...); err != nil {
		d.Log.Error("messages were sent, which could not be noted: they will be sent again", "error", err)
	}
	return nil
}

// resend is how long after a message its task is looked for.
func (b Backend) resend() time.Duration {
	return cmp.Or(time.Duration(b.ResendSeconds)*time.Second, resendAfter)
}

// markSent notes that messages are on their way, and when they are to be looked for. A task that became ready once more
// meanwhile has another lease on its row, and is announced once more.
func (d *Dispatcher) markSent(ctx context.Context, rows []outboxRow, resend time.Duration, lease, now time.Time) error {
	if len(rows) == 0 {
		return nil
	}
	_, err := d.Pool.Exec(ctx, `
		WITH mine AS (SELECT id FROM outbox WHERE id = ANY($1) AND available_at = $2 FOR UPDATE SKIP LOCKED)
		UPDATE outbox o SET status = 'Done', processed_at = $3, attempts = 0, last_error = NULL,
			available_at = $3::timestamptz + least($5, $4 * power(2, least(coalesce((payload->>'sent')::int, 0), 16))) * interval '1 second',
			payload = payload || jsonb_build_object('sent', coalesce((payload->>'sent')::int, 0) + 1)
		FROM mine WHERE o.id = mine.id`, outboxIDs(rows), lease, now, resend.Seconds(), resendAtMost*resend.Seconds())
	if err != nil {
		return fmt.Errorf("mark messages sent: %w", err)
	}
	return nil
}

// reviewMessages looks after messages that were sent some time ago, or could not be sent: those of tasks that were claimed
// are done with, the others are sent again.
func (d *Dispatcher) reviewMessages(ctx context.Context, now time.Time) (more bool, err error) {
	var due, again int
	err = d.Pool.QueryRow(ctx, `
		WITH due AS MATERIALIZED (
			SELECT id, (payload->>'task_id')::uuid AS task_id FROM outbox
			WHERE kind = 'enqueue_task' AND status <> 'Pending' AND available_at <= $1
			ORDER BY available_at LIMIT $2 FOR UPDATE SKIP LOCKED),
		gone AS (
			DELETE FROM outbox o USING due d WHERE o.id = d.id AND NOT EXISTS (SELECT FROM ready r WHERE r.task_id = d.task_id)),
		again AS (
			UPDATE outbox o SET status = 'Pending', available_at = $1
			FROM due d WHERE o.id = d.id AND EXISTS (SELECT FROM ready r WHERE r.task_id = d.task_id) RETURNING o.id)
		SELECT (SELECT count(*) FROM due), (SELECT count(*) FROM again)`, now, sendBatch).Scan(&due, &again)
	if err != nil {
		return false, fmt.Errorf("review messages: %w", err)
	}
	if again > 0 {
		poke(d.wake.announce)
	}
	return due == sendBatch, nil
}

// announceUnannounced has tasks announced that were ready before their runtime had queues.
func (d *Dispatcher) announceUnannounced(ctx context.Context, _ time.Time) (more bool, err error) {
	tag, err := d.Pool.Exec(ctx, `
		INSERT INTO outbox (org_id, kind, payload)
		SELECT r.org_id, 'enqueue_task', jsonb_build_object('task_id', r.task_id, 'runtime', r.runtime) FROM ready r
		WHERE r.runtime = ANY($1) AND NOT EXISTS (SELECT FROM outbox o WHERE o.kind = 'enqueue_task' AND o.payload->>'task_id' = r.task_id::text)
		LIMIT $2
		ON CONFLICT ((payload->>'task_id')) WHERE kind = 'enqueue_task' DO NOTHING`, d.queuedRuntimes(), sendBatch)
	if err != nil {
		return false, fmt.Errorf("announce what was not: %w", err)
	}
	if tag.RowsAffected() > 0 {
		poke(d.wake.announce)
	}
	return tag.RowsAffected() == sendBatch, nil
}
