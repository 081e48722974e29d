-- The tasks of a job that was renamed are found under the name that it has in the version that serves. Package registry
-- owns the table.
-- +goose Up
ALTER TABLE jobs ADD COLUMN known_as TEXT; -- of an origin: the name its tasks are found under, where it is not its own
CREATE INDEX idx_jobs_known_as ON jobs (org_id, dag_name, known_as) WHERE known_as IS NOT NULL;

UPDATE jobs o SET known_as = j.name
FROM dag_current_versions c JOIN jobs j ON j.dag_version_id = c.dag_version_id
WHERE o.id = j.origin_job_id AND o.name <> j.name;

UPDATE jobs o SET known_as = j.name
FROM dag_current_versions c JOIN jobs j ON j.dag_version_id = c.dag_version_id
WHERE o.org_id = j.org_id AND o.dag_name = j.dag_name AND o.id = o.origin_job_id AND o.known_as IS NULL
  AND o.name = j.definition ->> 'renamed_from';

CREATE OR REPLACE FUNCTION job_address(job UUID) RETURNS TEXT STABLE LANGUAGE sql AS
    'SELECT dag_name || ''/'' || coalesce(known_as, name) FROM jobs WHERE id = $1';
