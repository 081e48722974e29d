-- What a job enqueues is computed from what the job reads. Package registry owns the functions.
-- +goose Up
CREATE INDEX idx_jobs_enqueues ON jobs (org_id) WHERE definition ? 'enqueues';

-- note_generation_inputs writes the rows of generation_inputs for the generations of a DAG version. Those that another
-- version has written already stay.
CREATE OR REPLACE FUNCTION note_generation_inputs(version UUID) RETURNS VOID LANGUAGE sql AS $$
    INSERT INTO generation_inputs (org_id, dataset_version, input_dataset, input_version)
    WITH RECURSIVE asking AS (
        SELECT j.name AS asker, e.name AS asked
        FROM jobs j CROSS JOIN LATERAL jsonb_array_elements_text(j.definition -> 'enqueues') AS e(name)
        WHERE j.dag_version_id = version AND j.definition ? 'enqueues'),
    reading AS ( -- what a job makes is computed from what it reads, and from what those read that enqueue its tasks
        SELECT j.name AS job, j.name AS reader FROM jobs j WHERE j.dag_version_id = version
        UNION
        SELECT r.job, a.asker FROM reading r JOIN asking a ON a.asked = r.reader)
    SELECT DISTINCT o.org_id, o.dataset_version, i.dataset_uuid, p.dataset_version
    FROM dag_version_datasets o
    JOIN reading r ON r.job = o.job_name
    JOIN jobs j ON j.dag_version_id = o.dag_version_id AND j.name = r.reader
    JOIN job_inputs i ON i.job_id = j.id
    LEFT JOIN dag_version_datasets p ON i.in_dag AND p.dag_version_id = o.dag_version_id AND p.dataset_uuid = i.dataset_uuid
    WHERE o.dag_version_id = version
    UNION -- a quarantine holds rows of the files that the first output is made from
    SELECT o.org_id, o.dataset_version, p.dataset_uuid, p.dataset_version
    FROM dag_version_datasets o
    JOIN jobs j ON j.dag_version_id = o.dag_version_id AND j.name = o.job_name AND j.config ->> 'on_bad_rows' = 'quarantine'
    JOIN dag_version_datasets p ON p.dag_version_id = o.dag_version_id AND p.job_name = o.job_name AND p.output_index = 0
    WHERE o.dag_version_id = version AND o.output_index = 1
    UNION
    SELECT g.org_id, g.id, g.dataset_uuid, g.continues
    FROM dag_version_datasets o JOIN dataset_versions g ON g.id = o.dataset_version AND g.continues IS NOT NULL
    WHERE o.dag_version_id = version
    ON CONFLICT DO NOTHING
$$;
SELECT note_generation_inputs(v.id) FROM dag_versions v WHERE v.shrunk_at IS NULL
    AND EXISTS (SELECT FROM jobs j WHERE j.dag_version_id = v.id AND j.definition ? 'enqueues');

-- hidden_jobs returns the rows of jobs of an org that a caller with these org roles may not look into: some of what they
-- make or read is hidden, or a job that may enqueue their tasks. Of a version of which only the record is left, the origins are hidden whose later rows are.
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
        SELECT o.id FROM found f JOIN jobs o ON o.id = f.origin_job_id
        JOIN dag_versions v ON v.id = o.dag_version_id AND v.shrunk_at IS NOT NULL);
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
