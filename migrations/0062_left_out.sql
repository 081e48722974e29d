-- What the last listing of a source left out, and why; it goes on with the rest.
-- +goose Up
ALTER TABLE enumerations ADD COLUMN left_out TEXT;
