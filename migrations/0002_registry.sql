-- DAG versions, jobs, datasets, their generations and their partitions. Package registry owns these tables.
-- +goose Up

CREATE TABLE dag_versions (
    id              UUID PRIMARY KEY DEFAULT gen_random_uuid(),
    org_id          UUID NOT NULL REFERENCES orgs (id),
    dag_name        TEXT NOT NULL,
    number          INT NOT NULL,   -- v1, v2, ... within the DAG
    yaml_hash       TEXT NOT NULL,  -- of the resolved document
    source_hash     TEXT NOT NULL,  -- of the file's text
    yaml            TEXT NOT NULL,
    files           JSONB NOT NULL DEFAULT '{}', -- the files deployed with it: path -> text or base64
    vars            JSONB NOT NULL DEFAULT '{}',
    notify          JSONB NOT NULL DEFAULT '[]', -- whom to notify of problems, from the document
    status          TEXT NOT NULL DEFAULT 'Staged'
                    CHECK (status IN ('Staged', 'Building', 'Ready', 'Active', 'Superseded', 'Failed', 'Abandoned')),
    activate        BOOLEAN NOT NULL DEFAULT true, -- false: a Ready version waits until it is promoted
    passes          BOOLEAN NOT NULL DEFAULT false, -- it rebuilds nothing, so it does not wait for the build in progress
    forward_only    BOOLEAN NOT NULL DEFAULT false, -- what it rebuilds permanently takes over the partitions of what served:
    forward_from    TEXT,                           -- only those before this one; NULL: all of them
    consents        TEXT[] NOT NULL DEFAULT '{}' CHECK (consents <@ ARRAY['cancel-tasks', 'allow-removals', 'allow-moves', 'allow-breaking']), -- what its deploy agreed to
    contract        JSONB, -- what it promises to readers (contract.Contract), written when its first build was complete
    created_by      TEXT NOT NULL,
    source_ref      TEXT,
    base_version_id UUID REFERENCES dag_versions (id), -- the version it replaces; every earlier cutover updates it
    created_at      TIMESTAMPTZ NOT NULL DEFAULT now(),
    building_at     TIMESTAMPTZ,
    ready_at        TIMESTAMPTZ,
    activated_at    TIMESTAMPTZ,
    ended_at        TIMESTAMPTZ, -- when it was last replaced, failed, abandoned or deleted; gc counts its retention from here
    tasks_ended_at  TIMESTAMPTZ, -- ended_at, once the tasks that only this version wanted were canceled
    tasks_end       BOOLEAN NOT NULL GENERATED ALWAYS AS (ended_at IS NOT NULL AND tasks_ended_at IS DISTINCT FROM ended_at) STORED, -- they are to be
    shrunk_at       TIMESTAMPTZ, -- when it became a record: its jobs, pointers and contract are gone, except the jobs that it introduced
    error           TEXT,
    UNIQUE (org_id, dag_name, number),
    UNIQUE (org_id, id)
);
-- A document is one version, until that is a record only; then it can be deployed as another one.
CREATE UNIQUE INDEX idx_dag_versions_hash ON dag_versions (org_id, dag_name, yaml_hash) WHERE shrunk_at IS NULL;
CREATE INDEX idx_dag_versions_ended ON dag_versions (ended_at) WHERE shrunk_at IS NULL AND ended_at IS NOT NULL;
-- The few versions that the dispatcher works on.
CREATE INDEX idx_dag_versions_open ON dag_versions (org_id, dag_name) WHERE status IN ('Building', 'Ready', 'Active');
CREATE INDEX idx_dag_versions_tasks ON dag_versions (org_id, dag_name) WHERE tasks_end;

CREATE TABLE dag_current_versions (
    org_id              UUID NOT NULL REFERENCES orgs (id),
    dag_name            TEXT NOT NULL,
    dag_version_id      UUID NOT NULL,
    previous_version_id UUID,
    rollback_until      TIMESTAMPTZ,
    updated_at          TIMESTAMPTZ NOT NULL DEFAULT now(),
    PRIMARY KEY (org_id, dag_name),
    FOREIGN KEY (org_id, dag_version_id) REFERENCES dag_versions (org_id, id),
    FOREIGN KEY (org_id, previous_version_id) REFERENCES dag_versions (org_id, id)
);

CREATE TABLE dag_activations (
    id              UUID PRIMARY KEY,
    org_id          UUID NOT NULL REFERENCES orgs (id),
    dag_name        TEXT NOT NULL,
    dag_version_id  UUID NOT NULL,
    from_version_id UUID,
    reason          TEXT NOT NULL CHECK (reason IN ('deploy', 'rollback', 'promote')),
    actor           TEXT NOT NULL,
    at              TIMESTAMPTZ NOT NULL DEFAULT now(),
    FOREIGN KEY (org_id, dag_version_id) REFERENCES dag_versions (org_id, id),
    FOREIGN KEY (org_id, from_version_id) REFERENCES dag_versions (org_id, id)
);
CREATE INDEX idx_dag_activations_dag ON dag_activations (org_id, dag_name, at DESC);

-- Versions that gc keeps, whatever their age.
CREATE TABLE pins (
    org_id         UUID NOT NULL REFERENCES orgs (id),
    dag_name       TEXT NOT NULL,
    dag_version_id UUID NOT NULL,
    actor          TEXT NOT NULL,
    reason         TEXT NOT NULL,
    until          TIMESTAMPTZ, -- NULL: until somebody removes the pin
    at             TIMESTAMPTZ NOT NULL DEFAULT now(),
    PRIMARY KEY (dag_version_id),
    FOREIGN KEY (org_id, dag_version_id) REFERENCES dag_versions (org_id, id)
);

-- User code that is uploaded before the DAGs that use it. Files that a deploy uploads itself are in
-- dag_versions.files.
CREATE TABLE udf_bundles (
    org_id     UUID NOT NULL REFERENCES orgs (id),
    hash       TEXT NOT NULL, -- SHA-256 over paths and contents
    archive    BYTEA NOT NULL, -- zip
    files      INT NOT NULL,
    bytes      BIGINT NOT NULL,
    created_by TEXT NOT NULL,
    created_at TIMESTAMPTZ NOT NULL DEFAULT now(),
    PRIMARY KEY (org_id, hash)
);

-- One row per job and version. origin_job_id is the row that introduced (org, dag, name, fingerprint): tasks, dedupe
-- keys, cursors and operator state belong to the origin, so an unchanged job keeps them over any number of deploys.
CREATE TABLE jobs (
    id                        UUID PRIMARY KEY DEFAULT gen_random_uuid(),
    org_id                    UUID NOT NULL, -- the foreign keys below check it
    name                      TEXT NOT NULL,
    dag_name                  TEXT NOT NULL,
    dag_version_id            UUID NOT NULL,
    origin_job_id             UUID NOT NULL,
    fingerprint               TEXT NOT NULL,
    base_fingerprint          TEXT NOT NULL, -- without any epoch
    build_epoch               INT NOT NULL DEFAULT 0,
    activation                TEXT NOT NULL CHECK (activation IN ('source', 'reactive')),
    runtime                   TEXT NOT NULL,
    operator                  TEXT NOT NULL,
    operator_version          TEXT NOT NULL,
    source                    JSONB,
    bootstrap                 JSONB,
    execution_strategy        TEXT CHECK (execution_strategy IN ('PerUpdate', 'PerPartition')),
    trigger                   TEXT CHECK (trigger IN ('all', 'any')),
    idle_timeout              TEXT,
    config                    JSONB NOT NULL DEFAULT '{}',
    config_hash               TEXT NOT NULL,
    input_datasets            TEXT[],
    output_datasets           TEXT[],
    partition_by              JSONB NOT NULL DEFAULT '{}',
    update_strategy           TEXT NOT NULL CHECK (update_strategy IN ('append', 'replace')),
    unique_key                TEXT[],
    effect                    TEXT NOT NULL CHECK (effect IN ('internal', 'external')),
    udf                       JSONB,
    secrets                   TEXT[] NOT NULL DEFAULT '{}',
    scaling                   JSONB,
    priority                  INT NOT NULL DEFAULT 0,
    concurrency_key           TEXT,
    timeout_seconds           INT,
    heartbeat_timeout_seconds INT,
    max_attempts              INT NOT NULL DEFAULT 3,
    definition                JSONB NOT NULL, -- the resolved job (dag.Job), which the engine runs
    by_column                 BOOLEAN NOT NULL DEFAULT false, -- its fingerprint heeds which columns its query reads
    created_at                TIMESTAMPTZ NOT NULL DEFAULT now(),
    updated_at                TIMESTAMPTZ NOT NULL DEFAULT now(),
    UNIQUE (dag_version_id, name),
    UNIQUE (org_id, id),
    -- A plan, which writes nothing, puts the keys off until it rolls back.
    FOREIGN KEY (org_id, dag_version_id) REFERENCES dag_versions (org_id, id) DEFERRABLE,
    FOREIGN KEY (org_id, origin_job_id) REFERENCES jobs (org_id, id) DEFERRABLE
);
CREATE INDEX idx_jobs_origin ON jobs (origin_job_id, dag_version_id);
-- One origin per definition: two deploys that introduce the same job cannot both insert its origin.
CREATE UNIQUE INDEX idx_jobs_one_origin ON jobs (org_id, dag_name, name, fingerprint) WHERE id = origin_job_id;

-- job_address returns DAG/JOB, for messages of statements that do not load jobs.
CREATE FUNCTION job_address(job UUID) RETURNS TEXT STABLE LANGUAGE sql AS 'SELECT dag_name || ''/'' || name FROM jobs WHERE id = $1';

-- A deploy begins with the epochs of the version that serves, and for definitions that do not serve, with these.
CREATE TABLE build_epochs (
    org_id      UUID NOT NULL REFERENCES orgs (id),
    dag_name    TEXT NOT NULL,
    job_name    TEXT NOT NULL,
    fingerprint TEXT NOT NULL, -- without any epoch
    epoch       INT NOT NULL, -- with which the definition served last, or the first that it was given before it served
    highest     INT NOT NULL, -- that a version of it ever had, whether or not that served
    PRIMARY KEY (org_id, dag_name, job_name, fingerprint)
);

CREATE TABLE datasets (
    id                    UUID PRIMARY KEY DEFAULT gen_random_uuid(),
    org_id                UUID NOT NULL REFERENCES orgs (id),
    name                  TEXT NOT NULL, -- the published name, or dag/job/output
    published             BOOLEAN NOT NULL DEFAULT false,
    producer_dag_name     TEXT NOT NULL,
    producer_job_name     TEXT NOT NULL,
    producer_output_index INT NOT NULL,
    storage               JSONB NOT NULL DEFAULT '{}',
    read_roles            TEXT[] NOT NULL DEFAULT '{}',
    description           TEXT,
    owner                 TEXT,
    tags                  TEXT[] NOT NULL DEFAULT '{}',
    columns               JSONB NOT NULL DEFAULT '{}', -- column -> description
    due_within_seconds    INT,
    late_noted            JSONB, -- the lateness that was last announced
    deleted_at            TIMESTAMPTZ,
    created_at            TIMESTAMPTZ NOT NULL DEFAULT now(),
    updated_at            TIMESTAMPTZ NOT NULL DEFAULT now(),
    CONSTRAINT datasets_org_id_name_key UNIQUE (org_id, name) DEFERRABLE INITIALLY IMMEDIATE, -- a cutover may swap two names
    UNIQUE (org_id, id)
);
-- Which job fills a dataset is what a version says (dag_version_datasets.job_name). The producer's name here is the one
-- in the version that serves, or the last one that the dataset had, so several may have had it.
CREATE INDEX idx_datasets_producer ON datasets (org_id, producer_dag_name, producer_job_name);

-- What DAGs publish, by name. The newest claim owns the name; when it goes, the one before it owns the name again. A
-- cutover writes the claims of its own DAG.
CREATE TABLE dataset_names (
    org_id        UUID NOT NULL, -- the foreign keys below check it
    name          TEXT NOT NULL,
    dag_name      TEXT NOT NULL,
    dataset_uuid  UUID NOT NULL,
    activation_id UUID NOT NULL REFERENCES dag_activations (id), -- the cutover that made the claim
    claim         BIGINT GENERATED ALWAYS AS IDENTITY, -- the order of claims
    PRIMARY KEY (org_id, name, dag_name),
    FOREIGN KEY (org_id, dataset_uuid) REFERENCES datasets (org_id, id)
);
CREATE INDEX idx_dataset_names_dag ON dataset_names (org_id, dag_name);

-- A generation of a dataset has one config hash and one storage location.
CREATE TABLE dataset_versions (
    id                     UUID PRIMARY KEY DEFAULT gen_random_uuid(),
    org_id                 UUID NOT NULL, -- the foreign keys below check it
    dataset_uuid           UUID NOT NULL,
    origin_job_id          UUID NOT NULL,
    storage_location       TEXT NOT NULL,
    storage                JSONB NOT NULL DEFAULT '{}',
    partition_by           JSONB NOT NULL DEFAULT '{}',
    config_hash            TEXT NOT NULL,
    schema                 JSONB,
    schema_hash            TEXT,
    range_start            BIGINT,
    range_end              BIGINT,
    continues              UUID, -- the generation whose partitions it takes over (deploy --forward-only)
    created_by_dag_version UUID NOT NULL,
    created_at             TIMESTAMPTZ NOT NULL DEFAULT now(),
    purged_at              TIMESTAMPTZ, -- from then on nothing finds it
    cleared_at             TIMESTAMPTZ, -- when its bytes and the rows of its partitions were removed
    UNIQUE NULLS NOT DISTINCT (dataset_uuid, config_hash, range_start, range_end),
    UNIQUE (org_id, id),
    FOREIGN KEY (org_id, dataset_uuid) REFERENCES datasets (org_id, id),
    FOREIGN KEY (org_id, origin_job_id) REFERENCES jobs (org_id, id),
    FOREIGN KEY (org_id, created_by_dag_version) REFERENCES dag_versions (org_id, id)
);
CREATE INDEX idx_dataset_versions_origin ON dataset_versions (origin_job_id);
CREATE INDEX idx_dataset_versions_config ON dataset_versions (org_id, config_hash);
CREATE INDEX idx_dataset_versions_uncleared ON dataset_versions (org_id) WHERE purged_at IS NOT NULL AND cleared_at IS NULL;

-- How the text files of a dataset are read: what was not declared was inferred from the first content that said it.
CREATE TABLE dataset_readings (
    org_id       UUID NOT NULL, -- the foreign key below checks it
    dataset_uuid UUID NOT NULL,
    declaration  TEXT NOT NULL, -- hash of what the job's config says of it
    build_epoch  BIGINT NOT NULL, -- `rematerialize` infers it anew
    reading      JSONB NOT NULL,
    was          JSONB, -- the reading before
    task_id      UUID NOT NULL, -- that settled it
    settled_at   TIMESTAMPTZ NOT NULL DEFAULT now(),
    PRIMARY KEY (dataset_uuid, declaration, build_epoch),
    FOREIGN KEY (org_id, dataset_uuid) REFERENCES datasets (org_id, id)
);
CREATE INDEX idx_dataset_readings_task ON dataset_readings (task_id);

-- The generations that queries read which may take longer than the reader grace.
CREATE TABLE reader_leases (
    id              UUID NOT NULL, -- of the read, which may hold several generations
    org_id          UUID NOT NULL,
    dataset_version UUID NOT NULL,
    reader          TEXT NOT NULL,
    expires_at      TIMESTAMPTZ NOT NULL,
    PRIMARY KEY (id, dataset_version),
    FOREIGN KEY (org_id, dataset_version) REFERENCES dataset_versions (org_id, id)
);
CREATE INDEX idx_reader_leases_version ON reader_leases (dataset_version);

-- The pointer set of a DAG version. Readers see the rows of the current version.
CREATE TABLE dag_version_datasets (
    org_id          UUID NOT NULL, -- the foreign keys below check it
    dag_version_id  UUID NOT NULL,
    dataset_uuid    UUID NOT NULL,
    dataset_version UUID NOT NULL,
    job_name        TEXT NOT NULL, -- the output that fills it
    output_index    INT NOT NULL,
    name            TEXT NOT NULL, -- what the dataset is called while this version serves
    published_name  TEXT,
    publication     JSONB, -- description, owner, tags, columns, due; the cutover copies them to datasets
    PRIMARY KEY (dag_version_id, dataset_uuid),
    UNIQUE (dag_version_id, job_name, output_index),
    FOREIGN KEY (org_id, dag_version_id) REFERENCES dag_versions (org_id, id) DEFERRABLE,
    FOREIGN KEY (org_id, dataset_uuid) REFERENCES datasets (org_id, id) DEFERRABLE,
    FOREIGN KEY (org_id, dataset_version) REFERENCES dataset_versions (org_id, id) DEFERRABLE
);
CREATE INDEX idx_dag_version_datasets_version ON dag_version_datasets (dataset_version, dag_version_id);
CREATE UNIQUE INDEX idx_dag_version_datasets_name ON dag_version_datasets (dag_version_id, published_name) WHERE published_name IS NOT NULL;

-- The inputs of a job row. An input from the same DAG reads the generation that the job's own version pins; an input
-- from another DAG reads the one that DAG's current version points at.
CREATE TABLE job_inputs (
    org_id         UUID NOT NULL, -- the foreign keys below check it
    job_id         UUID NOT NULL,
    input_index    INT NOT NULL,
    dataset_uuid   UUID NOT NULL,
    in_dag         BOOLEAN NOT NULL,
    triggers       BOOLEAN NOT NULL,
    partition_by   JSONB NOT NULL DEFAULT '{}', -- the dataset's, when the job was deployed
    dag_version_id UUID NOT NULL, -- the job's, so that readers in versions at work are found without those of the past
    PRIMARY KEY (job_id, input_index),
    FOREIGN KEY (org_id, job_id) REFERENCES jobs (org_id, id) DEFERRABLE,
    FOREIGN KEY (org_id, dataset_uuid) REFERENCES datasets (org_id, id) DEFERRABLE
);
CREATE INDEX idx_job_inputs_dataset ON job_inputs (dataset_uuid, dag_version_id);
CREATE INDEX idx_job_inputs_foreign ON job_inputs (dataset_uuid) WHERE NOT in_dag;

-- A stable view of a published name calls this function while none of the generations that it is defined over is
-- published under the name (storage/view.go). It never returns: it says what became of the name, because zero rows
-- would look like an empty dataset. Readers of the view call it with the rights of the view's owner.
-- +goose StatementBegin
CREATE FUNCTION stable_view_unserved(org UUID, dag TEXT, view_name TEXT) RETURNS SETOF RECORD
VOLATILE PARALLEL SAFE ROWS 1 SECURITY DEFINER LANGUAGE plpgsql AS $$
DECLARE
    holder  RECORD; -- the name's present publication
    lost    RECORD; -- the version that served first without it
    since   TEXT := '';
    say     TEXT;
    renamed TEXT; -- the same, where the dataset goes on under another name
    hint    TEXT := format('See `dagctl history %s`.', dag);
    caller  TEXT := COALESCE(NULLIF(NULLIF(current_setting('role', true), 'none'), ''), session_user);
BEGIN
    -- Anybody may call a function that a view calls. Only those who may read the view learn more than its name.
    IF NOT COALESCE(has_table_privilege(caller, to_regclass(format('%I.%I', 'data_' || COALESCE(org_slug(org), ''), view_name)), 'SELECT'), false) THEN
        RAISE EXCEPTION USING ERRCODE = 'object_not_in_prerequisite_state', MESSAGE = format('dataset "%s" is not published', view_name);
    END IF;

    SELECT c.dag_name, g.storage ->> 'kind' AS kind INTO holder
    FROM dag_current_versions c
    JOIN dataset_name_owners o ON o.org_id = c.org_id AND o.dag_name = c.dag_name AND o.name = view_name
    JOIN dag_version_datasets p ON p.dag_version_id = c.dag_version_id AND p.dataset_uuid = o.dataset_uuid
    JOIN dataset_versions g ON g.id = p.dataset_version
    WHERE c.org_id = org;

    SELECT v.number, a.at INTO lost
    FROM dag_activations a JOIN dag_versions v ON v.id = a.dag_version_id
    WHERE a.org_id = org AND a.dag_name = dag AND a.at > (
        SELECT max(b.at) FROM dag_activations b
        JOIN dag_version_datasets p ON p.dag_version_id = b.dag_version_id
          AND coalesce(p.published_name, p.publication ->> 'name') = view_name
        JOIN dataset_versions g ON g.id = p.dataset_version
        WHERE b.org_id = org AND b.dag_name = dag
          AND (holder.dag_name IS DISTINCT FROM dag OR g.storage ->> 'kind' = 'postgres'))
    ORDER BY a.at LIMIT 1;
    IF FOUND THEN
        since := format(' since v%s', lost.number);
    END IF;

    IF holder.dag_name = dag AND holder.kind <> 'postgres' THEN
        say := format('dataset "%s" of DAG %s is not in PostgreSQL storage%s', view_name, dag, since);
        hint := 'Read it with `dagctl query` or `dagctl datasets`.';
    ELSIF holder.dag_name = dag THEN
        say := format('this transaction began before the version of DAG %s that publishes dataset "%s"', dag, view_name);
        hint := 'Begin another transaction.';
    ELSIF holder.dag_name IS NOT NULL THEN
        say := format('dataset "%s" is published by DAG %s, in %s storage', view_name, holder.dag_name, holder.kind);
        hint := 'Read it with `dagctl query` or `dagctl datasets`.';
    ELSIF NOT EXISTS (SELECT FROM dag_current_versions c WHERE c.org_id = org AND c.dag_name = dag) THEN
        say := format('dataset "%s" is not published: no version of DAG %s serves', view_name, dag);
    ELSE
        say := format('dataset "%s" is no longer published by DAG %s%s', view_name, dag, since);
        SELECT say || format(': it is called "%s" now', d.name) INTO renamed
        FROM dag_version_datasets p
        JOIN dag_activations a ON a.dag_version_id = p.dag_version_id
        JOIN datasets d ON d.id = p.dataset_uuid AND d.deleted_at IS NULL AND d.published
        WHERE a.org_id = org AND a.dag_name = dag AND coalesce(p.published_name, p.publication ->> 'name') = view_name
        ORDER BY a.at DESC LIMIT 1;
    END IF;
    RAISE EXCEPTION USING ERRCODE = 'object_not_in_prerequisite_state', MESSAGE = coalesce(renamed, say), HINT = hint;
END
$$;
-- +goose StatementEnd
-- A table of the same name in the caller's temporary schema must not be read with the owner's rights.
-- +goose StatementBegin
DO $$
BEGIN
    EXECUTE format('ALTER FUNCTION stable_view_unserved SET search_path = %I, pg_temp', current_schema());
END
$$;
-- +goose StatementEnd

-- Every revision of every partition. Readers use the committed list of files and never list a folder.
CREATE TABLE partition_versions (
    org_id          UUID NOT NULL,
    dataset_uuid    UUID NOT NULL,
    dataset_version UUID NOT NULL,
    partition_key   TEXT NOT NULL,
    revision        BIGINT NOT NULL,
    state           TEXT NOT NULL CHECK (state IN ('Held', 'Published', 'Replaced', 'Rejected', 'Purged')),
    materialized_at TIMESTAMPTZ NOT NULL DEFAULT now(),
    ended_at        TIMESTAMPTZ, -- when it was replaced, rejected or purged
    purged_at       TIMESTAMPTZ, -- when it was purged; location is empty once its bytes are removed
    location        TEXT NOT NULL,
    files           JSONB NOT NULL DEFAULT '[]',
    row_count       BIGINT NOT NULL,
    bytes           BIGINT NOT NULL,
    schema          JSONB NOT NULL DEFAULT '[]',
    schema_hash     TEXT NOT NULL,
    source_version  TEXT, -- of a source: the version of the unit that was read
    task_id         UUID NOT NULL,
    attempt         INT NOT NULL,
    range_start     BIGINT,
    range_end       BIGINT,
    passed_checks   TEXT[] NOT NULL DEFAULT '{}', -- hashes of the checks that it has passed, whichever version asked
    inherited_from  UUID, -- the generation whose revision of the same number this row took over instead of computing it
    changed_in      XID8 NOT NULL DEFAULT pg_current_xact_id(), -- the transaction that wrote the row or changed its state
    PRIMARY KEY (dataset_version, partition_key, revision),
    FOREIGN KEY (org_id, dataset_version) REFERENCES dataset_versions (org_id, id)
);
CREATE UNIQUE INDEX idx_partition_versions_published ON partition_versions (dataset_version, partition_key) WHERE state = 'Published';
CREATE INDEX idx_partition_versions_held ON partition_versions (dataset_version, partition_key) WHERE state = 'Held';
CREATE INDEX idx_partition_versions_ended ON partition_versions (org_id, ended_at) WHERE state IN ('Replaced', 'Rejected', 'Purged') AND location <> '';
CREATE INDEX idx_partition_versions_purged ON partition_versions (dataset_version, partition_key) WHERE state = 'Purged';
CREATE INDEX idx_partition_versions_range ON partition_versions (dataset_version, range_end) WHERE range_end IS NOT NULL; -- segments of cursors
-- For the freshness of a dataset. materialized_at is never NULL; the condition keeps the planner from using this index
-- to look up a partition.
CREATE INDEX idx_partition_versions_newest ON partition_versions (dataset_version, materialized_at) WHERE state = 'Published' AND materialized_at IS NOT NULL;
CREATE INDEX idx_partition_versions_changed ON partition_versions (dataset_version, changed_in); -- what a gate has not looked at yet
CREATE INDEX idx_partition_versions_task ON partition_versions (task_id); -- the revisions that a task's attempts wrote

-- +goose StatementBegin
CREATE FUNCTION partition_version_changed() RETURNS TRIGGER LANGUAGE plpgsql AS $$
BEGIN
    NEW.changed_in := pg_current_xact_id();
    RETURN NEW;
END
$$;
-- +goose StatementEnd
CREATE TRIGGER partition_version_changed BEFORE UPDATE OF state ON partition_versions
    FOR EACH ROW WHEN (OLD.state IS DISTINCT FROM NEW.state) EXECUTE FUNCTION partition_version_changed();

-- The input revisions that an output revision was made from. These rows, and no task, decide whether it is stale.
CREATE TABLE partition_inputs (
    org_id          UUID NOT NULL,
    output_version  UUID NOT NULL,
    output_key      TEXT NOT NULL,
    output_revision BIGINT NOT NULL,
    input_index     INT NOT NULL,
    input_dataset   UUID NOT NULL,
    input_version   UUID NOT NULL,
    input_key       TEXT NOT NULL,
    input_revision  BIGINT NOT NULL,
    compared        BOOLEAN NOT NULL, -- false for latest inputs without refresh, which never make it stale
    accepted        BIGINT,           -- a later revision that somebody declared equivalent
    PRIMARY KEY (output_version, output_key, output_revision, input_index, input_key),
    FOREIGN KEY (output_version, output_key, output_revision)
        REFERENCES partition_versions (dataset_version, partition_key, revision) ON DELETE CASCADE
);

CREATE TABLE check_results (
    org_id          UUID NOT NULL REFERENCES orgs (id),
    dataset_version UUID NOT NULL,
    partition_key   TEXT NOT NULL,
    revision        BIGINT NOT NULL,
    name            TEXT NOT NULL,
    severity        TEXT NOT NULL CHECK (severity IN ('error', 'warn')),
    outcome         TEXT NOT NULL CHECK (outcome IN ('pass', 'fail', 'error')),
    failures        BIGINT NOT NULL DEFAULT 0,
    sample          JSONB, -- failing rows, visible to the dataset's read_roles
    error           TEXT,
    task_id         UUID NOT NULL,
    at              TIMESTAMPTZ NOT NULL DEFAULT now(),
    PRIMARY KEY (dataset_version, partition_key, revision, name),
    FOREIGN KEY (dataset_version, partition_key, revision)
        REFERENCES partition_versions (dataset_version, partition_key, revision) ON DELETE CASCADE
);

-- The owners of names.
CREATE VIEW dataset_name_owners WITH (security_invoker = true) AS
SELECT n.org_id, n.name, n.dag_name, n.dataset_uuid, n.activation_id FROM dataset_names n
WHERE NOT EXISTS (SELECT FROM dataset_names m WHERE m.org_id = n.org_id AND m.name = n.name AND m.claim > n.claim);

-- The generations that readers see now, one row per dataset. published_name is NULL where another DAG owns the name.
CREATE VIEW dataset_pointers WITH (security_invoker = true) AS
SELECT p.org_id, p.dataset_uuid, p.dataset_version, c.dag_name, c.dag_version_id,
    (SELECT o.name FROM dataset_name_owners o WHERE o.org_id = p.org_id AND o.name = p.published_name
     AND o.dataset_uuid = p.dataset_uuid) AS published_name
FROM dag_current_versions c
JOIN dag_version_datasets p ON p.dag_version_id = c.dag_version_id;
