-- +goose Up
-- A worker's heartbeat asks which of its tasks are to end at a point of their choice.
CREATE INDEX idx_leases_drained ON leases (worker_id) WHERE drain_requested_at IS NOT NULL;
