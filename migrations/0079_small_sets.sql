-- What is asked for over and over is found in small indexes, however many versions there have been. Package registry
-- owns the tables.
-- +goose Up

-- All origins of a DAG, in the index alone: a DAG of 500 jobs has 50,000 of them after a hundred versions.
DROP INDEX idx_jobs_origin_name;
CREATE INDEX idx_jobs_origin_name ON jobs (org_id, dag_name, name, fingerprint) INCLUDE (id) WHERE id = origin_job_id;

-- Generations whose bytes have to be removed, in their order.
DROP INDEX idx_dataset_versions_uncleared;
CREATE INDEX idx_dataset_versions_uncleared ON dataset_versions (org_id, purged_at, id)
    WHERE purged_at IS NOT NULL AND cleared_at IS NULL;

-- Generations that stable views may show.
CREATE INDEX idx_dataset_versions_tabled ON dataset_versions (id)
    WHERE storage ->> 'kind' = 'postgres' AND purged_at IS NULL;
