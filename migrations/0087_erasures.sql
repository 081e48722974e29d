-- Who reads a revision while somebody purges it stops; who reads one whose retention ends may go on.
-- +goose Up

ALTER TABLE partition_versions ADD COLUMN IF NOT EXISTS erased_at TIMESTAMPTZ; -- when somebody purged it
