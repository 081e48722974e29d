-- +goose Up
-- The task of the timer's last occurrence: a timer that fires once has done its work when this task has.
ALTER TABLE scheduled_events ADD COLUMN task_id UUID;
CREATE INDEX idx_scheduled_events_unsettled ON scheduled_events (id) WHERE task_id IS NOT NULL AND status IN ('PROCESSING', 'FAILED');
