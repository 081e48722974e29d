-- Since when a source has failed, so that people see how long it has: from its first error after it worked.
-- +goose Up
ALTER TABLE sources ADD COLUMN error_since TIMESTAMPTZ;
UPDATE sources SET error_since = updated_at WHERE error IS NOT NULL;

-- +goose StatementBegin
CREATE FUNCTION note_source_error() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NEW.error_since := CASE WHEN NEW.error IS NOT NULL THEN now() END;
    RETURN NEW;
END
$$;
-- +goose StatementEnd
CREATE TRIGGER sources_error_since BEFORE UPDATE ON sources FOR EACH ROW
    WHEN ((NEW.error IS NULL) <> (OLD.error IS NULL)) EXECUTE FUNCTION note_source_error();

-- The jobs into whose definitions the reader may look: those that neither make nor read what is hidden from it.
CREATE VIEW shown_jobs WITH (security_invoker = true) AS
SELECT j.id, j.org_id FROM jobs j
WHERE (SELECT current_setting('dagctl.reader', true)) IS DISTINCT FROM 'some'
   OR j.id NOT IN (SELECT hidden_jobs(
          NULLIF(current_setting('dagctl.org', true), '')::uuid, NULLIF(current_setting('dagctl.roles', true), '')::text[]));
GRANT SELECT ON shown_jobs TO dagctl_app;
