-- Somebody wants a source now: it makes a task even while another one of the same output waits for its retry.
-- +goose Up

ALTER TABLE sources ADD COLUMN IF NOT EXISTS asked boolean NOT NULL DEFAULT false;
