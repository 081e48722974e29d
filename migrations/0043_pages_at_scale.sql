-- What makes pages quick where there are a million jobs of old versions and many partitions. Package registry owns the
-- tables and the function.
-- +goose Up

-- The partitions that readers do not see, of an org.
CREATE INDEX idx_partition_versions_withheld ON partition_versions (org_id, dataset_version, partition_key, revision)
    WHERE state IN ('Held', 'Rejected');

-- hidden_jobs as in 0031, except that origins are looked up one by one: the planner takes recursion to find so many that
-- it read all jobs for them.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION hidden_jobs(org UUID, roles TEXT[]) RETURNS SETOF UUID
STABLE SECURITY DEFINER LANGUAGE plpgsql AS $$
DECLARE
    key TEXT;
    ids UUID[];
BEGIN
    IF NOT may_ask_of(org) OR NOT EXISTS (SELECT FROM datasets d WHERE d.org_id = org AND d.read_roles <> '{}') THEN
        RETURN;
    END IF;

    key := kept_key(org, roles);
    IF key = current_setting('dagctl.kept_jobs_key', true) THEN
        RETURN QUERY SELECT unnest(current_setting('dagctl.kept_jobs')::uuid[]);
        RETURN;
    END IF;

    ids := ARRAY(
        WITH RECURSIVE pointed AS MATERIALIZED (
            SELECT p.dag_version_id, p.dataset_uuid, p.job_name
            FROM hidden_generations(org, roles) h JOIN dag_version_datasets p ON p.dataset_version = h.dataset_version),
        reading AS (
            SELECT j.id, j.origin_job_id FROM pointed p JOIN jobs j ON j.dag_version_id = p.dag_version_id AND j.name = p.job_name
            UNION
            SELECT j.id, j.origin_job_id
            FROM pointed p
            JOIN job_inputs i ON i.dataset_uuid = p.dataset_uuid AND i.dag_version_id = p.dag_version_id AND i.in_dag
            JOIN jobs j ON j.id = i.job_id
            UNION
            SELECT j.id, j.origin_job_id
            FROM hidden_datasets(org, roles) AS d(id)
            JOIN job_inputs i ON i.dataset_uuid = d.id AND NOT i.in_dag
            JOIN jobs j ON j.id = i.job_id),
        asking AS MATERIALIZED (
            SELECT a.id, a.dag_version_id, e.name
            FROM jobs a CROSS JOIN LATERAL jsonb_array_elements_text(a.definition -> 'enqueues') AS e(name)
            WHERE a.org_id = org AND a.definition ? 'enqueues'),
        found AS (
            SELECT r.id, r.origin_job_id FROM reading r
            UNION
            SELECT j.id, j.origin_job_id
            FROM found f JOIN asking a ON a.id = f.id JOIN jobs j ON j.dag_version_id = a.dag_version_id AND j.name = a.name)
        SELECT f.id FROM found f
        UNION
        SELECT f.origin_job_id FROM found f
        CROSS JOIN LATERAL (SELECT o.dag_version_id FROM jobs o WHERE o.id = f.origin_job_id LIMIT 1) AS o
        CROSS JOIN LATERAL (SELECT FROM dag_versions v WHERE v.id = o.dag_version_id AND v.shrunk_at IS NOT NULL LIMIT 1) AS v);
    IF key IS NOT NULL THEN
        PERFORM set_config('dagctl.kept_jobs', ids::text, true), set_config('dagctl.kept_jobs_key', key, true);
    END IF;
    RETURN QUERY SELECT unnest(ids);
END
$$;
-- +goose StatementEnd

-- Replacing the function took the path away by which it finds its tables.
-- +goose StatementBegin
DO $$
BEGIN
    EXECUTE format('ALTER FUNCTION hidden_jobs(UUID, TEXT[]) SET search_path = %I, pg_temp', current_schema());
END
$$;
-- +goose StatementEnd
