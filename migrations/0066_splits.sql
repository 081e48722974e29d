-- The marker of a task that splits its rows into many partitions: a revision of the key `all` that nobody reads. It says
-- what they were made from. Package registry owns the table.
-- +goose Up
ALTER TABLE partition_versions DROP CONSTRAINT partition_versions_state_check;
ALTER TABLE partition_versions ADD CONSTRAINT partition_versions_state_check
    CHECK (state IN ('Held', 'Published', 'Replaced', 'Rejected', 'Purged', 'Split')) NOT VALID;
