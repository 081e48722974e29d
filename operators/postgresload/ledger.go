package postgresload

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/operators"
	"github.com/dagctl/dagctl/operators/fence"
)

// ledgerTable is the ledger's name in the target's schema.
const ledgerTable = "_dagctl_loads"

// entry is what the ledger has of a partition: its last load.
type entry struct {
	fence.Write

	Content string // hash of the rows, in their order
}

func partitionOf(t *operators.Task) string {
	if t.Partition == nil {
		return dag.WholeKey
	}
	return t.Partition.Key
}

// enter locks the ledger's entry of the task's partition until the end of the transaction, and makes the load the last
// one. skip reports that its rows are there already. A load that is older than the last one is a fault.Conflict.
func (l *load) enter(ctx context.Context, tx pgx.Tx) (skip bool, err error) {
	ledger := l.in(ledgerTable)
	if err := l.ensureLedger(ctx, tx); err != nil {
		return false, err
	}
	now := entry{fence.Of(l.task), l.content}
	text, err := json.Marshal(now.Pins)
	if err != nil {
		return false, err
	}

	tag, err := tx.Exec(ctx, fmt.Sprintf(`INSERT INTO %s (target, job, partition, pins, task, attempt, rows, content)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8) ON CONFLICT (target, job, partition) DO NOTHING`, ledger),
		l.name(), jobOf(l.task), partitionOf(l.task), string(text), now.Task.String(), now.Attempt, l.rows, now.Content)
	if err != nil || tag.RowsAffected() > 0 {
		return false, err
	}

	var (
		last entry
		was  string
		task string
	)
	if err := tx.QueryRow(ctx, fmt.Sprintf(`SELECT pins::text, task::text, attempt, content FROM %s
		WHERE target = $1 AND job = $2 AND partition = $3 FOR UPDATE`, ledger),
		l.name(), jobOf(l.task), partitionOf(l.task)).Scan(&was, &task, &last.Attempt, &last.Content); err != nil {
		return false, err
	}
	if err := json.Unmarshal([]byte(was), &last.Pins); err != nil {
		return false, fmt.Errorf("pins of the ledger: %w", err)
	}
	if last.Task, err = uuid.Parse(task); err != nil {
		return false, fmt.Errorf("task of the ledger: %w", err)
	}

	switch {
	case now.Before(last.Write):
		return false, fault.New(fault.Conflict, "a newer revision of partition %s is in %s already",
			partitionOf(l.task), l.Table)
	case l.Mode == appending && now.Same(last.Write):
		return true, nil
	}
	_, err = tx.Exec(ctx, fmt.Sprintf(`UPDATE %s SET pins = $4, task = $5, attempt = $6, rows = $7, content = $8,
		loaded_at = now()
		WHERE target = $1 AND job = $2 AND partition = $3`, ledger), l.name(), jobOf(l.task), partitionOf(l.task),
		string(text), now.Task.String(), now.Attempt, l.rows, now.Content)
	// Another revision may have the same rows: after an invalidation, or of another version that serves again.
	return l.Mode == appending && now.Content == last.Content, err
}

// ensureLedger creates the ledger if there is none. Those who do it at once wait for each other.
func (l *load) ensureLedger(ctx context.Context, tx pgx.Tx) error {
	there, err := exists(ctx, tx, l.in(ledgerTable))
	if err != nil || there {
		return err
	}
	if err := l.lockMaking(ctx, tx); err != nil {
		return err
	}
	_, err = tx.Exec(ctx, fmt.Sprintf(`CREATE TABLE IF NOT EXISTS %s (
		target text NOT NULL, job text NOT NULL, partition text NOT NULL, pins jsonb NOT NULL, task uuid NOT NULL,
		attempt int NOT NULL, rows bigint NOT NULL, content text NOT NULL, loaded_at timestamptz NOT NULL DEFAULT now(),
		PRIMARY KEY (target, job, partition))`, l.in(ledgerTable)))
	return err
}

// lockMaking lets one load at a time create tables in the schema, until its transaction ends.
func (l *load) lockMaking(ctx context.Context, tx pgx.Tx) error {
	_, err := tx.Exec(ctx, `SELECT pg_advisory_xact_lock(hashtextextended('dagctl loads ' || $1, 0))`, l.schema())
	return err
}

func exists(ctx context.Context, tx pgx.Tx, table string) (there bool, err error) {
	return there, tx.QueryRow(ctx, `SELECT to_regclass($1) IS NOT NULL`, table).Scan(&there)
}
