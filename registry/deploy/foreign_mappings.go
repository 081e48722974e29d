package deploy

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/registry"
	"github.com/dagctl/dagctl/registry/contract"
)

// A job keeps the mapping of its inputs until its DAG is deployed again, while a dataset of another DAG may be
// partitioned differently from one cutover to the next. Where the mapping still leads from the new partitions to the
// job's own, the job follows. Where it does not, plan, deploy, promotion, cutover and rollback of the other DAG are
// refused. They take the lock of the graph of DAGs, as every deploy with inputs from other DAGs does, so that neither
// misses the other.

// Misfit returns why a job cannot go on mapping an input whose partitioning was one when the job was deployed and is
// another by now; nil if it can. It is pure.
func Misfit(job *dag.Job, in dag.Input, was, is dag.Partitioning) *dag.Mismatch {
	if was == is {
		return nil
	}
	followed, follows := was.Kind == dag.ByCursor, is.Kind == dag.ByCursor
	if in.Triggers() && job.ExecutionStrategy == dag.PerUpdate && followed != follows {
		return &dag.Mismatch{Reason: "a job begins or ceases to follow a cursor only when it is deployed"}
	}
	return job.Mismatch(in, is)
}

// ForeignInput is an input of a job, with how the dataset of another DAG that it reads was partitioned when the job was
// deployed, and is or will be.
type ForeignInput struct {
	Job       *dag.Job
	DAG       string    // the job's
	VersionID uuid.UUID // the job's
	Version   int       // its number, unless it serves
	Index     int
	Dataset   uuid.UUID
	Producer  string // DAG/JOB
	Was, Is   dag.Partitioning
}

// Misfit returns why the job cannot follow; nil if it can.
func (f ForeignInput) Misfit() *dag.Mismatch {
	return Misfit(f.Job, f.Job.Inputs[f.Index], f.Was, f.Is)
}

// Reader names the job that has the input.
func (f ForeignInput) Reader() string {
	if f.Version > 0 {
		return fmt.Sprintf("%s/%s of v%d", f.DAG, f.Job.Name, f.Version)
	}
	return f.DAG + "/" + f.Job.Name
}

// Blocked says why the job cannot follow its input, and what to do about it. It is empty if the job can follow.
func (f ForeignInput) Blocked() string {
	m := f.Misfit()
	if m == nil {
		return ""
	}
	in := f.Job.Inputs[f.Index]
	text := fmt.Sprintf("input %s of %s/%s is mapped (`%s`) from %s, but %s has %s now: %s; deploy %s again",
		in.As, f.DAG, f.Job.Name, in.Map, f.Was, f.Producer, f.Is, m.Reason, f.DAG)
	if m.Suggestion != "" {
		text += ", and if its file does not fit either: " + m.Suggestion
	}
	return text
}

// repartitioned is a dataset whose partitioning a version changes, or that comes back after a version without it:
// whoever still reads it knows the partitioning that it had.
type repartitioned struct {
	name    string
	back    bool // was is not known
	was, is dag.Partitioning
}

// repartitions returns the datasets that both pointer sets have, and that they partition differently. It is pure.
func repartitions(live, next []planned) map[uuid.UUID]repartitioned {
	before, changed := byDataset(live), map[uuid.UUID]repartitioned{}
	for _, n := range next {
		if l, serves := before[n.id]; serves && l.partitionBy != n.partitionBy {
			changed[n.id] = repartitioned{name: n.dataset, was: l.partitionBy, is: n.partitionBy}
		}
	}
	return changed
}

// RefuseMisfits refuses to let a version serve with whose partitions a job of another DAG cannot go on, or that could
// not itself go on with those of another DAG.
func RefuseMisfits(ctx context.Context, tx pgx.Tx, b registry.Build) error {
	changed, err := repartitionedBy(ctx, tx, b)
	if err != nil {
		return err
	}
	if len(changed) > 0 {
		if err := LockGraph(ctx, tx, b.OrgID); err != nil {
			return err
		}
	}
	return refuseMisfits(ctx, tx, b, changed)
}

// previewMisfits returns what RefuseMisfits would refuse now, without its lock.
func previewMisfits(ctx context.Context, tx pgx.Tx, b registry.Build) ([]contract.Finding, error) {
	changed, err := repartitionedBy(ctx, tx, b)
	if err != nil {
		return nil, err
	}
	err = refuseMisfits(ctx, tx, b, changed)
	if refused, ok := errors.AsType[*fault.Error](err); ok && refused.Kind == fault.Conflict {
		return []contract.Finding{{Kind: contract.PartitioningChanged, Level: contract.Refuses, Text: refused.Message,
			Hint: refused.Hint}}, nil
	}
	return nil, err
}

func refuseMisfits(
	ctx context.Context, tx pgx.Tx, b registry.Build, changed map[uuid.UUID]repartitioned,
) error {
	_, unfit, err := followers(ctx, tx, b.OrgID, changed)
	if err != nil {
		return err
	}
	if err := refuseUnfit(unfit); err != nil {
		return err
	}
	return RefuseOwnMisfits(ctx, tx, b)
}

// repartitionedBy returns the datasets that a version partitions differently from the one that serves, and those that
// come back with it while jobs of other DAGs read them.
func repartitionedBy(ctx context.Context, tx pgx.Tx, b registry.Build) (map[uuid.UUID]repartitioned, error) {
	var live uuid.UUID
	if err := tx.QueryRow(ctx, `
		SELECT coalesce((SELECT dag_version_id FROM dag_current_versions WHERE org_id = $1 AND dag_name = $2), $3)`,
		b.OrgID, b.DAG, uuid.Nil).Scan(&live); err != nil {
		return nil, fmt.Errorf("live version of %s: %w", b.DAG, err)
	}

	rows, err := tx.Query(ctx, `
		SELECT n.dataset_uuid, n.name, l.dataset_uuid IS NULL, coalesce(lg.partition_by, ng.partition_by), ng.partition_by
		FROM dag_version_datasets n
		JOIN dataset_versions ng ON ng.id = n.dataset_version
		LEFT JOIN dag_version_datasets l ON l.dag_version_id = $2 AND l.dataset_uuid = n.dataset_uuid
		LEFT JOIN dataset_versions lg ON lg.id = l.dataset_version
		WHERE n.dag_version_id = $1 AND CASE WHEN l.dataset_uuid IS NOT NULL THEN ng.partition_by <> lg.partition_by
			ELSE EXISTS (SELECT FROM job_inputs i WHERE i.org_id = $3 AND i.dataset_uuid = n.dataset_uuid AND NOT i.in_dag) END`,
		b.ID, live, b.OrgID)
	if err != nil {
		return nil, fmt.Errorf("partitionings that %s v%d changes: %w", b.DAG, b.Number, err)
	}

	changed := map[uuid.UUID]repartitioned{}
	var (
		id uuid.UUID
		r  repartitioned
	)
	if _, err := pgx.ForEachRow(rows, []any{&id, &r.name, &r.back, &r.was, &r.is}, func() error {
		changed[id] = r
		return nil
	}); err != nil {
		return nil, fmt.Errorf("partitionings that %s v%d changes: %w", b.DAG, b.Number, err)
	}
	return changed, nil
}

// RefuseOwnMisfits refuses a version with an input from another DAG that has been partitioned differently since, in a
// way that the version cannot go on with.
func RefuseOwnMisfits(ctx context.Context, tx pgx.Tx, b registry.Build) error {
	blocked, err := BlockedInputs(ctx, tx, b.OrgID, b.ID)
	if err != nil || len(blocked) == 0 {
		return err
	}
	return fault.New(fault.Conflict, "%s", blocked[0].Blocked())
}

// followers returns, by dataset, the jobs of other DAGs that can go on with what is to be partitioned differently, and
// those that can read the present partitions and could not go on with the new ones.
func followers(
	ctx context.Context, tx pgx.Tx, org uuid.UUID, changed map[uuid.UUID]repartitioned,
) (follow map[uuid.UUID][]string, unfit []contract.Unfit, err error) {
	if len(changed) == 0 {
		return nil, nil, nil
	}
	var datasets []uuid.UUID
	for id := range changed {
		datasets = append(datasets, id)
	}
	inputs, err := foreignInputs(ctx, tx, `i.org_id = $1 AND i.dataset_uuid = ANY($2)
		AND v.status IN ('Active', 'Building', 'Ready')`, org, datasets)
	if err != nil {
		return nil, nil, err
	}

	follow = map[uuid.UUID][]string{}
	for _, f := range inputs {
		c := changed[f.Dataset]
		if c.back {
			c.was = f.Was
		}
		if f.Is = c.was; f.Misfit() != nil {
			continue // it is blocked already
		}
		f.Is = c.is
		switch m := f.Misfit(); {
		case m == nil && !c.back:
			follow[f.Dataset] = append(follow[f.Dataset], f.Reader())
		case m != nil:
			in := f.Job.Inputs[f.Index]
			unfit = append(unfit, contract.Unfit{Dataset: f.Dataset, Name: c.name,
				Consumer: f.DAG + "/" + f.Job.Name,
				Text: fmt.Sprintf("dataset %s would go from %s to %s, but %s maps its input %s by `%s` to %s: %s",
					c.name, c.was, c.is, f.Reader(), in.As, in.Map, f.Job.PartitionBy, m.Reason),
				Hint: fmt.Sprintf("deploy %s first, in a form that takes either: with `partition_by: none` or "+
					"`map: latest`, or without that input", f.DAG)})
		}
	}
	return follow, unfit, nil
}

// orElse follows the hint of what is unfit.
const orElse = "; or publish the new partitions under another name"

// refuseUnfit returns a conflict that has a problem for each job that could not go on; nil if all can.
func refuseUnfit(unfit []contract.Unfit) error {
	if len(unfit) == 0 {
		return nil
	}
	e := fault.New(fault.Conflict, "%s", unfit[0].Text).WithHint("%s", unfit[0].Hint+orElse)
	for _, u := range unfit {
		e.Problems = append(e.Problems, fault.Problem{Location: "publish." + u.Name, Code: string(dag.CodeMapping),
			Message: u.Text, Suggestion: u.Hint})
	}
	return e
}

// noteFollowers adds to each change of a partitioning the jobs of other DAGs that go on with it. A deploy that a job
// could not go on with is refused; a plan says so among its findings.
func (d *deploy) noteFollowers(ctx context.Context, tx pgx.Tx, live, next []planned, changes []registry.Change) error {
	changed := repartitions(live, next)
	if err := d.addReturning(ctx, tx, live, next, changed); err != nil {
		return err
	}
	if len(changed) > 0 && !d.planning {
		if err := LockGraph(ctx, tx, d.caller.OrgID); err != nil {
			return err
		}
	}
	follow, unfit, err := followers(ctx, tx, d.caller.OrgID, changed)
	if err != nil {
		return err
	}
	if d.unfit = unfit; !d.planning {
		if err := refuseUnfit(unfit); err != nil {
			return err
		}
	}

	for i := range changes {
		c := &changes[i]
		if readers := follow[c.ID]; len(readers) > 0 {
			by := changed[c.ID]
			c.Reason += fmt.Sprintf(", from %s to %s, which %s can follow", by.was, by.is,
				strings.Join(slices.Compact(readers), ", "))
		}
	}
	return nil
}

// addReturning adds the datasets that come back while jobs of other DAGs read them.
func (d *deploy) addReturning(
	ctx context.Context, tx pgx.Tx, live, next []planned, changed map[uuid.UUID]repartitioned,
) error {
	before, coming := byDataset(live), map[uuid.UUID]planned{}
	for _, n := range next {
		if _, serves := before[n.id]; !serves {
			coming[n.id] = n
		}
	}
	if len(coming) == 0 {
		return nil
	}

	rows, err := tx.Query(ctx, `
		SELECT DISTINCT dataset_uuid FROM job_inputs WHERE org_id = $1 AND dataset_uuid = ANY($2) AND NOT in_dag`,
		d.caller.OrgID, slices.Collect(maps.Keys(coming)))
	if err != nil {
		return fmt.Errorf("datasets that come back: %w", err)
	}
	var id uuid.UUID
	if _, err := pgx.ForEachRow(rows, []any{&id}, func() error {
		changed[id] = repartitioned{name: coming[id].dataset, back: true, is: coming[id].partitionBy}
		return nil
	}); err != nil {
		return fmt.Errorf("datasets that come back: %w", err)
	}
	return nil
}

// BlockedInputs returns the inputs of versions that their jobs cannot follow any more.
func BlockedInputs(ctx context.Context, tx pgx.Tx, org uuid.UUID, versions ...uuid.UUID) ([]ForeignInput, error) {
	inputs, err := foreignInputs(ctx, tx,
		`i.org_id = $1 AND i.dag_version_id = ANY($2) AND g.partition_by <> i.partition_by`, org, versions)
	return slices.DeleteFunc(inputs, func(f ForeignInput) bool { return f.Misfit() == nil }), err
}

// foreignInputs returns the inputs from other DAGs for which a condition holds, with the partitioning that serves now;
// where nobody serves the dataset, that is the one that the job knows. LIMIT keeps the planner from reading the
// pointers of all versions.
func foreignInputs(ctx context.Context, tx pgx.Tx, where string, args ...any) ([]ForeignInput, error) {
	rows, err := tx.Query(ctx, `
		SELECT j.dag_name, v.id, CASE WHEN v.status = 'Active' THEN 0 ELSE v.number END, i.input_index, i.dataset_uuid,
		       s.producer_dag_name || '/' || s.producer_job_name, i.partition_by, coalesce(g.partition_by, i.partition_by), j.definition
		FROM job_inputs i
		JOIN jobs j ON j.id = i.job_id
		JOIN dag_versions v ON v.id = i.dag_version_id AND v.id = j.dag_version_id
		JOIN datasets s ON s.org_id = i.org_id AND s.id = i.dataset_uuid
		LEFT JOIN LATERAL (
			SELECT g.partition_by FROM dag_current_versions c
			JOIN dag_version_datasets p ON p.dag_version_id = c.dag_version_id AND p.dataset_uuid = s.id
			JOIN dataset_versions g ON g.id = p.dataset_version
			WHERE c.org_id = s.org_id AND c.dag_name = s.producer_dag_name LIMIT 1) AS g ON true
		WHERE NOT i.in_dag AND `+where+`
		ORDER BY j.dag_name, v.number, j.id, i.input_index`, args...)
	if err != nil {
		return nil, fmt.Errorf("inputs from other DAGs: %w", err)
	}

	inputs, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (f ForeignInput, err error) {
		var definition []byte
		f.Job = new(dag.Job)
		if err := row.Scan(&f.DAG, &f.VersionID, &f.Version, &f.Index, &f.Dataset, &f.Producer, &f.Was, &f.Is,
			&definition); err != nil {
			return f, err
		}
		return f, json.Unmarshal(definition, f.Job)
	})
	if err != nil {
		return nil, fmt.Errorf("inputs from other DAGs: %w", err)
	}
	return inputs, nil
}
