-- The queue of an org for each thing that a worker may be able to run, by class and DAG.
-- +goose Up

ALTER TABLE tasks ADD COLUMN class SMALLINT NOT NULL DEFAULT 0; -- 0 live, 1 build, 2 backfill, 3 branch
ALTER TABLE ready ADD COLUMN class SMALLINT NOT NULL DEFAULT 0; -- as in tasks

COMMENT ON COLUMN ready.turn IS 'the DAG: the DAGs of a class take turns';
COMMENT ON COLUMN ready.rank IS
    'the order within the DAG: the time of placing in ms since 1970, less an hour for each unit of priority';

-- The open tasks of before. Those of the previous binary come without a DAG and as live ones, except those of builds,
-- which have a DAG; they are claimed all the same.
WITH open AS (
    SELECT task_id FROM ready UNION ALL SELECT task_id FROM waiting UNION ALL SELECT task_id FROM leases)
UPDATE tasks t SET class = CASE t.kind WHEN 'build' THEN 1 ELSE 2 END
FROM open o WHERE t.id = o.task_id AND t.kind IN ('build', 'backfill');
UPDATE ready r SET class = t.class, turn = split_part(job_address(r.origin_job_id), '/', 1) FROM tasks t
WHERE t.id = r.task_id;

-- A claim descends to each queue that its claimant serves, and to no other. The two indexes before it would cost each
-- task two more entries; without them the previous binary still runs, and claims more slowly from long queues.
CREATE INDEX idx_ready_queue ON ready (runtime, needs, org_id, class, turn, rank, task_id);
DROP INDEX idx_ready_claim;
DROP INDEX idx_ready_turn;
