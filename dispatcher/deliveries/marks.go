package deliveries

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/internal/clock"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/operators"
)

// further lets a mark take the place of one that is not further.
const further = `
		ON CONFLICT (org_id, id) DO UPDATE SET position = EXCLUDED.position, value = EXCLUDED.value,
			updated_at = EXCLUDED.updated_at
		WHERE m.position <= EXCLUDED.position`

// marked returns marks as columns. Of several with one key, the last counts.
func (l Ledger) marked(marks []operators.Mark) (ids []string, positions []int64, values []json.RawMessage) {
	at := map[string]int{}
	for _, m := range marks {
		id := l.ID(m.Key)
		i, known := at[id]
		if !known {
			i, at[id] = len(ids), len(ids)
			ids, positions, values = append(ids, id), append(positions, 0), append(values, nil)
		}
		positions[i], values[i] = m.Position, m.Value
	}
	return ids, positions, values
}

// Marks implements operators.Deliveries.
func (l Ledger) Marks(ctx context.Context, keys []string) (map[string]operators.Mark, error) {
	ids, byID := make([]string, len(keys)), make(map[string]string, len(keys))
	for i, key := range keys {
		ids[i] = l.ID(key)
		byID[ids[i]] = key
	}
	rows, err := l.Pool.Query(ctx, `SELECT id, position, value FROM delivery_marks WHERE org_id = $1 AND id = ANY($2)`,
		l.Org, ids)
	if err != nil {
		return nil, fmt.Errorf("look up marks of deliveries: %w", err)
	}
	found, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (m operators.Mark, err error) {
		err = row.Scan(&m.Key, &m.Position, &m.Value)
		return m, err
	})
	if err != nil {
		return nil, fmt.Errorf("look up marks of deliveries: %w", err)
	}

	marks := make(map[string]operators.Mark, len(found))
	for _, m := range found {
		m.Key = byID[m.Key]
		marks[m.Key] = m
	}
	return marks, nil
}

// mark notes marks, while the attempt counts.
const mark = `
	WITH counting AS (SELECT FROM tasks WHERE org_id = $1 AND id = $2 AND attempt = $3 AND lease_token = $4
		AND status = 'Running'),
	marked AS (
		INSERT INTO delivery_marks AS m (org_id, id, dag_name, job_name, position, value, updated_at)
		SELECT $1, w.id, $5, $6, w.position, w.value, $7
		FROM unnest($8::text[], $9::bigint[], $10::jsonb[]) AS w(id, position, value)
		WHERE EXISTS (SELECT FROM counting)` + further + `)
	SELECT EXISTS (SELECT FROM counting)`

// Mark implements operators.Deliveries.
func (l Ledger) Mark(ctx context.Context, marks []operators.Mark) error {
	if len(marks) == 0 {
		return nil
	}
	ids, positions, values := l.marked(marks)
	var counts bool
	err := l.Pool.QueryRow(ctx, mark, l.Org, l.Fence.TaskID, l.Fence.Attempt, l.Fence.LeaseToken, l.DAG, l.Job,
		clock.Now(), ids, positions, values).Scan(&counts)
	if err != nil {
		return fmt.Errorf("note marks of deliveries: %w", err)
	}
	if !counts {
		return fault.New(fault.Conflict, "task %s went on without attempt %d", l.Fence.TaskID, l.Fence.Attempt)
	}
	return nil
}
