-- Which troubles receivers have been told of that are not over yet. Package dispatcher owns the table.
-- +goose Up
CREATE TABLE told_notices (
    org_id   UUID NOT NULL REFERENCES orgs (id),
    topic    TEXT NOT NULL, -- receiver, DAG, kind and what it is about: troubles of one topic are told together
    dag_name TEXT NOT NULL,
    payload  JSONB NOT NULL, -- of the last message, and all that has to be over
    told_at  TIMESTAMPTZ NOT NULL,
    PRIMARY KEY (org_id, topic)
);

ALTER TABLE told_notices ENABLE ROW LEVEL SECURITY;
CREATE POLICY one_org ON told_notices TO dagctl_app
    USING (org_id = NULLIF(current_setting('dagctl.org', true), '')::uuid)
    WITH CHECK (org_id = NULLIF(current_setting('dagctl.org', true), '')::uuid);
GRANT SELECT, INSERT, UPDATE, DELETE ON told_notices TO dagctl_app;

-- Finds what is to be told together. A row of a server of the build before has no topic, and is told alone.
CREATE INDEX idx_outbox_topics ON outbox (org_id, (payload ->> 'topic')) WHERE kind = 'notify' AND status = 'Pending';
