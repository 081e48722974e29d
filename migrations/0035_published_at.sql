-- +goose Up
-- When readers began to see a revision: a dataset is read as it was served at a moment. A revision that is held at first
-- is published later than it is inserted. Those from before have NULL: what is known of them is materialized_at.
ALTER TABLE partition_versions ADD COLUMN published_at TIMESTAMPTZ;
ALTER TABLE partition_versions ALTER COLUMN published_at SET DEFAULT now();

-- +goose StatementBegin
CREATE OR REPLACE FUNCTION partition_version_changed() RETURNS TRIGGER LANGUAGE plpgsql AS $$
BEGIN
    NEW.changed_in := pg_current_xact_id();
    IF NEW.state = 'Published' THEN
        NEW.published_at := now();
    END IF;
    RETURN NEW;
END
$$;
-- +goose StatementEnd
