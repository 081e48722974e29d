-- What jobs have used, by the hour and by the day of UTC. Package dispatcher/usage owns these tables. Nothing writes them
-- in the transaction that ends an attempt: a work item adds up what the trail says, a little later.
-- +goose Up

-- A row is about one output of a job. The row of output 0 also has what is the job's as a whole: a job without outputs has
-- this row, too.
CREATE TABLE usage_hours (
    org_id   UUID NOT NULL,
    dag_name TEXT NOT NULL,
    job_name TEXT NOT NULL,
    output   INT NOT NULL,
    hour     TIMESTAMPTZ NOT NULL,
    attempts BIGINT NOT NULL, -- that ended
    tasks    BIGINT NOT NULL, -- that completed
    failed   BIGINT NOT NULL, -- attempts that failed
    seconds  DOUBLE PRECISION NOT NULL, -- of the attempts
    rows     BIGINT NOT NULL, -- written
    bytes    BIGINT NOT NULL, -- written
    PRIMARY KEY (org_id, dag_name, job_name, output, hour)
) WITH (fillfactor = 80);
CREATE INDEX idx_usage_hours_hour ON usage_hours (org_id, hour);

CREATE TABLE usage_days (
    org_id    UUID NOT NULL,
    dag_name  TEXT NOT NULL,
    job_name  TEXT NOT NULL,
    output    INT NOT NULL,
    day       TIMESTAMPTZ NOT NULL,
    attempts  BIGINT NOT NULL,
    tasks     BIGINT NOT NULL,
    failed    BIGINT NOT NULL,
    seconds   DOUBLE PRECISION NOT NULL,
    rows      BIGINT NOT NULL,
    bytes     BIGINT NOT NULL,
    durations BIGINT[] NOT NULL, -- how many completed attempts took how long; see durations.go
    PRIMARY KEY (org_id, dag_name, job_name, output, day)
) WITH (fillfactor = 80);
CREATE INDEX idx_usage_days_day ON usage_days (org_id, day);

-- What the published partitions of a job's output hold, as it was measured last.
CREATE TABLE usage_stored (
    org_id      UUID NOT NULL,
    dag_name    TEXT NOT NULL,
    job_name    TEXT NOT NULL,
    output      INT NOT NULL,
    bytes       BIGINT NOT NULL,
    measured_at TIMESTAMPTZ NOT NULL,
    PRIMARY KEY (org_id, dag_name, job_name, output)
);

-- How far the trail is counted. Whoever counts locks the row, and moves it on in the transaction that adds what it counted.
CREATE TABLE usage_progress (
    only_one  BOOLEAN PRIMARY KEY DEFAULT true CHECK (only_one),
    after     UUID NOT NULL,        -- the last row of the trail that is counted
    counted   TIMESTAMPTZ NOT NULL, -- all attempts that ended before are counted
    settled   TIMESTAMPTZ NOT NULL, -- no transaction can add a row of the trail from before any more
    settling  TIMESTAMPTZ,          -- the same, as soon as all transactions below settling_xid have ended
    settling_xid XID8
);
INSERT INTO usage_progress (after, counted, settled) VALUES (uuid_v7(), now(), now());

-- add_each adds arrays of counts, of which the shorter one ends in zeros.
CREATE FUNCTION add_each(a BIGINT[], b BIGINT[]) RETURNS BIGINT[] IMMUTABLE PARALLEL SAFE LANGUAGE sql AS $$
    SELECT coalesce(array_agg(coalesce(x, 0) + coalesce(y, 0) ORDER BY i), '{}') FROM unnest(a, b) WITH ORDINALITY AS u(x, y, i)
$$;

-- +goose StatementBegin
DO $$
DECLARE
    t TEXT;
BEGIN
    FOREACH t IN ARRAY ARRAY['usage_hours', 'usage_days', 'usage_stored'] LOOP
        EXECUTE format('ALTER TABLE %I ENABLE ROW LEVEL SECURITY', t);
        EXECUTE format('CREATE POLICY one_org ON %I TO dagctl_app USING (org_id = NULLIF(current_setting(''dagctl.org'', true), '''')::uuid)', t);
        EXECUTE format('GRANT SELECT ON %I TO dagctl_app', t);
    END LOOP;
END
$$;
-- +goose StatementEnd
