-- What jobs remember of what they deliver, beyond single deliveries: of an alert, what was told of it last. Package
-- dispatcher owns the table.
-- +goose Up
CREATE TABLE delivery_marks (
    org_id     UUID NOT NULL REFERENCES orgs (id),
    id         TEXT NOT NULL, -- a hash of org, DAG, job and the mark's key
    dag_name   TEXT NOT NULL,
    job_name   TEXT NOT NULL, -- the job's first name, which stays when it is renamed
    position   BIGINT NOT NULL, -- a mark takes the place of those that are not further
    value      JSONB NOT NULL,
    updated_at TIMESTAMPTZ NOT NULL DEFAULT now(),
    PRIMARY KEY (org_id, id)
);
CREATE INDEX idx_delivery_marks_dag ON delivery_marks (org_id, dag_name);

ALTER TABLE delivery_marks ENABLE ROW LEVEL SECURITY;
CREATE POLICY one_org ON delivery_marks TO dagctl_app
    USING (org_id = NULLIF(current_setting('dagctl.org', true), '')::uuid)
    WITH CHECK (org_id = NULLIF(current_setting('dagctl.org', true), '')::uuid);
GRANT SELECT, INSERT, UPDATE, DELETE ON delivery_marks TO dagctl_app;
