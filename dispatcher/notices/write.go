package notices

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
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

	noticeOver = "over" // what was told of is over
	noticeTest = "test" // somebody tries whether notices arrive
)

// Notice is the body of a request to a webhook.
type Notice struct {
	ID   string     `json:"id"`        // the same at each try; also sent as webhook-id and Idempotency-Key
	Type string     `json:"type"`      // dead, late, failed_deploy, failed_check, over or test
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
	Count     int64         `json:"count,omitempty"`     // of dead tasks or failed checks, where they are several
	Tasks     []uuid.UUID   `json:"tasks,omitempty"`     // the first of them
	Error     string        `json:"error,omitempty"`     // of the task, or of the version
	Link      string        `json:"link,omitempty"`      // the page that says more
	Over      string        `json:"over,omitempty"`      // the kind of what is over
	Version   int           `json:"version,omitempty"`   // of a failed deploy
	Dataset   string        `json:"dataset,omitempty"`   // of what is late
	Partition string        `json:"partition,omitempty"` // of what is late, if the dataset is partitioned in time
	DueAt     *time.Time    `json:"due_at,omitempty"`
	Checks    []NoticeCheck `json:"checks,omitempty"` // those that did not pass
}

// NoticeCheck is a check that did not pass.
type NoticeCheck struct {
	Name     string `json:"name"`
	Severity string `json:"severity"`        // warn or error: the revision is rejected
	Outcome  string `json:"outcome"`         // fail, or error: it could not be run
	Failures int64  `json:"failures"`        // rows, or 1 for a check of the whole revision
	Found    string `json:"found,omitempty"` // for people
}

// payload is a notice on its way to one receiver.
type payload struct {
	registry.Receiver
	Secret string                     `json:"secret"` // as servers of the build before name it, which know only webhooks
	Topic  string                     `json:"topic,omitempty"`
	Whom   string                     `json:"receiver,omitempty"` // the receiver's name
	Origin *uuid.UUID                 `json:"origin,omitempty"`   // the job, by its origin
	Checks []registry.CheckedRevision `json:"checked,omitempty"`  // those that failed
	Count  int64                      `json:"count,omitempty"`    // how many troubles it tells of
	Notice Notice                     `json:"notice"`
}

// gather is how long a notice waits for others of its topic.
const gather = 5 * time.Second

// trouble is what a DAG is to tell of.
type trouble struct {
	kind   string
	about  string // the job or dataset; empty: the DAG
	origin *uuid.UUID
	checks []registry.CheckedRevision
	data   NoticeData
}

// write writes a notice for each receiver that a DAG names for it.
func write(
	ctx context.Context, tx pgx.Tx, org uuid.UUID, to registry.Listener, t trouble, now time.Time,
) error {
	t.data.Org, t.data.DAG = to.Org, to.DAG
	for _, r := range to.Receivers {
		topic := strings.Join([]string{"dagctl", to.Org, to.DAG, t.kind, t.about}, "/")
		p := payload{Receiver: r, Secret: r.Secret, Whom: r.Name(), Topic: topic + " " + r.Name(), Origin: t.origin,
			Checks: t.checks, Count: 1, Notice: newNotice(t.kind, t.data, now)}
		if err := put(ctx, tx, org, p, now, now.Add(gather)); err != nil {
			return fmt.Errorf("announce %s: %w", t.kind, err)
		}
	}
	return nil
}

func newNotice(kind string, data NoticeData, now time.Time) Notice {
	return Notice{ID: newID(), Type: kind, At: now.UTC(), Data: data}
}

func newID() string { return "msg_" + uuid.Must(uuid.NewV7()).String() }

// put writes a notice to the outbox, to be sent once it is due.
func put(ctx context.Context, tx pgx.Tx, org uuid.UUID, p payload, now, due time.Time) error {
	text, err := json.Marshal(p)
	if err != nil {
		return err
	}
	_, err = tx.Exec(ctx, `
		INSERT INTO outbox (org_id, kind, payload, available_at, created_at)
		VALUES ($1, 'notify', $2, $3, $4)`, org, text, due, now)
	return err
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
		dead := trouble{kind: noticeDead, about: to.Job, origin: &t.Origin, data: data}
		if err := write(ctx, tx, t.Org, to, dead, now); err != nil {
			return err
		}
	}
	return nil
}

// ChecksFailed writes notices of the checks of a revision that did not pass.
func ChecksFailed(
	ctx context.Context, tx pgx.Tx, job *registry.Job, task uuid.UUID, of registry.CheckedRevision,
	results []registry.CheckResult, now time.Time,
) error {
	var failed []NoticeCheck
	for _, r := range results {
		if r.Outcome == "pass" {
			continue
		}
		found := "could not be run" // its error may quote rows
		if r.Outcome != "error" {
			found = r.Failed(job.Def.Checks)
		}
		failed = append(failed, NoticeCheck{Name: r.Name, Severity: r.Severity, Outcome: r.Outcome,
			Failures: r.Failures, Found: found})
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
	return write(ctx, tx, job.OrgID, to, trouble{kind: noticeFailedCheck, about: to.Job,
		checks: []registry.CheckedRevision{of}, data: NoticeData{Job: to.Job, TaskID: &task, Checks: failed}}, now)
}

// DeployFailed writes notices of a version that failed, to the receivers that this version names.
func DeployFailed(ctx context.Context, tx pgx.Tx, b registry.Build, now time.Time) error {
	to, err := registry.ListenerOfVersion(ctx, tx, b.OrgID, b.ID, noticeFailedDeploy)
	if err != nil {
		return err
	}
	return write(ctx, tx, b.OrgID, to, trouble{kind: noticeFailedDeploy, data: NoticeData{Version: b.Number}}, now)
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
		if err := write(ctx, tx, org, to, trouble{kind: noticeLate, about: l.Dataset, data: data}, now); err != nil {
			return err
		}
	}
	return nil
}
