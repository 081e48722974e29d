-- +goose Up
-- A job may keep several operator states. The lease says which one its attempt reads and writes.
ALTER TABLE leases ADD COLUMN state_key TEXT NOT NULL DEFAULT 'default';
