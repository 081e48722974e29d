-- +goose Up
-- A heartbeat that brings another text is a step in the task's trail, up to a bound for each attempt.
ALTER TABLE leases
    ADD COLUMN steps SMALLINT NOT NULL DEFAULT 0,
    ADD COLUMN stepped BOOLEAN NOT NULL DEFAULT false; -- whether the last heartbeat was a step
