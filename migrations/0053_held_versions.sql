-- A version that is built waits where its DAG was rolled back meanwhile. Bulk actions know whose tasks they act on.
-- +goose Up

-- Why a version waits that was to serve once it was ready, NULL where nothing holds it.
ALTER TABLE dag_versions ADD COLUMN held_because TEXT;

-- The origins of the tasks of a bulk action.
ALTER TABLE bulk_actions ADD COLUMN job_ids UUID[] NOT NULL DEFAULT '{}';
