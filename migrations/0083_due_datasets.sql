-- Which datasets can be late: home, lists of what is late and forecasts begin with them.
-- +goose Up

CREATE INDEX IF NOT EXISTS idx_datasets_due ON datasets (org_id, name)
    WHERE due_within_seconds > 0 AND published AND deleted_at IS NULL;
