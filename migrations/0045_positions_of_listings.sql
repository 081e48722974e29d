-- Where listings of sources go on. Package dispatcher owns the table.
-- +goose Up

-- What the operator says of it; NULL: the next listing has everything.
ALTER TABLE enumerations ADD COLUMN position JSONB;
