-- +goose Up
-- Too much is queued of one org for one runtime: that org's DAGs with jobs of the runtime wait, and no other. There is a
-- row only while it matters. The row of backpressure says when the queue was measured last; its `since` is of servers
-- that hold all orgs back.
CREATE TABLE org_backpressure (
    org_id         UUID NOT NULL REFERENCES orgs (id),
    runtime        TEXT NOT NULL,
    since          TIMESTAMPTZ, -- since when producers wait; NULL: they do not, but nothing more is taken in
    queued         BIGINT NOT NULL,
    oldest_seconds DOUBLE PRECISION NOT NULL,
    PRIMARY KEY (org_id, runtime)
);
ALTER TABLE org_backpressure ENABLE ROW LEVEL SECURITY;
CREATE POLICY one_org ON org_backpressure TO dagctl_app USING (org_id = NULLIF(current_setting('dagctl.org', true), '')::uuid);
GRANT SELECT ON org_backpressure TO dagctl_app;
