-- Which jobs of a version are sources, and which generations of datasets are not purged: home, lists of sources and
-- the history of a DAG begin with them.
-- +goose Up

CREATE INDEX IF NOT EXISTS idx_jobs_sources ON jobs (dag_version_id) WHERE activation = 'source';

-- It has all that a request asks of it, so that nothing else is read.
CREATE INDEX IF NOT EXISTS idx_dataset_versions_kept ON dataset_versions (org_id, dataset_uuid, id)
    WHERE purged_at IS NULL;
