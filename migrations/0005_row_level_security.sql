-- The second wall: under dagctl_app a transaction sees one org, the one it named in its first statement.
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

GRANT SELECT ON dataset_pointers, task_inputs, event_outcomes TO dagctl_app;
GRANT SELECT ON workers TO dagctl_app; -- processes, not tenant data
GRANT SELECT ON backpressure TO dagctl_app; -- how much is queued over all orgs
GRANT USAGE ON SEQUENCE outbox_id_seq TO dagctl_app;

-- What was done stays done, and a credential is changed only by the routes that own it.
REVOKE UPDATE, DELETE ON audit_log FROM dagctl_app;

-- A request may set a secret, and never read one back.
REVOKE SELECT ON secrets FROM dagctl_app;
GRANT SELECT (id, org_id, name, key_id, jobs, hosts, created_at, updated_at) ON secrets TO dagctl_app;
