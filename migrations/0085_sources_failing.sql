-- What the tasks of a source fail with again and again: the error of the failed task that its newest one took the place
-- of, since when none has succeeded, and the id of that newest one: while it is open, the source fails.
-- +goose Up

ALTER TABLE sources
    ADD COLUMN IF NOT EXISTS failing       TEXT,
    ADD COLUMN IF NOT EXISTS failing_since TIMESTAMPTZ,
    ADD COLUMN IF NOT EXISTS failing_task  UUID;
