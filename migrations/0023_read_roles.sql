-- Who may read what. Package registry owns generation_inputs.
-- +goose Up
-- A user token is a member of visibility groups, each written role:SLUG, as a user is by org_role_memberships.
ALTER TABLE service_tokens ADD COLUMN org_roles TEXT[] NOT NULL DEFAULT '{}';

-- An admin says that a dataset holds nothing of what its inputs' read roles guard: only its own read roles count.
ALTER TABLE datasets ADD COLUMN opened BOOLEAN NOT NULL DEFAULT false;
CREATE INDEX idx_datasets_guarded ON datasets (org_id) WHERE read_roles <> '{}';

-- What the rows of a generation are computed from: generations of its own DAG, and datasets of others, of which every
-- generation may have been read. Written with the generation. What it takes over from another one is computed from that.
CREATE TABLE generation_inputs (
    org_id          UUID NOT NULL,
    dataset_version UUID NOT NULL REFERENCES dataset_versions (id) ON DELETE CASCADE,
    input_dataset   UUID NOT NULL,
    input_version   UUID, -- NULL: of another DAG
    UNIQUE NULLS NOT DISTINCT (dataset_version, input_dataset, input_version)
);
CREATE INDEX idx_generation_inputs_version ON generation_inputs (input_version) WHERE input_version IS NOT NULL;
CREATE INDEX idx_generation_inputs_dataset ON generation_inputs (input_dataset) WHERE input_version IS NULL;
ALTER TABLE generation_inputs ENABLE ROW LEVEL SECURITY;
CREATE POLICY one_org ON generation_inputs TO dagctl_app
    USING (org_id = NULLIF(current_setting('dagctl.org', true), '')::uuid)
    WITH CHECK (org_id = NULLIF(current_setting('dagctl.org', true), '')::uuid);
GRANT SELECT, INSERT, UPDATE, DELETE ON generation_inputs TO dagctl_app;

-- note_generation_inputs writes the rows of generation_inputs for the generations of a DAG version. Those that another
-- version has written already stay.
CREATE FUNCTION note_generation_inputs(version UUID) RETURNS VOID LANGUAGE sql AS $$
    INSERT INTO generation_inputs (org_id, dataset_version, input_dataset, input_version)
    SELECT DISTINCT o.org_id, o.dataset_version, i.dataset_uuid, p.dataset_version
    FROM dag_version_datasets o
    JOIN jobs j ON j.dag_version_id = o.dag_version_id AND j.name = o.job_name
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
SELECT note_generation_inputs(id) FROM dag_versions WHERE shrunk_at IS NULL;

-- hidden_generations decides who may read what: it returns the generations of an org that a caller with these org roles
-- may not read. They are those of datasets with read roles that the caller has none of, and those computed from them,
-- at any distance: an output is at most as open as all of its inputs, unless an admin has opened it. A generation that
-- another DAG may have read counts until it is purged.
CREATE FUNCTION hidden_generations(org UUID, roles TEXT[]) RETURNS TABLE (dataset_version UUID, dataset_uuid UUID)
STABLE LANGUAGE sql AS $$
    WITH RECURSIVE hidden AS (
        SELECT g.id, g.dataset_uuid, g.purged_at
        FROM datasets d JOIN dataset_versions g ON g.dataset_uuid = d.id
        WHERE d.org_id = org AND d.read_roles <> '{}' AND NOT d.read_roles && coalesce(roles, '{}')
        UNION
        SELECT g.id, g.dataset_uuid, g.purged_at
        FROM hidden h
        JOIN generation_inputs i ON i.input_version = h.id
            OR i.input_version IS NULL AND i.input_dataset = h.dataset_uuid AND h.purged_at IS NULL
        JOIN dataset_versions g ON g.id = i.dataset_version
        JOIN datasets d ON d.id = g.dataset_uuid AND NOT d.opened)
    SELECT id, dataset_uuid FROM hidden
$$;

-- hidden_datasets returns the datasets of an org that a caller with these org roles may not read as they are served. Where
-- nothing is served, what is on its way decides.
CREATE FUNCTION hidden_datasets(org UUID, roles TEXT[]) RETURNS SETOF UUID STABLE LANGUAGE sql AS $$
    SELECT d.id FROM datasets d WHERE d.org_id = org AND d.read_roles <> '{}' AND NOT d.read_roles && coalesce(roles, '{}')
    UNION
    SELECT h.dataset_uuid
    FROM hidden_generations(org, roles) h
    LEFT JOIN (dag_version_datasets p JOIN dag_current_versions c ON c.dag_version_id = p.dag_version_id)
        ON p.dataset_uuid = h.dataset_uuid
    WHERE p.dataset_version IS NULL OR p.dataset_version = h.dataset_version
$$;

-- datasets_with_read_role counts the datasets that an org role may read.
CREATE FUNCTION datasets_with_read_role(org UUID, role TEXT) RETURNS INT STABLE LANGUAGE sql AS $$
    SELECT count(*)::int FROM datasets WHERE org_id = org AND role = ANY(read_roles)
$$;

-- narrower returns the read roles of a dataset with roles of its own that takes over the name of one with others. Empty
-- ones are everybody's. Where no role is in both, it stays as closed as it was.
CREATE FUNCTION narrower(own TEXT[], others TEXT[]) RETURNS TEXT[] IMMUTABLE LANGUAGE sql AS $$
    SELECT CASE WHEN own = '{}' THEN others WHEN others = '{}' OR NOT own && others THEN own
        ELSE ARRAY(SELECT unnest(own) INTERSECT SELECT unnest(others) ORDER BY 1) END
$$;
