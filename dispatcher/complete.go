package dispatcher

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/lineage"
	"github.com/dagctl/dagctl/operators"
	"github.com/dagctl/dagctl/registry"
	"github.com/dagctl/dagctl/storage"
)

// completion is what a worker reports of an attempt that did its work.
type completion struct {
	outcome operators.Outcome
	checks  []operators.CheckOutcome // of check tasks
}

// hash recognises a completion that is reported again.
func (c completion) hash() (string, error) {
	body, err := json.Marshal(struct {
		Result  operators.Result
		Written []operators.Written
		Checks  []operators.CheckOutcome
	}{c.outcome.Result, c.outcome.Written, c.checks})
	if err != nil {
		return "", fmt.Errorf("hash completion: %w", err)
	}
	return fmt.Sprintf("%x", sha256.Sum256(body)), nil
}

// complete commits what an attempt made: outputs, lineage, operator state, results and the next events, all in the one
// transaction that checks the fence. A worker that lost its lease to a newer attempt changes nothing, however late or
// often it reports.
func (d *Dispatcher) complete(ctx context.Context, t claimed, c completion, now time.Time) error {
	// Objects are looked at before the transaction: it must not wait for storage.
	for _, w := range c.outcome.Written {
		if err := d.Storage.Verify(ctx, w.Manifest); err != nil {
			return fmt.Errorf("complete task %s: %w", t.TaskID, err)
		}
	}
	hash, err := c.hash()
	if err != nil {
		return err
	}
	var next created
	err = pg.InTx(ctx, d.Pool, func(ctx context.Context, tx pgx.Tx) error {
		next, err = d.completeTx(ctx, tx, t, c, hash, now)
		return err
	})
	if err != nil {
		return fmt.Errorf("complete task %s: %w", t.TaskID, err)
	}
	d.wake.send(append(next.topics(), topicRoute, topicClaim, topicBuild)...)
	return nil
}

func (d *Dispatcher) completeTx(ctx context.Context, tx pgx.Tx, t claimed, c completion, hash string, now time.Time) (created, error) {
	if err := registry.LockDAGsShared(ctx, tx, []string{t.job.LockKey()}); err != nil {
		return created{}, err
	}
	row, err := lockTask(ctx, tx, t.Fence)
	if err != nil {
		return created{}, err
	}
	if repeated, err := row.mayComplete(t.Fence, hash); err != nil || repeated {
		return created{}, err
	}
	var (
		events  []Event
		follow  []newTask
		outputs []outputNote
		state   string
	)
	switch {
	case t.check != nil:
		e, err := d.decideHeld(ctx, tx, t, c.checks, now)
		if err != nil {
			return created{}, err
		}
		if e != nil {
			events = append(events, *e)
		}
	case c.outcome.Unchanged:
		state = "unchanged"
	default:
		if events, follow, outputs, state, err = d.commitOutputs(ctx, tx, t, row, c.outcome, now); err != nil {
			return created{}, err
		}
	}
	if err := accept(ctx, tx, events, now); err != nil {
		return created{}, err
	}
	if err := d.recordRun(ctx, tx, t, row, c.outcome); err != nil {
		return created{}, err
	}
	var next created
	if len(follow) > 0 { // their slots are their own, so no origin lock is needed
		if next, err = d.create(ctx, tx, follow, now); err != nil {
			return created{}, err
		}
	}
	if err := finish(ctx, tx, row, ending{status: "Completed", state: state, hash: hash, outputs: outputs, actor: "WORKER"}, now); err != nil {
		return created{}, err
	}
	return next, nil
}

// outputNote is what tasks.outputs tells of one committed output.
type outputNote struct {
	Output    int    `json:"output"`
	Partition string `json:"partition"`
	Revision  int64  `json:"revision"`
	Rows      int64  `json:"rows"`
	Bytes     int64  `json:"bytes"`
	State     string `json:"state"`
}

// errBaseMoved says that an appending task deduplicated against a revision that was replaced meanwhile.
var errBaseMoved = errors.New("the revision it was to be appended to was replaced meanwhile")

// commitOutputs records the revisions an attempt made. An attempt that read older inputs than what is there already was
// made from publishes nothing.
func (d *Dispatcher) commitOutputs(ctx context.Context, tx pgx.Tx, t claimed, row taskRow, o operators.Outcome, now time.Time) (
	events []Event, follow []newTask, notes []outputNote, state string, err error) {
	refs := make([]registry.Ref, len(o.Written))
	for i, w := range o.Written {
		refs[i] = registry.Ref{Version: t.job.Outputs[w.Output].Generation.Version, Key: w.Partition}
	}
	last, err := registry.LastMade(ctx, tx, refs, readsNew(t.job))
	if err != nil {
		return nil, nil, nil, "", err
	}
	published := map[registry.Ref]int64{}
	if t.job.Def.UpdateStrategy == dag.Append {
		if published, err = registry.PublishedAt(ctx, tx, refs); err != nil {
			return nil, nil, nil, "", err
		}
	}
	for i, w := range o.Written {
		made := last[refs[i]]
		late := overtaken(row.pins, made.Pins)
		if len(t.job.Inputs) == 0 && !late {
			if late, err = readLater(ctx, tx, t, refs[i], made); err != nil {
				return nil, nil, nil, "", err
			}
		}
		if late {
			return nil, nil, nil, "superseded: newer inputs were published already", nil
		}
		// One that waits for its checks may be the next base; one that they rejected never was.
		if t.job.Def.UpdateStrategy == dag.Append && (w.BaseRevision != published[refs[i]] || made.State == "Held") {
			return nil, nil, nil, "", errBaseMoved
		}
	}
	for i, w := range o.Written {
		out := t.job.Outputs[w.Output]
		checks, held := checksOf(t.job, w.Output)
		revision, err := registry.Commit(ctx, tx, registry.NewRevision{OrgID: t.job.OrgID, Dataset: out.Generation.Dataset,
			Version: out.Generation.Version, Key: w.Partition, Manifest: w.Manifest, SourceVersion: o.SourceVersion,
			TaskID: t.TaskID, Attempt: t.Attempt, Held: held, Pins: row.pins, Now: now})
		if err != nil {
			return nil, nil, nil, "", err
		}
		note := outputNote{w.Output, w.Partition, revision, w.Manifest.Rows, w.Manifest.Bytes, "Published"}
		if held {
			note.State = "Held"
		} else {
			attempt := storage.Attempt{Generation: out.Generation, Partition: w.Partition, Task: t.TaskID, Number: t.Attempt, Output: w.Output}
			if err := d.Storage.Publish(ctx, tx, attempt, revision, w.Manifest); err != nil {
				return nil, nil, nil, "", err
			}
			events = append(events, Event{ID: uuid.Must(uuid.NewV7()), OrgID: t.job.OrgID, Dataset: out.Generation.Dataset,
				Version: refs[i].Version, Key: w.Partition, Revision: revision, Producer: t.TaskID})
		}
		notes = append(notes, note)
		if len(checks) > 0 {
			check, err := checkTask(t.job, w.Output, w.Partition, revision, classLive)
			if err != nil {
				return nil, nil, nil, "", err
			}
			follow = append(follow, check)
		}
	}
	return events, follow, notes, "", nil
}

// readLater reports whether what is there of a source's partition was read by an attempt that began after this one: a task
// that lost its lease and ends last must not put old content over new.
func readLater(ctx context.Context, tx pgx.Tx, t claimed, ref registry.Ref, made registry.Made) (later bool, err error) {
	if made.Revision == 0 {
		return false, nil
	}
	newest, err := registry.LoadRevision(ctx, tx, ref, made.Revision)
	if err != nil {
		return false, err
	}
	err = tx.QueryRow(ctx, `
		SELECT EXISTS (SELECT FROM tasks o, tasks t WHERE o.id = $1 AND t.id = $2 AND o.id <> t.id AND o.started_at > t.started_at)`,
		newest.TaskID, t.TaskID).Scan(&later)
	if err != nil {
		return false, fmt.Errorf("compare with revision %d of %s: %w", made.Revision, ref.Key, err)
	}
	return later, nil
}

// recordRun stores what a run leaves besides its outputs.
func (d *Dispatcher) recordRun(ctx context.Context, tx pgx.Tx, t claimed, row taskRow, o operators.Outcome) error {
	if len(o.State) > 0 {
		if _, err := tx.Exec(ctx, `
			INSERT INTO operator_state (org_id, job_id, state) VALUES ($1, $2, $3)
			ON CONFLICT (org_id, job_id, state_key) DO UPDATE SET state = EXCLUDED.state, updated_at = now()`,
			t.job.OrgID, t.job.Origin, o.State); err != nil {
			return fmt.Errorf("operator state: %w", err)
		}
	}
	if len(o.Result.Result) > 0 {
		if _, err := tx.Exec(ctx, `
			INSERT INTO task_results (task_id, org_id, payload) VALUES ($1, $2, $3)
			ON CONFLICT (task_id) DO UPDATE SET payload = EXCLUDED.payload, created_at = now()`,
			t.TaskID, t.job.OrgID, o.Result.Result); err != nil {
			return fmt.Errorf("task result: %w", err)
		}
	}
	if t.check != nil {
		return nil
	}
	if t.job.Acts() {
		if err := recordEffects(ctx, tx, t.job, row.pins); err != nil {
			return err
		}
	}
	if err := recordInputs(ctx, tx, t, row.pins); err != nil {
		return err
	}
	return recordColumns(ctx, tx, t, o.Columns)
}

func recordInputs(ctx context.Context, tx pgx.Tx, t claimed, pins []registry.Pin) error {
	inputs := make([]lineage.Input, len(pins))
	for i, p := range pins {
		inputs[i] = lineage.Input{DatasetUUID: p.Dataset, DatasetVersion: p.Version, PartitionKey: p.Key, Revision: p.Revision}
	}
	times, err := registry.MaterializedAt(ctx, tx, pins)
	if err != nil {
		return err
	}
	for i := range inputs {
		inputs[i].MaterializedAt = times[i]
	}
	return lineage.RecordInputs(ctx, tx, t.job.OrgID, t.TaskID, inputs)
}

func recordColumns(ctx context.Context, tx pgx.Tx, t claimed, columns []operators.ColumnOrigin) error {
	edges := make([]lineage.ColumnEdge, 0, len(columns))
	for _, c := range columns {
		if c.Output >= len(t.job.Outputs) || c.Input >= len(t.assignment.Inputs) {
			return fault.New(fault.Invalid, "column lineage names output %d or input %d, which the job has not", c.Output, c.Input)
		}
		out, in := t.job.Outputs[c.Output].Generation, t.assignment.Inputs[c.Input].Generation
		edges = append(edges, lineage.ColumnEdge{
			Output:    lineage.Column{DatasetUUID: out.Dataset, DatasetVersion: out.Version, Name: c.OutputColumn},
			Input:     lineage.Column{DatasetUUID: in.Dataset, DatasetVersion: in.Version, Name: c.InputColumn},
			Transform: lineage.Transform(c.Transform)})
	}
	return lineage.RecordColumns(ctx, tx, t.job.OrgID, t.job.Origin, edges)
}

// recordEffects remembers what a job that acts has acted on, under the job's name.
func recordEffects(ctx context.Context, tx pgx.Tx, job *registry.Job, pins []registry.Pin) error {
	_, err := tx.Exec(ctx, `
		INSERT INTO effect_positions (org_id, dag_name, job_name, dataset_uuid, partition_key, dataset_version, revision)
		SELECT DISTINCT ON (w.dataset, w.key) $1, $2, $3, w.dataset, w.key, w.version, w.revision
		FROM jsonb_to_recordset($4) AS w(dataset uuid, key text, version uuid, revision bigint)
		ORDER BY w.dataset, w.key, w.revision DESC
		ON CONFLICT (org_id, dag_name, job_name, dataset_uuid, partition_key) DO UPDATE
		SET dataset_version = EXCLUDED.dataset_version, revision = EXCLUDED.revision, updated_at = now()`, job.OrgID, job.DAG, job.Name, pins)
	if err != nil {
		return fmt.Errorf("effect positions of %s: %w", job.Address(), err)
	}
	return nil
}
