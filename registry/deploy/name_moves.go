package deploy

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/registry"
	"github.com/dagctl/dagctl/storage"
)

// A published name moves to another DAG only where that DAG's document says so: `takes_over: OTHER_DAG`. It moves in
// the cutover of the version that says it: the other DAG's dataset keeps its identity, its data and its readers by id,
// goes on under its derived name, unpublished, and hands its read roles over with the name. Jobs that read it by the
// name were bound to the dataset when they were deployed, so they go on reading it until they are deployed again. A
// cutover to a version without the name, such as a rollback, gives it back.

// claimNames refuses a published name that another DAG has, or is building towards, unless it is to be taken over from
// the active version of that very DAG. Names are unique in an org.
func (d *deploy) claimNames(ctx context.Context, tx pgx.Tx) error {
	names, takes := make([]string, len(d.doc.Publish)), map[string]string{}
	for i, p := range d.doc.Publish {
		names[i], takes[p.Name] = p.Name, p.TakesOver
	}

	rows, err := tx.Query(ctx, `
		SELECT p.published_name, v.dag_name, bool_and(v.status = 'Active'), coalesce(min(v.number) FILTER (WHERE v.status <> 'Active'), 0),
		       s.read_roles, s.published,
		       ARRAY(SELECT DISTINCT j.dag_name || '/' || j.name FROM job_inputs i JOIN jobs j ON j.id = i.job_id
		             JOIN dag_versions r ON r.id = j.dag_version_id AND r.status IN ('Active', 'Building', 'Ready')
		             WHERE i.dataset_uuid = s.id AND NOT i.in_dag ORDER BY 1)
		FROM dag_version_datasets p
		JOIN dag_versions v ON v.id = p.dag_version_id AND v.status IN ('Active', 'Building', 'Ready')
		JOIN datasets s ON s.id = p.dataset_uuid
		WHERE p.org_id = $1 AND p.published_name = ANY($2) AND v.dag_name <> $3
		GROUP BY p.published_name, v.dag_name, s.id
		ORDER BY 1, 2`, d.caller.OrgID, names, d.doc.Name)
	if err != nil {
		return err
	}

	var (
		problems          []fault.Problem
		name, holder      string
		active, published bool
		building          int
		roles, readers    []string
	)

	d.taken = map[string]takenName{}
	columns := []any{&name, &holder, &active, &building, &roles, &published, &readers}
	_, err = pgx.ForEachRow(rows, columns, func() error {
		problem := fault.Problem{Location: "publish." + name, Code: "name_taken", Suggestion: "choose another name"}
		switch {
		case takes[name] != holder || !d.caller.CanRead(roles, published):
			problem.Message = fmt.Sprintf("dataset name %q is published by DAG %s", name, holder)
		case !active:
			problem.Message = fmt.Sprintf("dataset name %q cannot be taken over from DAG %s, "+
				"whose version %d publishes it and is on its way", name, holder, building)
			problem.Suggestion = "wait for it, or abandon it"
		default:
			d.taken[name] = takenName{holder, readers}
			return nil
		}
		problems = append(problems, problem)
		return nil
	})
	if err != nil {
		return err
	}

	if len(problems) > 0 {
		e := fault.New(fault.Conflict, "%s", problems[0].Message).
			WithHint("choose another name, remove it from the other DAG first, or take it over with `takes_over`")
		e.Problems = problems
		return e
	}
	return nil
}

// takenName is a name that a deploy takes over.
type takenName struct {
	from    string   // the DAG that has it
	readers []string // jobs of other DAGs that read the dataset which loses it
}

// noteTakeovers says in a plan whose names it takes, and who reads what loses them.
func (d *deploy) noteTakeovers(changes []registry.Change) {
	for i := range changes {
		c := &changes[i]
		if t, ok := d.taken[c.Dataset]; ok && c.Action != Remove {
			c.Reason += ", takes its name over from " + t.from
			if len(t.readers) > 0 {
				c.Reason += fmt.Sprintf(", whose dataset %v go on reading until they are deployed again", t.readers)
			}
		}
	}
}

// LockSwap takes the locks that a cutover needs: its DAG's, and those of the DAGs whose names its versions take over.
func LockSwap(ctx context.Context, tx pgx.Tx, org uuid.UUID, dagName string) error {
	_, err := tx.Exec(ctx, `
		SELECT pg_advisory_xact_lock(h) FROM (
			SELECT DISTINCT hashtextextended($1::text || '/' || name, 0) AS h FROM (
				SELECT $2::text AS name
				UNION SELECT p.publication ->> 'takes_over' FROM dag_version_datasets p JOIN dag_versions v ON v.id = p.dag_version_id
				WHERE v.org_id = $3 AND v.dag_name = $2 AND p.publication ->> 'takes_over' <> '') AS names
			ORDER BY h) AS keys`, org.String(), dagName, org)
	if err != nil {
		return fmt.Errorf("lock DAG %s for a cutover: %w", dagName, err)
	}
	return nil
}

// takeOverNames moves names between this DAG and those it takes them from, or took them from, before moveNames gives
// this DAG's datasets theirs. The pointer sets of the other DAGs follow, so that their next cutover does not want a
// name back that is not theirs.
func takeOverNames(ctx context.Context, tx pgx.Tx, b registry.Build, previous *uuid.UUID, now time.Time) error {
	_, err := tx.Exec(ctx, `
		WITH wanted AS (
			SELECT p.published_name AS name, p.publication ->> 'takes_over' AS dag, p.dataset_uuid FROM dag_version_datasets p
			WHERE p.dag_version_id = $2 AND p.publication ->> 'takes_over' <> ''),
		lost AS (
			UPDATE dag_version_datasets o SET published_name = NULL, name = s.producer_dag_name || '/' || s.producer_job_name || '/' || (j.definition -> 'outputs' ->> o.output_index)
			FROM wanted w
			JOIN dag_current_versions c ON c.org_id = $1 AND c.dag_name = w.dag
			JOIN datasets s ON s.org_id = $1 AND s.producer_dag_name = w.dag
			JOIN jobs j ON j.dag_version_id = c.dag_version_id
			WHERE o.dag_version_id = c.dag_version_id AND o.published_name = w.name AND s.id = o.dataset_uuid AND j.name = o.job_name
			RETURNING o.dataset_uuid, o.name, w.dataset_uuid AS heir),
		unnamed AS (
			UPDATE datasets s SET name = l.name, published = false, updated_at = $3 FROM lost l WHERE s.org_id = $1 AND s.id = l.dataset_uuid
			RETURNING l.heir, s.read_roles)
		UPDATE datasets s SET read_roles = u.read_roles FROM unnamed u WHERE s.org_id = $1 AND s.id = u.heir`, b.OrgID, b.ID, now)
	if err != nil {
		return fmt.Errorf("take names over: %w", err)
	}

	if previous == nil {
		return nil
	}

	_, err = tx.Exec(ctx, `
		WITH free AS (
			SELECT p.published_name AS name, p.publication ->> 'takes_over' AS dag FROM dag_version_datasets p
			WHERE p.dag_version_id = $4 AND p.publication ->> 'takes_over' <> ''
			  AND NOT EXISTS (SELECT FROM dag_version_datasets n WHERE n.dag_version_id = $2 AND n.published_name = p.published_name)),
		regained AS (
			UPDATE dag_version_datasets o SET published_name = f.name, name = f.name
			FROM free f JOIN dag_current_versions c ON c.org_id = $1 AND c.dag_name = f.dag
			WHERE o.dag_version_id = c.dag_version_id AND o.published_name IS NULL AND o.publication ->> 'name' = f.name
			RETURNING o.dataset_uuid, o.name)
		UPDATE datasets s SET name = r.name, published = true, updated_at = $3 FROM regained r WHERE s.org_id = $1 AND s.id = r.dataset_uuid`,
		b.OrgID, b.ID, now, *previous)
	if err != nil {
		return fmt.Errorf("give names back: %w", err)
	}
	return nil
}

// Handover is a name that a cutover moves from one DAG to another.
type Handover struct {
	Name     string
	From, To string // DAGs
}

// Handovers returns the names that a cutover to a version would move between DAGs.
func Handovers(ctx context.Context, tx pgx.Tx, b registry.Build) ([]Handover, error) {
	rows, err := tx.Query(ctx, `
		SELECT p.published_name, o.dag_name, $3::text FROM dag_version_datasets p
		JOIN dag_current_versions o ON o.org_id = $1 AND o.dag_name = p.publication ->> 'takes_over'
		WHERE p.dag_version_id = $2
		  AND EXISTS (SELECT FROM dag_version_datasets h WHERE h.dag_version_id = o.dag_version_id AND h.published_name = p.published_name)
		UNION ALL
		SELECT p.published_name, $3::text, o.dag_name FROM dag_current_versions c
		JOIN dag_version_datasets p ON p.dag_version_id = c.dag_version_id
		JOIN dag_current_versions o ON o.org_id = $1 AND o.dag_name = p.publication ->> 'takes_over'
		WHERE c.org_id = $1 AND c.dag_name = $3
		  AND NOT EXISTS (SELECT FROM dag_version_datasets n WHERE n.dag_version_id = $2 AND n.published_name = p.published_name)
		  AND EXISTS (SELECT FROM dag_version_datasets h WHERE h.dag_version_id = o.dag_version_id AND h.published_name IS NULL
		              AND h.publication ->> 'name' = p.published_name)
		ORDER BY 1`, b.OrgID, b.ID, b.DAG)
	if err != nil {
		return nil, fmt.Errorf("names that move: %w", err)
	}
	return pgx.CollectRows(rows, pgx.RowToStructByPos[Handover])
}

// ReturnedView returns the stable view of a name that is given back to a DAG; false if its dataset is not in Postgres
// storage.
func ReturnedView(ctx context.Context, tx pgx.Tx, org uuid.UUID, h Handover) (storage.View, bool, error) {
	v := storage.View{OrgID: org, DAG: h.To, Name: h.Name, Generations: make([]uuid.UUID, 1)}
	err := tx.QueryRow(ctx, `
		SELECT org_slug($1), g.id FROM dag_current_versions c
		JOIN dag_version_datasets p ON p.dag_version_id = c.dag_version_id AND p.published_name IS NULL AND p.publication ->> 'name' = $3
		JOIN dataset_versions g ON g.id = p.dataset_version AND g.storage ->> 'kind' = 'postgres' AND g.purged_at IS NULL
		WHERE c.org_id = $1 AND c.dag_name = $2`, org, h.To, h.Name).Scan(&v.OrgSlug, &v.Generations[0])
	if errors.Is(err, pgx.ErrNoRows) {
		return v, false, nil
	}
	if err != nil {
		return v, false, fmt.Errorf("view of %s: %w", h.Name, err)
	}
	return v, true, nil
}
