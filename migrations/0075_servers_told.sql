-- Servers tell the others what they lack.
-- +goose Up

-- The ids of the keys of secrets that a server does not have, although secrets are under them.
ALTER TABLE workers ADD COLUMN lacks_keys TEXT[] NOT NULL DEFAULT '{}';
