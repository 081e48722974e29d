-- Servers know their storage: whether it is this installation's, and whether it can be used.
-- +goose Up

-- The one row names this installation. A small object of the storage carries the same id.
CREATE TABLE installation (
    singleton BOOLEAN PRIMARY KEY DEFAULT true CHECK (singleton),
    id        UUID NOT NULL DEFAULT gen_random_uuid(),
    marked_at TIMESTAMPTZ -- when the object was written; NULL: not yet
);

-- Why a server takes no tasks now; NULL: it takes them.
ALTER TABLE workers ADD COLUMN unfit TEXT;
