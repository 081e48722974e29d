-- Background work that takes long or touches many rows. Package dispatcher/workitems owns this table.
-- +goose Up

CREATE TABLE work_items (
    kind         TEXT NOT NULL,
    object       TEXT NOT NULL DEFAULT '', -- what the work is on, such as a table; '': the kind has one item
    position     TEXT NOT NULL DEFAULT '', -- how far it has come; '': at the beginning
    due_at       TIMESTAMPTZ NOT NULL DEFAULT now(),
    lease_token  UUID,        -- of the process that works on it
    leased_until TIMESTAMPTZ,
    began_at     TIMESTAMPTZ, -- of the pass that is under way; NULL: none is
    whole_at     TIMESTAMPTZ, -- when the last pass began that started at the beginning
    ended_at     TIMESTAMPTZ, -- of the last pass
    rows         BIGINT NOT NULL DEFAULT 0, -- that all passes have changed
    failures     INT NOT NULL DEFAULT 0,    -- one after the other
    error        TEXT,                      -- of the last failure, until a turn succeeds
    PRIMARY KEY (kind, object),
    CHECK ((lease_token IS NULL) = (leased_until IS NULL)),
    CHECK ((failures = 0) = (error IS NULL))
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);

-- What a running backfill asks for several times a second, without reading all its partitions.
CREATE INDEX idx_backfill_partitions_pending ON backfill_partitions (backfill_id, partition_key) WHERE state = 'Pending';
CREATE INDEX idx_backfill_partitions_open ON backfill_partitions (backfill_id) WHERE state = 'Open';
