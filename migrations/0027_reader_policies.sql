-- The second wall around what a caller may not read: in a transaction of a request that reads, row-level security hides
-- every row of it, whatever conditions the statement has. Package registry owns the functions.
-- +goose Up

-- may_ask_of reports whether whoever calls a function with the owner's rights may ask it about an org: the owner about
-- all, and requests about the org that their transaction names.
CREATE FUNCTION may_ask_of(org UUID) RETURNS BOOLEAN STABLE LANGUAGE sql AS $$
    SELECT org = NULLIF(current_setting('dagctl.org', true), '')::uuid OR pg_has_role(session_user, current_user, 'MEMBER')
$$;

-- The functions that decide who may read what run with the owner's rights, because they follow what the policies below
-- hide. What they answer is the same for all calls with one snapshot, of a transaction that has written nothing, so they
-- keep it until the transaction ends.

-- kept_key names an answer.
CREATE FUNCTION kept_key(org UUID, roles TEXT[]) RETURNS TEXT STABLE LANGUAGE sql AS $$
    SELECT CASE WHEN pg_current_xact_id_if_assigned() IS NULL THEN concat_ws(' ', org, coalesce(roles, '{}'), pg_current_snapshot()) END
$$;

-- +goose StatementBegin
CREATE OR REPLACE FUNCTION hidden_generations(org UUID, roles TEXT[]) RETURNS TABLE (dataset_version UUID, dataset_uuid UUID)
STABLE SECURITY DEFINER LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    key      TEXT;
    versions UUID[];
    datasets UUID[];
BEGIN
    IF NOT may_ask_of(org) OR NOT EXISTS (SELECT FROM datasets d WHERE d.org_id = org AND d.read_roles <> '{}') THEN
        RETURN;
    END IF;

    key := kept_key(org, roles);
    IF key = current_setting('dagctl.kept_generations_key', true) THEN
        RETURN QUERY SELECT * FROM unnest(current_setting('dagctl.kept_generations')::uuid[], current_setting('dagctl.kept_generations_of')::uuid[]);
        RETURN;
    END IF;

    -- LIMIT 1 keeps the planner, which takes each step to be large, from reading whole tables for it.
    WITH RECURSIVE hidden AS (
        SELECT g.id, g.dataset_uuid, g.purged_at
        FROM datasets d JOIN dataset_versions g ON g.dataset_uuid = d.id
        WHERE d.org_id = org AND d.read_roles <> '{}' AND NOT d.read_roles && coalesce(roles, '{}')
        UNION
        SELECT g.id, g.dataset_uuid, g.purged_at
        FROM hidden h
        CROSS JOIN LATERAL (
            SELECT i.dataset_version FROM generation_inputs i WHERE i.input_version = h.id
            UNION ALL
            SELECT i.dataset_version FROM generation_inputs i
            WHERE i.input_version IS NULL AND i.input_dataset = h.dataset_uuid AND h.purged_at IS NULL) AS i
        CROSS JOIN LATERAL (SELECT g.* FROM dataset_versions g WHERE g.id = i.dataset_version LIMIT 1) AS g
        CROSS JOIN LATERAL (SELECT FROM datasets d WHERE d.id = g.dataset_uuid AND NOT d.opened LIMIT 1) AS d)
    SELECT coalesce(array_agg(h.id), '{}'), coalesce(array_agg(h.dataset_uuid), '{}') INTO versions, datasets FROM hidden h;
    IF key IS NOT NULL THEN
        PERFORM set_config('dagctl.kept_generations', versions::text, true), set_config('dagctl.kept_generations_of', datasets::text, true),
            set_config('dagctl.kept_generations_key', key, true);
    END IF;
    RETURN QUERY SELECT * FROM unnest(versions, datasets);
END
$$;
-- +goose StatementEnd

-- +goose StatementBegin
CREATE OR REPLACE FUNCTION hidden_datasets(org UUID, roles TEXT[]) RETURNS SETOF UUID
STABLE SECURITY DEFINER LANGUAGE plpgsql AS $$
DECLARE
    key TEXT;
    ids UUID[];
BEGIN
    IF NOT may_ask_of(org) OR NOT EXISTS (SELECT FROM datasets d WHERE d.org_id = org AND d.read_roles <> '{}') THEN
        RETURN;
    END IF;

    key := kept_key(org, roles);
    IF key = current_setting('dagctl.kept_datasets_key', true) THEN
        RETURN QUERY SELECT unnest(current_setting('dagctl.kept_datasets')::uuid[]);
        RETURN;
    END IF;

    ids := ARRAY(
        SELECT d.id FROM datasets d WHERE d.org_id = org AND d.read_roles <> '{}' AND NOT d.read_roles && coalesce(roles, '{}')
        UNION
        SELECT h.dataset_uuid
        FROM hidden_generations(org, roles) h
        LEFT JOIN (dag_version_datasets p JOIN dag_current_versions c ON c.dag_version_id = p.dag_version_id)
            ON p.dataset_uuid = h.dataset_uuid
        WHERE p.dataset_version IS NULL OR p.dataset_version = h.dataset_version);
    IF key IS NOT NULL THEN
        PERFORM set_config('dagctl.kept_datasets', ids::text, true), set_config('dagctl.kept_datasets_key', key, true);
    END IF;
    RETURN QUERY SELECT unnest(ids);
END
$$;
-- +goose StatementEnd

-- hidden_jobs returns the rows of jobs of an org that a caller with these org roles may not look into: some of what they
-- make or read is hidden. Of a version of which only the record is left, the origins are hidden whose later rows are.
-- +goose StatementBegin
CREATE FUNCTION hidden_jobs(org UUID, roles TEXT[]) RETURNS SETOF UUID
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
        WITH pointed AS MATERIALIZED (
            SELECT p.dag_version_id, p.dataset_uuid, p.job_name
            FROM hidden_generations(org, roles) h JOIN dag_version_datasets p ON p.dataset_version = h.dataset_version),
        found AS (
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
            JOIN jobs j ON j.id = i.job_id)
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

-- A table of the same name in the caller's temporary schema must not be read with the owner's rights.
-- +goose StatementBegin
DO $$
DECLARE
    f TEXT;
BEGIN
    FOREACH f IN ARRAY ARRAY['hidden_generations', 'hidden_datasets', 'hidden_jobs'] LOOP
        EXECUTE format('ALTER FUNCTION %I(UUID, TEXT[]) SET search_path = %I, pg_temp', f, current_schema());
    END LOOP;
END
$$;
-- +goose StatementEnd

-- Outlines are what everybody in an org may know of a row, whether or not they may read what it is about: which rows
-- belong together, and which job makes them. They run with the owner's rights.
CREATE VIEW dataset_outlines AS
SELECT id, org_id, published, producer_dag_name, producer_job_name, producer_output_index FROM datasets
WHERE NOT (SELECT row_security_active('datasets'::regclass)) OR org_id = (SELECT NULLIF(current_setting('dagctl.org', true), '')::uuid);

CREATE VIEW generation_outlines AS
SELECT id, org_id, dataset_uuid, storage FROM dataset_versions
WHERE NOT (SELECT row_security_active('dataset_versions'::regclass)) OR org_id = (SELECT NULLIF(current_setting('dagctl.org', true), '')::uuid);

CREATE VIEW pointer_outlines AS
SELECT org_id, dag_version_id, dataset_uuid, dataset_version, job_name, output_index FROM dag_version_datasets
WHERE NOT (SELECT row_security_active('dag_version_datasets'::regclass)) OR org_id = (SELECT NULLIF(current_setting('dagctl.org', true), '')::uuid);

CREATE VIEW task_outlines AS
SELECT id, org_id, job_id, kind, status, reason, attempt, failures, max_attempts, version, runtime, needs, priority, class,
    progress, created_by, worker_id, run_at, started_at, completed_at, next_retry_at, created_at
FROM tasks
WHERE NOT (SELECT row_security_active('tasks'::regclass)) OR org_id = (SELECT NULLIF(current_setting('dagctl.org', true), '')::uuid);

GRANT SELECT ON dataset_outlines, generation_outlines, pointer_outlines, task_outlines TO dagctl_app;

-- All tasks of the org; of those that the reader may not look into, the outlines. Package dispatcher owns this view.
CREATE VIEW shown_tasks WITH (security_invoker = true) AS
SELECT o.*, c.id IS NOT NULL AS shown, c.dedupe_key, c.slot, c.partitions, c.input_versions, c.payload, c.metadata, c.state,
    c.error_message, c.outputs
FROM task_outlines o LEFT JOIN tasks c ON c.id = o.id;
GRANT SELECT ON shown_tasks TO dagctl_app;

-- reader_policies lists the tables with rows of what may be hidden, and which of their rows a reader sees. A transaction
-- names its reader in its first statement: dagctl.reader is 'some', dagctl.roles are the org roles that the reader has, and
-- dagctl.inspects are patterns, for LIKE, of the DAGs whose unpublished datasets it sees. Other transactions see all rows of
-- their org. Whatever is hidden is computed once in a statement, and only where the org has datasets with read roles.
CREATE FUNCTION reader_policies() RETURNS TABLE (relname TEXT, shown TEXT) IMMUTABLE LANGUAGE sql AS $$
    WITH reader AS (
        SELECT $q$NULLIF(current_setting('dagctl.org', true), '')::uuid, NULLIF(current_setting('dagctl.roles', true), '')::text[]$q$::text AS args),
    hidden AS (
        SELECT format('(SELECT h.dataset_version FROM hidden_generations(%s) AS h)', args) AS generations,
            format('(SELECT hidden_datasets(%s))', args) AS datasets, format('(SELECT hidden_jobs(%s))', args) AS jobs
        FROM reader),
    rules AS (
        SELECT 'datasets' AS relname, format($q$(published OR producer_dag_name LIKE ANY
            ((SELECT NULLIF(current_setting('dagctl.inspects', true), '')::text[])::text[])) AND id NOT IN %s$q$, datasets) AS shown
        FROM hidden
        UNION ALL SELECT t, format('dataset_uuid NOT IN %s', datasets)
        FROM hidden, unnest(ARRAY['dataset_names', 'dataset_readings']) AS t
        UNION ALL SELECT 'dataset_versions', format('id NOT IN %s', generations) FROM hidden
        UNION ALL SELECT t, format('dataset_version NOT IN %s', generations)
        FROM hidden, unnest(ARRAY['dag_version_datasets', 'partition_versions', 'check_results', 'events',
            'data_invalidations', 'effect_positions']) AS t
        UNION ALL SELECT 'partition_inputs', format('output_version NOT IN %1$s AND input_version NOT IN %1$s', generations) FROM hidden
        UNION ALL SELECT 'column_lineage',
            format('output_dataset_version NOT IN %1$s AND input_dataset_version NOT IN %1$s', generations) FROM hidden
        UNION ALL SELECT t, format('job_id NOT IN %s', jobs)
        FROM hidden, unnest(ARRAY['tasks', 'event_consumers', 'operator_state', 'backfills']) AS t
        UNION ALL SELECT t, 'EXISTS (SELECT FROM tasks t WHERE t.id = task_id)'
        FROM unnest(ARRAY['task_attempts', 'task_events', 'task_results', 'task_logs']) AS t
        UNION ALL SELECT 'backfill_partitions', 'EXISTS (SELECT FROM backfills b WHERE b.id = backfill_id)')
    SELECT r.relname, format($q$(SELECT current_setting('dagctl.reader', true)) IS DISTINCT FROM 'some' OR %s$q$, r.shown) FROM rules r
$$;

-- What versions say, of those that neither make nor read what is hidden from the reader. Whoever reads a version reads its
-- texts here, because the rest of its row is no secret. Of a version of which only the record is left, nobody knows what it
-- read, so its texts are hidden as soon as anything is.
CREATE VIEW dag_version_texts WITH (security_invoker = true) AS
SELECT v.id, v.org_id, v.yaml, v.files, v.vars, v.error
FROM dag_versions v
WHERE (SELECT current_setting('dagctl.reader', true)) IS DISTINCT FROM 'some'
   OR v.id NOT IN (
          SELECT j.dag_version_id FROM jobs j WHERE j.id IN (SELECT hidden_jobs(
              NULLIF(current_setting('dagctl.org', true), '')::uuid, NULLIF(current_setting('dagctl.roles', true), '')::text[])))
      AND (v.shrunk_at IS NULL OR NOT EXISTS (SELECT hidden_datasets(
              NULLIF(current_setting('dagctl.org', true), '')::uuid, NULLIF(current_setting('dagctl.roles', true), '')::text[])));
GRANT SELECT ON dag_version_texts TO dagctl_app;

-- +goose StatementBegin
DO $$
DECLARE
    p RECORD;
BEGIN
    FOR p IN SELECT * FROM reader_policies() LOOP
        EXECUTE format('CREATE POLICY shown_to_reader ON %I AS RESTRICTIVE FOR SELECT TO dagctl_app USING (%s)', p.relname, p.shown);
    END LOOP;
END
$$;
-- +goose StatementEnd
