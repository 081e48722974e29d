-- The audit log as a chain: soon after an entry was written, a loop of the servers seals it with its number within the
-- org and a hash over it and the entry before it. Package authz owns audit_log and audit_heads.
-- +goose Up

ALTER TABLE audit_log ADD COLUMN outcome TEXT NOT NULL DEFAULT 'done';
ALTER TABLE audit_log ADD CONSTRAINT audit_log_outcome_check CHECK (outcome IN ('done', 'refused')) NOT VALID;
ALTER TABLE audit_log ADD COLUMN seq BIGINT; -- 1, 2, 3, ... within the org; NULL: not sealed yet
ALTER TABLE audit_log ADD COLUMN hash BYTEA;
CREATE UNIQUE INDEX audit_log_org_id_seq_key ON audit_log (org_id, seq) WHERE seq IS NOT NULL;
CREATE INDEX idx_audit_log_unsealed ON audit_log (org_id, at, id) WHERE seq IS NULL;

-- Where the chain of each org ends. Whoever seals holds the lock of the row.
CREATE TABLE audit_heads (
    org_id UUID PRIMARY KEY REFERENCES orgs (id),
    seq    BIGINT NOT NULL,
    hash   BYTEA NOT NULL
);
ALTER TABLE audit_heads ENABLE ROW LEVEL SECURITY;
CREATE POLICY one_org ON audit_heads TO dagctl_app
    USING (org_id = NULLIF(current_setting('dagctl.org', true), '')::uuid)
    WITH CHECK (org_id = NULLIF(current_setting('dagctl.org', true), '')::uuid);
GRANT SELECT, INSERT, UPDATE, DELETE ON audit_heads TO dagctl_app;

-- Requests seal nothing and date nothing. Triggers and not grants refuse it, because servers of the build before are not
-- ready while dagctl_app may not insert into a table of an org as a whole; and a restored dump keeps them.
-- +goose StatementBegin
CREATE FUNCTION only_the_owner() RETURNS TRIGGER LANGUAGE plpgsql AS $$
BEGIN
    IF NOT pg_has_role((SELECT relowner FROM pg_class WHERE oid = TG_RELID), 'USAGE') THEN
        RAISE insufficient_privilege USING MESSAGE = format('only the owner of %s may write this', TG_TABLE_NAME);
    END IF;
    IF TG_OP = 'DELETE' THEN
        RETURN OLD;
    END IF;
    RETURN NEW;
END
$$;
-- +goose StatementEnd
CREATE TRIGGER sealed_by_the_owner BEFORE INSERT ON audit_log FOR EACH ROW
    WHEN (NEW.seq IS NOT NULL OR NEW.hash IS NOT NULL OR NEW.at IS DISTINCT FROM now())
    EXECUTE FUNCTION only_the_owner();
CREATE TRIGGER sealed_by_the_owner BEFORE INSERT OR UPDATE OR DELETE ON audit_heads FOR EACH ROW
    EXECUTE FUNCTION only_the_owner();
