//go:build soak

package main

// scaleData are the statements that fill a database on which the DAGs of a scale serve. $1 is how many versions each
// DAG had before. What they insert refers to what exists, so foreign keys are not checked.
var scaleData = []string{`SET session_replication_role = replica`, `SET work_mem = '256MB'`, `SET synchronous_commit = off`, `
	CREATE FUNCTION pg_temp.id_at(t TIMESTAMPTZ) RETURNS UUID VOLATILE LANGUAGE sql AS $f$
		SELECT (overlay(lpad(to_hex((extract(epoch FROM t) * 4096000)::bigint), 15, '0') placing '7' from 13 for 0)
			|| substr(gen_random_uuid()::text, 20))::uuid $f$`, `
	UPDATE dag_versions SET number = 1 + $1 WHERE status = 'Active'`,

	// Versions that served before. The last nine can be looked at whole, the others are records.
	`CREATE TEMP TABLE old AS
	SELECT gen_random_uuid() AS id, n, v.org_id, v.dag_name, v.id AS like_id, n > $1 - 9 AS whole,
		now() - (1 + $1 - n) * interval '1 day' AS at
	FROM dag_versions v, generate_series(1, $1::int) AS n WHERE v.status = 'Active'`, `
	INSERT INTO dag_versions (id, org_id, dag_name, number, yaml_hash, source_hash, yaml, status, contract, created_by,
		created_at, building_at, ready_at, activated_at, ended_at, tasks_ended_at, shrunk_at)
	SELECT o.id, v.org_id, v.dag_name, o.n, 'old' || o.n, v.source_hash, v.yaml, 'Superseded',
		CASE WHEN whole THEN v.contract END, v.created_by, o.at, o.at, o.at, o.at, o.at + interval '1 day',
		o.at + interval '1 day', CASE WHEN NOT whole THEN o.at + interval '1 day' END
	FROM old o JOIN dag_versions v ON v.id = o.like_id`, `
	INSERT INTO dag_activations (id, org_id, dag_name, dag_version_id, reason, actor, at)
	SELECT pg_temp.id_at(at), org_id, dag_name, id, 'deploy', 'token:writer', at FROM old`, `
	UPDATE dag_current_versions c SET previous_version_id = o.id, rollback_until = now() + interval '7 days'
	FROM old o WHERE o.dag_name = c.dag_name AND o.org_id = c.org_id AND o.n = $1`, `
	UPDATE dag_versions v SET base_version_id = o.id FROM old o WHERE v.id = o.like_id AND o.n = $1`, `

	CREATE TEMP TABLE made AS
	SELECT p.org_id, p.dag_version_id, p.dataset_uuid, p.dataset_version, p.job_name, j.id AS job, j.origin_job_id,
		substr(p.job_name, 5)::int AS n
	FROM dag_current_versions c JOIN dag_version_datasets p ON p.dag_version_id = c.dag_version_id
	JOIN jobs j ON j.dag_version_id = c.dag_version_id AND j.name = p.job_name`, `
	CREATE TEMP TABLE old_made AS
	SELECT m.*, o.id AS version, o.n AS number, o.whole, o.at, o.dag_name, gen_random_uuid() AS old_job,
		gen_random_uuid() AS generation
	FROM old o JOIN made m ON m.dag_version_id = o.like_id`, `ANALYZE made`, `
	CREATE INDEX ON old_made (dataset_uuid, number)`, `CREATE INDEX ON old_made (job, number)`, `ANALYZE old_made`, `
	INSERT INTO jobs (id, org_id, name, dag_name, dag_version_id, origin_job_id, fingerprint, base_fingerprint, activation,
		runtime, operator, operator_version, source, execution_strategy, trigger, config, config_hash, partition_by,
		update_strategy, effect, definition)
	SELECT o.old_job, j.org_id, j.name, j.dag_name, o.version, o.old_job, 'old' || o.number, 'old' || o.number,
		j.activation, j.runtime, j.operator, j.operator_version, j.source, j.execution_strategy, j.trigger,
		CASE WHEN o.whole THEN j.config ELSE '{}' END, 'old' || o.number, j.partition_by, j.update_strategy, j.effect,
		CASE WHEN o.whole THEN j.definition ELSE j.definition - 'config' - 'checks' END
	FROM old_made o JOIN jobs j ON j.id = o.job`, `
	INSERT INTO dataset_versions (id, org_id, dataset_uuid, origin_job_id, storage_location, storage, partition_by,
		config_hash, schema, schema_hash, created_by_dag_version, created_at, purged_at, cleared_at)
	SELECT o.generation, g.org_id, g.dataset_uuid, o.old_job, 'x', g.storage, g.partition_by, 'old' || o.number,
		'[{"name": "id", "type": "BIGINT"}, {"name": "delay", "type": "DOUBLE"}]', 'old', o.version, o.at,
		CASE WHEN NOT whole THEN now() END, CASE WHEN NOT whole THEN now() END
	FROM old_made o JOIN dataset_versions g ON g.id = o.dataset_version`, `
	INSERT INTO dag_version_datasets
	SELECT p.org_id, o.version, p.dataset_uuid, o.generation, p.job_name, p.output_index, p.name, p.published_name,
		p.publication
	FROM old_made o JOIN dag_version_datasets p ON p.dag_version_id = o.dag_version_id AND p.dataset_uuid = o.dataset_uuid
	WHERE o.whole`, `
	INSERT INTO job_inputs (org_id, job_id, input_index, dataset_uuid, in_dag, triggers, partition_by, dag_version_id)
	SELECT i.org_id, o.old_job, i.input_index, i.dataset_uuid, i.in_dag, i.triggers, i.partition_by, o.version
	FROM old_made o JOIN job_inputs i ON i.job_id = o.job WHERE o.whole`, `
	CREATE TEMP TABLE edges AS
	SELECT m.org_id, m.dataset_uuid, m.dataset_version, m.job, i.input_index, u.dataset_uuid AS input,
		u.dataset_version AS input_version
	FROM made m JOIN job_inputs i ON i.job_id = m.job JOIN made u ON u.dataset_uuid = i.dataset_uuid`, `
	INSERT INTO generation_inputs (org_id, dataset_version, input_dataset, input_version)
	SELECT DISTINCT o.org_id, o.generation, u.dataset_uuid, u.generation
	FROM edges e JOIN old_made o ON o.dataset_uuid = e.dataset_uuid
	JOIN old_made u ON u.dataset_uuid = e.input AND u.number = o.number
	ON CONFLICT DO NOTHING`, `
	INSERT INTO generation_inputs (org_id, dataset_version, input_dataset, input_version)
	SELECT DISTINCT org_id, dataset_version, input, input_version FROM edges ON CONFLICT DO NOTHING`, `

	UPDATE dataset_versions g SET schema_hash = 'five', schema = '[{"name": "id", "type": "BIGINT"},
		{"name": "delay", "type": "DOUBLE"}, {"name": "price", "type": "DECIMAL(18,2)"}, {"name": "carrier", "type": "VARCHAR"},
		{"name": "at", "type": "TIMESTAMP"}]'
	FROM made m WHERE g.id = m.dataset_version`, `
	UPDATE datasets d SET columns = '{"id": "Number of the flight", "delay": "Delay in minutes", "price": "In euro"}'
	FROM made m WHERE d.id = m.dataset_uuid`, `
	INSERT INTO column_lineage (org_id, output_dataset_uuid, output_dataset_version, output_column, input_dataset_uuid,
		input_dataset_version, input_column, transform, job_id)
	SELECT DISTINCT e.org_id, e.dataset_uuid, e.dataset_version, c, e.input, e.input_version, c, 'identity', e.job
	FROM edges e, unnest('{id,delay,price,carrier,at}'::text[]) AS c ON CONFLICT DO NOTHING`, `

	-- A task for each of the last hundred days and each job.
	CREATE TEMP TABLE work AS
	SELECT m.*, day, pg_temp.id_at(w.at) AS task, w.at, to_char(now() - day * interval '1 day', 'YYYY-MM-DD') AS key,
		CASE WHEN day < 20 AND n >= 400 THEN 'Queued' WHEN day = 20 AND n BETWEEN 390 AND 399 THEN 'Running'
			WHEN day BETWEEN 21 AND 30 AND n >= 400 THEN 'Failed' WHEN day = 50 AND n % 2 = 0 THEN 'Canceled'
			ELSE 'Completed' END AS status
	FROM made m, generate_series(0, 99) AS day,
		LATERAL (SELECT now() - day * interval '1 day' - random() * interval '20 hours' - interval '1 minute' AS at
			WHERE m.n >= 0) AS w`, `ANALYZE work`, `
	INSERT INTO tasks (id, org_id, job_id, kind, dedupe_key, slot, status, reason, attempt, failures, runtime, partitions,
		started_at, completed_at, error_message, created_at, input_versions)
	SELECT task, org_id, origin_job_id, CASE WHEN n < 25 THEN 'source' WHEN day % 30 = 7 THEN 'backfill' ELSE 'reactive' END,
		'scale:' || key, key, status, CASE status WHEN 'Failed' THEN 'error' WHEN 'Canceled' THEN 'superseded' END,
		CASE status WHEN 'Failed' THEN 3 ELSE 1 END, CASE status WHEN 'Failed' THEN 3 ELSE 0 END, 'elsewhere', ARRAY[key],
		CASE WHEN status <> 'Queued' THEN at + interval '1 s' END,
		CASE WHEN status NOT IN ('Queued', 'Running') THEN at + interval '1 s' + random() * interval '1 minute' END,
		CASE status WHEN 'Failed' THEN format('disk %s of host %s-%s is full at %s: 0 bytes of %s left', chr(97 + n % 7),
			chr(97 + n % 13), chr(97 + day), at, n * 1000) END, at,
		CASE WHEN n >= 25 THEN '[]'::jsonb END
	FROM work ORDER BY at`, `
	INSERT INTO ready (task_id, org_id, origin_job_id, slot, runtime, rank, turn)
	SELECT task, org_id, origin_job_id, key, 'elsewhere', extract(epoch FROM at) * 1000, left(job_name, 3)
	FROM work WHERE status = 'Queued'`, `
	INSERT INTO waiting (task_id, org_id, origin_job_id, slot, reason, rank, error_group, failed_at)
	SELECT w.task, w.org_id, w.origin_job_id, w.key, 'dead', 0, error_group(t.error_message), t.completed_at
	FROM work w JOIN tasks t ON t.id = w.task WHERE w.status = 'Failed'`, `
	INSERT INTO leases (task_id, org_id, origin_job_id, slot, attempt, lease_token, worker_id, lease_seconds, expires_at,
		timeout_at, heartbeat_at, progress, state)
	SELECT task, org_id, origin_job_id, key, 1, gen_random_uuid(), 'worker-1', 864000, now() + interval '10 days',
		now() + interval '10 days', now(), 40, 'reading' FROM work WHERE status = 'Running'`, `
	INSERT INTO task_attempts (task_id, attempt, org_id, worker_id, started_at, ended_at, outcome, error)
	SELECT task, a, org_id, 'worker-' || n % 50, at, at + interval '20 s', CASE WHEN status = 'Failed' THEN 'Failed'
		ELSE 'Completed' END, CASE WHEN status = 'Failed' THEN 'disk is full' END
	FROM work, generate_series(1, CASE WHEN status = 'Failed' THEN 3 ELSE 1 END) AS a
	WHERE status IN ('Completed', 'Failed')`, `
	INSERT INTO task_events (id, org_id, task_id, attempt, from_status, to_status, actor, at)
	SELECT pg_temp.id_at(at + interval '20 s'), org_id, task, 1, 'Running', status, 'WORKER', at + interval '20 s'
	FROM work WHERE status NOT IN ('Queued', 'Running') ORDER BY at`, `
	INSERT INTO task_logs (org_id, task_id, attempt, seq, at, level, text, bytes_so_far)
	SELECT org_id, task, 1, s, at, 'info', 'read another file, number ' || s, s * 30
	FROM work, generate_series(1, 100) AS s WHERE day = 0 AND n BETWEEN 240 AND 260 AND status = 'Completed'`, `

	INSERT INTO partition_versions (org_id, dataset_uuid, dataset_version, partition_key, revision, state, materialized_at,
		location, row_count, bytes, schema_hash, task_id, attempt, published_at)
	SELECT org_id, dataset_uuid, dataset_version, key, 1, CASE WHEN day = 40 AND n = 444 THEN 'Held' ELSE 'Published' END,
		at + interval '20 s', 'x', 1000 + n, 100000 + n, 'five', task, 1, at + interval '20 s'
	FROM work WHERE status = 'Completed' ORDER BY dataset_version, key`, `
	INSERT INTO check_results (org_id, dataset_version, partition_key, revision, name, severity, outcome, task_id, at)
	SELECT org_id, dataset_version, key, 1, 'not_null_id', 'error', 'pass', task, at FROM work
	WHERE status = 'Completed' AND n >= 25`, `
	INSERT INTO partition_inputs (org_id, output_version, output_key, output_revision, input_index, input_dataset,
		input_version, input_key, input_revision, compared)
	SELECT e.org_id, w.dataset_version, w.key, 1, e.input_index, e.input, e.input_version, w.key, 1, true
	FROM edges e JOIN work w ON w.dataset_version = e.dataset_version WHERE w.status = 'Completed'`, `
	INSERT INTO events (id, org_id, dataset_uuid, dataset_version, scope, partition_key, revision, producer_task_id,
		created_at)
	SELECT pg_temp.id_at(at + interval '20 s'), org_id, dataset_uuid, dataset_version, 'partition', key, 1, task,
		at + interval '20 s' FROM work WHERE status = 'Completed' ORDER BY dataset_version, key`, `

	INSERT INTO usage_days (org_id, dag_name, job_name, output, day, attempts, tasks, failed, seconds, rows, bytes, durations)
	SELECT w.org_id, j.dag_name, w.job_name, 0, date_trunc('day', now() AT TIME ZONE 'UTC') AT TIME ZONE 'UTC'
		- day * interval '1 day', 1, 1, 0, 20, 1000, 100000, array_fill(1, ARRAY[20])
	FROM work w JOIN jobs j ON j.id = w.job ORDER BY day DESC ON CONFLICT DO NOTHING`, `
	INSERT INTO usage_hours (org_id, dag_name, job_name, output, hour, attempts, tasks, failed, seconds, rows, bytes)
	SELECT w.org_id, j.dag_name, w.job_name, 0, date_trunc('hour', at), 1, 1, 0, 20, 1000, 100000
	FROM work w JOIN jobs j ON j.id = w.job WHERE day < 35 ORDER BY at ON CONFLICT DO NOTHING`, `
	INSERT INTO usage_stored (org_id, dag_name, job_name, output, bytes, measured_at)
	SELECT m.org_id, j.dag_name, m.job_name, 0, 10000000, now() FROM made m JOIN jobs j ON j.id = m.job
	ON CONFLICT DO NOTHING`, `
	UPDATE usage_progress SET after = uuid_v7(), counted = now(), settled = now()`, `

	CREATE TEMP TABLE org AS SELECT id FROM orgs WHERE slug = 'acme'`, `
	DELETE FROM audit_log`, `
	INSERT INTO audit_log (id, org_id, actor, action, object, detail, at, seq, hash)
	SELECT pg_temp.id_at(w.at), org.id, 'token:writer-' || s % 50, action, 'dag_' || lpad((s % 20)::text, 2, '0'),
		CASE WHEN action = 'query.run' THEN format('{"rows": 10, "datasets": [{"dataset": "dag_%s_%s"}]}',
			lpad((s % 20)::text, 2, '0'), lpad((s / 20 % 500)::text, 3, '0'))::jsonb ELSE '{}' END, w.at, s, sha256(s::text::bytea)
	FROM org, generate_series(1, 500000) AS s, LATERAL (SELECT now() - (500000 - s) * interval '15 s' AS at,
		(ARRAY['query.run', 'task.retry', 'dag.deploy', 'dataset.preview', 'task.enqueue'])[1 + s * 7 % 5] AS action) AS w`, `
	DELETE FROM audit_heads`, `
	INSERT INTO audit_heads (org_id, seq, hash) SELECT id, 500000, sha256('500000'::bytea) FROM org`, `
	INSERT INTO org_roles (org_id, slug, name) SELECT id, 'finance', 'Finance' FROM org
	UNION ALL SELECT id, 'people', 'People' FROM org
	UNION ALL SELECT id, 'role_' || s, 'Role ' || s FROM org, generate_series(1, 50) AS s`, `
	INSERT INTO users (org_id, issuer, external_id, email, display_name, role, last_seen_at)
	SELECT org.id, 'https://login.example.com', 'u' || s, format('user%s@example.com', s), 'User ' || s, 'reader', now()
	FROM org, generate_series(1, 2000) AS s`, `
	INSERT INTO org_role_memberships (org_id, role_id, user_id)
	SELECT r.org_id, r.id, u.id FROM org_roles r JOIN users u ON u.org_id = r.org_id AND hashtext(u.id::text || r.slug) % 10 = 0
	WHERE r.org_id IN (SELECT id FROM org)`, `
	INSERT INTO service_tokens (org_id, name, hash, kind, role, created_by, expires_at)
	SELECT org.id, 'token-' || s, sha256(('t' || s)::bytea), 'user', 'reader', 'user:x', now() + interval '1 year'
	FROM org, generate_series(1, 500) AS s`, `
	INSERT INTO trust_rules (id, org_id, name, kind, issuer, claims, role, created_by)
	SELECT gen_random_uuid(), org.id, 'rule-' || s, 'user', 'https://login.example.com', '{"group": ["x"]}', 'reader', 'user:x'
	FROM org, generate_series(1, 50) AS s`, `
	INSERT INTO secrets (org_id, name, ciphertext, key_id, jobs)
	SELECT org.id, 'secret-' || s, 'x', 'k', '{dag_01/job_001}' FROM org, generate_series(1, 300) AS s`, `
	INSERT INTO workers (id, hostname, pool_size, version, runtimes, last_heartbeat, orgs)
	SELECT 'worker-' || s, 'host-' || s, 16, '1', '{faraway}', now() + interval '30 days', ARRAY[org.id]
	FROM org, generate_series(1, 50) AS s`, `
	INSERT INTO scheduled_events (id, org_id, dag_name, job_name, event_type, status, target_timestamp_utc,
		target_timestamp_local, target_timezone, anchor_local, idempotency_key, delivery_payload, executed_at)
	SELECT pg_temp.id_at(now() - s * interval '1 minute'), org.id, 'dag_01', 'job_011', 'job',
		CASE WHEN s <= 2000 THEN 'PENDING' ELSE 'COMPLETED' END, at, at, 'UTC', at, 'k' || s, '{}',
		CASE WHEN s > 2000 THEN now() END
	FROM org, generate_series(1, 50000) AS s,
		LATERAL (SELECT timestamp '2100-01-01' + s * interval '1 minute' AS at) AS w`, `
	INSERT INTO backfills (id, org_id, dag_name, job_name, job_id, dataset_versions, from_key, to_key, existing, propagate,
		concurrency, status, created_by, created_at, ended_at)
	SELECT pg_temp.id_at(w.at), m.org_id, 'dag_' || lpad((s % 20)::text, 2, '0'), m.job_name, m.origin_job_id,
		ARRAY[m.dataset_version], '2026-01-01', '2026-04-10', 'all', 'each', 8,
		CASE WHEN s > 980 THEN 'Running' ELSE 'Completed' END, 'token:writer', w.at, CASE WHEN s <= 980 THEN w.at END
	FROM generate_series(1, 1000) AS s, LATERAL (SELECT now() - (1000 - s) * interval '1 hour' AS at) AS w,
		LATERAL (SELECT m.* FROM made m JOIN jobs j ON j.id = m.job
			WHERE j.dag_name = 'dag_' || lpad((s % 20)::text, 2, '0') AND m.n = 11) AS m`, `
	INSERT INTO backfill_partitions (backfill_id, org_id, partition_key, state, task_id)
	SELECT b.id, b.org_id, to_char(date '2026-01-01' + s, 'YYYY-MM-DD'),
		CASE WHEN b.status = 'Running' AND s > 90 THEN 'Open' ELSE 'Done' END, CASE WHEN b.status = 'Running' AND s > 90 THEN queued END
	FROM backfills b, generate_series(0, 99) AS s, (SELECT task AS queued FROM work WHERE status = 'Queued' LIMIT 1) AS q`, `
	INSERT INTO bulk_actions (id, org_id, verb, filter, matched, done, status, paced_at, created_by, created_at, ended_at)
	SELECT pg_temp.id_at(now() - s * interval '1 hour'), org.id, 'retry', '{"dead": true}', 100, 100, 'Completed', now(),
		'token:writer', now() - s * interval '1 hour', now() FROM org, generate_series(1, 1000) AS s`, `
	INSERT INTO pauses (org_id, dag_name, job_name, actor, reason)
	SELECT org.id, 'dag_' || lpad((s % 20)::text, 2, '0'), 'job_' || lpad((s * 7 % 500)::text, 3, '0'), 'token:writer',
		'the disks are replaced' FROM org, generate_series(1, 50) AS s ON CONFLICT DO NOTHING`, `
	UPDATE sources SET error = 'the folder is away', error_since = now() - interval '1 hour' WHERE job_name = 'job_003'`, `

	-- Some datasets are closed to the role finance, others to everybody but it.
	UPDATE datasets SET read_roles = '{role:people}' WHERE name IN (SELECT 'dag_02_' || n FROM generate_series(380, 389) AS n)`, `
	UPDATE datasets SET read_roles = '{role:finance}' WHERE name IN (SELECT 'dag_05_' || n FROM generate_series(380, 389) AS n)`, `VACUUM ANALYZE`,
}
