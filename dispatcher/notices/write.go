package notices

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/dispatcher/tasks"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/registry"
)

// The kinds of notices: the words of `notify` in DAG files.
const (
	noticeDead         = "dead"
	noticeLate         = "late"
	noticeFailedDeploy = "failed_deploy"
	noticeFailedCheck  = "failed_check"
)

// Notice is the body of a request to a webhook.
type Notice struct {
	ID   string     `json:"id"`        // the same at each try; also sent as webhook-id and Idempotency-Key
	Type string     `json:"type"`      // dead, late, failed_deploy or failed_check
	At   time.Time  `json:"timestamp"` // when it happened
	Data NoticeData `json:"data"`
}

// NoticeData describes the trouble. Fields that do not apply are absent.
type NoticeData struct {
	Org       string        `json:"org"`
	DAG       string        `json:"dag"`
	Job       string        `json:"job,omitempty"`
	TaskID    *uuid.UUID    `json:"task_id,omitempty"`
	Attempt   int           `json:"attempt,omitempty"`
	Reason    string        `json:"reason,omitempty"`    // of a dead task: error, timeout or lease_expired
	Version   int           `json:"version,omitempty"`   // of a failed deploy
	Dataset   string        `json:"dataset,omitempty"`   // of what is late
	Partition string        `json:"partition,omitempty"` // of what is late, if the dataset is partitioned in time
	DueAt     *time.Time    `json:"due_at,omitempty"`
	Checks    []NoticeCheck `json:"checks,omitempty"` // those that did not pass
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

// write writes a notice for each webhook that a DAG names for it.
func write(
	ctx context.Context, tx pgx.Tx, org uuid.UUID, to registry.Listener, kind string, data NoticeData, now time.Time,
) error {
	data.Org, data.DAG = to.Org, to.DAG
	for _, name := range to.Secrets {
		notice := Notice{ID: "msg_" + uuid.Must(uuid.NewV7()).String(), Type: kind, At: now.UTC(), Data: data}
		payload, err := json.Marshal(notifyPayload{Secret: name, Notice: notice})
		if err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, `
			INSERT INTO outbox (org_id, kind, payload, available_at, created_at)
			VALUES ($1, 'notify', $2, $3, $3)`, org, payload, now); err != nil {
			return fmt.Errorf("announce %s: %w", kind, err)
		}
	}
	return nil
}

// TasksDied writes notices of those ended tasks that are dead: only a person can retry them.
func TasksDied(ctx context.Context, tx pgx.Tx, ended []tasks.Ended, now time.Time) error {
	var origins []uuid.UUID
	for _, t := range ended {
		if t.Ending.Status == tasks.Failed && t.RetryAt == nil {
			origins = append(origins, t.Origin)
		}
	}
	if len(origins) == 0 {
		return nil
	}

	listeners, err := registry.ListenersOfJobs(ctx, tx, origins, noticeDead)
	if err != nil {
		return err
	}
	for _, t := range ended {
		to, ok := listeners[t.Origin]
		if !ok || t.Ending.Status != tasks.Failed || t.RetryAt != nil {
			continue
		}
		data := NoticeData{Job: to.Job, TaskID: &t.ID, Attempt: t.Attempt, Reason: string(t.Ending.Reason)}
		if err := write(ctx, tx, t.Org, to, noticeDead, data, now); err != nil {
			return err
		}
	}
	return nil
}

// ChecksFailed writes notices of the checks of a revision that did not pass.
func ChecksFailed(
	ctx context.Context, tx pgx.Tx, job *registry.Job, task uuid.UUID, results []registry.CheckResult, now time.Time,
) error {
	var failed []NoticeCheck
	for _, r := range results {
		if r.Outcome != "pass" {
			failed = append(failed,
				NoticeCheck{Name: r.Name, Severity: r.Severity, Outcome: r.Outcome, Failures: r.Failures})
		}
	}
	if len(failed) == 0 {
		return nil
	}

	listeners, err := registry.ListenersOfJobs(ctx, tx, []uuid.UUID{job.Origin}, noticeFailedCheck)
	if err != nil {
		return err
	}
	to, ok := listeners[job.Origin]
	if !ok {
		return nil
	}
	return write(ctx, tx, job.OrgID, to, noticeFailedCheck, NoticeData{Job: to.Job, TaskID: &task, Checks: failed}, now)
}

// DeployFailed writes notices of a version that failed, to the webhooks that this version names.
func DeployFailed(ctx context.Context, tx pgx.Tx, b registry.Build, now time.Time) error {
	to, err := registry.ListenerOfVersion(ctx, tx, b.OrgID, b.ID, noticeFailedDeploy)
	if err != nil {
		return err
	}
	return write(ctx, tx, b.OrgID, to, noticeFailedDeploy, NoticeData{Version: b.Number}, now)
}

// LateEvery is how often a process looks for late datasets.
const LateEvery = 30 * time.Second

// AnnounceLate looks for datasets that have become late, in all orgs, and writes notices of each lateness once.
func (n *Notices) AnnounceLate(ctx context.Context, now time.Time) (more bool, err error) {
	orgs, err := registry.OrgsWithDue(ctx, n.pool)
	if err != nil {
		return false, err
	}

	for _, org := range orgs {
		err := pg.InTx(ctx, n.pool, func(ctx context.Context, tx pgx.Tx) error {
			return announceLate(ctx, tx, org, now)
		})
		if err != nil {
			return false, fmt.Errorf("look for late datasets of org %s: %w", org, err)
		}
	}
	return false, nil
}

// announceLate writes notices of the datasets of an org that have become late.
func announceLate(ctx context.Context, tx pgx.Tx, org uuid.UUID, now time.Time) error {
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
		if err := write(ctx, tx, org, to, noticeLate, data, now); err != nil {
			return err
		}
	}
	return nil
}
