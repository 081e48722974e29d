package dispatcher

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/operators"
	"github.com/dagctl/dagctl/registry"
)

// Notices tell webhooks of trouble. A notice is written to the outbox in the transaction of what it tells of, once for
// each webhook that the DAG names for it; notify_send.go delivers it. It names things and counts them: error messages,
// failing rows and keys that are values of rows stay behind the API, where roles decide who sees them.

// What a notice can tell of: the words of `notify` in DAG files.
const (
	noticeDead         = "dead"
	noticeLate         = "late"
	noticeFailedDeploy = "failed_deploy"
	noticeFailedCheck  = "failed_check"
)

// Notice is the body that a webhook is sent.
type Notice struct {
	ID   string     `json:"id"`        // the same at each try; webhook-id and Idempotency-Key have it too
	Type string     `json:"type"`      // dead, late, failed_deploy or failed_check
	At   time.Time  `json:"timestamp"` // when it happened
	Data NoticeData `json:"data"`
}

// NoticeData is what a notice is about. Fields that do not apply are absent.
type NoticeData struct {
	Org       string        `json:"org"`
	DAG       string        `json:"dag"`
	Job       string        `json:"job,omitempty"`
	TaskID    *uuid.UUID    `json:"task_id,omitempty"`
	Attempt   int           `json:"attempt,omitempty"`
	Reason    string        `json:"reason,omitempty"`    // of a dead task: error, timeout or lease_expired
	Version   int           `json:"version,omitempty"`   // of a failed deploy
	Dataset   string        `json:"dataset,omitempty"`   // of what is late
	Partition string        `json:"partition,omitempty"` // of what is late, where the dataset is partitioned in time
	DueAt     *time.Time    `json:"due_at,omitempty"`
	Checks    []NoticeCheck `json:"checks,omitempty"` // that did not pass
}

// NoticeCheck is a check that did not pass.
type NoticeCheck struct {
	Name     string `json:"name"`
	Severity string `json:"severity"` // warn or error: the revision is rejected
	Outcome  string `json:"outcome"`  // fail, or error: it could not be run
	Failures int64  `json:"failures"` // rows
}

// notifyPayload is a notice on its way to one webhook.
type notifyPayload struct {
	Secret string `json:"secret"` // name of the secret that holds the URL, bound to the DAG
	Notice Notice `json:"notice"`
}

// announce writes a notice for each webhook that a DAG names for it.
func announce(ctx context.Context, tx pgx.Tx, org uuid.UUID, to registry.Listener, kind string, data NoticeData, now time.Time) error {
	data.Org, data.DAG = to.Org, to.DAG
	for _, name := range to.Secrets {
		payload, err := json.Marshal(notifyPayload{Secret: name, Notice: Notice{ID: "msg_" + uuid.Must(uuid.NewV7()).String(), Type: kind, At: now.UTC(), Data: data}})
		if err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, `INSERT INTO outbox (org_id, kind, payload, available_at, created_at) VALUES ($1, 'notify', $2, $3, $3)`,
			org, payload, now); err != nil {
			return fmt.Errorf("announce %s: %w", kind, err)
		}
	}
	return nil
}

// announceDead tells of those among ended tasks that nothing but a person will take up again.
func announceDead(ctx context.Context, tx pgx.Tx, tasks []ended, now time.Time) error {
	var origins []uuid.UUID
	for _, t := range tasks {
		if t.ending.status == "Failed" && t.retryAt == nil {
			origins = append(origins, t.job)
		}
	}
	if len(origins) == 0 {
		return nil
	}
	listeners, err := registry.ListenersOfJobs(ctx, tx, origins, noticeDead)
	if err != nil {
		return err
	}
	for _, t := range tasks {
		to, ok := listeners[t.job]
		if !ok || t.ending.status != "Failed" || t.retryAt != nil {
			continue
		}
		if err := announce(ctx, tx, t.org, to, noticeDead, NoticeData{Job: to.Job, TaskID: &t.id, Attempt: t.attempt, Reason: t.ending.reason}, now); err != nil {
			return err
		}
	}
	return nil
}

// announceChecks tells of the checks of a revision that did not pass.
func announceChecks(ctx context.Context, tx pgx.Tx, t claimed, outcomes []operators.CheckOutcome, now time.Time) error {
	results, _ := checkResults(outcomes)
	var failed []NoticeCheck
	for _, r := range results {
		if r.Outcome != "pass" {
			failed = append(failed, NoticeCheck{Name: r.Name, Severity: r.Severity, Outcome: r.Outcome, Failures: r.Failures})
		}
	}
	if len(failed) == 0 {
		return nil
	}
	listeners, err := registry.ListenersOfJobs(ctx, tx, ids(t.job.Origin), noticeFailedCheck)
	if err != nil {
		return err
	}
	to, ok := listeners[t.job.Origin]
	if !ok {
		return nil
	}
	return announce(ctx, tx, t.job.OrgID, to, noticeFailedCheck, NoticeData{Job: to.Job, TaskID: &t.TaskID, Checks: failed}, now)
}

// announceFailedDeploy tells of a version that failed to whom that version names.
func announceFailedDeploy(ctx context.Context, tx pgx.Tx, b registry.Build, now time.Time) error {
	to, err := registry.ListenerOfVersion(ctx, tx, b.OrgID, b.ID, noticeFailedDeploy)
	if err != nil {
		return err
	}
	return announce(ctx, tx, b.OrgID, to, noticeFailedDeploy, NoticeData{Version: b.Number}, now)
}

// announceLate looks for datasets that have come to be late, of all orgs, and tells of each lateness once.
func (d *Dispatcher) announceLate(ctx context.Context, now time.Time) (more bool, err error) {
	orgs, err := registry.OrgsWithDue(ctx, d.Pool)
	if err != nil {
		return false, err
	}
	for _, org := range orgs {
		err := pg.InTx(ctx, d.Pool, func(ctx context.Context, tx pgx.Tx) error {
			late, err := registry.TakeLate(ctx, tx, org, now)
			if err != nil {
				return err
			}
			for _, l := range late {
				to, err := registry.ListenerOfDAG(ctx, tx, org, l.DAG, noticeLate)
				if err != nil {
					return err
				}
				data := NoticeData{Job: l.Job, Dataset: l.Dataset, Partition: l.Late.Partition, DueAt: &l.Late.DueAt}
				if err := announce(ctx, tx, org, to, noticeLate, data, now); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return false, fmt.Errorf("look for late datasets of org %s: %w", org, err)
		}
	}
	return false, nil
}

// lateEvery is how often a process looks for late datasets.
const lateEvery = 30 * time.Second

// atMostEach has a loop's body run at most once in a period, and again at the next turn where it failed.
func atMostEach(period time.Duration, body func(context.Context, time.Time) (bool, error)) func(context.Context, time.Time) (bool, error) {
	var next time.Time
	return func(ctx context.Context, now time.Time) (bool, error) {
		if now.Before(next) {
			return false, nil
		}
		more, err := body(ctx, now)
		if err == nil && !more {
			next = now.Add(period)
		}
		return more, err
	}
}
