-- +goose Up
ALTER TABLE scheduled_events ADD COLUMN created_by TEXT; -- the principal, or task:ID, that asked for it
