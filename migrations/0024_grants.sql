-- +goose Up
-- Roles between reader and writer, and roles on some DAGs only, each written ROLE:PATTERN.
ALTER TABLE service_tokens DROP CONSTRAINT service_tokens_role_check;
ALTER TABLE service_tokens ADD CONSTRAINT service_tokens_role_check CHECK (role IN ('reader', 'proposer', 'writer', 'admin')) NOT VALID;
ALTER TABLE service_tokens ADD COLUMN grants TEXT[] NOT NULL DEFAULT '{}';
ALTER TABLE users DROP CONSTRAINT users_role_check;
ALTER TABLE users ADD CONSTRAINT users_role_check CHECK (role IN ('reader', 'proposer', 'writer', 'admin')) NOT VALID;

-- The DAG of all its tasks; empty: they may belong to any.
ALTER TABLE bulk_actions ADD COLUMN dag_name TEXT NOT NULL DEFAULT '';
