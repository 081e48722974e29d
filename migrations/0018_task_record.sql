-- +goose Up
-- Who asked for a task: a person or token, or the task that made it. NULL: the platform, for its inputs or its source.
ALTER TABLE tasks ADD COLUMN created_by TEXT;
-- How far an attempt came, as its last heartbeat said. NULL: it said nothing, or ended before this was kept.
ALTER TABLE task_attempts ADD COLUMN progress SMALLINT, ADD COLUMN state TEXT;
-- What every transition keeps to, said once more where nothing can pass it. Rows of earlier versions are not looked at.
ALTER TABLE tasks
    ADD CONSTRAINT tasks_failures CHECK (failures >= 0) NOT VALID,
    ADD CONSTRAINT tasks_reason CHECK (status NOT IN ('Failed', 'Canceled') OR reason IS NOT NULL) NOT VALID;
