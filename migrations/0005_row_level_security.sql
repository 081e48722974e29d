-- Row-level security, behind the checks in the code: as dagctl_app a transaction sees only the org that its first
-- statement names.
-- +goose Up

-- +goose StatementBegin
DO $$
DECLARE
    t TEXT;
BEGIN
    FOR t IN
        SELECT c.relname FROM pg_class c
        JOIN pg_attribute a ON a.attrelid = c.oid AND a.attname = 'org_id' AND NOT a.attisdropped
        WHERE c.relnamespace = current_schema()::regnamespace AND c.relkind = 'r'
    LOOP
        EXECUTE format('ALTER TABLE %I ENABLE ROW LEVEL SECURITY', t);
        EXECUTE format($p$CREATE POLICY one_org ON %I TO dagctl_app
            USING (org_id = NULLIF(current_setting('dagctl.org', true), '')::uuid)
            WITH CHECK (org_id = NULLIF(current_setting('dagctl.org', true), '')::uuid)$p$, t);
        EXECUTE format('GRANT SELECT, INSERT, UPDATE, DELETE ON %I TO dagctl_app', t);
    END LOOP;
END
$$;
-- +goose StatementEnd

ALTER TABLE orgs ENABLE ROW LEVEL SECURITY;
CREATE POLICY one_org ON orgs TO dagctl_app USING (id = NULLIF(current_setting('dagctl.org', true), '')::uuid);
GRANT SELECT ON orgs TO dagctl_app;

GRANT SELECT ON dataset_pointers, dataset_name_owners, task_inputs, event_outcomes TO dagctl_app;
GRANT SELECT ON workers TO dagctl_app; -- processes belong to no org
GRANT SELECT ON backpressure TO dagctl_app; -- the number of queued tasks of all orgs
GRANT USAGE ON SEQUENCE outbox_id_seq TO dagctl_app;

-- Requests append to the audit log and cannot change it.
REVOKE UPDATE, DELETE ON audit_log FROM dagctl_app;

-- A request can set a secret but not read its ciphertext.
REVOKE SELECT ON secrets FROM dagctl_app;
GRANT SELECT (id, org_id, name, key_id, jobs, hosts, created_at, updated_at) ON secrets TO dagctl_app;
