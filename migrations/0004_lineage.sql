-- The columns that columns are computed from. Package lineage owns this table.
-- +goose Up

CREATE TABLE column_lineage (
    org_id                 UUID NOT NULL REFERENCES orgs (id),
    output_dataset_uuid    UUID NOT NULL,
    output_dataset_version UUID NOT NULL,
    output_column          TEXT NOT NULL,
    input_dataset_uuid     UUID NOT NULL,
    input_dataset_version  UUID NOT NULL,
    input_column           TEXT NOT NULL,
    transform              TEXT NOT NULL CHECK (transform IN ('identity', 'expression', 'aggregate')),
    job_id                 UUID,
    PRIMARY KEY (output_dataset_version, output_column, input_dataset_version, input_column, transform),
    FOREIGN KEY (org_id, output_dataset_uuid) REFERENCES datasets (org_id, id),
    FOREIGN KEY (org_id, input_dataset_uuid) REFERENCES datasets (org_id, id),
    FOREIGN KEY (org_id, output_dataset_version) REFERENCES dataset_versions (org_id, id),
    FOREIGN KEY (org_id, input_dataset_version) REFERENCES dataset_versions (org_id, id),
    FOREIGN KEY (org_id, job_id) REFERENCES jobs (org_id, id)
);
CREATE INDEX idx_column_lineage_input ON column_lineage (input_dataset_version, input_column);
CREATE INDEX idx_column_lineage_job ON column_lineage (job_id);

-- jobs_named returns those of some jobs that rows outside of the registry name. Those stay when their version shrinks.
CREATE FUNCTION jobs_named(ids UUID[]) RETURNS SETOF UUID STABLE LANGUAGE sql AS '
    SELECT job_id FROM column_lineage WHERE job_id = ANY(ids)
    UNION SELECT job_id FROM backfills WHERE job_id = ANY(ids)
    UNION SELECT job_id FROM operator_state WHERE job_id = ANY(ids)';
