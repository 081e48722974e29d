package dispatcher

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/internal/fault"
)

// TaskSelection says which tasks are meant, by what is true of them all; empty fields say nothing. Lists, the verbs over
// many tasks and purges share it.
type TaskSelection struct {
	DAG           string    `json:"dag,omitempty" query:"dag" maxLength:"63"`
	Job           string    `json:"job,omitempty" query:"job" maxLength:"63" doc:"A job by its name"`
	Status        string    `json:"status,omitempty" query:"status" enum:"Queued,Running,Completed,Failed,Canceled"`
	Dead          bool      `json:"dead,omitempty" query:"dead" doc:"Only those out of attempts, waiting for a person"`
	Kind          string    `json:"kind,omitempty" query:"kind" enum:"reactive,source,manual,timer,build,backfill,invalidation,check"`
	Partition     string    `json:"partition,omitempty" query:"partition" maxLength:"410" doc:"That make this partition, or, with A..B, one from A to B, both included"`
	Error         string    `json:"error,omitempty" query:"error" maxLength:"500" doc:"Whose error contains this text"`
	ErrorGroup    string    `json:"error_group,omitempty" query:"error_group" maxLength:"32" doc:"Whose error is of this group, as /v1/tasks/errors names them"`
	CreatedAfter  time.Time `json:"created_after,omitzero" query:"created_after" doc:"Made at this time or later"`
	CreatedBefore time.Time `json:"created_before,omitzero" query:"created_before" doc:"Made before this time"`

	IDs []uuid.UUID `json:"ids,omitempty" maxItems:"1000" doc:"Only these"`
}

// empty reports whether it says nothing, and so means every task.
func (s TaskSelection) empty() bool {
	return s.DAG == "" && s.Job == "" && s.Status == "" && !s.Dead && s.Kind == "" && s.Partition == "" && s.Error == "" &&
		s.ErrorGroup == "" && s.CreatedAfter.IsZero() && s.CreatedBefore.IsZero() && len(s.IDs) == 0
}

// openSet names the small set that holds all open tasks of a status, so that asking for them reads no history.
var openSet = map[string]string{
	"Queued":  `t.id IN (SELECT task_id FROM ready WHERE org_id = $1 UNION ALL SELECT task_id FROM waiting WHERE org_id = $1)`,
	"Running": `t.id IN (SELECT task_id FROM leases WHERE org_id = $1)`,
}

// deadSet is the condition, on tasks t, of those that are dead.
const deadSet = `t.id IN (SELECT task_id FROM waiting WHERE org_id = $1 AND reason = 'dead')`

// selected is a selection as a condition on tasks t, with its arguments, the first of which is the org. What the caller may
// not read of a task, its error, is no means of finding it either.
func (d *Dispatcher) selected(ctx context.Context, tx pgx.Tx, caller authz.Caller, s TaskSelection) (where string, args []any, err error) {
	conditions := []string{"t.org_id = $1"}
	args = []any{caller.OrgID}
	add := func(condition string, values ...any) {
		for _, v := range values {
			args = append(args, v)
			condition = strings.Replace(condition, "?", fmt.Sprintf("$%d", len(args)), 1)
		}
		conditions = append(conditions, condition)
	}
	if s.DAG != "" || s.Job != "" {
		origins, err := d.Registry.Origins(ctx, tx, caller, s.DAG, s.Job)
		if err != nil {
			return "", nil, err
		}
		add("t.job_id = ANY(?)", origins)
	}
	if s.Status != "" {
		add("t.status = ?", s.Status)
		if set, ok := openSet[s.Status]; ok {
			add(set)
		}
	}
	if s.Dead {
		add(deadSet)
	}
	if s.Kind != "" {
		add("t.kind = ?", s.Kind)
	}
	if from, to, isRange := strings.Cut(s.Partition, ".."); isRange {
		// Coarsely as text, exactly by the partitioning of each job.
		keys, err := d.partitionsBetween(ctx, tx, caller, conditions, args, from, to)
		if err != nil {
			return "", nil, err
		}
		add("t.partitions && ?", keys)
	} else if s.Partition != "" {
		add("? = ANY(t.partitions)", s.Partition)
	}
	if s.Error != "" {
		add("position(lower(?) IN lower(t.error_message)) > 0", s.Error)
	}
	if s.ErrorGroup != "" {
		add("t.error_message IS NOT NULL AND error_group(t.error_message) = ?", s.ErrorGroup)
	}
	if s.Error != "" || s.ErrorGroup != "" {
		hidden, err := d.Registry.HiddenOrigins(ctx, tx, caller)
		if err != nil {
			return "", nil, err
		}
		add("t.job_id <> ALL(?)", hidden)
	}
	if !s.CreatedAfter.IsZero() {
		add("t.created_at >= ?", s.CreatedAfter)
	}
	if !s.CreatedBefore.IsZero() {
		add("t.created_at < ?", s.CreatedBefore)
	}
	if len(s.IDs) > 0 {
		add("t.id = ANY(?)", s.IDs)
	}
	return strings.Join(conditions, " AND "), args, nil
}

// partitionsBetween lists the partitions from one to another that tasks make which meet the conditions so far: ranges are
// compared by number, the others as text, which is the order of time for times.
func (d *Dispatcher) partitionsBetween(ctx context.Context, tx pgx.Tx, caller authz.Caller, conditions []string, args []any, from, to string) ([]string, error) {
	if from == "" || to == "" {
		return nil, fault.New(fault.Invalid, "%q is no range of partitions", from+".."+to).WithHint("write A..B: the first partition and the last")
	}
	rows, err := tx.Query(ctx, `SELECT DISTINCT t.job_id, t.partitions[1] FROM tasks t
		WHERE `+strings.Join(conditions, " AND ")+` AND t.partitions[1] IS NOT NULL`, args...)
	if err != nil {
		return nil, fmt.Errorf("partitions of tasks: %w", err)
	}
	type made struct {
		Origin uuid.UUID
		Key    string
	}
	all, err := pgx.CollectRows(rows, pgx.RowToStructByPos[made])
	if err != nil {
		return nil, fmt.Errorf("partitions of tasks: %w", err)
	}
	var origins []uuid.UUID
	for _, m := range all {
		origins = append(origins, m.Origin)
	}
	jobs, err := d.Registry.Jobs(ctx, tx, dedupeIDs(origins))
	if err != nil {
		return nil, err
	}
	keys := []string{}
	for _, m := range all {
		by := dag.Partitioning{}
		if job := jobs[m.Origin]; job != nil {
			by = job.Def.PartitionBy
		}
		if between(by, from, to, m.Key) {
			keys = append(keys, m.Key)
		}
	}
	slices.Sort(keys)
	return slices.Compact(keys), nil
}
