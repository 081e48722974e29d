-- What a job has computed and remembers belongs to its identity, which follows it over renames (decision 0110). Package
-- registry owns the table.
-- +goose Up
ALTER TABLE jobs ADD COLUMN identity TEXT NOT NULL
    GENERATED ALWAYS AS (coalesce(definition ->> 'identity', definition ->> 'renamed_from', name)) STORED;

-- A new job under an old name may have the definition of the job that had it before, so the name alone tells no origins
-- apart. Of jobs that were renamed before this migration, an identity may have two origins, under different names.
DROP INDEX idx_jobs_one_origin;
CREATE UNIQUE INDEX idx_jobs_one_origin ON jobs (org_id, dag_name, identity, fingerprint, name) WHERE id = origin_job_id;
CREATE INDEX idx_jobs_origin_name ON jobs (org_id, dag_name, name, fingerprint) WHERE id = origin_job_id;

-- The timers of a renamed job go with it. Package timers owns the table.
CREATE INDEX idx_scheduled_events_job ON scheduled_events (org_id, dag_name, job_name);
