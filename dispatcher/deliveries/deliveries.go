// Package deliveries remembers what jobs have delivered to others, beyond their runs.
//
// Vocabulary: a delivery is what a job sends for one key, at most once with success. Its id is a hash of the org, the
// DAG, the job's first name and the key. It is sending from the moment before a request until the answer is noted; one
// that is still sending when its attempt is over may have arrived, so it is sent again under the same id. It owns the
// tables
// deliveries and delivery_marks.
package deliveries

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/dagctl/dagctl/dispatcher/tasks"
	"github.com/dagctl/dagctl/internal/clock"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/internal/wait"
	"github.com/dagctl/dagctl/operators"
)

// Ledger is the deliveries of one job, as one attempt of its tasks sees them.
type Ledger struct {
	Pool  *pgxpool.Pool
	Org   uuid.UUID
	DAG   string
	Job   string // its first name
	Fence tasks.Fence
}

// ID implements operators.Deliveries.
func (l Ledger) ID(key string) string {
	text, _ := json.Marshal([]string{l.Org.String(), l.DAG, l.Job, key}) // strings always are JSON
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:16])
}

// columns are those of a delivery d, for scan.
const columns = `d.id, d.status, d.task_id, d.requests, coalesce(d.http_status, 0), coalesce(d.error, ''),
	d.delivered_at`

func (l Ledger) scan(row pgx.CollectableRow) (d operators.Delivery, err error) {
	var (
		task uuid.UUID
		at   *time.Time
	)
	err = row.Scan(&d.ID, &d.Status, &task, &d.Requests, &d.HTTPStatus, &d.Error, &at)
	if at != nil {
		d.DeliveredAt = at.UTC()
	}
	d.Own = task == l.Fence.TaskID
	return d, err
}

// Known implements operators.Deliveries.
func (l Ledger) Known(ctx context.Context, ids []string) (map[string]operators.Delivery, error) {
	rows, err := l.Pool.Query(ctx, `SELECT `+columns+` FROM deliveries d WHERE d.org_id = $1 AND d.id = ANY($2)`,
		l.Org, ids)
	if err != nil {
		return nil, fmt.Errorf("look up deliveries: %w", err)
	}
	found, err := pgx.CollectRows(rows, l.scan)
	if err != nil {
		return nil, fmt.Errorf("look up deliveries: %w", err)
	}
	known := make(map[string]operators.Delivery, len(found))
	for _, d := range found {
		known[d.ID] = d
	}
	return known, nil
}

// begin notes a request, unless the attempt is over, the delivery is made, or another attempt that still runs is
// sending it. An older attempt of the same task never takes a delivery from a newer one.
const begin = `
	INSERT INTO deliveries AS d (org_id, id, dag_name, job_name, status, task_id, attempt, requests, updated_at)
	SELECT t.org_id, $5, $6, $7, 'sending', t.id, t.attempt, 1, $8
	FROM tasks t WHERE t.org_id = $1 AND t.id = $2 AND t.attempt = $3 AND t.lease_token = $4 AND t.status = 'Running'
	ON CONFLICT (org_id, id) DO UPDATE SET status = 'sending', task_id = EXCLUDED.task_id, attempt = EXCLUDED.attempt,
		requests = d.requests + 1, updated_at = EXCLUDED.updated_at
	WHERE d.status <> 'delivered' AND CASE
		WHEN d.task_id = EXCLUDED.task_id THEN d.attempt <= EXCLUDED.attempt
		ELSE d.status <> 'sending' OR NOT EXISTS (SELECT FROM tasks o WHERE o.id = d.task_id AND o.attempt = d.attempt
			AND o.status = 'Running') END
	RETURNING ` + columns

// Begin implements operators.Deliveries.
func (l Ledger) Begin(ctx context.Context, id string) (d operators.Delivery, send bool, err error) {
	rows, err := l.Pool.Query(ctx, begin, l.Org, l.Fence.TaskID, l.Fence.Attempt, l.Fence.LeaseToken, id, l.DAG, l.Job,
		clock.Now())
	if err != nil {
		return d, false, fmt.Errorf("begin delivery %s: %w", id, err)
	}
	d, err = pgx.CollectExactlyOneRow(rows, l.scan)
	switch {
	case err == nil:
		return d, true, nil
	case !errors.Is(err, pgx.ErrNoRows):
		return d, false, fmt.Errorf("begin delivery %s: %w", id, err)
	}

	if err := l.counts(ctx); err != nil {
		return d, false, err
	}
	known, err := l.Known(ctx, []string{id})
	return known[id], false, err
}

// counts returns a Conflict unless the attempt still counts.
func (l Ledger) counts(ctx context.Context) error {
	var counts bool
	err := l.Pool.QueryRow(ctx, `SELECT EXISTS (SELECT FROM tasks WHERE org_id = $1 AND id = $2 AND attempt = $3
		AND lease_token = $4 AND status = 'Running')`, l.Org, l.Fence.TaskID, l.Fence.Attempt,
		l.Fence.LeaseToken).Scan(&counts)
	if err == nil && !counts {
		return fault.New(fault.Conflict, "task %s went on without attempt %d", l.Fence.TaskID, l.Fence.Attempt)
	}
	return err
}

// end notes the answer, and the marks of a delivery that is made. That a delivery is made counts whoever says it;
// anything else only from the attempt that sent it last.
const end = `
	WITH ended AS (
		UPDATE deliveries d SET status = $5, http_status = NULLIF($6, 0), error = NULLIF($7, ''), delivered_at = $8,
			updated_at = $9
		WHERE d.org_id = $1 AND d.id = $2 AND d.status <> 'delivered'
		  AND ($5 = 'delivered' OR d.task_id = $3 AND d.attempt = $4)
		RETURNING d.*),
	marked AS (
		INSERT INTO delivery_marks AS m (org_id, id, dag_name, job_name, position, value, updated_at)
		SELECT $1, w.id, d.dag_name, d.job_name, w.position, w.value, $9
		FROM ended d, unnest($10::text[], $11::bigint[], $12::jsonb[]) AS w(id, position, value)
		WHERE d.status = 'delivered'` + further + `)
	SELECT ` + columns + ` FROM ended d`

// patience is how long End tries, whatever happens to the run or the database.
const patience = 20 * time.Second

// End implements operators.Deliveries.
func (l Ledger) End(ctx context.Context, d operators.Delivery) (operators.Delivery, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
	defer cancel()
	for pause := 50 * time.Millisecond; ; pause = min(2*pause, time.Second) {
		stands, err := l.end(ctx, d)
		if err == nil || !pg.Away(err) {
			return stands, err
		}
		if wait.For(ctx, pause) != nil {
			return d, err
		}
	}
}

func (l Ledger) end(ctx context.Context, d operators.Delivery) (operators.Delivery, error) {
	var at *time.Time
	if d.Status == operators.Delivered {
		at = &d.DeliveredAt
	}
	ids, positions, values := l.marked(d.Marks)
	rows, err := l.Pool.Query(ctx, end, l.Org, d.ID, l.Fence.TaskID, l.Fence.Attempt, d.Status, d.HTTPStatus, d.Error,
		at, clock.Now(), ids, positions, values)
	if err != nil {
		return d, fmt.Errorf("end delivery %s: %w", d.ID, err)
	}
	stands, err := pgx.CollectExactlyOneRow(rows, l.scan)
	if err == nil {
		return stands, nil
	}
	if !errors.Is(err, pgx.ErrNoRows) {
		return d, fmt.Errorf("end delivery %s: %w", d.ID, err)
	}

	known, err := l.Known(ctx, []string{d.ID})
	if _, there := known[d.ID]; err == nil && !there {
		err = fault.New(fault.Conflict, "the deliveries of %s are gone", l.DAG)
	}
	return known[d.ID], err
}
