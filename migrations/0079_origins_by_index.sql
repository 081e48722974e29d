-- All origins of a DAG are found in the index alone: a DAG of 500 jobs has 50,000 of them after a hundred versions. Package
-- registry owns the table.
-- +goose Up
DROP INDEX idx_jobs_origin_name;
CREATE INDEX idx_jobs_origin_name ON jobs (org_id, dag_name, name, fingerprint) INCLUDE (id) WHERE id = origin_job_id;
