-- Finds the deliveries that ended long ago, for retention. Package dispatcher owns the table.
-- +goose Up
CREATE INDEX idx_deliveries_ended ON deliveries (updated_at) WHERE status IN ('delivered', 'failed');
