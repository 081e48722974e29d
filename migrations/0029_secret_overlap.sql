-- The value that a secret had before. Package authz owns previous_secrets.
-- +goose Up

ALTER TABLE secrets ADD COLUMN previous_key_id TEXT; -- NULL: there is no previous value
ALTER TABLE secrets ADD COLUMN previous_until TIMESTAMPTZ; -- until then others may sign with it
GRANT SELECT (previous_key_id, previous_until) ON secrets TO dagctl_app;

-- It has no org_id and requests have no right to it: they neither read nor write it. Nor would servers of the build
-- before be ready while requests may not read a column of secrets that they do not know.
CREATE TABLE previous_secrets (
    secret_id  UUID PRIMARY KEY REFERENCES secrets (id) ON DELETE CASCADE,
    ciphertext BYTEA NOT NULL
);

-- keep_previous_secret keeps what a new value replaces, in the place of requests, which cannot read it. Servers of the
-- build before set values without an overlap.
-- +goose StatementBegin
CREATE FUNCTION keep_previous_secret() RETURNS TRIGGER SECURITY DEFINER SET search_path FROM CURRENT LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO previous_secrets (secret_id, ciphertext) VALUES (OLD.id, OLD.ciphertext)
    ON CONFLICT (secret_id) DO UPDATE SET ciphertext = EXCLUDED.ciphertext;
    NEW.previous_key_id := OLD.key_id;
    IF NEW.previous_until IS NOT DISTINCT FROM OLD.previous_until THEN
        NEW.previous_until := now();
    END IF;
    RETURN NEW;
END
$$;
-- +goose StatementEnd
-- Under a new key a value stays what it is, and updated_at as well.
CREATE TRIGGER keep_previous BEFORE UPDATE ON secrets FOR EACH ROW
    WHEN (OLD.ciphertext IS DISTINCT FROM NEW.ciphertext AND OLD.updated_at IS DISTINCT FROM NEW.updated_at)
    EXECUTE FUNCTION keep_previous_secret();
