-- What makes the cost of an event follow its work: which outputs wait for the first revision of an input that does not
-- trigger, work that is asked for while it is under way, and what was read of a segment. Package dispatcher owns awaited_inputs.
-- +goose Up

-- A job has a row here while one of its outputs may lack every revision of a `map: latest` input. Where it has none, a
-- new revision of that input makes no output, and nothing is looked at.
CREATE TABLE awaited_inputs (
    job_id          UUID NOT NULL, -- the origin
    dataset_version UUID NOT NULL,
    org_id          UUID NOT NULL,
    PRIMARY KEY (job_id, dataset_version),
    FOREIGN KEY (org_id, job_id) REFERENCES jobs (org_id, id) ON DELETE CASCADE,
    FOREIGN KEY (org_id, dataset_version) REFERENCES dataset_versions (org_id, id) ON DELETE CASCADE
);
ALTER TABLE awaited_inputs ENABLE ROW LEVEL SECURITY;
CREATE POLICY one_org ON awaited_inputs TO dagctl_app
    USING (org_id = NULLIF(current_setting('dagctl.org', true), '')::uuid)
    WITH CHECK (org_id = NULLIF(current_setting('dagctl.org', true), '')::uuid);

ALTER TABLE work_items ADD COLUMN again BOOLEAN NOT NULL DEFAULT false; -- another pass follows the one under way

-- What an output that follows a cursor has read of a segment: it has as many input rows as there were segments.
CREATE INDEX idx_partition_inputs_whole ON partition_inputs (output_version, input_index, input_key) WHERE output_key = 'all';
