-- Events, tasks, the sets of open tasks, the outbox and sources. Package dispatcher owns these tables, except where
-- noted. Hot tables have no foreign keys: each would cost a lookup and a lock per row (docs/decisions, 2).
-- +goose Up

-- uuid_v7 returns time-ordered ids (RFC 9562) for rows that a statement makes in bulk, so that new entries go to the
-- end of the index.
CREATE FUNCTION uuid_v7() RETURNS UUID VOLATILE LANGUAGE sql AS
    'SELECT encode(set_bit(set_bit(overlay(uuid_send(gen_random_uuid()) placing
        substring(int8send((extract(epoch FROM clock_timestamp()) * 1000)::bigint) FROM 3) FROM 1 FOR 6), 52, 1), 53, 1), ''hex'')::uuid';

CREATE TABLE events (
    id               UUID PRIMARY KEY,
    org_id           UUID NOT NULL,
    dataset_uuid     UUID NOT NULL,
    dataset_version  UUID NOT NULL,
    scope            TEXT NOT NULL CHECK (scope IN ('partition', 'cursor', 'invalidation')),
    partition_key    TEXT,
    revision         BIGINT,
    epoch            BIGINT,
    cursor_value     BIGINT,
    invalidation_id  UUID,
    producer_task_id UUID,
    idempotency_key  TEXT,
    created_at       TIMESTAMPTZ NOT NULL DEFAULT now(),
    -- The identity leaves out who reported it: a change that is reported twice is one event.
    CONSTRAINT events_identity UNIQUE NULLS NOT DISTINCT (dataset_version, scope, partition_key, revision, epoch, cursor_value, invalidation_id)
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0);
CREATE UNIQUE INDEX idx_events_external ON events (org_id, dataset_uuid, idempotency_key) WHERE idempotency_key IS NOT NULL;

-- The outcomes of (event, consumer) pairs, where a consumer is an origin job. A pair whose event triggered the task
-- with the event's dedupe key has no row here; the view event_outcomes adds it.
CREATE TABLE event_consumers (
    event_id UUID NOT NULL,
    job_id   UUID NOT NULL,
    org_id   UUID NOT NULL,
    outcome  TEXT NOT NULL CHECK (outcome IN ('triggered', 'included', 'superseded', 'filtered', 'rejected')),
    task_id  UUID,
    reason   TEXT,
    at       TIMESTAMPTZ NOT NULL DEFAULT now(),
    PRIMARY KEY (event_id, job_id)
);

CREATE TABLE data_invalidations (
    id              UUID PRIMARY KEY,
    org_id          UUID NOT NULL REFERENCES orgs (id),
    dataset_version UUID NOT NULL,
    scope           TEXT NOT NULL CHECK (scope IN ('partition', 'range')),
    partition_key   TEXT,
    range_start     BIGINT,
    range_end       BIGINT,
    epoch           BIGINT, -- of a cursor: how many times it was rewound, including this one
    reason          TEXT NOT NULL CHECK (reason IN ('reorg', 'correction', 'manual', 'schema')),
    created_by      TEXT NOT NULL,
    created_at      TIMESTAMPTZ NOT NULL DEFAULT now(),
    FOREIGN KEY (org_id, dataset_version) REFERENCES dataset_versions (org_id, id)
);
CREATE INDEX idx_data_invalidations_epoch ON data_invalidations (dataset_version, epoch) WHERE epoch IS NOT NULL;

-- A task is one unit of work. job_id is the origin job, which the three small sets below (ready, waiting, leases) call
-- origin_job_id. Every open task is in exactly one of these sets, whose rows are inserted and deleted. No index on
-- tasks names the status, so that claims and completions stay heap-only updates.
CREATE TABLE tasks (
    id                  UUID PRIMARY KEY,
    org_id              UUID NOT NULL,
    job_id              UUID NOT NULL,
    kind                TEXT NOT NULL CHECK (kind IN ('reactive', 'source', 'manual', 'timer', 'build', 'backfill', 'invalidation', 'check')),
    dedupe_key          TEXT,
    slot                TEXT NOT NULL, -- the output partition's key, or the task's own; at most one Queued and one Running task per (job_id, slot)
    status              TEXT NOT NULL DEFAULT 'Queued' CHECK (status IN ('Queued', 'Running', 'Completed', 'Failed', 'Canceled')),
    reason              TEXT,          -- why it was canceled or failed, such as superseded, abandoned, canceled, lease_expired, timeout, error
    attempt             INT NOT NULL DEFAULT 1,
    failures            INT NOT NULL DEFAULT 0, -- counts towards max_attempts; a hand-back is no failure
    max_attempts        INT NOT NULL DEFAULT 3,
    version             INT NOT NULL DEFAULT 0, -- increases with every transition; If-Match compares it
    runtime             TEXT NOT NULL,
    needs               TEXT NOT NULL DEFAULT '', -- what its worker must be able to run: OPERATOR@VERSION, handler:NAME, or check
    priority            INT NOT NULL DEFAULT 0,
    partitions          TEXT[],
    input_versions      JSONB,         -- the input revisions pinned at the claim
    payload             JSONB,
    input_hash          TEXT,
    concurrency_key     TEXT,
    limits              TEXT[] NOT NULL DEFAULT '{}', -- the keys of the limits in which it takes a slot
    metadata            JSONB NOT NULL DEFAULT '{}',
    progress            SMALLINT NOT NULL DEFAULT 0 CHECK (progress BETWEEN 0 AND 100),
    state               TEXT,
    run_at              TIMESTAMPTZ,
    worker_id           TEXT,
    lease_token         UUID,
    lease_expires_at    TIMESTAMPTZ,
    last_heartbeat      TIMESTAMPTZ,
    timeout_at          TIMESTAMPTZ,
    cancel_requested_at TIMESTAMPTZ,
    started_at          TIMESTAMPTZ,
    completed_at        TIMESTAMPTZ,
    next_retry_at       TIMESTAMPTZ,
    error_message       TEXT,
    outputs             JSONB,
    completion_hash     TEXT,
    created_at          TIMESTAMPTZ NOT NULL DEFAULT now()
) WITH (fillfactor = 50, -- a row doubles in size before the task ends
    autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0);
CREATE UNIQUE INDEX idx_tasks_job_dedupe ON tasks (job_id, dedupe_key) WHERE dedupe_key IS NOT NULL;
CREATE INDEX idx_tasks_org ON tasks (org_id, id);
CREATE INDEX idx_tasks_job ON tasks (job_id, id);
CREATE INDEX idx_tasks_skipped ON tasks (job_id, id) WHERE reason = 'skipped'; -- claims and completions do not change the reason

-- The outcome of each decided (event, consumer) pair. Where event_consumers has no row, the event triggered the task
-- whose dedupe key is the event's identity.
CREATE VIEW event_outcomes WITH (security_invoker = true) AS
SELECT event_id, job_id, org_id, outcome, task_id, reason, at FROM event_consumers
UNION ALL
SELECT e.id, t.job_id, e.org_id, 'triggered', t.id, NULL, t.created_at
FROM events e
JOIN tasks t ON t.org_id = e.org_id
    AND t.dedupe_key = format('partition:%s:%s:%s@%s', e.dataset_uuid, e.dataset_version, e.partition_key, e.revision)
WHERE e.cursor_value IS NULL
  AND NOT EXISTS (SELECT FROM event_consumers c WHERE c.event_id = e.id AND c.job_id = t.job_id);

-- The claimable tasks. Orgs take turns; within an org the lowest rank comes first. The rank is the time the task was
-- placed, in milliseconds since 1970, less a minute per unit of priority, plus ten minutes for a build and twenty for
-- a backfill, so that no task starves behind later ones. Tasks of a build may get a lower one: see turn.
CREATE TABLE ready (
    task_id       UUID PRIMARY KEY,
    org_id        UUID NOT NULL,
    origin_job_id UUID NOT NULL,
    slot          TEXT NOT NULL,
    runtime       TEXT NOT NULL,
    needs         TEXT NOT NULL DEFAULT '', -- as in tasks; workers skip tasks that they cannot run
    rank          BIGINT NOT NULL,
    turn          TEXT NOT NULL DEFAULT '', -- of builds: the DAG, since DAGs take turns; otherwise empty
    UNIQUE (origin_job_id, slot)
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX idx_ready_claim ON ready (runtime, org_id, rank, task_id);
CREATE INDEX idx_ready_turn ON ready (org_id, runtime, turn, rank) WHERE turn <> '';

-- The open tasks that cannot be claimed now, with the reason.
CREATE TABLE waiting (
    task_id       UUID PRIMARY KEY,
    org_id        UUID NOT NULL,
    origin_job_id UUID NOT NULL,
    slot          TEXT NOT NULL,
    reason        TEXT NOT NULL CHECK (reason IN ('sibling', 'limit', 'backoff', 'run_at', 'paused', 'dead')),
    blocker       TEXT,        -- the key of the limit, the id of the running sibling, or the pause
    available_at  TIMESTAMPTZ, -- for backoff and run_at
    rank          BIGINT NOT NULL -- as in ready
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX idx_waiting_slot ON waiting (origin_job_id, slot);
-- With the unique key of ready, this allows one Queued task per slot. Tasks in backoff or dead are Failed; one that is
-- queued again merges with the task that is Queued for its slot.
CREATE UNIQUE INDEX idx_waiting_queued ON waiting (origin_job_id, slot) WHERE reason IN ('sibling', 'limit', 'paused');
CREATE INDEX idx_waiting_blocker ON waiting (org_id, blocker, rank, task_id) WHERE reason = 'limit';
CREATE INDEX idx_waiting_due ON waiting (available_at) WHERE available_at IS NOT NULL;

-- The running tasks. There is no index on the expiry: the table is as small as the number of running tasks, and
-- without the index heartbeats stay heap-only updates.
CREATE TABLE leases (
    task_id            UUID PRIMARY KEY,
    org_id             UUID NOT NULL,
    origin_job_id      UUID NOT NULL,
    slot               TEXT NOT NULL,
    attempt            INT NOT NULL,
    lease_token        UUID NOT NULL,
    worker_id          TEXT NOT NULL,
    worker_token       TEXT NOT NULL DEFAULT '', -- with worker_id and incarnation: whose it is in workers
    incarnation        TEXT NOT NULL DEFAULT '',
    lease_seconds      INT NOT NULL,
    expires_at         TIMESTAMPTZ NOT NULL,
    timeout_at         TIMESTAMPTZ NOT NULL,
    heartbeat_at       TIMESTAMPTZ NOT NULL,
    cancel_requested   BOOLEAN NOT NULL DEFAULT false,
    drain_requested_at TIMESTAMPTZ, -- when it was asked to end at a point of its choice
    progress           SMALLINT NOT NULL DEFAULT 0,
    state              TEXT,
    staging            TEXT[] NOT NULL DEFAULT '{}', -- of a first attempt that has no row in task_attempts
    UNIQUE (origin_job_id, slot)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0);
-- For counting the leases of Lambda functions.
CREATE INDEX idx_leases_function ON leases (worker_id) WHERE starts_with(worker_id, 'lambda:');

-- open_queue counts the open tasks of manual, timer and webhook jobs that each have a slot of their own, by origin and
-- output partition ('' for none).
CREATE FUNCTION open_queue(origins UUID[]) RETURNS TABLE (origin_job_id UUID, partition_key TEXT, tasks BIGINT) STABLE LANGUAGE sql AS
    'SELECT t.job_id, coalesce(t.partitions[1], ''''), count(*)
     FROM (SELECT task_id FROM ready WHERE origin_job_id = ANY(origins)
           UNION ALL SELECT task_id FROM waiting WHERE origin_job_id = ANY(origins) AND reason <> ''dead''
           UNION ALL SELECT task_id FROM leases WHERE origin_job_id = ANY(origins)) AS o
     JOIN tasks t ON t.id = o.task_id
     WHERE t.kind IN (''manual'', ''timer'', ''source'') AND starts_with(t.slot, ''task:'')
     GROUP BY 1, 2';

-- Attempts. A first attempt has a row only if it ran outside the server, or ended without publishing what it may have
-- written; otherwise its lease and its task describe it.
CREATE TABLE task_attempts (
    task_id    UUID NOT NULL,
    attempt    INT NOT NULL,
    org_id     UUID NOT NULL,
    worker_id  TEXT NOT NULL,
    started_at TIMESTAMPTZ NOT NULL,
    ended_at   TIMESTAMPTZ,
    outcome    TEXT, -- Completed, Failed, Canceled, lease_expired, timeout, handed_back
    error      TEXT,
    staging    TEXT[] NOT NULL DEFAULT '{}', -- the locations that it may write to, recorded before it writes
    given      JSONB, -- of an attempt outside the server: what the claim gave it, so that any server can answer its calls
    commits    INT NOT NULL DEFAULT 0, -- how many commits of outputs it has begun, each at its own locations
    last_call  JSONB, -- hash and answer of its last commit before the end, for a repeated call
    PRIMARY KEY (task_id, attempt)
);

-- The inputs that tasks have read: input_versions in readable form, of tasks that have committed, at the end or
-- before. input_version is the time when the revision was made; dataset_version and revision identify it exactly.
CREATE VIEW task_inputs WITH (security_invoker = true) AS
SELECT t.id AS task_id, t.org_id, i.dataset AS input_dataset_uuid, i.key AS input_partition_key, i.at AS input_version,
    i.version AS dataset_version, i.revision
FROM tasks t CROSS JOIN LATERAL (
    SELECT DISTINCT ON (p.dataset, p.key) p.*
    FROM jsonb_to_recordset(t.input_versions) AS p(dataset UUID, key TEXT, at TIMESTAMPTZ, version UUID, revision BIGINT)
    ORDER BY p.dataset, p.key, p.revision DESC) AS i -- two inputs may read the same partition
WHERE t.status = 'Completed'
   OR EXISTS (SELECT FROM task_attempts a WHERE a.task_id = t.id AND a.attempt = t.attempt AND a.last_call IS NOT NULL);

CREATE TABLE task_events (
    id          UUID PRIMARY KEY,
    org_id      UUID NOT NULL,
    task_id     UUID NOT NULL,
    attempt     INT NOT NULL,
    from_status TEXT,
    to_status   TEXT NOT NULL,
    actor       TEXT NOT NULL, -- API, WORKER, SYSTEM or user:ID
    state       TEXT,
    detail      JSONB,
    at          TIMESTAMPTZ NOT NULL DEFAULT now()
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX idx_task_events_task ON task_events (task_id, id DESC);

CREATE TABLE task_results (
    task_id    UUID PRIMARY KEY,
    org_id     UUID NOT NULL,
    payload    JSONB NOT NULL CHECK (pg_column_size(payload) <= 65536),
    created_at TIMESTAMPTZ NOT NULL DEFAULT now()
);

CREATE TABLE outbox (
    id           BIGSERIAL PRIMARY KEY,
    org_id       UUID NOT NULL,
    kind         TEXT NOT NULL CHECK (kind IN ('enqueue_task', 'route_event', 'notify')),
    payload      JSONB NOT NULL,
    status       TEXT NOT NULL DEFAULT 'Pending' CHECK (status IN ('Pending', 'Processing', 'Done', 'Failed')),
    available_at TIMESTAMPTZ NOT NULL DEFAULT now(),
    attempts     INT NOT NULL DEFAULT 0,
    last_error   TEXT,
    created_at   TIMESTAMPTZ NOT NULL DEFAULT now(),
    processed_at TIMESTAMPTZ
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX idx_outbox_pending ON outbox (kind, available_at, id) WHERE status = 'Pending';
-- A task has at most one message. A sent message stays under watch until the task is claimed.
CREATE UNIQUE INDEX idx_outbox_task ON outbox ((payload->>'task_id')) WHERE kind = 'enqueue_task';
CREATE INDEX idx_outbox_sent ON outbox (available_at) WHERE kind = 'enqueue_task' AND status <> 'Pending';

CREATE TABLE dataset_cursors (
    org_id          UUID NOT NULL,
    dataset_version UUID NOT NULL,
    job_id          UUID NOT NULL,
    epoch           BIGINT NOT NULL DEFAULT 0,
    cursor_value    BIGINT NOT NULL,
    claimed_to      BIGINT, -- the end of the range that the first claim reads; retries keep it
    claimed_again   BOOLEAN NOT NULL DEFAULT false,
    updated_at      TIMESTAMPTZ NOT NULL DEFAULT now(),
    PRIMARY KEY (dataset_version, job_id)
);

CREATE TABLE operator_state (
    org_id     UUID NOT NULL REFERENCES orgs (id),
    job_id     UUID NOT NULL,
    state_key  TEXT NOT NULL DEFAULT 'default',
    state      JSONB NOT NULL DEFAULT '{}',
    updated_at TIMESTAMPTZ NOT NULL DEFAULT now(),
    PRIMARY KEY (org_id, job_id, state_key),
    FOREIGN KEY (org_id, job_id) REFERENCES jobs (org_id, id)
);

-- Exact limits. A task holds a slot from its admission until it stops running.
CREATE TABLE limits (
    org_id UUID NOT NULL REFERENCES orgs (id),
    key    TEXT NOT NULL, -- job:DAG/JOB, or key:CONCURRENCY_KEY
    max    INT NOT NULL CHECK (max > 0),
    held   INT NOT NULL DEFAULT 0 CHECK (held >= 0),
    PRIMARY KEY (org_id, key)
);

-- Sources have the names as key, because they survive a change of definition.
CREATE TABLE sources (
    org_id       UUID NOT NULL REFERENCES orgs (id),
    dag_name     TEXT NOT NULL,
    job_name     TEXT NOT NULL,
    state        TEXT NOT NULL DEFAULT 'Pending' CHECK (state IN ('Pending', 'Running', 'Dead', 'Draining')),
    hook_path    TEXT, -- of a webhook, relative to /v1/hooks/ORG/
    next_fire_at TIMESTAMPTZ,
    last_fire_at TIMESTAMPTZ,
    always_on    BOOLEAN NOT NULL DEFAULT false, -- one long task, which is restarted whenever it ends
    definition   TEXT,        -- hash of an always_on source's definition at the last cutover
    reading_until TIMESTAMPTZ, -- set while the source is enumerated, before its units have tasks
    task_id      UUID,
    error        TEXT,
    updated_at   TIMESTAMPTZ NOT NULL DEFAULT now(),
    PRIMARY KEY (org_id, dag_name, job_name)
);
CREATE UNIQUE INDEX idx_sources_hook ON sources (hook_path, org_id) WHERE hook_path IS NOT NULL;
CREATE INDEX idx_sources_due ON sources (next_fire_at) WHERE next_fire_at IS NOT NULL;

-- When a version's source was last enumerated in full. A build is not ready before its sources are.
CREATE TABLE enumerations (
    job_id        UUID PRIMARY KEY, -- the job row of the version, not the origin
    org_id        UUID NOT NULL,
    enumerated_at TIMESTAMPTZ NOT NULL,
    units         INT NOT NULL,
    error         TEXT,
    FOREIGN KEY (org_id, job_id) REFERENCES jobs (org_id, id) ON DELETE CASCADE
);

CREATE TABLE effect_positions (
    org_id        UUID NOT NULL REFERENCES orgs (id),
    dag_name      TEXT NOT NULL,
    job_name        TEXT NOT NULL,
    dataset_uuid    UUID NOT NULL,
    partition_key   TEXT NOT NULL,
    dataset_version UUID NOT NULL,
    revision        BIGINT,
    epoch         BIGINT,
    cursor_value  BIGINT,
    updated_at    TIMESTAMPTZ NOT NULL DEFAULT now(),
    PRIMARY KEY (org_id, dag_name, job_name, dataset_uuid, partition_key)
);

CREATE TABLE pauses (
    org_id   UUID NOT NULL REFERENCES orgs (id),
    dag_name TEXT NOT NULL DEFAULT '', -- empty: the whole org
    job_name TEXT NOT NULL DEFAULT '', -- empty: the whole DAG
    actor    TEXT NOT NULL,
    reason   TEXT,
    at       TIMESTAMPTZ NOT NULL DEFAULT now(),
    PRIMARY KEY (org_id, dag_name, job_name)
);

-- The last measurement of the queue of all orgs, and whether it makes producers wait. The table has one row.
CREATE TABLE backpressure (
    only_one       BOOLEAN PRIMARY KEY DEFAULT true CHECK (only_one),
    since          TIMESTAMPTZ, -- since when producers wait; NULL: they do not
    queued         BIGINT NOT NULL,
    oldest_seconds DOUBLE PRECISION NOT NULL,
    measured_at    TIMESTAMPTZ NOT NULL,
    due_at         TIMESTAMPTZ NOT NULL -- when the next measurement is due
);

-- The processes that run tasks, for all orgs. A worker names itself, so its name means something only beside its token:
-- no token can speak of another's workers. A process that registers under the name of an earlier one replaces it.
CREATE TABLE workers (
    token          TEXT NOT NULL DEFAULT '', -- ORG/NAME of its worker token; '': it is a server
    id             TEXT NOT NULL,            -- hostname-pid-random
    incarnation    TEXT NOT NULL DEFAULT '', -- tells the processes that have had this id apart
    hostname       TEXT NOT NULL,
    started_at     TIMESTAMPTZ NOT NULL DEFAULT now(),
    last_heartbeat TIMESTAMPTZ NOT NULL DEFAULT now(),
    pool_size      INT NOT NULL,
    version        TEXT,
    is_leader      BOOLEAN NOT NULL DEFAULT false,
    leader_until   TIMESTAMPTZ,
    runtimes       TEXT[] NOT NULL DEFAULT '{}',
    operators      TEXT[] NOT NULL DEFAULT '{}', -- also handlers, as handler:NAME
    orgs           UUID[], -- the orgs whose tasks it may claim; NULL: all
    current_tasks  INT NOT NULL DEFAULT 0,
    drained_at     TIMESTAMPTZ,
    replaced_at    TIMESTAMPTZ, -- when another incarnation registered; last_heartbeat is 1970 then
    PRIMARY KEY (token, id, incarnation)
);
CREATE INDEX idx_workers_heartbeat ON workers (last_heartbeat);

-- Timers. Package timers owns this table.
CREATE TABLE scheduled_events (
    id                     UUID PRIMARY KEY,
    org_id                 UUID NOT NULL REFERENCES orgs (id),
    dag_name               TEXT NOT NULL,
    job_name               TEXT NOT NULL,
    event_type             TEXT NOT NULL,
    group_key              TEXT,
    status                 TEXT NOT NULL DEFAULT 'PENDING' CHECK (status IN ('PENDING', 'PROCESSING', 'COMPLETED', 'FAILED')),
    target_timestamp_utc   TIMESTAMPTZ NOT NULL,
    target_timestamp_local TIMESTAMP NOT NULL, -- the local time in target_timezone
    target_timezone        TEXT NOT NULL,
    anchor_local           TIMESTAMP NOT NULL, -- the requested local time: a yearly 29 February falls on the 28th only in common years
    repeat                 TEXT CHECK (repeat IN ('yearly', 'cron')),
    schedule               TEXT, -- for repeat = 'cron'
    executed_at            TIMESTAMPTZ,
    failure_reason         TEXT,
    retry_count            INT NOT NULL DEFAULT 0 CHECK (retry_count >= 0),
    retry_at               TIMESTAMPTZ, -- when to retry a failed delivery
    version                INT NOT NULL DEFAULT 1,
    idempotency_key        TEXT NOT NULL,
    delivery_payload       JSONB NOT NULL,
    created_at             TIMESTAMPTZ NOT NULL DEFAULT now(),
    updated_at             TIMESTAMPTZ NOT NULL DEFAULT now(),
    UNIQUE (org_id, idempotency_key)
);
CREATE INDEX idx_scheduled_events_due ON scheduled_events (coalesce(retry_at, target_timestamp_utc)) WHERE status = 'PENDING';
CREATE INDEX idx_scheduled_events_group ON scheduled_events (org_id, group_key) WHERE group_key IS NOT NULL;

-- Requests to compute partitions, again or for the first time, and their progress.
CREATE TABLE backfills (
    id               UUID PRIMARY KEY,
    org_id           UUID NOT NULL REFERENCES orgs (id),
    dag_name         TEXT NOT NULL,
    job_name         TEXT NOT NULL,
    job_id           UUID NOT NULL, -- the origin when it began
    dataset_versions UUID[] NOT NULL, -- the generations it fills
    from_key         TEXT NOT NULL,
    to_key           TEXT NOT NULL,
    existing         TEXT NOT NULL CHECK (existing IN ('skip', 'failed', 'all')),
    propagate        TEXT NOT NULL CHECK (propagate IN ('none', 'once', 'each')),
    concurrency      INT NOT NULL CHECK (concurrency > 0),
    status           TEXT NOT NULL DEFAULT 'Running' CHECK (status IN ('Running', 'Completed', 'Failed', 'Canceled')),
    created_by       TEXT NOT NULL,
    created_at       TIMESTAMPTZ NOT NULL,
    ended_at         TIMESTAMPTZ,
    FOREIGN KEY (org_id, job_id) REFERENCES jobs (org_id, id)
);
CREATE INDEX idx_backfills_dag ON backfills (org_id, dag_name, id);
CREATE INDEX idx_backfills_running ON backfills (org_id, id) WHERE status = 'Running';

CREATE TABLE backfill_partitions (
    backfill_id   UUID NOT NULL REFERENCES backfills (id),
    org_id        UUID NOT NULL,
    partition_key TEXT NOT NULL,
    payload       JSONB,
    state         TEXT NOT NULL DEFAULT 'Pending' CHECK (state IN ('Pending', 'Open', 'Done', 'Skipped', 'Failed')),
    task_id       UUID,
    PRIMARY KEY (backfill_id, partition_key)
);

-- Actions on many tasks, at a given rate, and their progress. The tasks are fixed when the action begins.
CREATE TABLE bulk_actions (
    id         UUID PRIMARY KEY,
    org_id     UUID NOT NULL REFERENCES orgs (id),
    verb       TEXT NOT NULL CHECK (verb IN ('retry', 'cancel', 'skip')),
    filter     JSONB NOT NULL,
    reason     TEXT,
    rate       DOUBLE PRECISION CHECK (rate > 0), -- tasks per second; NULL: no bound
    matched    BIGINT NOT NULL,
    done       BIGINT NOT NULL DEFAULT 0,
    refused    BIGINT NOT NULL DEFAULT 0, -- tasks whose state no longer allowed the action
    status     TEXT NOT NULL DEFAULT 'Running' CHECK (status IN ('Running', 'Completed', 'Canceled')),
    paced_at   TIMESTAMPTZ NOT NULL, -- the time up to which the rate's allowance is used
    created_by TEXT NOT NULL,
    created_at TIMESTAMPTZ NOT NULL,
    ended_at   TIMESTAMPTZ
);
CREATE INDEX idx_bulk_actions_org ON bulk_actions (org_id, id);
CREATE INDEX idx_bulk_actions_running ON bulk_actions (id) WHERE status = 'Running';

-- The tasks that an action has not reached yet.
CREATE TABLE bulk_action_tasks (
    bulk_action_id UUID NOT NULL REFERENCES bulk_actions (id),
    org_id         UUID NOT NULL,
    task_id        UUID NOT NULL,
    PRIMARY KEY (bulk_action_id, task_id)
);

-- error_pattern returns an error without its ids, dates, times and numbers.
-- +goose StatementBegin
CREATE FUNCTION error_pattern(message TEXT) RETURNS TEXT IMMUTABLE PARALLEL SAFE LANGUAGE sql AS $$
    SELECT btrim(regexp_replace(regexp_replace(regexp_replace(regexp_replace(left(message, 600),
        '[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}|\m(?=[0-9a-fA-F]*[0-9])(?=[0-9a-fA-F]*[a-fA-F])[0-9a-fA-F]{7,}\M', 'ID', 'g'),
        '[0-9]{4}-[0-9]{2}-[0-9]{2}([T ][0-9]{2}:[0-9]{2}(:[0-9]{2}(\.[0-9]+)?)?(Z|[+-][0-9]{2}:?[0-9]{2})?)?', 'DATE', 'g'),
        '[0-9]+(\.[0-9]+)?', 'N', 'g'),
        '\s+', ' ', 'g'))
$$;
-- +goose StatementEnd
-- error_group returns the short name of all errors with the same pattern.
CREATE FUNCTION error_group(message TEXT) RETURNS TEXT IMMUTABLE PARALLEL SAFE LANGUAGE sql AS 'SELECT left(md5(error_pattern(message)), 12)';

-- Tables that grow and shrink with tasks are vacuumed by their number of dead rows. A share of a year's history would
-- be reached too late.
-- +goose StatementBegin
DO $$
DECLARE
    t TEXT;
BEGIN
    FOREACH t IN ARRAY ARRAY['event_consumers', 'task_attempts', 'task_results', 'dataset_cursors', 'limits', 'sources', 'operator_state',
        'effect_positions', 'workers', 'backfill_partitions', 'bulk_action_tasks', 'partition_versions', 'partition_inputs']
    LOOP
        EXECUTE format('ALTER TABLE %I SET (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0)', t);
    END LOOP;
END
$$;
-- +goose StatementEnd
-- The log lines of attempts. Rows are only ever appended, and are removed by age. Package tasklogs owns this table.
CREATE TABLE task_logs (
    org_id       UUID NOT NULL,
    task_id      UUID NOT NULL,
    attempt      INT NOT NULL,
    seq          BIGINT NOT NULL, -- from 1, without gaps except for lines dropped by the cap
    at           TIMESTAMPTZ NOT NULL,
    level        TEXT NOT NULL,
    text         TEXT NOT NULL,
    bytes_so_far BIGINT NOT NULL, -- of the attempt's text up to and including this line
    PRIMARY KEY (task_id, attempt, seq)
);
CREATE INDEX idx_task_logs_at ON task_logs USING brin (at);
