-- Which check an outcome is of: a version judges what others refused by its own checks, and two checks may have one name.
-- +goose Up

ALTER TABLE check_results ADD COLUMN check_hash TEXT; -- NULL: written before this column
CREATE INDEX idx_partition_versions_rejected ON partition_versions (dataset_version, partition_key) WHERE state = 'Rejected';
