-- What is to be done and what was done: events, tasks, their sets, the outbox, sources. Owned by dispatcher.
-- Hot tables carry no foreign keys: on this path each costs a lookup and a lock per row (measured, see docs/decisions).
-- +goose Up

-- Time-ordered ids for rows that a statement makes many of; new ones go to the end of the index (RFC 9562).
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
    -- What an event is, never who reported it: the same thing reported twice is one event.
    CONSTRAINT events_identity UNIQUE NULLS NOT DISTINCT (dataset_version, scope, partition_key, revision, epoch, cursor_value, invalidation_id)
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0);
CREATE UNIQUE INDEX idx_events_external ON events (org_id, dataset_uuid, idempotency_key) WHERE idempotency_key IS NOT NULL;

-- How (event, consumer) pairs ended, but for those whose event triggered the task that it names: see event_outcomes below. A
-- consumer is an origin job.
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
    epoch           BIGINT, -- of a cursor: how often it was rewound, this time included
    reason          TEXT NOT NULL CHECK (reason IN ('reorg', 'correction', 'manual', 'schema')),
    created_by      TEXT NOT NULL,
    created_at      TIMESTAMPTZ NOT NULL DEFAULT now(),
    FOREIGN KEY (org_id, dataset_version) REFERENCES dataset_versions (org_id, id)
);
CREATE INDEX idx_data_invalidations_epoch ON data_invalidations (dataset_version, epoch) WHERE epoch IS NOT NULL;

-- One unit of work each. job_id is the origin job. Which of the open ones is where is told by three small
-- insert/delete-only sets below (ready, waiting, leases): every open task is in exactly one of them, and no index
-- here names status, so that claims and completions stay heap-only updates.
CREATE TABLE tasks (
    id                  UUID PRIMARY KEY,
    org_id              UUID NOT NULL,
    job_id              UUID NOT NULL,
    kind                TEXT NOT NULL CHECK (kind IN ('reactive', 'source', 'manual', 'timer', 'build', 'backfill', 'invalidation', 'check')),
    dedupe_key          TEXT,
    slot                TEXT NOT NULL, -- at most one Queued and one Running task per (job_id, slot): the output partition's key, or the task's own
    status              TEXT NOT NULL DEFAULT 'Queued' CHECK (status IN ('Queued', 'Running', 'Completed', 'Failed', 'Canceled')),
    reason              TEXT,          -- why it was canceled or failed: superseded, abandoned, canceled, lease_expired, timeout, error
    attempt             INT NOT NULL DEFAULT 1,
    failures            INT NOT NULL DEFAULT 0, -- counts against max_attempts; a hand-back does not
    max_attempts        INT NOT NULL DEFAULT 3,
    version             INT NOT NULL DEFAULT 0, -- grows with every transition; If-Match
    runtime             TEXT NOT NULL,
    needs               TEXT NOT NULL DEFAULT '', -- what its worker has to run: OPERATOR@VERSION, handler:NAME, or check
    priority            INT NOT NULL DEFAULT 0,
    partitions          TEXT[],
    input_versions      JSONB,         -- the inputs pinned at claim
    payload             JSONB,
    input_hash          TEXT,
    concurrency_key     TEXT,
    limits              TEXT[] NOT NULL DEFAULT '{}', -- keys of the limits it needs a slot of
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
) WITH (fillfactor = 50, -- a row doubles between its insert and its end
    autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0);
CREATE UNIQUE INDEX idx_tasks_job_dedupe ON tasks (job_id, dedupe_key) WHERE dedupe_key IS NOT NULL;
CREATE INDEX idx_tasks_org ON tasks (org_id, id);
CREATE INDEX idx_tasks_job ON tasks (job_id, id);
CREATE INDEX idx_tasks_skipped ON tasks (job_id, id) WHERE reason = 'skipped'; -- no claim or completion changes the reason

-- How each (event, consumer) ended, one row for each that is decided. Where no row says otherwise, an event triggered the task
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

-- The claimable set. Orgs take turns; within one, the lowest rank comes first: when it was placed, in milliseconds since
-- 1970, less what its priority is worth, and more for builds and backfills. So nothing waits for ever behind what comes later.
CREATE TABLE ready (
    task_id  UUID PRIMARY KEY,
    org_id   UUID NOT NULL,
    job_id   UUID NOT NULL,
    slot     TEXT NOT NULL,
    runtime  TEXT NOT NULL,
    needs    TEXT NOT NULL DEFAULT '', -- as in tasks; workers that do not run everything pass the others by
    rank     BIGINT NOT NULL,
    UNIQUE (job_id, slot)
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX idx_ready_claim ON ready (runtime, org_id, rank, task_id);

-- Open tasks that may not be claimed now, with the reason.
CREATE TABLE waiting (
    task_id      UUID PRIMARY KEY,
    org_id       UUID NOT NULL,
    job_id       UUID NOT NULL,
    slot         TEXT NOT NULL,
    reason       TEXT NOT NULL CHECK (reason IN ('sibling', 'limit', 'backoff', 'run_at', 'paused', 'dead')),
    blocker      TEXT,        -- the limit's key, the running sibling's id, the pause
    available_at TIMESTAMPTZ, -- backoff and run_at
    rank         BIGINT NOT NULL -- as in ready
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX idx_waiting_slot ON waiting (job_id, slot);
-- With the unique key of ready: at most one Queued task per slot. (Those in backoff or dead are Failed, and merge when they come back.)
CREATE UNIQUE INDEX idx_waiting_queued ON waiting (job_id, slot) WHERE reason IN ('sibling', 'limit', 'paused');
CREATE INDEX idx_waiting_blocker ON waiting (org_id, blocker, rank, task_id) WHERE reason = 'limit';
CREATE INDEX idx_waiting_due ON waiting (available_at) WHERE available_at IS NOT NULL;

-- Running tasks. No index on expiry: there are as many rows as tasks run, and heartbeats stay heap-only updates.
CREATE TABLE leases (
    task_id          UUID PRIMARY KEY,
    org_id           UUID NOT NULL,
    job_id           UUID NOT NULL,
    slot             TEXT NOT NULL,
    attempt          INT NOT NULL,
    lease_token      UUID NOT NULL,
    worker_id        TEXT NOT NULL,
    lease_seconds    INT NOT NULL,
    expires_at       TIMESTAMPTZ NOT NULL,
    timeout_at       TIMESTAMPTZ NOT NULL,
    heartbeat_at     TIMESTAMPTZ NOT NULL,
    cancel_requested BOOLEAN NOT NULL DEFAULT false,
    drain_requested_at TIMESTAMPTZ, -- it was asked to end where it likes
    progress         SMALLINT NOT NULL DEFAULT 0,
    state            TEXT,
    staging          TEXT[] NOT NULL DEFAULT '{}', -- of a first attempt, which has no row in task_attempts until it has ended otherwise than well
    UNIQUE (job_id, slot)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0);
-- Functions are counted by the leases that they hold.
CREATE INDEX idx_leases_function ON leases (worker_id) WHERE starts_with(worker_id, 'lambda:');

-- What is open of jobs whose tasks are each somebody's own (manual, timer, webhook), by output partition ('': none).
CREATE FUNCTION open_queue(origins UUID[]) RETURNS TABLE (job_id UUID, partition_key TEXT, tasks BIGINT) STABLE LANGUAGE sql AS
    'SELECT t.job_id, coalesce(t.partitions[1], ''''), count(*)
     FROM (SELECT task_id FROM ready WHERE job_id = ANY(origins)
           UNION ALL SELECT task_id FROM waiting WHERE job_id = ANY(origins) AND reason <> ''dead''
           UNION ALL SELECT task_id FROM leases WHERE job_id = ANY(origins)) AS o
     JOIN tasks t ON t.id = o.task_id
     WHERE t.kind IN (''manual'', ''timer'', ''source'') AND starts_with(t.slot, ''task:'')
     GROUP BY 1, 2';

-- Attempts but the first; that one is told by its lease and by the task, and is here once it ended without having published what
-- it may have written, or if it was given out of the server.
CREATE TABLE task_attempts (
    task_id    UUID NOT NULL,
    attempt    INT NOT NULL,
    org_id     UUID NOT NULL,
    worker_id  TEXT NOT NULL,
    started_at TIMESTAMPTZ NOT NULL,
    ended_at   TIMESTAMPTZ,
    outcome    TEXT, -- Completed, Failed, Canceled, lease_expired, timeout, handed_back
    error      TEXT,
    staging    TEXT[] NOT NULL DEFAULT '{}', -- locations it may write to, recorded before anything is written
    given      JSONB, -- of attempts outside of the server: what it was given at claim, so that any server can answer it
    commits    INT NOT NULL DEFAULT 0, -- how often it has begun to commit outputs: each time at locations of its own
    last_call  JSONB, -- its last commit on the way: hash and answer, for when it asks again
    PRIMARY KEY (task_id, attempt)
);

-- What tasks have read: the readable form of input_versions, of tasks that committed something, at their end or on the way.
-- input_version is the time the revision was made, as in the source document; dataset_version and revision say exactly which
-- one it was.
CREATE VIEW task_inputs WITH (security_invoker = true) AS
SELECT t.id AS task_id, t.org_id, i.dataset AS input_dataset_uuid, i.key AS input_partition_key, i.at AS input_version,
    i.version AS dataset_version, i.revision
FROM tasks t CROSS JOIN LATERAL (
    SELECT DISTINCT ON (p.dataset, p.key) p.*
    FROM jsonb_to_recordset(t.input_versions) AS p(dataset UUID, key TEXT, at TIMESTAMPTZ, version UUID, revision BIGINT)
    ORDER BY p.dataset, p.key, p.revision DESC) AS i -- two inputs may read the same
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
-- A task has one message at most; those that were sent are looked after until the task is claimed.
CREATE UNIQUE INDEX idx_outbox_task ON outbox ((payload->>'task_id')) WHERE kind = 'enqueue_task';
CREATE INDEX idx_outbox_sent ON outbox (available_at) WHERE kind = 'enqueue_task' AND status <> 'Pending';

CREATE TABLE dataset_cursors (
    org_id          UUID NOT NULL,
    dataset_version UUID NOT NULL,
    job_id          UUID NOT NULL,
    epoch           BIGINT NOT NULL DEFAULT 0,
    cursor_value    BIGINT NOT NULL,
    claimed_to      BIGINT, -- up to where the first claim reads what follows; kept over retries
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

-- Exact limits: a slot is held from admission until Running ends.
CREATE TABLE limits (
    org_id UUID NOT NULL REFERENCES orgs (id),
    key    TEXT NOT NULL, -- job:DAG/JOB, or key:CONCURRENCY_KEY
    max    INT NOT NULL CHECK (max > 0),
    held   INT NOT NULL DEFAULT 0 CHECK (held >= 0),
    PRIMARY KEY (org_id, key)
);

-- Keyed by name, because these survive a change of definition.
CREATE TABLE sources (
    org_id       UUID NOT NULL REFERENCES orgs (id),
    dag_name     TEXT NOT NULL,
    job_name     TEXT NOT NULL,
    state        TEXT NOT NULL DEFAULT 'Pending' CHECK (state IN ('Pending', 'Running', 'Dead', 'Draining')),
    hook_path    TEXT, -- of a webhook, below /v1/hooks/ORG/
    next_fire_at TIMESTAMPTZ,
    last_fire_at TIMESTAMPTZ,
    always_on    BOOLEAN NOT NULL DEFAULT false, -- one long task, restarted whenever it ended
    definition   TEXT,        -- hash of what an always_on source was defined as at the last cutover
    reading_until TIMESTAMPTZ, -- while it is being enumerated: what it finds has no tasks yet
    task_id      UUID,
    error        TEXT,
    updated_at   TIMESTAMPTZ NOT NULL DEFAULT now(),
    PRIMARY KEY (org_id, dag_name, job_name)
);
CREATE UNIQUE INDEX idx_sources_hook ON sources (hook_path, org_id) WHERE hook_path IS NOT NULL;
CREATE INDEX idx_sources_due ON sources (next_fire_at) WHERE next_fire_at IS NOT NULL;

-- When a version's source was last enumerated in full; a build is not ready before it was.
CREATE TABLE enumerations (
    job_id        UUID PRIMARY KEY, -- the version's own job row
    org_id        UUID NOT NULL,
    enumerated_at TIMESTAMPTZ NOT NULL,
    units         INT NOT NULL,
    error         TEXT,
    FOREIGN KEY (org_id, job_id) REFERENCES jobs (org_id, id)
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

-- How the queue of all orgs stands against the thresholds from which producers wait; one row.
CREATE TABLE backpressure (
    only_one       BOOLEAN PRIMARY KEY DEFAULT true CHECK (only_one),
    since          TIMESTAMPTZ, -- when producers were made to wait; NULL: they are not
    queued         BIGINT NOT NULL,
    oldest_seconds DOUBLE PRECISION NOT NULL,
    measured_at    TIMESTAMPTZ NOT NULL,
    due_at         TIMESTAMPTZ NOT NULL -- when it is measured next
);

-- Processes that run tasks, of all orgs.
CREATE TABLE workers (
    id             TEXT PRIMARY KEY, -- hostname-pid-random
    hostname       TEXT NOT NULL,
    started_at     TIMESTAMPTZ NOT NULL DEFAULT now(),
    last_heartbeat TIMESTAMPTZ NOT NULL DEFAULT now(),
    pool_size      INT NOT NULL,
    version        TEXT,
    is_leader      BOOLEAN NOT NULL DEFAULT false,
    leader_until   TIMESTAMPTZ,
    runtimes       TEXT[] NOT NULL DEFAULT '{}',
    operators      TEXT[] NOT NULL DEFAULT '{}', -- and handlers, as handler:NAME
    token          TEXT,   -- ORG/NAME of the worker token that it came with; NULL: a server
    orgs           UUID[], -- whose tasks it may claim; NULL: those of all
    current_tasks  INT NOT NULL DEFAULT 0,
    drained_at     TIMESTAMPTZ
);
CREATE INDEX idx_workers_heartbeat ON workers (last_heartbeat);

-- Timers. Owned by timers.
CREATE TABLE scheduled_events (
    id                     UUID PRIMARY KEY,
    org_id                 UUID NOT NULL REFERENCES orgs (id),
    dag_name               TEXT NOT NULL,
    job_name               TEXT NOT NULL,
    event_type             TEXT NOT NULL,
    group_key              TEXT,
    status                 TEXT NOT NULL DEFAULT 'PENDING' CHECK (status IN ('PENDING', 'PROCESSING', 'COMPLETED', 'FAILED')),
    target_timestamp_utc   TIMESTAMPTZ NOT NULL,
    target_timestamp_local TIMESTAMP NOT NULL, -- wall clock in target_timezone
    target_timezone        TEXT NOT NULL,
    anchor_local           TIMESTAMP NOT NULL, -- the local time that was asked for: a yearly 29 February is still one after its 28ths
    repeat                 TEXT CHECK (repeat IN ('yearly', 'cron')),
    schedule               TEXT, -- of repeat cron
    executed_at            TIMESTAMPTZ,
    failure_reason         TEXT,
    retry_count            INT NOT NULL DEFAULT 0 CHECK (retry_count >= 0),
    retry_at               TIMESTAMPTZ, -- when a delivery that failed is tried again
    version                INT NOT NULL DEFAULT 1,
    idempotency_key        TEXT NOT NULL,
    delivery_payload       JSONB NOT NULL,
    created_at             TIMESTAMPTZ NOT NULL DEFAULT now(),
    updated_at             TIMESTAMPTZ NOT NULL DEFAULT now(),
    UNIQUE (org_id, idempotency_key)
);
CREATE INDEX idx_scheduled_events_due ON scheduled_events (coalesce(retry_at, target_timestamp_utc)) WHERE status = 'PENDING';
CREATE INDEX idx_scheduled_events_group ON scheduled_events (org_id, group_key) WHERE group_key IS NOT NULL;

-- Partitions that somebody asked to have computed, again or for the first time, and how far that is.
CREATE TABLE backfills (
    id               UUID PRIMARY KEY,
    org_id           UUID NOT NULL REFERENCES orgs (id),
    dag_name         TEXT NOT NULL,
    job_name         TEXT NOT NULL,
    job_id           UUID NOT NULL, -- the origin it began with
    dataset_versions UUID[] NOT NULL, -- the generations that it fills
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

-- What somebody asked to be done to many tasks, at a rate, and how far that is. The tasks are fixed when it begins.
CREATE TABLE bulk_actions (
    id         UUID PRIMARY KEY,
    org_id     UUID NOT NULL REFERENCES orgs (id),
    verb       TEXT NOT NULL CHECK (verb IN ('retry', 'cancel', 'skip')),
    filter     JSONB NOT NULL,
    reason     TEXT,
    rate       DOUBLE PRECISION CHECK (rate > 0), -- tasks a second; NULL: as fast as it goes
    matched    BIGINT NOT NULL,
    done       BIGINT NOT NULL DEFAULT 0,
    refused    BIGINT NOT NULL DEFAULT 0, -- their state had changed by then
    status     TEXT NOT NULL DEFAULT 'Running' CHECK (status IN ('Running', 'Completed', 'Canceled')),
    paced_at   TIMESTAMPTZ NOT NULL, -- what the rate allowed until then is used up
    created_by TEXT NOT NULL,
    created_at TIMESTAMPTZ NOT NULL,
    ended_at   TIMESTAMPTZ
);
CREATE INDEX idx_bulk_actions_org ON bulk_actions (org_id, id);
CREATE INDEX idx_bulk_actions_running ON bulk_actions (id) WHERE status = 'Running';

-- Those that it has yet to come to.
CREATE TABLE bulk_action_tasks (
    bulk_action_id UUID NOT NULL REFERENCES bulk_actions (id),
    org_id         UUID NOT NULL,
    task_id        UUID NOT NULL,
    PRIMARY KEY (bulk_action_id, task_id)
);

-- An error without what differs from one time to the next: ids, dates, times and numbers.
-- +goose StatementBegin
CREATE FUNCTION error_pattern(message TEXT) RETURNS TEXT IMMUTABLE PARALLEL SAFE LANGUAGE sql AS $$
    SELECT btrim(regexp_replace(regexp_replace(regexp_replace(regexp_replace(left(message, 600),
        '[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}|\m(?=[0-9a-fA-F]*[0-9])(?=[0-9a-fA-F]*[a-fA-F])[0-9a-fA-F]{7,}\M', 'ID', 'g'),
        '[0-9]{4}-[0-9]{2}-[0-9]{2}([T ][0-9]{2}:[0-9]{2}(:[0-9]{2}(\.[0-9]+)?)?(Z|[+-][0-9]{2}:?[0-9]{2})?)?', 'DATE', 'g'),
        '[0-9]+(\.[0-9]+)?', 'N', 'g'),
        '\s+', ' ', 'g'))
$$;
-- +goose StatementEnd
-- The short name of all errors with the same pattern.
CREATE FUNCTION error_group(message TEXT) RETURNS TEXT IMMUTABLE PARALLEL SAFE LANGUAGE sql AS 'SELECT left(md5(error_pattern(message)), 12)';

-- Every table that grows and shrinks with tasks is vacuumed by the number of dead rows, not by their share: a share of a
-- year's history is reached too late.
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
-- What attempts say while they run. Written by appending only, removed by age.
CREATE TABLE task_logs (
    org_id       UUID NOT NULL,
    task_id      UUID NOT NULL,
    attempt      INT NOT NULL,
    seq          BIGINT NOT NULL, -- from 1 without gaps, but for what the cap dropped
    at           TIMESTAMPTZ NOT NULL,
    level        TEXT NOT NULL,
    text         TEXT NOT NULL,
    bytes_so_far BIGINT NOT NULL, -- of text, of the attempt's lines up to this one
    PRIMARY KEY (task_id, attempt, seq)
);
CREATE INDEX idx_task_logs_at ON task_logs USING brin (at);
