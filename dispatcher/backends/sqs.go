package backends

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

	"github.com/dagctl/dagctl/dispatcher/tasks"
	"github.com/dagctl/dagctl/dispatcher/wakeup"
	"github.com/dagctl/dagctl/internal/clock"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/registry"
	"github.com/dagctl/dagctl/worker/protocol"
)

// A task of a runtime with queues is announced to its workers by a message that holds its id and nothing else, or the
// ids of a block of tasks where the runtime's config says so. Its outbox row, one for each task, is written when the
// task becomes ready (package tasks) and has one of three states. It is Pending until a message is sent. Then it is
// Done until a review finds that the task was claimed, which removes the row, or that it was unclaimed for so long that
// the message may be lost, which makes the row Pending again. It is Failed after too many tries, until a later one
// succeeds. A message may therefore be lost, doubled, or late: a ready task is announced until it is claimed.

const (
	messageBatch = 10              // messages that SQS takes at once
	sendBatch    = 500             // rows that one round takes
	sendAtOnce   = 8               // calls to SQS at the same time
	sendTime     = 5 * time.Second // bounds one call, including the SDK's own retries

	// sendLease is how long a process may take to send the rows it took; if it takes longer, messages come twice.
	sendLease = 2 * sendTime

	// resendAfter is how long after a message an unclaimed task is announced again, unless its backend says otherwise.
	// It doubles each time, up to resendAtMost times as long.
	resendAfter  = 5 * time.Minute
	resendAtMost = 12
)

// enqueuePayload is the payload of a message's outbox row.
type enqueuePayload struct {
	TaskID  uuid.UUID `json:"task_id"`
	Runtime string    `json:"runtime"`
}

// announcement is a message to be sent.
type announcement struct {
	row     tasks.OutboxRow
	task    uuid.UUID
	org     uuid.UUID
	origin  uuid.UUID
	runtime string
}

// block is tasks of one org and one runtime that share a message.
type block []announcement

// blocksOf divides announcements into blocks of at most size tasks. One whose message was not taken before has a
// message of its own, so that no other suffers from it again.
func blocksOf(all []announcement, size int) (blocks []block) {
	type group struct {
		org     uuid.UUID
		runtime string
	}
	open := map[group]int{} // the last block of each group

	for _, a := range all {
		of := group{a.org, a.runtime}
		i, ok := open[of]
		switch {
		case a.row.Attempts > 0:
			blocks = append(blocks, block{a})
		case ok && len(blocks[i]) < size:
			blocks[i] = append(blocks[i], a)
		default:
			open[of] = len(blocks)
			blocks = append(blocks, block{a})
		}
	}
	return blocks
}

// body returns the text of the block's message. One task is named as it always was, for workers that know nothing else.
func (b block) body() (string, error) {
	var message protocol.Message
	if len(b) == 1 {
		message.TaskID = b[0].task
	} else {
		for _, a := range b {
			message.TaskIDs = append(message.TaskIDs, a.task)
		}
	}
	text, err := json.Marshal(message)
	return string(text), err
}

func rowsOf(blocks []block) (rows []tasks.OutboxRow) {
	for _, b := range blocks {
		for _, a := range b {
			rows = append(rows, a.row)
		}
	}
	return rows
}

// QueuedRuntimes returns the names of the runtimes that have queues.
func (be *Backends) QueuedRuntimes() []string { return be.runtimes.Of(SQS) }

// SendTasks announces a batch of ready tasks. No transaction is open meanwhile: a queue may take its time.
func (be *Backends) SendTasks(ctx context.Context, now time.Time) (more bool, err error) {
	lease := now.Add(sendLease).Truncate(time.Microsecond) // as precise as PostgreSQL
	taken, err := be.takeMessages(ctx, now, lease)
	if err != nil || len(taken) == 0 {
		return false, err
	}
	wanted, jobs, err := be.announcements(ctx, taken, lease)
	if err != nil {
		return false, err
	}

	var failed []error
	byQueue := map[string][]announcement{}
	queues := map[string]Backend{}
	for _, a := range wanted {
		operator, org := jobs[a.origin].Def.Operator, jobs[a.origin].OrgSlug
		q, ok := be.runtimes.Backend(a.runtime, operator, org)
		if !ok || q.Kind != SQS {
			cause := fmt.Errorf("runtime %s has no queue for operator %s of org %s", a.runtime, operator, org)
			failed = append(failed, be.notSent(ctx, []block{{a}}, cause))
			continue
		}
		key := q.Endpoint + " " + q.QueueURL
		byQueue[key], queues[key] = append(byQueue[key], a), q
	}

	g := new(errgroup.Group)
	for key, all := range byQueue {
		q := queues[key]
		g.Go(func() error { return be.sendTo(ctx, q, blocksOf(all, q.perMessage()), lease) })
	}
	return len(taken) == sendBatch, errors.Join(append(failed, g.Wait())...)
}

// sendTo announces tasks on a queue. It sends the first batch alone, and stops at once if the queue does not answer.
func (be *Backends) sendTo(ctx context.Context, q Backend, all []block, lease time.Time) error {
	first := all[:min(len(all), messageBatch)]
	if err := be.sendMessages(ctx, q, first, lease); err != nil {
		return be.notSent(ctx, all, err)
	}

	g := new(errgroup.Group)
	g.SetLimit(sendAtOnce)
	for batch := range slices.Chunk(all[len(first):], messageBatch) {
		g.Go(func() error {
			if err := be.sendMessages(ctx, q, batch, lease); err != nil {
				return be.notSent(ctx, batch, err)
			}
			return nil
		})
	}
	return g.Wait()
}

// notSent postpones messages.
func (be *Backends) notSent(ctx context.Context, all []block, cause error) error {
	if ctx.Err() != nil {
		return ctx.Err() // it is not the queue's fault
	}
	for _, b := range all {
		be.metrics.NotSent.WithLabelValues(b[0].runtime).Inc()
	}
	return be.tasks.Postpone(ctx, rowsOf(all), cause, clock.Now())
}

// takeMessages takes rows that are due, of runtimes that this process has queues for.
func (be *Backends) takeMessages(ctx context.Context, now, lease time.Time) ([]tasks.OutboxRow, error) {
	rows, err := be.pool.Query(ctx, `
		UPDATE outbox SET available_at = $2 WHERE id IN (
			SELECT id FROM outbox
			WHERE status = 'Pending' AND available_at <= $1 AND kind = 'enqueue_task' AND payload->>'runtime' = ANY($3)
			ORDER BY available_at, id LIMIT $4 FOR UPDATE SKIP LOCKED)
		RETURNING id, org_id, payload, attempts`, now, lease, be.QueuedRuntimes(), sendBatch)
	if err != nil {
		return nil, fmt.Errorf("take messages: %w", err)
	}
	taken, err := pgx.CollectRows(rows, pgx.RowToStructByPos[tasks.OutboxRow])
	if err != nil {
		return nil, fmt.Errorf("take messages: %w", err)
	}
	return taken, nil
}

// announcements returns the rows whose tasks are still ready, with their jobs. It removes the other rows.
func (be *Backends) announcements(
	ctx context.Context, taken []tasks.OutboxRow, lease time.Time,
) (wanted []announcement, jobs map[uuid.UUID]*registry.Job, err error) {
	rows := map[uuid.UUID]announcement{}
	for _, row := range taken {
		var p enqueuePayload
		if err := json.Unmarshal(row.Payload, &p); err != nil {
			return nil, nil, fmt.Errorf("outbox row %d: %w", row.ID, err)
		}
		rows[p.TaskID] = announcement{row: row, task: p.TaskID, runtime: p.Runtime}
	}

	err = pg.InTx(ctx, be.pool, func(ctx context.Context, tx pgx.Tx) error {
		wanted = nil
		found, err := tx.Query(ctx, `SELECT task_id, org_id, origin_job_id FROM ready WHERE task_id = ANY($1)`,
			slices.Collect(maps.Keys(rows)))
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
			if _, err := tx.Exec(ctx, `
				DELETE FROM outbox WHERE id = ANY($1) AND NOT id = ANY($2) AND available_at = $3`,
				tasks.OutboxIDs(taken), keep, lease); err != nil {
				return err
			}
		}
		jobs, err = be.registry.Jobs(ctx, tx, tasks.SortedIDs(origins))
		return err
	})
	if err != nil {
		return nil, nil, fmt.Errorf("messages to send: %w", err)
	}
	return wanted, jobs, nil
}

// sendMessages sends a batch. Messages that the queue does not take are postponed one by one. An error means that the
// call failed and, as far as is known, nothing was sent.
func (be *Backends) sendMessages(ctx context.Context, q Backend, batch []block, lease time.Time) error {
	entries := make([]types.SendMessageBatchRequestEntry, len(batch))
	for i, b := range batch {
		body, err := b.body()
		if err != nil {
			return err
		}
		// With the org as the group the queue is a fair one: an org with a long backlog does not keep others waiting.
		entries[i] = types.SendMessageBatchRequestEntry{
			Id:             aws.String(strconv.Itoa(i)),
			MessageBody:    aws.String(body),
			MessageGroupId: aws.String(b[0].org.String()),
		}
	}

	callCtx, cancel := context.WithTimeout(ctx, sendTime)
	defer cancel()
	answer, err := be.clients.queues[q.site()].SendMessageBatch(callCtx,
		&sqs.SendMessageBatchInput{QueueUrl: &q.QueueURL, Entries: entries})
	if err != nil {
		return fmt.Errorf("send to %s: %w", q.QueueURL, err)
	}

	refused := map[int]error{}
	for _, no := range answer.Failed {
		if i, err := strconv.Atoi(aws.ToString(no.Id)); err == nil {
			refused[i] = fmt.Errorf("%s did not take the message: %s: %s",
				q.QueueURL, aws.ToString(no.Code), aws.ToString(no.Message))
		}
	}

	var sent []block
	var failed []error
	for i, b := range batch {
		if cause, no := refused[i]; no {
			failed = append(failed, be.notSent(ctx, []block{b}, cause))
			continue
		}
		sent = append(sent, b)
		be.metrics.Sent.WithLabelValues(b[0].runtime).Inc()
	}

	marked := be.markSent(ctx, rowsOf(sent), q.resend(), lease, clock.Now())
	if err := errors.Join(append(failed, marked)...); err != nil {
		be.log.Error("sent messages could not be marked as sent: they will be sent again", "error", err)
	}
	return nil
}

// resend returns how long after a message its task is reviewed.
func (b Backend) resend() time.Duration {
	return cmp.Or(time.Duration(b.ResendSeconds)*time.Second, resendAfter)
}

// perMessage returns how many tasks a message names at most.
func (b Backend) perMessage() int { return cmp.Or(b.TasksPerMessage, 1) }

// markSent records that messages were sent, and when to review them. A task that became ready again meanwhile has
// another lease on its row, and is announced again.
func (be *Backends) markSent(
	ctx context.Context, rows []tasks.OutboxRow, resend time.Duration, lease, now time.Time,
) error {
	if len(rows) == 0 {
		return nil
	}
	_, err := be.pool.Exec(ctx, `
		WITH mine AS (SELECT id FROM outbox WHERE id = ANY($1) AND available_at = $2 FOR UPDATE SKIP LOCKED)
		UPDATE outbox o SET status = 'Done', processed_at = $3, attempts = 0, last_error = NULL,
			available_at = $3::timestamptz + interval '1 second' *
				least($5, $4 * power(2, least(coalesce((payload->>'sent')::int, 0), 16))),
			payload = payload || jsonb_build_object('sent', coalesce((payload->>'sent')::int, 0) + 1)
		FROM mine WHERE o.id = mine.id`,
		tasks.OutboxIDs(rows), lease, now, resend.Seconds(), resendAtMost*resend.Seconds())
	if err != nil {
		return fmt.Errorf("mark messages sent: %w", err)
	}
	return nil
}

// ReviewMessages reviews messages that were sent some time ago or could not be sent. It removes those whose tasks were
// claimed, and has the others sent again.
func (be *Backends) ReviewMessages(ctx context.Context, now time.Time) (more bool, err error) {
	var due, again int
	err = be.pool.QueryRow(ctx, `
		WITH due AS MATERIALIZED (
			SELECT id, (payload->>'task_id')::uuid AS task_id FROM outbox
			WHERE kind = 'enqueue_task' AND status <> 'Pending' AND available_at <= $1
			ORDER BY available_at LIMIT $2 FOR UPDATE SKIP LOCKED),
		gone AS (
			DELETE FROM outbox o USING due d
			WHERE o.id = d.id AND NOT EXISTS (SELECT FROM ready r WHERE r.task_id = d.task_id)),
		again AS (
			UPDATE outbox o SET status = 'Pending', available_at = $1
			FROM due d WHERE o.id = d.id AND EXISTS (SELECT FROM ready r WHERE r.task_id = d.task_id) RETURNING o.id)
		SELECT (SELECT count(*) FROM due), (SELECT count(*) FROM again)`, now, sendBatch).Scan(&due, &again)
	if err != nil {
		return false, fmt.Errorf("review messages: %w", err)
	}

	if again > 0 {
		wakeup.Poke(be.wake.Announce)
	}
	return due == sendBatch, nil
}

// AnnounceUnannounced adds outbox rows for tasks that were ready before their runtime had queues.
func (be *Backends) AnnounceUnannounced(ctx context.Context, _ time.Time) (more bool, err error) {
	tag, err := be.pool.Exec(ctx, `
		INSERT INTO outbox (org_id, kind, payload)
		SELECT r.org_id, 'enqueue_task', jsonb_build_object('task_id', r.task_id, 'runtime', r.runtime) FROM ready r
		WHERE r.runtime = ANY($1) AND NOT EXISTS (
			SELECT FROM outbox o WHERE o.kind = 'enqueue_task' AND o.payload->>'task_id' = r.task_id::text)
		LIMIT $2
		ON CONFLICT ((payload->>'task_id')) WHERE kind = 'enqueue_task' DO NOTHING`, be.QueuedRuntimes(), sendBatch)
	if err != nil {
		return false, fmt.Errorf("announce what was not: %w", err)
	}
	if tag.RowsAffected() > 0 {
		wakeup.Poke(be.wake.Announce)
	}
	return tag.RowsAffected() == sendBatch, nil
}
