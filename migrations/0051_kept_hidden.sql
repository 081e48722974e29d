-- What is hidden from a reader is kept until something changes that decides it: it was found anew in each transaction.
-- Package registry owns the tables and the functions.
-- +goose Up

-- reading_changes has a row for each transaction that changed what decides who may read what. Its triggers below write
-- it, whoever makes the change. No transaction waits for another one because of it.
CREATE TABLE reading_changes (
    org_id UUID NOT NULL REFERENCES orgs (id),
    id     BIGINT GENERATED ALWAYS AS IDENTITY,
    PRIMARY KEY (org_id, id)
);

-- reading_epochs has the number of times that the changes of an org were removed.
CREATE TABLE reading_epochs (
    org_id UUID PRIMARY KEY REFERENCES orgs (id),
    epoch  BIGINT NOT NULL
);

-- kept_hidden keeps what the functions hidden_* return for some org roles, as of an epoch and a number of changes in it.
-- Those two name what a transaction sees: within an epoch changes are only added, and all transactions see them in the
-- order of their commits.
CREATE TABLE kept_hidden (
    org_id      UUID NOT NULL REFERENCES orgs (id),
    roles       TEXT[] NOT NULL,
    epoch       BIGINT NOT NULL,
    changes     BIGINT NOT NULL,
    kept_at     TIMESTAMPTZ NOT NULL,
    generations UUID[] NOT NULL,
    made        UUID[] NOT NULL, -- the dataset of each generation
    datasets    UUID[] NOT NULL,
    jobs        UUID[] NOT NULL,
    PRIMARY KEY (org_id, roles)
);
ALTER TABLE kept_hidden ALTER generations SET STORAGE EXTERNAL, ALTER made SET STORAGE EXTERNAL,
    ALTER datasets SET STORAGE EXTERNAL, ALTER jobs SET STORAGE EXTERNAL; -- random bits do not shrink

-- Requests reach none of them but by the functions.
ALTER TABLE reading_changes ENABLE ROW LEVEL SECURITY;
ALTER TABLE reading_epochs ENABLE ROW LEVEL SECURITY;
ALTER TABLE kept_hidden ENABLE ROW LEVEL SECURITY;

-- note_reading_change notes that this transaction changes what decides who may read what in an org, once.
-- +goose StatementBegin
CREATE FUNCTION note_reading_change(org UUID) RETURNS VOID LANGUAGE plpgsql AS $$
BEGIN
    IF current_setting('dagctl.reading_change', true) IS DISTINCT FROM org::text THEN
        INSERT INTO reading_changes (org_id) VALUES (org);
        PERFORM set_config('dagctl.reading_change', org::text, true);
    END IF;
END
$$;
-- +goose StatementEnd
REVOKE ALL ON FUNCTION note_reading_change FROM PUBLIC;

-- +goose StatementBegin
CREATE FUNCTION note_reading_rows() RETURNS TRIGGER SECURITY DEFINER LANGUAGE plpgsql AS $$
BEGIN
    PERFORM note_reading_change(c.org_id) FROM (SELECT DISTINCT org_id FROM changed) AS c;
    RETURN NULL;
END
$$;
-- +goose StatementEnd

-- +goose StatementBegin
CREATE FUNCTION note_reading_row() RETURNS TRIGGER SECURITY DEFINER LANGUAGE plpgsql AS $$
BEGIN
    PERFORM note_reading_change(NEW.org_id);
    RETURN NULL;
END
$$;
-- +goose StatementEnd

-- +goose StatementBegin
DO $$
DECLARE
    t       TEXT;
    decides RECORD;
BEGIN
    FOREACH t IN ARRAY ARRAY['datasets', 'dataset_versions', 'generation_inputs', 'dag_version_datasets',
        'dag_current_versions', 'jobs', 'job_inputs', 'dag_versions'] LOOP
        EXECUTE format('CREATE TRIGGER added_for_readers AFTER INSERT ON %I REFERENCING NEW TABLE AS changed
            FOR EACH STATEMENT EXECUTE FUNCTION note_reading_rows()', t);
        EXECUTE format('CREATE TRIGGER removed_for_readers AFTER DELETE ON %I REFERENCING OLD TABLE AS changed
            FOR EACH STATEMENT EXECUTE FUNCTION note_reading_rows()', t);
    END LOOP;

    -- What else these rows say is updated often, and decides nothing.
    FOR decides IN SELECT * FROM (VALUES
        ('datasets', 'NEW.read_roles <> OLD.read_roles OR NEW.opened <> OLD.opened'),
        ('dataset_versions', 'NEW.purged_at IS DISTINCT FROM OLD.purged_at OR NEW.dataset_uuid <> OLD.dataset_uuid'),
        ('dag_versions', 'NEW.shrunk_at IS DISTINCT FROM OLD.shrunk_at'),
        ('generation_inputs', 'NEW IS DISTINCT FROM OLD'), ('dag_version_datasets', 'NEW IS DISTINCT FROM OLD'),
        ('dag_current_versions', 'NEW IS DISTINCT FROM OLD'), ('jobs', 'NEW IS DISTINCT FROM OLD'),
        ('job_inputs', 'NEW IS DISTINCT FROM OLD')) AS d (relname, condition) LOOP
        EXECUTE format('CREATE TRIGGER changed_for_readers AFTER UPDATE ON %I
            FOR EACH ROW WHEN (%s) EXECUTE FUNCTION note_reading_row()', decides.relname, decides.condition);
    END LOOP;
END
$$;
-- +goose StatementEnd

-- reading_state names what this statement sees of the changes of an org.
CREATE FUNCTION reading_state(org UUID, OUT epoch BIGINT, OUT changes BIGINT) STABLE LANGUAGE sql AS $$
    SELECT coalesce((SELECT e.epoch FROM reading_epochs e WHERE e.org_id = org), 0),
        (SELECT count(*) FROM reading_changes c WHERE c.org_id = org)
$$;

-- hidden_is_kept reports whether the functions hidden_* need not find anything for a caller with these org roles.
-- +goose StatementBegin
CREATE FUNCTION hidden_is_kept(org UUID, roles TEXT[]) RETURNS BOOLEAN STABLE SECURITY DEFINER LANGUAGE sql AS $$
    SELECT NOT may_ask_of(org)
        OR NOT EXISTS (SELECT FROM datasets d WHERE d.org_id = org AND d.read_roles <> '{}')
        OR EXISTS (
            SELECT FROM kept_hidden k, reading_state(org) AS s
            WHERE k.org_id = org AND k.roles = coalesce(hidden_is_kept.roles, '{}') AND k.epoch = s.epoch AND k.changes = s.changes)
$$;
-- +goose StatementEnd

-- hidden_generations, hidden_datasets and hidden_jobs as in 0027 and 0043, except that they look first at what is kept.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION hidden_generations(org UUID, roles TEXT[]) RETURNS TABLE (dataset_version UUID, dataset_uuid UUID)
STABLE SECURITY DEFINER LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    key      TEXT;
    versions UUID[];
    made     UUID[];
BEGIN
    IF NOT may_ask_of(org) OR NOT EXISTS (SELECT FROM datasets d WHERE d.org_id = org AND d.read_roles <> '{}') THEN
        RETURN;
    END IF;
    SELECT k.generations, k.made INTO versions, made
    FROM kept_hidden k, reading_state(org) AS s
    WHERE k.org_id = org AND k.roles = coalesce(hidden_generations.roles, '{}') AND k.epoch = s.epoch AND k.changes = s.changes;
    IF FOUND THEN
        RETURN QUERY SELECT * FROM unnest(versions, made);
        RETURN;
    END IF;

    key := kept_key(org, hidden_generations.roles);
    IF key = current_setting('dagctl.kept_generations_key', true) THEN
        RETURN QUERY SELECT * FROM unnest(current_setting('dagctl.kept_generations')::uuid[], current_setting('dagctl.kept_generations_of')::uuid[]);
        RETURN;
    END IF;

    -- LIMIT 1 keeps the planner, which takes each step to be large, from reading whole tables for it.
    WITH RECURSIVE hidden AS (
        SELECT g.id, g.dataset_uuid, g.purged_at
        FROM datasets d JOIN dataset_versions g ON g.dataset_uuid = d.id
        WHERE d.org_id = org AND d.read_roles <> '{}' AND NOT d.read_roles && coalesce(hidden_generations.roles, '{}')
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
    SELECT coalesce(array_agg(h.id), '{}'), coalesce(array_agg(h.dataset_uuid), '{}') INTO versions, made FROM hidden h;
    IF key IS NOT NULL THEN
        PERFORM set_config('dagctl.kept_generations', versions::text, true), set_config('dagctl.kept_generations_of', made::text, true),
            set_config('dagctl.kept_generations_key', key, true);
    END IF;
    RETURN QUERY SELECT * FROM unnest(versions, made);
END
$$;
-- +goose StatementEnd

-- +goose StatementBegin
CREATE OR REPLACE FUNCTION hidden_datasets(org UUID, roles TEXT[]) RETURNS SETOF UUID
STABLE SECURITY DEFINER LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    key TEXT;
    ids UUID[];
BEGIN
    IF NOT may_ask_of(org) OR NOT EXISTS (SELECT FROM datasets d WHERE d.org_id = org AND d.read_roles <> '{}') THEN
        RETURN;
    END IF;
    SELECT k.datasets INTO ids
    FROM kept_hidden k, reading_state(org) AS s
    WHERE k.org_id = org AND k.roles = coalesce(hidden_datasets.roles, '{}') AND k.epoch = s.epoch AND k.changes = s.changes;
    IF FOUND THEN
        RETURN QUERY SELECT unnest(ids);
        RETURN;
    END IF;

    key := kept_key(org, hidden_datasets.roles);
    IF key = current_setting('dagctl.kept_datasets_key', true) THEN
        RETURN QUERY SELECT unnest(current_setting('dagctl.kept_datasets')::uuid[]);
        RETURN;
    END IF;

    ids := ARRAY(
        SELECT d.id FROM datasets d WHERE d.org_id = org AND d.read_roles <> '{}' AND NOT d.read_roles && coalesce(hidden_datasets.roles, '{}')
        UNION
        SELECT h.dataset_uuid
        FROM hidden_generations(org, hidden_datasets.roles) h
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

-- +goose StatementBegin
CREATE OR REPLACE FUNCTION hidden_jobs(org UUID, roles TEXT[]) RETURNS SETOF UUID
STABLE SECURITY DEFINER LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    key TEXT;
    ids UUID[];
BEGIN
    IF NOT may_ask_of(org) OR NOT EXISTS (SELECT FROM datasets d WHERE d.org_id = org AND d.read_roles <> '{}') THEN
        RETURN;
    END IF;
    SELECT k.jobs INTO ids
    FROM kept_hidden k, reading_state(org) AS s
    WHERE k.org_id = org AND k.roles = coalesce(hidden_jobs.roles, '{}') AND k.epoch = s.epoch AND k.changes = s.changes;
    IF FOUND THEN
        RETURN QUERY SELECT unnest(ids);
        RETURN;
    END IF;

    key := kept_key(org, hidden_jobs.roles);
    IF key = current_setting('dagctl.kept_jobs_key', true) THEN
        RETURN QUERY SELECT unnest(current_setting('dagctl.kept_jobs')::uuid[]);
        RETURN;
    END IF;

    ids := ARRAY(
        WITH RECURSIVE pointed AS MATERIALIZED (
            SELECT p.dag_version_id, p.dataset_uuid, p.job_name
            FROM hidden_generations(org, hidden_jobs.roles) h JOIN dag_version_datasets p ON p.dataset_version = h.dataset_version),
        reading AS (
            SELECT j.id, j.origin_job_id FROM pointed p JOIN jobs j ON j.dag_version_id = p.dag_version_id AND j.name = p.job_name
            UNION
            SELECT j.id, j.origin_job_id
            FROM pointed p
            JOIN job_inputs i ON i.dataset_uuid = p.dataset_uuid AND i.dag_version_id = p.dag_version_id AND i.in_dag
            JOIN jobs j ON j.id = i.job_id
            UNION
            SELECT j.id, j.origin_job_id
            FROM hidden_datasets(org, hidden_jobs.roles) AS d(id)
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

-- keep_hidden keeps what they find now. One snapshot has to hold for its transaction, so that what is kept is of the state
-- that it is kept for.
-- +goose StatementBegin
CREATE FUNCTION keep_hidden(org UUID, roles TEXT[]) RETURNS VOID LANGUAGE plpgsql AS $$
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
        ARRAY(SELECT hidden_datasets(org, keep_hidden.roles)), ARRAY(SELECT hidden_jobs(org, keep_hidden.roles))
    FROM (SELECT array_agg(h.dataset_version) AS ids, array_agg(h.dataset_uuid) AS made
          FROM hidden_generations(org, keep_hidden.roles) AS h) AS g
    ON CONFLICT (org_id, roles) DO UPDATE SET epoch = EXCLUDED.epoch, changes = EXCLUDED.changes, kept_at = EXCLUDED.kept_at,
        generations = EXCLUDED.generations, made = EXCLUDED.made, datasets = EXCLUDED.datasets, jobs = EXCLUDED.jobs;
END
$$;
-- +goose StatementEnd

-- A table of the same name in the caller's temporary schema must not be read with the owner's rights.
-- +goose StatementBegin
DO $$
DECLARE
    f TEXT;
BEGIN
    FOREACH f IN ARRAY ARRAY['hidden_generations', 'hidden_datasets', 'hidden_jobs', 'hidden_is_kept',
        'note_reading_rows', 'note_reading_row'] LOOP
        EXECUTE format('ALTER FUNCTION %I SET search_path = %I, pg_temp', f, current_schema());
    END LOOP;
END
$$;
-- +goose StatementEnd
REVOKE ALL ON FUNCTION keep_hidden FROM PUBLIC;
