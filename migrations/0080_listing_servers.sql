-- A server leaves it to others to list what a source is to read, where its config does not let it run the operator.
-- +goose Up

ALTER TABLE sources ADD COLUMN operator TEXT;
UPDATE sources s SET operator = j.operator
FROM dag_current_versions c JOIN jobs j ON j.org_id = c.org_id AND j.dag_version_id = c.dag_version_id
WHERE s.org_id = c.org_id AND s.dag_name = c.dag_name AND j.name = s.job_name;
