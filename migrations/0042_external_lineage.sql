-- What producers outside tell by OpenLineage of jobs and datasets that are not dagctl's. Package lineage owns these tables.
-- +goose Up

-- external_runs gathers what the events of a run say until the run completes: some producers name inputs when it starts
-- and outputs when it ends. Rows older than a week are removed.
CREATE TABLE external_runs (
    org_id        UUID NOT NULL REFERENCES orgs (id),
    run_id        UUID NOT NULL,
    job_namespace TEXT NOT NULL,
    job_name      TEXT NOT NULL,
    inputs        JSONB NOT NULL DEFAULT '[]',
    outputs       JSONB NOT NULL DEFAULT '[]',
    at            TIMESTAMPTZ NOT NULL,
    PRIMARY KEY (org_id, run_id)
);
CREATE INDEX idx_external_runs_at ON external_runs (org_id, at);

-- external_edges has one row for each job outside and pair of datasets that it read and made. A node is the id of a
-- dataset of dagctl, external:NAMESPACE/NAME, or external-job:NAMESPACE/NAME where the job reads or makes nothing.
CREATE TABLE external_edges (
    org_id        UUID NOT NULL REFERENCES orgs (id),
    job_namespace TEXT NOT NULL,
    job_name      TEXT NOT NULL,
    from_node     TEXT NOT NULL,
    to_node       TEXT NOT NULL,
    from_dataset  UUID,
    to_dataset    UUID,
    columns       JSONB NOT NULL DEFAULT '[]', -- [{"from", "to", "transform"}]; empty: not known
    first_seen    TIMESTAMPTZ NOT NULL,
    last_seen     TIMESTAMPTZ NOT NULL,
    PRIMARY KEY (org_id, job_namespace, job_name, from_node, to_node),
    FOREIGN KEY (org_id, from_dataset) REFERENCES datasets (org_id, id),
    FOREIGN KEY (org_id, to_dataset) REFERENCES datasets (org_id, id)
);
CREATE INDEX idx_external_edges_from ON external_edges (org_id, from_node);
CREATE INDEX idx_external_edges_to ON external_edges (org_id, to_node);

-- hidden_externals returns the datasets outside that a caller with these org roles may not know of: those made, at any
-- distance, from datasets that the caller may not read. Who may read what stays as package registry decides it.
-- +goose StatementBegin
CREATE FUNCTION hidden_externals(org UUID, roles TEXT[]) RETURNS SETOF TEXT
STABLE SECURITY DEFINER LANGUAGE plpgsql AS $$
BEGIN
    IF NOT may_ask_of(org) OR NOT EXISTS (SELECT FROM external_edges e WHERE e.org_id = org) THEN
        RETURN;
    END IF;
    RETURN QUERY
    WITH RECURSIVE hidden AS (
        SELECT e.to_node FROM external_edges e
        WHERE e.org_id = org AND e.from_dataset IN (SELECT hidden_datasets(org, roles))
        UNION
        SELECT e.to_node FROM hidden h JOIN external_edges e ON e.org_id = org AND e.from_node = h.to_node)
    SELECT to_node FROM hidden;
END
$$;
-- +goose StatementEnd

-- A table of the same name in the caller's temporary schema must not be read with the owner's rights.
-- +goose StatementBegin
DO $$
BEGIN
    EXECUTE format('ALTER FUNCTION hidden_externals SET search_path = %I, pg_temp', current_schema());
    REVOKE ALL ON FUNCTION hidden_externals FROM PUBLIC;
    GRANT EXECUTE ON FUNCTION hidden_externals TO dagctl_app;
END
$$;
-- +goose StatementEnd

ALTER TABLE external_runs ENABLE ROW LEVEL SECURITY;
CREATE POLICY one_org ON external_runs TO dagctl_app
    USING (org_id = NULLIF(current_setting('dagctl.org', true), '')::uuid)
    WITH CHECK (org_id = NULLIF(current_setting('dagctl.org', true), '')::uuid);
ALTER TABLE external_edges ENABLE ROW LEVEL SECURITY;
CREATE POLICY one_org ON external_edges TO dagctl_app
    USING (org_id = NULLIF(current_setting('dagctl.org', true), '')::uuid)
    WITH CHECK (org_id = NULLIF(current_setting('dagctl.org', true), '')::uuid);

-- The policies of 0027, with what readers see of external_edges.
CREATE OR REPLACE FUNCTION reader_policies() RETURNS TABLE (relname TEXT, shown TEXT) IMMUTABLE LANGUAGE sql AS $$
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
        UNION ALL SELECT 'backfill_partitions', 'EXISTS (SELECT FROM backfills b WHERE b.id = backfill_id)'
        UNION ALL SELECT 'external_edges', format('(from_dataset IS NULL OR from_dataset NOT IN %1$s)
            AND (to_dataset IS NULL OR to_dataset NOT IN %1$s)
            AND from_node NOT IN (SELECT hidden_externals(%2$s)) AND to_node NOT IN (SELECT hidden_externals(%2$s))', datasets, args)
        FROM hidden, reader)
    SELECT r.relname, format($q$(SELECT current_setting('dagctl.reader', true)) IS DISTINCT FROM 'some' OR %s$q$, r.shown) FROM rules r
$$;
-- +goose StatementBegin
DO $$
BEGIN
    EXECUTE format('CREATE POLICY shown_to_reader ON external_edges AS RESTRICTIVE FOR SELECT TO dagctl_app USING (%s)',
        (SELECT shown FROM reader_policies() WHERE relname = 'external_edges'));
END
$$;
-- +goose StatementEnd
GRANT SELECT, INSERT, UPDATE, DELETE ON external_runs, external_edges TO dagctl_app;
