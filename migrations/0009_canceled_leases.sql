-- +goose Up
-- For the tasks of a worker that were asked to stop, which its heartbeats tell it. Few leases are in it at any time.
CREATE INDEX idx_leases_canceled ON leases (worker_id) WHERE cancel_requested;
