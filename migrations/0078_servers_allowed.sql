-- Servers tell the others which orgs their configs let them run operators for.
-- +goose Up

-- By operator, the slugs of the orgs whose tasks the server may run; those of operators that are not in it, of any org.
ALTER TABLE workers ADD COLUMN only_for JSONB NOT NULL DEFAULT '{}';
