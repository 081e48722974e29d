package dispatcher

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/dispatcher/tasks"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/lineage"
	"github.com/dagctl/dagctl/operators"
	"github.com/dagctl/dagctl/registry"
)

// recordRuns adds statements to b that store the results of runs other than their outputs: operator state, task
// results, column lineage and effects.
func (d *Dispatcher) recordRuns(b *pg.Batch, batch []*Completing) error {
	var (
		results                 [][]byte
		resultTasks, resultOrgs []uuid.UUID
		effects                 []effect
	)
	for _, x := range batch {
		if len(x.Outcome.State) > 0 {
			saveState(b, x)
		}
		if r := x.Outcome.Result.Result; len(r) > 0 {
			resultTasks, resultOrgs = append(resultTasks, x.TaskID), append(resultOrgs, x.Job.OrgID)
			results = append(results, r)
		}

		if x.Check != nil {
			continue
		}
		if x.Job.Acts() && x.mid == nil {
			effects = append(effects, effectsOf(x.Job, x.row.Pins)...)
		}
		if err := d.recordColumns(b, x); err != nil {
			return err
		}
	}

	if len(results) > 0 {
		b.Exec("task results", `
			INSERT INTO task_results (task_id, org_id, payload)
			SELECT * FROM unnest($1::uuid[], $2::uuid[], $3::jsonb[])
			ON CONFLICT (task_id) DO UPDATE SET payload = EXCLUDED.payload, created_at = now()`,
			resultTasks, resultOrgs, results)
	}

	recordEffects(b, effects)
	return nil
}

// A run reads the operator state of its job when it is claimed, and writes it when it commits or ends. It writes on top
// of the version that it has read: if another run has written meanwhile, the attempt is handed back and the next one
// reads that. The lease has the version, so that it holds for workers elsewhere, too.

// stateSlot names an operator state of a job.
type stateSlot struct {
	org, origin uuid.UUID
	key         string
}

// slotOfState returns the slot that a run reads and writes; partition is empty for a run without one.
func slotOfState(job *registry.Job, partition string, payload json.RawMessage) stateSlot {
	return stateSlot{job.OrgID, job.Origin, cmp.Or(tasks.RenderKey(job.Def.StateKey, partition, payload), "default")}
}

// operatorState is a state that no other run has written since its version.
type operatorState struct {
	text    json.RawMessage
	version int64 // 0: there is none
}

// ErrStateMoved is the error of a run that writes an operator state on top of one which another run has replaced.
var ErrStateMoved error = moved("operator_state was written by another run meanwhile")

// compareStates locks the operator states that completions write, and returns those completions that may write theirs.
// Of several that share the transaction and a job, the first one may.
func compareStates(ctx context.Context, tx pgx.Tx, batch []*Completing) (open []*Completing, err error) {
	var writing []uuid.UUID
	for _, x := range batch {
		if len(x.Outcome.State) > 0 {
			writing = append(writing, x.TaskID)
		}
	}
	if len(writing) == 0 {
		return batch, nil
	}

	locked, err := lockStates(ctx, tx, writing)
	if err != nil {
		return nil, fmt.Errorf("compare operator states: %w", err)
	}
	written := map[stateSlot]bool{}
	for _, x := range batch {
		if state, ok := locked[x.TaskID]; ok && len(x.Outcome.State) > 0 {
			if state.outdated || written[state.slot] {
				x.err = ErrStateMoved
				continue
			}
			written[state.slot], x.slot = true, state.slot
		}
		open = append(open, x)
	}
	return open, nil
}

// lockedState is the slot that a task writes, and whether another run has written it since the task read it.
type lockedState struct {
	slot     stateSlot
	outdated bool
}

// lockStates locks the states of running tasks, those too that do not exist yet, and returns them by task.
func lockStates(ctx context.Context, tx pgx.Tx, writing []uuid.UUID) (map[uuid.UUID]lockedState, error) {
	var (
		b      pg.Batch
		task   uuid.UUID
		state  lockedState
		locked = map[uuid.UUID]lockedState{}
	)
	to := []any{&task, &state.slot.org, &state.slot.origin, &state.slot.key, &state.outdated}

	b.Exec("operator states that do not exist yet", `
		INSERT INTO operator_state (org_id, job_id, state_key, version)
		SELECT DISTINCT org_id, origin_job_id, state_key, 0 FROM leases WHERE task_id = ANY($1)
		ORDER BY origin_job_id, state_key
		ON CONFLICT (org_id, job_id, state_key) DO NOTHING`, writing)
	b.Query("lock operator states", to, func() error {
		locked[task] = state
		return nil
	}, `
		WITH locked AS MATERIALIZED (
			SELECT org_id, job_id, state_key, version FROM operator_state
			WHERE (org_id, job_id, state_key) IN (
				SELECT org_id, origin_job_id, state_key FROM leases WHERE task_id = ANY($1))
			ORDER BY job_id, state_key FOR UPDATE)
		SELECT l.task_id, s.org_id, s.job_id, s.state_key, coalesce(l.state_version <> s.version, false)
		FROM leases l JOIN locked s ON s.job_id = l.origin_job_id AND s.state_key = l.state_key
		WHERE l.task_id = ANY($1)`, writing)
	return locked, b.SendLast(ctx, tx)
}

// saveState writes the state that compareStates has locked and allowed; the attempt may go on from it.
func saveState(b *pg.Batch, x *Completing) {
	b.Exec("operator state of "+x.Job.Address(), `
		WITH saved AS (
			UPDATE operator_state SET state = $3, version = version + 1, updated_at = now()
			WHERE org_id = $1 AND job_id = $2 AND state_key = $6 RETURNING version)
		UPDATE leases l SET state_version = saved.version FROM saved WHERE l.task_id = $4 AND l.attempt = $5`,
		x.slot.org, x.slot.origin, x.Outcome.State, x.TaskID, x.Attempt, x.slot.key)
}

// recordColumns records where the columns of the outputs come from. It skips lineage that this process has recorded
// before: every task of a job reports the same.
func (d *Dispatcher) recordColumns(b *pg.Batch, x *Completing) error {
	if len(x.Outcome.Columns) == 0 {
		return nil
	}

	edges := make([]lineage.ColumnEdge, 0, len(x.Outcome.Columns))
	hash := sha256.New()
	for _, c := range x.Outcome.Columns {
		if c.Output >= len(x.Job.Outputs) || c.Input >= len(x.Assignment.Inputs) {
			return fault.New(fault.Invalid,
				"column lineage names output %d and input %d, but the job does not have both", c.Output, c.Input)
		}
		out, in := x.Job.Outputs[c.Output].Generation, x.Assignment.Inputs[c.Input].Generation
		edge := lineage.ColumnEdge{
			Output:    lineage.Column{DatasetUUID: out.Dataset, DatasetVersion: out.Version, Name: c.OutputColumn},
			Input:     lineage.Column{DatasetUUID: in.Dataset, DatasetVersion: in.Version, Name: c.InputColumn},
			Transform: lineage.Transform(c.Transform)}
		edges = append(edges, edge)
		fmt.Fprintf(hash, "%v\n", edge)
	}

	x.columns = [sha256.Size]byte(hash.Sum(nil))
	if _, known := d.columns.Get(x.columns); known {
		return nil
	}
	lineage.RecordColumns(b, x.Job.OrgID, x.Job.Origin, edges)
	return nil
}

// effect is a revision on which a job with side effects has acted.
type effect struct {
	job *registry.Job
	pin registry.Pin
}

func effectsOf(job *registry.Job, pins []registry.Pin) []effect {
	effects := make([]effect, len(pins))
	for i, p := range pins {
		effects[i] = effect{job, p}
	}
	return effects
}

// recordEffects records the revisions on which jobs have acted, under the jobs' names.
func recordEffects(b *pg.Batch, effects []effect) {
	if len(effects) == 0 {
		return
	}

	n := len(effects)
	orgs, dags, jobs := make([]uuid.UUID, n), make([]string, n), make([]string, n)
	datasets, versions := make([]uuid.UUID, n), make([]uuid.UUID, n)
	keys, revisions := make([]string, n), make([]int64, n)
	for i, e := range effects {
		orgs[i], dags[i], jobs[i] = e.job.OrgID, e.job.DAG, e.job.Name
		datasets[i], keys[i], versions[i], revisions[i] = e.pin.Dataset, e.pin.Key, e.pin.Version, e.pin.Revision
	}

	b.Exec(fmt.Sprintf("record %d effects", n), `
		INSERT INTO effect_positions (
			org_id, dag_name, job_name, dataset_uuid, partition_key, dataset_version, revision)
		SELECT DISTINCT ON (w.org, w.dag, w.job, w.dataset, w.key) w.*
		FROM unnest($1::uuid[], $2::text[], $3::text[], $4::uuid[], $5::text[], $6::uuid[], $7::bigint[])
			AS w(org, dag, job, dataset, key, version, revision)
		ORDER BY w.org, w.dag, w.job, w.dataset, w.key, w.revision DESC
		ON CONFLICT (org_id, dag_name, job_name, dataset_uuid, partition_key) DO UPDATE
		SET dataset_version = EXCLUDED.dataset_version, revision = EXCLUDED.revision, updated_at = now()`,
		orgs, dags, jobs, datasets, keys, versions, revisions)
}

// How a source's text files are read stands from the first file on. Each task reads by what stood when it was claimed;
// what it settled beyond that is stored with its completion. If another task settled something else meanwhile, the
// attempt is handed back, and the next one reads by that.

// ErrReadingMoved is the error of a task whose files another task's reading does not fit.
var ErrReadingMoved error = moved("how the files are read was settled by another task meanwhile")

// readingsOf returns the readings of those jobs that read text files.
func (d *Dispatcher) readingsOf(jobs []*registry.Job) (of []registry.ReadingOf) {
	for _, job := range jobs {
		if one, ok := d.readingOf(job); ok {
			of = append(of, one)
		}
	}
	return of
}

func (d *Dispatcher) readingOf(job *registry.Job) (of registry.ReadingOf, ok bool) {
	op, ok := d.Operators.Get(job.Def.Operator)
	if !ok || len(job.Inputs) > 0 || len(job.Outputs) == 0 || op.Spec().Reading == nil {
		return of, false
	}
	declared := op.Spec().Reading(job.Def.Config)
	if declared == nil {
		return of, false
	}
	text, err := json.Marshal(declared)
	if err != nil { // it came from JSON
		return of, false
	}
	hash := sha256.Sum256(text)
	return registry.ReadingOf{OrgID: job.OrgID, Dataset: job.Outputs[0].Generation.Dataset, Job: job.ID,
		Declaration: hex.EncodeToString(hash[:])}, true
}

// settleReading stores what a completion found of how its files are read.
func (d *Dispatcher) settleReading(ctx context.Context, tx pgx.Tx, x *Completing) error {
	of, ok := d.readingOf(x.Job)
	if !ok || len(x.Outcome.Reading) == 0 && !operators.OpenReading(x.Assignment.Reading) {
		return nil
	}
	if len(x.Outcome.Reading) == 0 { // it settled nothing; another task may have
		x.Outcome.Reading = x.Assignment.Reading
	}
	stands, err := registry.SettleReading(ctx, tx, of, x.Outcome.Reading, x.Assignment.Reading, x.TaskID)
	if err == nil && !stands {
		x.err = ErrReadingMoved
	}
	return err
}

// checkReading checks a reading that a worker sent.
func checkReading(where string, text json.RawMessage) []fault.Problem {
	if len(text) == 0 {
		return nil
	}
	if err := operators.CheckReading(text); err != nil {
		return []fault.Problem{{Location: where, Message: err.Error()}}
	}
	return checkJSON(where, text)
}

// A file without content says nothing of its columns. While nothing else does, its task waits: the first file with rows
// shows them. The attempts are no failures, so the task is never dead for what another file lacks.

// columnsAgain is how long a task waits for columns before it looks again.
const columnsAgain = 10 * time.Second

// waitForColumns hands a task back whose files show no columns, unless nothing can show them: then it fails.
func (d *Dispatcher) waitForColumns(ctx context.Context, t Claimed, cause error, now time.Time) error {
	waits, err := d.mayWaitForColumns(ctx, t.kind, t)
	switch {
	case err != nil:
		return err
	case !waits:
		return d.Fail(ctx, t, tasks.ReasonError, cause, false, now)
	}
	return d.HandBack(ctx, t, fault.Text(cause), now.Add(columnsAgain), now)
}

// mayWaitForColumns reports whether something may still show the columns of a task's files. In a build only the other
// tasks of the job do; where the source serves, a later file may.
func (d *Dispatcher) mayWaitForColumns(ctx context.Context, kind tasks.Kind, t Claimed) (others bool, err error) {
	if kind != tasks.KindBuild {
		return true, nil
	}
	err = pg.InTx(ctx, d.Pool, func(ctx context.Context, tx pgx.Tx) error {
		return tx.QueryRow(ctx, `
			SELECT EXISTS (SELECT FROM leases WHERE origin_job_id = $1 AND task_id <> $2)
			    OR EXISTS (SELECT FROM ready r JOIN tasks t ON t.id = r.task_id
			               WHERE r.origin_job_id = $1 AND r.task_id <> $2 AND t.started_at IS NULL)`,
			t.Job.Origin, t.TaskID).Scan(&others)
	})
	if err != nil {
		return false, fmt.Errorf("other tasks of %s: %w", t.Job.Address(), err)
	}
	return others, nil
}
