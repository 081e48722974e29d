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
