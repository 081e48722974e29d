package views

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/dispatcher/tasks"
	"github.com/dagctl/dagctl/internal/clock"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/registry"
)

// JobDetail is a job of the version that its DAG shows: the one that serves, else the one being built.
type JobDetail struct {
	JobStatus
	DAG     string `json:"dag"`
	Version int    `json:"version" doc:"The number of the DAG's version that it is shown of"`
	Live    bool   `json:"live" doc:"That version serves"`

	Definition *JobDefinition  `json:"definition,omitempty" doc:"Absent for callers who may not read documents of the DAG, or some of what the job reads or makes"`
	Limits     []LimitUse      `json:"limits,omitempty" doc:"The job's limits that are in use"`
	States     []OperatorState `json:"operator_states,omitempty" doc:"What its operator remembers between runs; where the definition is shown, at most 50"`
}

// JobDefinition is what the document says of a job, with its defaults. Secrets are only named.
type JobDefinition struct {
	OperatorVersion   string          `json:"operator_version,omitempty"`
	CodeVersion       string          `json:"code_version,omitempty"`
	PartitionBy       string          `json:"partition_by,omitempty"`
	SplitBy           string          `json:"split_by,omitempty" doc:"The column by which its rows are split into partitions"`
	FirstPartition    string          `json:"first_partition,omitempty" doc:"The first partition that its source can be asked for"`
	Lookback          int             `json:"lookback,omitempty" doc:"How many partitions before the newest one its source is asked for again each time"`
	Trigger           string          `json:"trigger,omitempty"`
	ExecutionStrategy string          `json:"execution_strategy,omitempty"`
	UpdateStrategy    string          `json:"update_strategy,omitempty"`
	Effect            string          `json:"effect,omitempty"`
	PayloadSchema     json.RawMessage `json:"payload_schema,omitempty"`
	Config            dag.Config      `json:"config,omitempty"`
	Secrets           []string        `json:"secrets,omitempty"`
	Checks            []string        `json:"checks,omitempty"`

	MaxConcurrency   int     `json:"max_concurrency,omitempty" doc:"Absent: any number at once"`
	ConcurrencyKey   string  `json:"concurrency_key,omitempty"`
	Priority         int     `json:"priority,omitempty"`
	StateKey         string  `json:"state_key,omitempty"`
	MaxAttempts      int     `json:"max_attempts,omitempty"`
	RetryInitial     float64 `json:"retry_initial_seconds,omitempty"`
	RetryMax         float64 `json:"retry_max_seconds,omitempty"`
	RetryMultiplier  float64 `json:"retry_multiplier,omitempty"`
	Timeout          float64 `json:"timeout_seconds,omitempty"`
	HeartbeatTimeout float64 `json:"heartbeat_timeout_seconds,omitempty"`
}

// LimitUse is a limit of a job, and how much of it is taken.
type LimitUse struct {
	Key  string `json:"key" doc:"job:DAG/JOB"`
	Held int    `json:"held"`
	Max  int    `json:"max"`
}

// OperatorState is what an operator remembers between the runs of a job.
type OperatorState struct {
	Key       string          `json:"key"`
	State     json.RawMessage `json:"state"`
	UpdatedAt time.Time       `json:"updated_at"`
}

// mostStates is how many operator states a job shows.
const mostStates = 50

// Job returns one job of a DAG.
func (vs *Views) Job(ctx context.Context, caller authz.Caller, dagName, name string) (JobDetail, error) {
	var detail JobDetail
	err := pg.InOrgTx(ctx, vs.requests, caller.OrgID, func(ctx context.Context, tx pgx.Tx) error {
		d, err := vs.registry.DAG(ctx, tx, caller, dagName)
		if err != nil {
			return err
		}
		shown := d.Shown()
		if shown == nil {
			return registry.NoJob(dagName, name)
		}
		job, view, err := vs.registry.JobOf(ctx, tx, caller, shown.ID, name)
		if err != nil {
			return err
		}
		if job == nil {
			return noJob(ctx, tx, caller, dagName, name)
		}

		detail = JobDetail{JobStatus: JobStatus{JobView: view}, DAG: dagName, Version: shown.Number,
			Live: d.Active != nil && d.Active.ID == shown.ID}
		if err := vs.addStanding(ctx, tx, caller, d, &detail); err != nil {
			return err
		}
		return vs.addDefinition(ctx, tx, caller, job, &detail)
	})
	return detail, fault.Wrap(err, fmt.Sprintf("job %s/%s", dagName, name))
}

// noJob is the error about a job that a DAG does not have; it tells the new name of one that was renamed.
func noJob(ctx context.Context, tx pgx.Tx, caller authz.Caller, dagName, name string) error {
	renamed, err := registry.NewName(ctx, tx, caller.OrgID, dagName, name)
	if err != nil || renamed == "" {
		return cmp.Or(err, registry.NoJob(dagName, name))
	}
	if hidden, err := registry.IsHidden(ctx, tx, caller, dagName, renamed); err != nil || hidden {
		return cmp.Or(err, registry.NoJob(dagName, name))
	}
	return fault.New(fault.NotFound, "%s/%s is now %s/%s", dagName, name, dagName, renamed).
		WithHint("`dagctl status %s/%s` shows it: a deploy renamed the job", dagName, renamed)
}

// FormerJob reports whether any version of a DAG, however old, has a job of that name.
func (vs *Views) FormerJob(ctx context.Context, caller authz.Caller, dagName, name string) (former bool, err error) {
	err = pg.InOrgTx(ctx, vs.requests, caller.OrgID, func(ctx context.Context, tx pgx.Tx) error {
		origins, err := vs.registry.Origins(ctx, tx, caller, dagName, name)
		former = len(origins) > 0
		return err
	})
	return former, fault.Wrap(err, fmt.Sprintf("job %s/%s", dagName, name))
}

// addStanding adds how the job stands: the counts of its tasks, its pause, what is withheld, and its limits.
func (vs *Views) addStanding(
	ctx context.Context, tx pgx.Tx, caller authz.Caller, d registry.DAG, j *JobDetail,
) error {
	since := clock.Now().Add(-Lately)
	counts, err := countTasks(ctx, tx, caller.OrgID, []uuid.UUID{j.Origin}, since, CompletedAtMost)
	if err != nil {
		return err
	}
	former, err := doneBefore(ctx, tx, caller.OrgID, d.Name, since)
	if err != nil {
		return err
	}
	pauses, err := PausesOf(ctx, tx, caller)
	if err != nil {
		return err
	}
	j.Tasks, j.Paused = counts[j.Origin], tasks.WidestPause(pauses, d.Name, j.Name)
	j.Tasks.Completed += former[j.Name]

	withheld, err := registry.WithheldOf(ctx, tx, caller.OrgID, serving(d))
	if err != nil {
		return err
	}
	if d.Active != nil {
		j.Withheld = withheld[d.Active.ID][j.Name]
	}

	rows, err := tx.Query(ctx, `SELECT key, held, max FROM limits WHERE org_id = $1 AND key = $2`, caller.OrgID,
		"job:"+d.Name+"/"+j.Name)
	if err != nil {
		return fmt.Errorf("limits: %w", err)
	}
	j.Limits, err = pgx.CollectRows(rows, pgx.RowToStructByPos[LimitUse])
	return err
}

// addDefinition adds what the document says of the job and what its operator remembers, if the caller may read that.
func (vs *Views) addDefinition(
	ctx context.Context, tx pgx.Tx, caller authz.Caller, job *registry.Job, j *JobDetail,
) error {
	if !caller.May(authz.Inspect, authz.OnDAG(j.DAG)) {
		return nil
	}
	readable, err := vs.registry.ReadableJobs(ctx, tx, caller, []*registry.Job{job})
	if err != nil || !readable[job.ID] {
		return err
	}

	shown, err := registry.ShownJob(ctx, tx, caller.OrgID, job.ID)
	if err != nil || !shown {
		return err
	}
	j.Definition = definitionOf(job.Def)
	rows, err := tx.Query(ctx, `
		SELECT state_key, state, updated_at FROM operator_state
		WHERE org_id = $1 AND job_id = $2 AND state <> '{}' ORDER BY state_key LIMIT $3`,
		caller.OrgID, j.Origin, mostStates)
	if err != nil {
		return fmt.Errorf("operator states: %w", err)
	}
	j.States, err = pgx.CollectRows(rows, pgx.RowToStructByPos[OperatorState])
	return err
}

// definitionOf returns a job's definition for people.
func definitionOf(d dag.Job) *JobDefinition {
	out := &JobDefinition{
		OperatorVersion: d.OperatorVersion, CodeVersion: d.CodeVersion, PartitionBy: d.Partitions(), SplitBy: d.SplitBy,
		Trigger: string(d.Trigger), ExecutionStrategy: string(d.ExecutionStrategy),
		UpdateStrategy: string(d.UpdateStrategy), Effect: string(d.Effect), PayloadSchema: d.PayloadSchema,
		Config: d.Config, Secrets: d.Secrets,

		MaxConcurrency: d.MaxConcurrency, ConcurrencyKey: d.ConcurrencyKey, Priority: d.Priority, StateKey: d.StateKey,
		MaxAttempts: d.MaxAttempts, RetryInitial: d.Retry.Initial.Seconds(), RetryMax: d.Retry.Max.Seconds(),
		RetryMultiplier: d.Retry.Multiplier,
		Timeout:         d.Timeout.Seconds(), HeartbeatTimeout: d.HeartbeatTimeout.Seconds(),
	}
	if d.Asked() {
		out.FirstPartition, out.Lookback = d.Source.FirstPartition, d.Source.Lookback
	}
	for _, c := range d.Checks {
		out.Checks = append(out.Checks, c.Name)
	}
	return out
}
