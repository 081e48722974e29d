-- Whether a generation, dataset or job is hidden is found by halving a sorted array, rather than in a set of all that is hidden,
-- which each statement built anew.
-- +goose Up

-- hidden_ids is what hidden_generations, hidden_datasets or hidden_jobs finds, sorted. A kind is 'version', 'dataset' or 'job'.
-- +goose StatementBegin
CREATE FUNCTION hidden_ids(kind TEXT, org UUID, roles TEXT[]) RETURNS UUID[] LANGUAGE plpgsql STABLE SECURITY DEFINER AS $$
#variable_conflict use_column
DECLARE
    ids UUID[];
BEGIN
    IF NOT may_ask_of(org) OR NOT EXISTS (SELECT FROM datasets d WHERE d.org_id = org AND d.read_roles <> '{}') THEN
        RETURN '{}';
    END IF;
    SELECT CASE kind WHEN 'version' THEN k.generations WHEN 'dataset' THEN k.datasets WHEN 'job' THEN k.jobs END INTO ids
    FROM kept_hidden k, reading_state(org) AS s
    WHERE k.org_id = org AND k.roles = coalesce(hidden_ids.roles, '{}') AND k.epoch = s.epoch AND k.changes = s.changes;
    IF FOUND THEN
        RETURN ids;
    END IF;
    CASE kind
    WHEN 'version' THEN RETURN ARRAY(SELECT h.dataset_version FROM hidden_generations(org, hidden_ids.roles) AS h ORDER BY 1);
    WHEN 'dataset' THEN RETURN ARRAY(SELECT hidden_datasets(org, hidden_ids.roles) ORDER BY 1);
    WHEN 'job' THEN RETURN ARRAY(SELECT hidden_jobs(org, hidden_ids.roles) ORDER BY 1);
    END CASE;
END
$$;
-- +goose StatementEnd

-- What is kept is sorted from now on.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION keep_hidden(org UUID, roles TEXT[]) RETURNS VOID LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    state RECORD;
BEGIN
    state := reading_state(org);
    IF state.changes > 1000 THEN
        INSERT INTO reading_epochs (org_id, epoch) VALUES (org, 1) ON CONFLICT (org_id) DO UPDATE SET epoch = reading_epochs.epoch + 1;
        DELETE FROM reading_changes c WHERE c.org_id = org;
        DELETE FROM kept_hidden k WHERE k.org_id = org;
        state := reading_state(org);
    END IF;
    INSERT INTO kept_hidden (org_id, roles, epoch, changes, kept_at, generations, made, datasets, jobs)
    SELECT org, coalesce(keep_hidden.roles, '{}'), state.epoch, state.changes, now(), coalesce(g.ids, '{}'), coalesce(g.made, '{}'),
        ARRAY(SELECT hidden_datasets(org, keep_hidden.roles) ORDER BY 1), ARRAY(SELECT hidden_jobs(org, keep_hidden.roles) ORDER BY 1)
    FROM (SELECT array_agg(h.dataset_version ORDER BY h.dataset_version) AS ids, array_agg(h.dataset_uuid ORDER BY h.dataset_version) AS made
          FROM hidden_generations(org, keep_hidden.roles) AS h) AS g
    ON CONFLICT (org_id, roles) DO UPDATE SET epoch = EXCLUDED.epoch, changes = EXCLUDED.changes, kept_at = EXCLUDED.kept_at,
        generations = EXCLUDED.generations, made = EXCLUDED.made, datasets = EXCLUDED.datasets, jobs = EXCLUDED.jobs;
END
$$;
-- +goose StatementEnd
DELETE FROM kept_hidden;

-- +goose StatementBegin
CREATE OR REPLACE FUNCTION reader_policies() RETURNS TABLE (relname TEXT, shown TEXT) IMMUTABLE LANGUAGE sql AS $$
    WITH reader AS (
        SELECT $q$NULLIF(current_setting('dagctl.org', true), '')::uuid, NULLIF(current_setting('dagctl.roles', true), '')::text[]$q$::text AS args),
    -- Conditions by table: a column whose ids are not among the hidden ones of a kind. n is their order.
    by_id AS (
        SELECT t AS relname, string_agg(format('coalesce(%2$s[width_bucket(%1$I, %2$s)] <> %1$I, true)', c,
            format('(SELECT hidden_ids(%L, %s))', kind, args)), ' AND ' ORDER BY n) AS shown
        FROM reader, (VALUES
            (1, 'dataset_versions', 'id', 'version'), (1, 'dag_version_datasets', 'dataset_version', 'version'),
            (1, 'partition_versions', 'dataset_version', 'version'), (1, 'check_results', 'dataset_version', 'version'),
            (1, 'events', 'dataset_version', 'version'), (1, 'data_invalidations', 'dataset_version', 'version'),
            (1, 'effect_positions', 'dataset_version', 'version'), (1, 'partition_inputs', 'output_version', 'version'),
            (2, 'partition_inputs', 'input_version', 'version'), (1, 'column_lineage', 'output_dataset_version', 'version'),
            (2, 'column_lineage', 'input_dataset_version', 'version'), (1, 'datasets', 'id', 'dataset'),
            (1, 'dataset_names', 'dataset_uuid', 'dataset'), (1, 'dataset_readings', 'dataset_uuid', 'dataset'),
            (1, 'external_edges', 'from_dataset', 'dataset'), (2, 'external_edges', 'to_dataset', 'dataset'),
            (1, 'tasks', 'job_id', 'job'), (1, 'event_consumers', 'job_id', 'job'), (1, 'operator_state', 'job_id', 'job'),
            (1, 'backfills', 'job_id', 'job')) AS v(n, t, c, kind)
        GROUP BY t),
    rules AS (
        SELECT relname, shown || CASE relname
            WHEN 'datasets' THEN $q$ AND (published OR producer_dag_name LIKE ANY
                ((SELECT NULLIF(current_setting('dagctl.inspects', true), '')::text[])::text[]))$q$
            WHEN 'external_edges' THEN
                format(' AND from_node NOT IN (SELECT hidden_externals(%1$s)) AND to_node NOT IN (SELECT hidden_externals(%1$s))', args)
            ELSE '' END AS shown
        FROM by_id, reader
        UNION ALL SELECT t, 'EXISTS (SELECT FROM tasks t WHERE t.id = task_id)'
        FROM unnest(ARRAY['task_attempts', 'task_events', 'task_results', 'task_logs']) AS t
        UNION ALL SELECT 'backfill_partitions', 'EXISTS (SELECT FROM backfills b WHERE b.id = backfill_id)')
    SELECT r.relname, format($q$(SELECT current_setting('dagctl.reader', true)) IS DISTINCT FROM 'some' OR %s$q$, r.shown) FROM rules r
$$;
-- +goose StatementEnd

-- +goose StatementBegin
DO $$
DECLARE
    p RECORD;
BEGIN
    EXECUTE format('ALTER FUNCTION hidden_ids SET search_path = %I, pg_temp', current_schema());
    FOR p IN SELECT * FROM reader_policies() WHERE shown LIKE '%hidden_ids%' LOOP
        EXECUTE format('ALTER POLICY shown_to_reader ON %I USING (%s)', p.relname, p.shown);
    END LOOP;
END
$$;
-- +goose StatementEnd
