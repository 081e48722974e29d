package dispatcher

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"

	"github.com/google/uuid"

	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/lineage"
	"github.com/dagctl/dagctl/registry"
)

// recordRuns adds to b what stores what runs leave besides their outputs.
func (d *Dispatcher) recordRuns(b *pg.Batch, batch []*completing) error {
	var (
		results                 [][]byte
		resultTasks, resultOrgs []uuid.UUID
		effects                 []effect
	)
	for _, x := range batch {
		if len(x.outcome.State) > 0 {
			saveState(b, x.job, x.outcome.State)
		}
		if r := x.outcome.Result.Result; len(r) > 0 {
			resultTasks, resultOrgs, results = append(resultTasks, x.TaskID), append(resultOrgs, x.job.OrgID), append(results, r)
		}
		if x.check != nil {
			continue
		}
		if x.job.Acts() && x.mid == nil {
			effects = append(effects, effectsOf(x.job, x.row.pins)...)
		}
		if err := d.recordColumns(b, x); err != nil {
			return err
		}
	}
	if len(results) > 0 {
		b.Exec("task results", `
			INSERT INTO task_results (task_id, org_id, payload)
			SELECT * FROM unnest($1::uuid[], $2::uuid[], $3::jsonb[])
			ON CONFLICT (task_id) DO UPDATE SET payload = EXCLUDED.payload, created_at = now()`, resultTasks, resultOrgs, results)
	}
	recordEffects(b, effects)
	return nil
}

func saveState(b *pg.Batch, job *registry.Job, state json.RawMessage) {
	b.Exec("operator state of "+job.Address(), `
		INSERT INTO operator_state (org_id, job_id, state) VALUES ($1, $2, $3)
		ON CONFLICT (org_id, job_id, state_key) DO UPDATE SET state = EXCLUDED.state, updated_at = now()`, job.OrgID, job.Origin, state)
}

// recordColumns records where the columns of the outputs come from. What this process has recorded before is passed over:
// every task of a job says the same.
func (d *Dispatcher) recordColumns(b *pg.Batch, x *completing) error {
	if len(x.outcome.Columns) == 0 {
		return nil
	}
	edges := make([]lineage.ColumnEdge, 0, len(x.outcome.Columns))
	hash := sha256.New()
	for _, c := range x.outcome.Columns {
		if c.Output >= len(x.job.Outputs) || c.Input >= len(x.assignment.Inputs) {
			return fault.New(fault.Invalid, "column lineage names output %d or input %d, which the job has not", c.Output, c.Input)
		}
		out, in := x.job.Outputs[c.Output].Generation, x.assignment.Inputs[c.Input].Generation
		edge := lineage.ColumnEdge{
			Output:    lineage.Column{DatasetUUID: out.Dataset, DatasetVersion: out.Version, Name: c.OutputColumn},
			Input:     lineage.Column{DatasetUUID: in.Dataset, DatasetVersion: in.Version, Name: c.InputColumn},
			Transform: lineage.Transform(c.Transform)}
		edges = append(edges, edge)
		fmt.Fprintf(hash, "%v\n", edge)
	}
	x.columns = [sha256.Size]byte(hash.Sum(nil))
	if _, known := d.columns.Load(x.columns); known {
		return nil
	}
	lineage.RecordColumns(b, x.job.OrgID, x.job.Origin, edges)
	return nil
}

// effect is a revision that a job which acts has acted on.
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

// recordEffects remembers what jobs that act have acted on, under the jobs' names.
func recordEffects(b *pg.Batch, effects []effect) {
	if len(effects) == 0 {
		return
	}
	n := len(effects)
	orgs, dags, jobs := make([]uuid.UUID, n), make([]string, n), make([]string, n)
	datasets, keys, versions, revisions := make([]uuid.UUID, n), make([]string, n), make([]uuid.UUID, n), make([]int64, n)
	for i, e := range effects {
		orgs[i], dags[i], jobs[i] = e.job.OrgID, e.job.DAG, e.job.Name
		datasets[i], keys[i], versions[i], revisions[i] = e.pin.Dataset, e.pin.Key, e.pin.Version, e.pin.Revision
	}
	b.Exec(fmt.Sprintf("record %d effects", n), `
		INSERT INTO effect_positions (org_id, dag_name, job_name, dataset_uuid, partition_key, dataset_version, revision)
		SELECT DISTINCT ON (w.org, w.dag, w.job, w.dataset, w.key) w.*
		FROM unnest($1::uuid[], $2::text[], $3::text[], $4::uuid[], $5::text[], $6::uuid[], $7::bigint[])
			AS w(org, dag, job, dataset, key, version, revision)
		ORDER BY w.org, w.dag, w.job, w.dataset, w.key, w.revision DESC
		ON CONFLICT (org_id, dag_name, job_name, dataset_uuid, partition_key) DO UPDATE
		SET dataset_version = EXCLUDED.dataset_version, revision = EXCLUDED.revision, updated_at = now()`,
		orgs, dags, jobs, datasets, keys, versions, revisions)
}
