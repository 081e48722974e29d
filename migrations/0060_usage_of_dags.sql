-- What the jobs of a DAG have used by the day, together: pages that say what an org uses read days of DAGs, and not of
-- all their jobs. Package dispatcher/usage owns the table.
-- +goose Up
CREATE TABLE usage_dag_days (
    org_id   UUID NOT NULL,
    dag_name TEXT NOT NULL,
    day      TIMESTAMPTZ NOT NULL,
    attempts BIGINT NOT NULL,
    tasks    BIGINT NOT NULL,
    failed   BIGINT NOT NULL,
    seconds  DOUBLE PRECISION NOT NULL,
    rows     BIGINT NOT NULL,
    bytes    BIGINT NOT NULL,
    PRIMARY KEY (org_id, day, dag_name)
) WITH (fillfactor = 80);

ALTER TABLE usage_dag_days ENABLE ROW LEVEL SECURITY;
CREATE POLICY one_org ON usage_dag_days TO dagctl_app USING (org_id = NULLIF(current_setting('dagctl.org', true), '')::uuid);
GRANT SELECT ON usage_dag_days TO dagctl_app;

-- It follows usage_days by triggers, so that it is right whichever build counts. Each count of up to 5,000 attempts adds
-- a row for each DAG and day in it. What is past its time is removed from both.
-- +goose StatementBegin
CREATE FUNCTION add_usage_of_dags() RETURNS TRIGGER LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO usage_dag_days AS u (org_id, dag_name, day, attempts, tasks, failed, seconds, rows, bytes)
    SELECT org_id, dag_name, day, sum(attempts), sum(tasks), sum(failed), sum(seconds), sum(rows), sum(bytes)
    FROM added GROUP BY 1, 2, 3 ORDER BY 1, 3, 2
    ON CONFLICT (org_id, day, dag_name) DO UPDATE SET attempts = u.attempts + EXCLUDED.attempts, tasks = u.tasks + EXCLUDED.tasks,
        failed = u.failed + EXCLUDED.failed, seconds = u.seconds + EXCLUDED.seconds, rows = u.rows + EXCLUDED.rows,
        bytes = u.bytes + EXCLUDED.bytes;
    RETURN NULL;
END
$$;
-- +goose StatementEnd

-- +goose StatementBegin
CREATE FUNCTION change_usage_of_dags() RETURNS TRIGGER LANGUAGE plpgsql AS $$
BEGIN
    UPDATE usage_dag_days u SET attempts = u.attempts + d.attempts, tasks = u.tasks + d.tasks, failed = u.failed + d.failed,
        seconds = u.seconds + d.seconds, rows = u.rows + d.rows, bytes = u.bytes + d.bytes
    FROM (
        SELECT org_id, dag_name, day, sum(attempts) AS attempts, sum(tasks) AS tasks, sum(failed) AS failed, sum(seconds) AS seconds,
            sum(rows) AS rows, sum(bytes) AS bytes
        FROM (
            SELECT org_id, dag_name, day, attempts, tasks, failed, seconds, rows, bytes FROM now_is
            UNION ALL
            SELECT org_id, dag_name, day, -attempts, -tasks, -failed, -seconds, -rows, -bytes FROM was) AS c
        GROUP BY 1, 2, 3) AS d
    WHERE u.org_id = d.org_id AND u.day = d.day AND u.dag_name = d.dag_name;
    RETURN NULL;
END
$$;
-- +goose StatementEnd

CREATE TRIGGER usage_of_dags_added AFTER INSERT ON usage_days REFERENCING NEW TABLE AS added
    FOR EACH STATEMENT EXECUTE FUNCTION add_usage_of_dags();
CREATE TRIGGER usage_of_dags_changed AFTER UPDATE ON usage_days REFERENCING OLD TABLE AS was NEW TABLE AS now_is
    FOR EACH STATEMENT EXECUTE FUNCTION change_usage_of_dags();

INSERT INTO usage_dag_days (org_id, dag_name, day, attempts, tasks, failed, seconds, rows, bytes)
SELECT org_id, dag_name, day, sum(attempts), sum(tasks), sum(failed), sum(seconds), sum(rows), sum(bytes)
FROM usage_days GROUP BY 1, 2, 3;
