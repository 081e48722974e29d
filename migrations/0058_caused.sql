-- What one task set off is found from its events. Package dispatcher owns the table.
-- +goose Up

CREATE INDEX idx_events_producer ON events (producer_task_id, id) WHERE producer_task_id IS NOT NULL;
