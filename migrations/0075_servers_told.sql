-- Servers tell the others what they lack, and see that they share one storage.
-- +goose Up

-- The ids of the keys of secrets that a server does not have, although secrets are under them.
ALTER TABLE workers ADD COLUMN lacks_keys TEXT[] NOT NULL DEFAULT '{}';

-- The servers that use the storage: each leaves an object of its name there, which the others look for.
CREATE TABLE storage_servers (
    id        TEXT PRIMARY KEY, -- of the process, as in workers
    began_at  TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp(), -- the object is there since then
    looked_at TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp(),
    missed_by TEXT,   -- an older server that does not see the object; NULL: none
    apart     BOOLEAN NOT NULL DEFAULT false -- it knows that its storage is not that of the others
);
