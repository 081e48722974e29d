package views

import (
	"context"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/dispatcher/tasks"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/registry"
)

// TaskSelection selects tasks that meet all of its conditions; an empty field is no condition. Lists, the verbs over
// many tasks and purges share it.
type TaskSelection struct {
	DAG    string `json:"dag,omitempty" query:"dag" maxLength:"63"`
	Job    string `json:"job,omitempty" query:"job" maxLength:"63" doc:"A job by its name"`
	Status string `json:"status,omitempty" query:"status" enum:"Queued,Running,Completed,Failed,Canceled"`
	Dead   bool   `json:"dead,omitempty" query:"dead" doc:"Only tasks that are out of attempts and wait for a person"`

	Kind string `json:"kind,omitempty" query:"kind" enum:"reactive,source,manual,timer,build,backfill,invalidation,check"`

	Partition string `json:"partition,omitempty" query:"partition" maxLength:"410" doc:"Tasks that make this partition or, with A..B, a partition from A to B, both included"`

	Error         string    `json:"error,omitempty" query:"error" maxLength:"500" doc:"Tasks whose error contains this text"`
	ErrorGroup    string    `json:"error_group,omitempty" query:"error_group" maxLength:"32" doc:"Failed tasks whose error is of this group, as /v1/tasks/errors names it"`
	CreatedAfter  time.Time `json:"created_after,omitzero" query:"created_after" doc:"Made at this time or later"`
	CreatedBefore time.Time `json:"created_before,omitzero" query:"created_before" doc:"Made before this time"`

	ID string `json:"id,omitempty" query:"id" maxLength:"36" doc:"Tasks whose id begins with these characters"`

	IDs []uuid.UUID `json:"ids,omitempty" maxItems:"1000" doc:"Only these"`
}

// Empty reports whether the selection has no condition, and so selects every task.
func (s TaskSelection) Empty() bool {
	return s.DAG == "" && s.Job == "" && s.Status == "" && !s.Dead && s.Kind == "" && s.Partition == "" &&
		s.Error == "" && s.ErrorGroup == "" && s.CreatedAfter.IsZero() && s.CreatedBefore.IsZero() && s.ID == "" &&
		len(s.IDs) == 0
}

// table returns what to list the selected tasks from. Of those that the caller may not look into, shown_tasks has the
// outlines; what is selected by its contents must not be found by them, so it comes from tasks.
func (s TaskSelection) table() string {
	if s.Partition != "" || s.Error != "" || s.ErrorGroup != "" {
		return "tasks"
	}
	return "shown_tasks"
}

// openSet holds the small sets that have all open and all failed tasks, so that a query for them reads no history.
var openSet = map[tasks.Status]string{
	tasks.Queued: `SELECT task_id FROM ready WHERE org_id = $1 UNION ALL
		SELECT task_id FROM waiting WHERE org_id = $1 AND reason NOT IN ('backoff', 'dead')`,
	tasks.Running: `SELECT task_id FROM leases WHERE org_id = $1`,
	tasks.Failed:  `SELECT task_id FROM waiting WHERE org_id = $1 AND reason IN ('backoff', 'dead')`,
}

// deadSet has all dead tasks.
const deadSet = `SELECT task_id FROM waiting WHERE org_id = $1 AND reason = 'dead'`

// within is the condition that tasks t are in a set. The array makes the planner look each of them up: it takes a set
// of ten thousands for reason enough to read all tasks.
func within(set string) string { return `t.id IN (SELECT unnest(ARRAY(` + set + `)))` }

// stateSet returns the set that has all selected tasks, if the state is all that selects them; empty: there is none.
func (s TaskSelection) stateSet() string {
	state := TaskSelection{Status: s.Status}
	if s.Dead {
		state = TaskSelection{Dead: true}
	}
	switch {
	case !reflect.DeepEqual(s, state):
		return ""
	case s.Dead:
		return deadSet
	}
	return openSet[tasks.Status(s.Status)]
}

// conditions collects SQL conditions on tasks t that all must hold, and their arguments.
type conditions struct {
	texts []string
	args  []any
}

// add adds a condition; each ? in it stands for one of the values.
func (c *conditions) add(condition string, values ...any) {
	for _, v := range values {
		c.args = append(c.args, v)
		condition = strings.Replace(condition, "?", fmt.Sprintf("$%d", len(c.args)), 1)
	}
	c.texts = append(c.texts, condition)
}

func (c *conditions) where() string { return strings.Join(c.texts, " AND ") }

// Selected returns a selection as a condition on tasks t, with its arguments. The first argument is the org.
func (vs *Views) Selected(
	ctx context.Context, tx pgx.Tx, caller authz.Caller, s TaskSelection,
) (where string, args []any, err error) {
	c := &conditions{}
	c.add("t.org_id = ?", caller.OrgID)
	var origins []uuid.UUID
	if s.DAG != "" || s.Job != "" {
		if origins, err = vs.registry.Origins(ctx, tx, caller, s.DAG, s.Job); err != nil {
			return "", nil, err
		}
	}
	looked := false // tasks of the wanted status were looked up in their set
	switch {
	case s.ErrorGroup != "":
		failed, err := vs.failedInGroup(ctx, tx, caller, s)
		if err != nil {
			return "", nil, err
		}
		looked = true
		c.add("t.id = ANY(?)", failed)
		c.add("t.status = ?", tasks.Failed)
	case (s.Dead || s.Status == string(tasks.Failed)) && (s.DAG != "" || s.Job != ""):
		failed, err := failedAmong(ctx, tx, caller, s, origins)
		if err != nil {
			return "", nil, err
		}
		looked = true
		c.add("t.id = ANY(?)", failed)
	case s.DAG != "" || s.Job != "":
		c.add("t.job_id = ANY(?)", origins)
	}

	s.addState(c, looked)
	if err := vs.addPartition(ctx, tx, caller, c, s.Partition); err != nil {
		return "", nil, err
	}
	if s.Partition != "" || s.Error != "" {
		addReadable(caller, c)
	}
	if s.Error != "" {
		c.add("position(lower(?) IN lower(t.error_message)) > 0", s.Error)
	}
	s.addTimes(c)
	if s.ID != "" {
		first, last, err := idsOf(s.ID)
		if err != nil {
			return "", nil, err
		}
		c.add("t.id BETWEEN ? AND ?", first, last)
	}
	if len(s.IDs) > 0 {
		c.add("t.id = ANY(?)", s.IDs)
	}
	return c.where(), c.args, nil
}

// idsOf returns the first and the last of the ids that begin with some characters.
func idsOf(start string) (first, last uuid.UUID, err error) {
	digits := strings.ReplaceAll(start, "-", "")
	const all = 32
	if len(digits) <= all {
		first, err = uuid.Parse(digits + strings.Repeat("0", all-len(digits)))
	}
	if err != nil || len(digits) > all {
		return first, last, fault.New(fault.Invalid, "%q is not the start of the id of a task", start).
			WithHint("an id has 32 hexadecimal digits")
	}
	last, err = uuid.Parse(digits + strings.Repeat("f", all-len(digits)))
	return first, last, err
}

// addState adds the conditions on the status and kind of tasks; that they are in the set of their status, unless they
// were looked up in it.
func (s TaskSelection) addState(c *conditions, looked bool) {
	if s.Status != "" {
		c.add("t.status = ?", s.Status)
		if set, ok := openSet[tasks.Status(s.Status)]; ok && !looked {
			c.add(within(set))
		}
	}
	if s.Dead && !looked {
		c.add(within(deadSet))
	}
	if s.Kind != "" {
		c.add("t.kind = ?", s.Kind)
	}
}

// addPartition adds the condition that tasks make a partition, or one of a range FIRST..LAST. A key that there is goes
// before a range of that name.
func (vs *Views) addPartition(
	ctx context.Context, tx pgx.Tx, caller authz.Caller, c *conditions, partition string,
) error {
	from, to, isRange := strings.Cut(partition, "..")
	if isRange {
		named, err := isKey(ctx, tx, caller, *c, partition)
		if err != nil {
			return err
		}
		isRange = !named
	}

	switch {
	case isRange:
		keys, err := vs.partitionsBetween(ctx, tx, caller, *c, from, to)
		if err != nil {
			return err
		}
		c.add("t.partitions && ?", keys)
	case partition != "":
		c.add("? = ANY(t.partitions)", partition)
	}
	return nil
}

// isKey reports whether a text is the key of a partition that a task makes which meets the conditions so far, and which
// the caller may look into.
func isKey(ctx context.Context, tx pgx.Tx, caller authz.Caller, c conditions, text string) (is bool, err error) {
	c.args, c.texts = slices.Clone(c.args), slices.Clone(c.texts)
	c.add("? = ANY(t.partitions)", text)
	addReadable(caller, &c)
	err = tx.QueryRow(ctx, `SELECT EXISTS (SELECT FROM tasks t WHERE `+c.where()+`)`, c.args...).Scan(&is)
	if err != nil {
		return false, fmt.Errorf("partition %s: %w", text, err)
	}
	return is, nil
}

// addReadable leaves out the tasks of hidden jobs, where a selection looks into tasks: a caller who may not read the
// partition or error of a task must not find it by them either.
func addReadable(caller authz.Caller, c *conditions) {
	c.add(registry.NotHidden(caller, "t.job_id", &c.args))
}

// hiddenOf lists the origins that the caller may not look into among those that a statement finds, never nil.
func (vs *Views) hiddenOf(
	ctx context.Context, tx pgx.Tx, caller authz.Caller, origins string, args []any,
) ([]uuid.UUID, error) {
	hidden := []uuid.UUID{}
	if caller.ReadsAll() {
		return hidden, nil
	}
	rows, err := tx.Query(ctx, origins, args...)
	if err != nil {
		return nil, fmt.Errorf("origins of tasks: %w", err)
	}
	found, err := pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
	if err != nil {
		return nil, fmt.Errorf("origins of tasks: %w", err)
	}
	among, err := vs.registry.HiddenAmong(ctx, tx, caller, found)
	return slices.AppendSeq(hidden, maps.Keys(among)), err
}

// addTimes adds the conditions on when tasks were made.
func (s TaskSelection) addTimes(c *conditions) {
	if !s.CreatedAfter.IsZero() {
		c.add("t.created_at >= ?", s.CreatedAfter)
	}
	if !s.CreatedBefore.IsZero() {
		c.add("t.created_at < ?", s.CreatedBefore)
	}
}

// partitionsBetween lists the partitions from one to another that tasks make which meet the conditions so far. Ranges
// are compared by number, other keys as text, which is the order of time for times.
func (vs *Views) partitionsBetween(
	ctx context.Context, tx pgx.Tx, caller authz.Caller, c conditions, from, to string,
) ([]string, error) {
	if from == "" || to == "" {
		return nil, fault.New(fault.Invalid, "%q is not a range of partitions", from+".."+to).
			WithHint("write A..B: the first partition and the last")
	}

	rows, err := tx.Query(ctx, `SELECT DISTINCT t.job_id, t.partitions[1] FROM tasks t
		WHERE `+c.where()+` AND t.partitions[1] IS NOT NULL`, c.args...)
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
	origins = tasks.SortedIDs(origins)
	jobs, err := vs.registry.Jobs(ctx, tx, origins)
	if err != nil {
		return nil, err
	}
	hidden, err := vs.registry.HiddenAmong(ctx, tx, caller, origins)
	if err != nil {
		return nil, err
	}

	keys := []string{}
	for _, m := range all {
		by := dag.Partitioning{}
		if job := jobs[m.Origin]; job != nil {
			by = job.Def.TasksBy()
		}
		if !hidden[m.Origin] && Between(by, from, to, m.Key) {
			keys = append(keys, m.Key)
		}
	}
	slices.Sort(keys)
	return slices.Compact(keys), nil
}

// Between reports whether a key lies between two others, as dag.KeyBetween does; between ends that are no ranges there
// is no range.
func Between(by dag.Partitioning, from, to, key string) bool {
	if by.Kind == dag.ByRange || by.Kind == dag.ByCursor {
		for _, r := range []string{from, to, key} {
			if _, _, err := by.Range(r); err != nil {
				return false
			}
		}
	}
	return dag.KeyBetween(key, from, to)
}
