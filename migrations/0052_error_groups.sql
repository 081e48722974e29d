-- Failed tasks are grouped by error without looking at each of them. Package dispatcher owns the table.
-- +goose Up

-- Of a task whose attempt failed: error_group(error_message), and when. A row of a server of the build before has none.
ALTER TABLE waiting ADD COLUMN error_group TEXT, ADD COLUMN failed_at TIMESTAMPTZ;

UPDATE waiting w SET error_group = error_group(t.error_message), failed_at = coalesce(t.completed_at, t.started_at, t.created_at)
FROM tasks t WHERE t.id = w.task_id AND w.reason IN ('backoff', 'dead');
