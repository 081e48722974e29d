-- +goose Up
-- The outbox also takes the ends of attempts that are told to an OpenLineage receiver.
ALTER TABLE outbox DROP CONSTRAINT outbox_kind_check;
ALTER TABLE outbox ADD CONSTRAINT outbox_kind_check
    CHECK (kind IN ('enqueue_task', 'route_event', 'notify', 'openlineage')) NOT VALID;
