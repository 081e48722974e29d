-- What jobs have delivered to others, by key. Package dispatcher owns the table.
-- +goose Up
CREATE TABLE deliveries (
    org_id       UUID NOT NULL REFERENCES orgs (id),
    id           TEXT NOT NULL, -- the Idempotency-Key: a hash of org, DAG, job and the row's key
    dag_name     TEXT NOT NULL,
    job_name     TEXT NOT NULL, -- the job's first name, which stays when it is renamed
    status       TEXT NOT NULL CHECK (status IN ('sending', 'waiting', 'delivered', 'failed')),
    task_id      UUID NOT NULL, -- the task and the attempt that sent it last
    attempt      INT NOT NULL,
    requests     INT NOT NULL,  -- that were sent, or about to be when a process died
    http_status  INT,           -- of the last answer
    error        TEXT,          -- why it is waiting or has failed
    delivered_at TIMESTAMPTZ,
    updated_at   TIMESTAMPTZ NOT NULL DEFAULT now(),
    PRIMARY KEY (org_id, id),
    CHECK ((status = 'delivered') = (delivered_at IS NOT NULL))
);
CREATE INDEX idx_deliveries_dag ON deliveries (org_id, dag_name);

ALTER TABLE deliveries ENABLE ROW LEVEL SECURITY;
CREATE POLICY one_org ON deliveries TO dagctl_app
    USING (org_id = NULLIF(current_setting('dagctl.org', true), '')::uuid)
    WITH CHECK (org_id = NULLIF(current_setting('dagctl.org', true), '')::uuid);
GRANT SELECT, INSERT, UPDATE, DELETE ON deliveries TO dagctl_app;
