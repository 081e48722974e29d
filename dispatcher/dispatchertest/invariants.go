package dispatchertest

import (
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"
)

// Check requires what holds after every transaction: each open task is in exactly one set, which agrees with its
// status; per slot at most one task is queued and one is running; exactly the admitted tasks hold limits; each row of a
// set has a task.
func (w *World) Check() {
	w.T.Helper()
	require.Empty(w.T, Violations(w.T, w.Pool))
}

// Violations lists what contradicts Check. It looks at tasks that are open or in a set: nothing can be wrong with
// others.
func Violations(t *testing.T, pool *pgxpool.Pool) []string {
	t.Helper()
	return Texts(t, pool, `
		WITH placed AS (
			SELECT t.id, t.org_id, t.job_id, t.slot, t.status, t.limits, t.attempt, t.lease_token,
				(SELECT count(*) FROM ready r WHERE r.task_id = t.id AND r.origin_job_id = t.job_id
				AND r.slot = t.slot) AS ready,
				(SELECT count(*) FROM leases l WHERE l.task_id = t.id AND l.origin_job_id = t.job_id AND l.slot = t.slot
				   AND l.attempt = t.attempt AND l.lease_token = t.lease_token) AS leased,
				(SELECT string_agg(q.reason, ',') FROM waiting q WHERE q.task_id = t.id) AS waits
			FROM tasks t WHERE t.status IN ('Queued', 'Running', 'Failed') OR t.id IN (SELECT task_id FROM ready
				UNION ALL SELECT task_id FROM leases UNION ALL SELECT task_id FROM waiting))
		SELECT format('task %s is %s: ready %s, leased %s, waiting %s', id, status, ready, leased, waits) FROM placed
		WHERE CASE status
			WHEN 'Queued' THEN ready + (coalesce(waits IN ('sibling', 'limit', 'run_at', 'paused'), false))::int <> 1
			OR leased <> 0
				OR ready = 1 AND waits IS NOT NULL
			WHEN 'Running' THEN leased <> 1 OR ready <> 0 OR waits IS NOT NULL
			WHEN 'Failed' THEN coalesce(waits NOT IN ('backoff', 'dead'), true) OR ready <> 0 OR leased <> 0
			ELSE ready <> 0 OR leased <> 0 OR waits IS NOT NULL END
		UNION ALL
		SELECT format('%s tasks are queued for slot %s of %s', count(*), slot, job_address(job_id)) FROM placed
		WHERE status = 'Queued' GROUP BY job_id, slot HAVING count(*) > 1
		UNION ALL
		SELECT format('%s tasks run for slot %s of %s', count(*), slot, job_address(job_id)) FROM placed
		WHERE status = 'Running' GROUP BY job_id, slot HAVING count(*) > 1
		UNION ALL
		SELECT format('limit %s: held %s of %s, used by %s', l.key, l.held, l.max, used.n) FROM limits l,
			LATERAL (SELECT count(*) AS n FROM placed p WHERE p.org_id = l.org_id AND l.key = ANY(p.limits)
			AND (p.ready = 1 OR p.leased = 1)) AS used
		WHERE l.held <> used.n OR l.held > l.max
		UNION ALL
		SELECT format('row of no task: %s', task_id) FROM (SELECT task_id FROM ready UNION ALL SELECT task_id
		FROM waiting UNION ALL SELECT task_id FROM leases) AS s
		WHERE NOT EXISTS (SELECT FROM tasks t WHERE t.id = s.task_id)`)
}
