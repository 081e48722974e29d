-- +goose Up
-- An operator state is written on top of the version that the run has read, or the run is done again.
ALTER TABLE operator_state ADD COLUMN version BIGINT NOT NULL DEFAULT 1;
-- The version that the attempt has read or written last: 0 where there was none. NULL: claimed by a server that did not
-- compare.
ALTER TABLE leases ADD COLUMN state_version BIGINT;
