package dispatcher

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/dispatcher/tasks"
	"github.com/dagctl/dagctl/dispatcher/wakeup"
	"github.com/dagctl/dagctl/internal/clock"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/registry"
)

// registerFor is how long a starting process waits for a database that is away. Each dead connection of the pool uses
// up one try.
const registerFor = 30 * time.Second

// RegisterSoon registers the process, and tries again while the database is away for a moment. It returns nil if ctx
// ends first.
func (d *Dispatcher) RegisterSoon(ctx context.Context) error {
	for began := time.Now(); ; {
		err := d.Register(ctx)
		if err == nil || ctx.Err() != nil {
			return nil
		}
		if time.Since(began) > registerFor {
			return err
		}
		d.Log.Error("cannot register yet, will go on", "error", err)
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(wakeup.Jitter(d.Poll)):
		}
	}
}

// Register enters this process into the registry of workers. A drained process that registers again, because it was
// frozen for long and its entry was removed, stays drained.
func (d *Dispatcher) Register(ctx context.Context) error {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}

	now := clock.Now()
	var drained *time.Time
	if d.drained.Load() {
		drained = &now
	}

	_, err = d.Pool.Exec(ctx, `
		INSERT INTO workers (
			id, hostname, started_at, last_heartbeat, pool_size, version, runtimes, operators, drained_at, unfit,
			lacks_keys, only_for)
		VALUES ($1, $2, $3, $3, $4, $5, $6, $7, $8, NULLIF($9, ''), $10, coalesce($11::jsonb, '{}'))
		ON CONFLICT (token, id, incarnation) DO UPDATE SET last_heartbeat = EXCLUDED.last_heartbeat,
			drained_at = EXCLUDED.drained_at, unfit = EXCLUDED.unfit, lacks_keys = EXCLUDED.lacks_keys,
			only_for = EXCLUDED.only_for`,
		d.WorkerID, host, now, d.PoolSize, d.Version, d.InProcessRuntimes(), d.Operators.Names(), drained,
		d.Health.Reason(), d.Vault.Lacking(), d.Only)
	if err != nil {
		return fmt.Errorf("register worker %s: %w", d.WorkerID, err)
	}
	return nil
}

// mayRun reports whether the config of this process lets it run jobs for an org, by what dag.Job.RunsAs returns of
// them. Servers may have different ones, as while a config is rolled out: each leaves to the others what it may not
// run.
func (d *Dispatcher) mayRun(runsAs, orgSlug string) bool {
	orgs, bound := d.Only[runsAs]
	return !bound || slices.Contains(orgs, orgSlug)
}

// LeavesToOthers reports whether this process leaves it to other servers to list what a source is to read: its config
// does not let it, and that of a live one does. Where nobody may, each tries, and the error says what is missing.
func (d *Dispatcher) LeavesToOthers(ctx context.Context, job *registry.Job, now time.Time) (leaves bool, err error) {
	if d.mayRun(job.Def.RunsAs(), job.OrgSlug) {
		return false, nil
	}
	err = d.Pool.QueryRow(ctx, `SELECT `+MayRun("$1::text", "$2::text", "$3"), job.Def.RunsAs(), job.OrgSlug,
		now.Add(-tasks.WorkerDeadAfter)).Scan(&leaves)
	return leaves, fault.Wrap(err, "servers that may run "+job.Def.Operator)
}

// MayRun returns the SQL condition that a live server may run what RunsAs names, for an org, given as its slug: one
// that was heard of after a time.
func MayRun(runsAs, orgSlug, after string) string {
	return `EXISTS (SELECT FROM workers w WHERE w.token = '' AND w.last_heartbeat > ` + after + ` AND w.drained_at IS NULL
		AND coalesce(w.only_for -> ` + runsAs + ` ? ` + orgSlug + `, true))`
}

// runsQueue is mayRun for the tasks of a queue.
func (d *Dispatcher) runsQueue(ctx context.Context, tx pgx.Tx, q tasks.Queue) (bool, error) {
	runsAs := tasks.RunsAsOf(q.Needs)
	if _, bound := d.Only[runsAs]; !bound {
		return true, nil
	}
	slug, err := d.slugs.of(ctx, tx, q.Org)
	return d.mayRun(runsAs, slug), err
}

// slugs remembers the slugs of orgs, which never change.
type slugs struct {
	mu sync.Mutex
	by map[uuid.UUID]string
}

// of returns the slug of an org. The transaction is the owner's.
func (s *slugs) of(ctx context.Context, tx pgx.Tx, org uuid.UUID) (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.by[org]; !ok {
		all, err := authz.OrgSlugs(ctx, tx)
		if err != nil {
			return "", err
		}
		s.by = all
	}
	return s.by[org], nil
}

// ReplaceServers marks all server processes of a database as replaced, so that others take over their tasks at once.
// The caller knows that none of them runs any more. The pool is the owner's.
func ReplaceServers(ctx context.Context, owner *pgxpool.Pool) error {
	_, err := owner.Exec(ctx, `UPDATE workers SET replaced_at = now(), last_heartbeat = to_timestamp(0)
		WHERE token = '' AND replaced_at IS NULL`)
	if err != nil {
		return fmt.Errorf("replace servers: %w", err)
	}
	return nil
}

// HeartbeatWorker renews the entry of this process in the registry of workers, with whether River has elected it to
// lead the periodic sweeps. It stops claiming if somebody drains the process, and removes workers that have been silent
// for long.
func (d *Dispatcher) HeartbeatWorker(ctx context.Context, now time.Time) (more bool, err error) {
	var drained bool
	err = d.Pool.QueryRow(ctx, `
		UPDATE workers w SET last_heartbeat = $2, current_tasks = $3, is_leader = l.expires_at IS NOT NULL,
			leader_until = l.expires_at, unfit = NULLIF($4, ''), lacks_keys = $5
		FROM (SELECT) AS one LEFT JOIN river_leader l ON l.leader_id = $1 AND l.expires_at > $2
		WHERE w.id = $1 AND w.token = '' RETURNING w.drained_at IS NOT NULL`,
		d.WorkerID, now, len(d.slots), d.Health.Reason(), d.Vault.Lacking()).Scan(&drained)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return false, d.Register(ctx)
	case err != nil:
		return false, fmt.Errorf("heartbeat of worker %s: %w", d.WorkerID, err)
	case drained && d.drained.CompareAndSwap(false, true):
		d.Log.Info("drained: no more tasks are claimed", "worker", d.WorkerID, "running", len(d.slots))
	}

	_, err = d.Pool.Exec(ctx, `
		DELETE FROM workers w
		WHERE w.last_heartbeat < $1 AND NOT EXISTS (SELECT FROM leases l WHERE `+tasks.HeldBy+`)
		  AND (w.replaced_at IS NULL OR w.replaced_at < $2)`,
		now.Add(-10*tasks.WorkerDeadAfter), now.Add(-rememberReplaced))
	return false, err
}

// rememberReplaced is how long a replaced worker is remembered, so that a process that was frozen meanwhile does not
// replace its successor.
const rememberReplaced = 24 * time.Hour

// Worker is a process that runs tasks.
type Worker struct {
	ID            string     `json:"id"`
	Token         string     `json:"token,omitempty" doc:"Name of its worker token; ids are unique within one token. Empty: it is a server"`
	Hostname      string     `json:"hostname"`
	State         string     `json:"state" enum:"live,unfit,drained,dead" doc:"unfit: it claims no tasks now; drained: it finishes its tasks and claims no more; dead: it was silent for ten seconds"`
	Version       string     `json:"version"`
	Runtimes      []string   `json:"runtimes" nullable:"false" doc:"The runtimes it serves"`
	Operators     []string   `json:"operators" nullable:"false" doc:"The operators it runs"`
	PoolSize      int        `json:"pool_size" doc:"Tasks that it runs at once"`
	CurrentTasks  int        `json:"current_tasks" doc:"Tasks of all orgs that it ran at its last heartbeat"`
	StartedAt     time.Time  `json:"started_at"`
	LastHeartbeat time.Time  `json:"last_heartbeat"`
	DrainedAt     *time.Time `json:"drained_at,omitempty" doc:"When somebody asked it to claim no more"`
	Unfit         string     `json:"unfit,omitempty" doc:"Why a server claims no tasks now: it cannot use its storage"`
	IsLeader      bool       `json:"is_leader" doc:"It leads the periodic sweeps"`
	LeaderUntil   *time.Time `json:"leader_until,omitempty" doc:"When its term ends, unless it is elected again"`
}

// workerColumns are the columns of a Worker. $1 is now, and $2 the time before which a heartbeat is too old.
const workerColumns = `id, split_part(token, '/', 2), hostname,
	CASE WHEN last_heartbeat <= $2 THEN 'dead' WHEN drained_at IS NOT NULL THEN 'drained'
		WHEN unfit IS NOT NULL THEN 'unfit' ELSE 'live' END,
	coalesce(version, ''), runtimes, operators, pool_size, current_tasks, started_at, last_heartbeat, drained_at,
	coalesce(unfit, ''), is_leader AND leader_until > $1, CASE WHEN is_leader AND leader_until > $1 THEN leader_until END`

// WorkerKey is a position in a list of workers.
type WorkerKey struct{ ID, Token string }

// Workers lists the processes that run tasks of the caller's org, by id and token: the servers, which serve every org,
// and the org's workers.
func (d *Dispatcher) Workers(
	ctx context.Context, caller authz.Caller, after WorkerKey, limit int, now time.Time,
) (workers []Worker, err error) {
	err = pg.InOrgTx(ctx, d.Requests, caller.OrgID, func(ctx context.Context, tx pgx.Tx) error {
		rows, err := tx.Query(ctx, `SELECT `+workerColumns+` FROM workers
			WHERE (id, split_part(token, '/', 2)) > ($3, $6) AND (orgs IS NULL OR $5 = ANY(orgs))
			  AND replaced_at IS NULL
			ORDER BY id, split_part(token, '/', 2) LIMIT $4`,
			now, now.Add(-tasks.WorkerDeadAfter), after.ID, limit, caller.OrgID, after.Token)
		if err != nil {
			return err
		}
		workers, err = pgx.CollectRows(rows, pgx.RowToStructByPos[Worker])
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list workers: %w", err)
	}
	return workers, nil
}

// Troubled is a live server that takes no tasks, or lacks keys of secrets.
type Troubled struct {
	ID    string
	Unfit string   // why it takes no tasks; empty: it takes them
	Lacks []string // the ids of the keys
}

// TroubledServers lists the live servers that lack something, by id.
func TroubledServers(ctx context.Context, tx pgx.Tx, now time.Time) ([]Troubled, error) {
	rows, _ := tx.Query(ctx, `
		SELECT id, coalesce(unfit, ''), lacks_keys FROM workers
		WHERE token = '' AND last_heartbeat > $1 AND replaced_at IS NULL AND (unfit IS NOT NULL OR lacks_keys <> '{}')
		ORDER BY id`, now.Add(-tasks.WorkerDeadAfter)) // the rows have its error
	found, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Troubled])
	return found, fault.Wrap(err, "list servers that lack something")
}

// Drain asks a process to finish its tasks and to claim no more. token is the name of its worker token; it may be empty
// if only one process has the id. A server serves every org, and a worker may serve several: an admin of one of these
// orgs may not drain it. An operator of the server uses DrainWorker instead.
func (d *Dispatcher) Drain(
	ctx context.Context, caller authz.Caller, id, token string, now time.Time,
) (w Worker, err error) {
	err = pg.InTx(ctx, d.Pool, func(ctx context.Context, tx pgx.Tx) error {
		var serves int
		if w, serves, err = drainTx(ctx, tx, &caller.OrgID, id, token, now); err != nil {
			return err
		}
		if serves == 0 { // a server
			orgs, err := authz.OrgSlugs(ctx, tx)
			if err != nil {
				return err
			}
			serves = len(orgs)
		}

		if serves > 1 {
			return fault.New(fault.Forbidden, "worker %s runs tasks of other orgs too", id).
				WithHint("those who run the server may drain it: `dagctl workers drain %s --database-url URL`", id)
		}
		before := w.DrainedAt.Before(now.Truncate(time.Microsecond)) // somebody asked already
		return authz.Audit(ctx, tx, caller, "worker.drain", id,
			authz.Change{Before: map[string]any{"drained": before}, After: map[string]any{"drained": true}})
	})
	if err != nil {
		return Worker{}, err
	}
	if id == d.WorkerID && w.Token == "" {
		d.drained.Store(true)
	}
	return w, nil
}

// DrainWorker drains any process, on behalf of an operator who has access to the database.
func DrainWorker(ctx context.Context, owner *pgxpool.Pool, id, token string, now time.Time) (w Worker, err error) {
	err = pg.InTx(ctx, owner, func(ctx context.Context, tx pgx.Tx) error {
		w, _, err = drainTx(ctx, tx, nil, id, token, now)
		return err
	})
	return w, err
}

// drainTx drains the one live process of an org, or of any if org is nil, that has an id. It returns the number of orgs
// that the process serves; 0 stands for all of them.
func drainTx(
	ctx context.Context, tx pgx.Tx, org *uuid.UUID, id, token string, now time.Time,
) (w Worker, serves int, err error) {
	rows, err := tx.Query(ctx, `
		SELECT token, incarnation, coalesce(cardinality(orgs), 0) FROM workers
		WHERE id = $1 AND last_heartbeat > $2 AND ($3 = '' OR split_part(token, '/', 2) = $3)
		  AND ($4::uuid IS NULL OR orgs IS NULL OR $4 = ANY(orgs))
		ORDER BY token FOR UPDATE`, id, now.Add(-tasks.WorkerDeadAfter), token, org)
	if err != nil {
		return w, 0, fmt.Errorf("drain worker %s: %w", id, err)
	}
	var of, incarnation string
	var tokens []string
	if _, err := pgx.ForEachRow(rows, []any{&of, &incarnation, &serves}, func() error {
		_, name, _ := strings.Cut(of, "/")
		tokens = append(tokens, cmp.Or(name, "(a server)"))
		return nil
	}); err != nil {
		return w, 0, fmt.Errorf("drain worker %s: %w", id, err)
	}

	switch {
	case len(tokens) == 0:
		return w, 0, noSuchWorker(id)
	case len(tokens) > 1:
		return w, 0, fault.New(fault.Conflict, "%d processes have the id %s, with the worker tokens %s",
			len(tokens), id, strings.Join(tokens, ", ")).
			WithHint("name the token as well: `dagctl workers drain %s --worker-token NAME`", id)
	}

	rows, err = tx.Query(ctx, `
		UPDATE workers SET drained_at = coalesce(drained_at, $1)
		WHERE id = $3 AND token = $4 AND incarnation = $5 AND last_heartbeat > $2 RETURNING `+workerColumns,
		now, now.Add(-tasks.WorkerDeadAfter), id, of, incarnation)
	if err != nil {
		return w, 0, fmt.Errorf("drain worker %s: %w", id, err)
	}
	w, err = pgx.CollectExactlyOneRow(rows, pgx.RowToStructByPos[Worker])
	return w, serves, err
}

func noSuchWorker(id string) error {
	return fault.New(fault.NotFound, "no worker %s is alive", id).WithHint("`dagctl workers list` shows them")
}
