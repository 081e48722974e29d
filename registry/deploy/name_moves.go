package deploy

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/internal/plural"
	"github.com/dagctl/dagctl/registry"
	"github.com/dagctl/dagctl/storage"
)

// Who owns a published name is what dataset_names says: each DAG claims the names that its version publishes, and the
// newest claim on a name owns it. A DAG claims a name of another one only where its document says so, with
// `takes_over: OTHER_DAG`, or where a person who rolls back agrees to it. The dataset that loses its name keeps its
// identity, its data and its readers by id, goes on under its derived name, unpublished, and hands its read roles over.
// Jobs that read it by the name were bound to the dataset when they were deployed, so they go on reading it until they
// are deployed again. When the newer claim goes, by a rollback, an edit or the deletion of the DAG, the name is back.

// claimNames refuses a published name that another DAG owns, or is building towards, unless it is to be taken over from
// the active version of that very DAG. Names are unique in an org.
func (d *deploy) claimNames(ctx context.Context, tx pgx.Tx) error {
	names, takes := make([]string, len(d.doc.Publish)), map[string]string{}
	for i, p := range d.doc.Publish {
		names[i], takes[p.Name] = p.Name, p.TakesOver
	}

	args := []any{d.caller.OrgID, names, d.doc.Name}
	visible := registry.VisibleTo(d.caller, &args)
	rows, err := tx.Query(ctx, `
		WITH owners AS (
			SELECT name, dag_name, dataset_uuid FROM dataset_name_owners
			WHERE org_id = $1 AND name = ANY($2) AND dag_name <> $3),
		coming AS (
			SELECT p.published_name AS name, v.dag_name, p.dataset_uuid, v.number
			FROM dag_versions v JOIN dag_version_datasets p ON p.dag_version_id = v.id AND p.published_name = ANY($2)
			WHERE v.org_id = $1 AND v.dag_name <> $3 AND v.status IN ('Building', 'Ready'))
		SELECT h.name, h.dag_name, coalesce((SELECT min(c.number) FROM coming c WHERE c.name = h.name AND c.dag_name = h.dag_name), 0),
		       `+visible+`,
		       ARRAY(SELECT DISTINCT j.dag_name || '/' || j.name FROM job_inputs i JOIN jobs j ON j.id = i.job_id
		             JOIN dag_versions r ON r.id = i.dag_version_id AND r.status IN ('Active', 'Building', 'Ready')
		             WHERE i.dataset_uuid = d.id AND NOT i.in_dag ORDER BY 1)
		FROM (SELECT * FROM owners UNION SELECT name, dag_name, dataset_uuid FROM coming) AS h
		JOIN datasets d ON d.org_id = $1 AND d.id = h.dataset_uuid
		ORDER BY 1, 2`, args...)
	if err != nil {
		return err
	}

	var (
		problems     []fault.Problem
		name, holder string
		readable     bool
		building     int
		readers      []string
	)

	d.taken = map[string]takenName{}
	columns := []any{&name, &holder, &building, &readable, &readers}
	_, err = pgx.ForEachRow(rows, columns, func() error {
		problem := fault.Problem{Location: "publish." + name, Code: "name_taken", Suggestion: "choose another name"}
		switch {
		case !readable: // whose it is, is not for those who may not see it
			problem.Message = fmt.Sprintf("dataset name %q is taken", name)
		case takes[name] != holder, !d.caller.May(authz.Deploy, authz.OnDAG(holder)):
			problem.Message = fmt.Sprintf("dataset name %q is published by DAG %s", name, holder)
		case building > 0:
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

// takenOver returns what readers have now under the names that the document takes over from other DAGs.
func (d *deploy) takenOver(ctx context.Context, tx pgx.Tx) ([]planned, error) {
	var names []string
	for _, p := range d.doc.Publish {
		if p.TakesOver != "" {
			names = append(names, p.Name)
		}
	}
	if len(names) == 0 {
		return nil, nil
	}

	rows, err := tx.Query(ctx, `
		SELECT o.name, o.dataset_uuid, g.id, g.partition_by FROM dataset_name_owners o
		JOIN dataset_pointers p ON p.org_id = o.org_id AND p.dataset_uuid = o.dataset_uuid
		JOIN dataset_versions g ON g.id = p.dataset_version
		WHERE o.org_id = $1 AND o.name = ANY($2) AND o.dag_name <> $3`, d.caller.OrgID, names, d.doc.Name)
	if err != nil {
		return nil, fmt.Errorf("what is taken over: %w", err)
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (planned, error) {
		p := planned{published: true}
		err := row.Scan(&p.dataset, &p.id, &p.generation, &p.partitionBy)
		return p, err
	})
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
				c.Reason += fmt.Sprintf(", whose dataset stays an input of %s until %s deployed again",
					strings.Join(t.readers, ", "), plural.Word(len(t.readers), "it is", "they are"))
			}
		}
	}
}

// LockSwap takes the locks that a cutover to a version needs: its DAG's, and those of the DAGs that claim a name which
// the version has or which its DAG has now.
func LockSwap(ctx context.Context, tx pgx.Tx, b registry.Build) error {
	_, err := tx.Exec(ctx, `
		SELECT pg_advisory_xact_lock(h) FROM (
			SELECT DISTINCT hashtextextended($1::text || '/' || dag, 0) AS h FROM (
				SELECT $3::text AS dag
				UNION SELECT n.dag_name FROM dataset_names n WHERE n.org_id = $2 AND n.name IN (
					SELECT own.name FROM dataset_names own WHERE own.org_id = $2 AND own.dag_name = $3
					UNION SELECT p.published_name FROM dag_version_datasets p WHERE p.dag_version_id = $4)) AS dags
			ORDER BY h) AS keys`, b.OrgID.String(), b.OrgID, b.DAG, b.ID)
	if err != nil {
		return fmt.Errorf("lock DAG %s for a cutover: %w", b.DAG, pg.Busy(err, "DAG "+b.DAG+" is being changed"))
	}
	return nil
}

// moveNames makes the DAG's claims those of its version, and rewrites the catalogue entries of all DAGs whose names
// that changes. Two published names may swap: the unique key on names is checked at the end.
func moveNames(ctx context.Context, tx pgx.Tx, b registry.Build, activation uuid.UUID, now time.Time) error {
	if err := refuseNames(ctx, tx, b); err != nil {
		return err
	}
	dags, err := namedWith(ctx, tx, b)
	if err != nil {
		return err
	}

	for _, sql := range []string{
		// A dataset that takes a name over, from another job or another DAG, takes over who may read it. Nobody comes
		// to read it thereby who could not before: that only an admin decides.
		`UPDATE datasets s SET read_roles = narrower(s.read_roles, loser.read_roles)
		FROM dag_version_datasets p
		JOIN dataset_name_owners o ON o.org_id = p.org_id AND o.name = p.published_name AND o.dataset_uuid <> p.dataset_uuid
		JOIN datasets loser ON loser.id = o.dataset_uuid
		WHERE p.dag_version_id = $2 AND s.org_id = $1 AND s.id = p.dataset_uuid
		  AND $3::text IS NOT NULL AND $4::uuid IS NOT NULL`,
		// So does one that exists and takes a name for which an admin has set read roles.
		`UPDATE datasets s SET read_roles = narrower(s.read_roles, read_roles_of_pattern($1, p.published_name))
		FROM dag_version_datasets p
		WHERE p.dag_version_id = $2 AND s.org_id = $1 AND s.id = p.dataset_uuid
		  AND read_roles_of_pattern($1, p.published_name) IS NOT NULL
		  AND NOT EXISTS (SELECT FROM dataset_names n
		      WHERE n.org_id = $1 AND n.name = p.published_name AND n.dataset_uuid = p.dataset_uuid)
		  AND $3::text IS NOT NULL AND $4::uuid IS NOT NULL`,
		// A claim that another DAG's has outdone is made anew.
		`DELETE FROM dataset_names n WHERE n.org_id = $1 AND n.dag_name = $3 AND $4::uuid IS NOT NULL AND (
			NOT EXISTS (SELECT FROM dag_version_datasets p WHERE p.dag_version_id = $2 AND p.published_name = n.name)
			OR EXISTS (SELECT FROM dataset_name_owners o WHERE o.org_id = $1 AND o.name = n.name AND o.dag_name <> $3))`,
		`INSERT INTO dataset_names (org_id, name, dag_name, dataset_uuid, activation_id)
		SELECT $1, p.published_name, $3, p.dataset_uuid, $4 FROM dag_version_datasets p
		WHERE p.dag_version_id = $2 AND p.published_name IS NOT NULL
		ON CONFLICT (org_id, name, dag_name) DO UPDATE SET dataset_uuid = EXCLUDED.dataset_uuid, activation_id = EXCLUDED.activation_id
		WHERE dataset_names.dataset_uuid <> EXCLUDED.dataset_uuid`,
	} {
		if _, err := tx.Exec(ctx, sql, b.OrgID, b.ID, b.DAG, activation); err != nil {
			return fmt.Errorf("claim the names of %s: %w", b.DAG, err)
		}
	}
	return renameEntries(ctx, tx, b.OrgID, dags, now)
}

// refuseNames refuses names that another DAG owns by now, unless the version takes them over from it or a person has
// agreed to that.
func refuseNames(ctx context.Context, tx pgx.Tx, b registry.Build) error {
	if b.Allows(registry.AllowMoves) {
		return nil
	}
	var name, owner string
	err := tx.QueryRow(ctx, `
		SELECT o.name, o.dag_name FROM dag_version_datasets p
		JOIN dataset_name_owners o ON o.org_id = p.org_id AND o.name = p.published_name
		WHERE p.org_id = $1 AND p.dag_version_id = $2 AND o.dag_name <> $3
		  AND coalesce(p.publication ->> 'takes_over', '') <> o.dag_name
		ORDER BY 1 LIMIT 1`, b.OrgID, b.ID, b.DAG).Scan(&name, &owner)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("names of other DAGs that %s wants: %w", b.DAG, err)
	}
	return fault.New(fault.Conflict, "dataset name %q belongs to DAG %s by now", name, owner).
		WithHint("pass --allow-moves to take it, or deploy a document of %s that does not publish it", b.DAG)
}

// namedWith returns the DAG of a build and all others that claim one of its names, before or after the cutover.
func namedWith(ctx context.Context, tx pgx.Tx, b registry.Build) ([]string, error) {
	rows, err := tx.Query(ctx, `
		SELECT $2::text UNION
		SELECT n.dag_name FROM dataset_names n WHERE n.org_id = $1 AND n.name IN (
			SELECT own.name FROM dataset_names own WHERE own.org_id = $1 AND own.dag_name = $2
			UNION SELECT p.published_name FROM dag_version_datasets p WHERE p.dag_version_id = $3)`, b.OrgID, b.DAG, b.ID)
	if err != nil {
		return nil, fmt.Errorf("DAGs with names of %s: %w", b.DAG, err)
	}
	return pgx.CollectRows(rows, pgx.RowTo[string])
}

// releaseNames gives up all claims of a DAG that is deleted, and returns the other DAGs that claim its names.
func releaseNames(ctx context.Context, tx pgx.Tx, org uuid.UUID, dagName string) ([]string, error) {
	rows, err := tx.Query(ctx, `
		WITH gone AS (DELETE FROM dataset_names WHERE org_id = $1 AND dag_name = $2 RETURNING name)
		SELECT DISTINCT n.dag_name FROM gone JOIN dataset_names n ON n.org_id = $1 AND n.name = gone.name AND n.dag_name <> $2`,
		org, dagName)
	if err != nil {
		return nil, fmt.Errorf("release the names of %s: %w", dagName, err)
	}
	return pgx.CollectRows(rows, pgx.RowTo[string])
}

// renameEntries rewrites the catalogue entries of DAGs from the versions that serve and the names that are theirs.
func renameEntries(ctx context.Context, tx pgx.Tx, org uuid.UUID, dags []string, now time.Time) error {
	if _, err := tx.Exec(ctx, `SET CONSTRAINTS datasets_org_id_name_key DEFERRED`); err != nil {
		return err
	}

	// Most entries are after a cutover what they were before it; they are not written. A dataset that no version in
	// service has keeps its producer's name, and shows its own id where another has that name now.
	_, err := tx.Exec(ctx, `
		WITH entries AS (
			SELECT d.id, p.dataset_uuid IS NOT NULL AS serves, o.name AS owned,
				d.producer_dag_name || '/' || coalesce(p.job_name, d.producer_job_name) || '/' || coalesce(
					j.definition -> 'outputs' ->> p.output_index, d.producer_output_index::text) AS derived,
				CASE WHEN p.dataset_uuid IS NULL THEN d.deleted_at END AS deleted_at,
				coalesce(p.job_name, d.producer_job_name) AS producer_job_name,
				coalesce(p.output_index, d.producer_output_index) AS producer_output_index,
				p.publication ->> 'description' AS description,
				p.publication ->> 'owner' AS owner,
				coalesce((SELECT array_agg(t) FROM jsonb_array_elements_text(p.publication -> 'tags') AS t), '{}') AS tags,
				coalesce(p.publication -> 'columns', '{}') AS columns,
				(p.publication ->> 'due_within')::bigint / 1000000000 AS due_within_seconds,
				coalesce(g.storage, d.storage) AS storage
			FROM datasets d
			LEFT JOIN dag_current_versions c ON c.org_id = $1 AND c.dag_name = d.producer_dag_name
			LEFT JOIN dag_version_datasets p ON p.dag_version_id = c.dag_version_id AND p.dataset_uuid = d.id
			LEFT JOIN jobs j ON j.dag_version_id = c.dag_version_id AND j.name = p.job_name
			LEFT JOIN dataset_name_owners o ON o.org_id = $1 AND o.name = p.published_name AND o.dataset_uuid = d.id
			LEFT JOIN dataset_versions g ON g.id = p.dataset_version
			WHERE d.org_id = $1 AND d.producer_dag_name = ANY($2)),
		named AS (
			SELECT *, coalesce(owned, derived || CASE WHEN NOT serves AND count(*) OVER (PARTITION BY derived) > 1
				THEN '/' || id ELSE '' END) AS name FROM entries)
		UPDATE datasets d SET name = e.name, published = e.owned IS NOT NULL, deleted_at = e.deleted_at,
			producer_job_name = e.producer_job_name, producer_output_index = e.producer_output_index,
			description = e.description, owner = e.owner, tags = e.tags, columns = e.columns,
			due_within_seconds = e.due_within_seconds, storage = e.storage, updated_at = $3
		FROM named e
		WHERE d.id = e.id AND (d.name, d.published, d.deleted_at, d.producer_job_name, d.producer_output_index, d.description, d.owner, d.tags, d.columns, d.due_within_seconds, d.storage)
			IS DISTINCT FROM (e.name, e.owned IS NOT NULL, e.deleted_at, e.producer_job_name, e.producer_output_index, e.description, e.owner, e.tags, e.columns, e.due_within_seconds, e.storage)`,
		org, dags, now)
	if err != nil {
		return fmt.Errorf("rename entries of %s: %w", strings.Join(dags, ", "), err)
	}

	// Checked here and not at commit, so that the refusal can say what it is about.
	if _, err := tx.Exec(ctx, `SET CONSTRAINTS datasets_org_id_name_key IMMEDIATE`); err != nil {
		var taken *pgconn.PgError
		if !errors.As(err, &taken) || taken.Code != "23505" {
			return fmt.Errorf("rename entries of %s: %w", strings.Join(dags, ", "), err)
		}
		return fault.New(fault.Conflict, "another DAG publishes a name of %s by now", dags[0]).
			WithHint("`dagctl datasets list` shows who publishes it")
	}
	return nil
}

// Handover is a name that a cutover moves from one DAG to another.
type Handover struct {
	Name     string
	From, To string    // DAGs
	Dataset  uuid.UUID // that gets it
}

// Handovers returns the names that a cutover to a version would move between DAGs.
func Handovers(ctx context.Context, tx pgx.Tx, b registry.Build) ([]Handover, error) {
	rows, err := tx.Query(ctx, `
		SELECT o.name, o.dag_name, $3::text, p.dataset_uuid FROM dag_version_datasets p
		JOIN dataset_name_owners o ON o.org_id = $1 AND o.name = p.published_name AND o.dag_name <> $3
		WHERE p.dag_version_id = $2
		UNION ALL
		SELECT o.name, $3::text, heir.dag_name, heir.dataset_uuid FROM dataset_name_owners o
		CROSS JOIN LATERAL (
			SELECT n.dag_name, n.dataset_uuid FROM dataset_names n
			WHERE n.org_id = $1 AND n.name = o.name AND n.dag_name <> $3 ORDER BY n.claim DESC LIMIT 1) AS heir
		WHERE o.org_id = $1 AND o.dag_name = $3
		  AND NOT EXISTS (SELECT FROM dag_version_datasets n WHERE n.dag_version_id = $2 AND n.published_name = o.name)
		ORDER BY 1`, b.OrgID, b.ID, b.DAG)
	if err != nil {
		return nil, fmt.Errorf("names that move: %w", err)
	}
	return pgx.CollectRows(rows, pgx.RowToStructByPos[Handover])
}

// elsewhere returns the names that a version publishes and that other DAGs own, with those DAGs.
func elsewhere(ctx context.Context, tx pgx.Tx, b registry.Build) (map[string]string, error) {
	moves, err := Handovers(ctx, tx, b)
	owners := map[string]string{}
	for _, m := range moves {
		if m.To == b.DAG {
			owners[m.Name] = m.From
		}
	}
	return owners, err
}

// ReturnedView returns the stable view of a name that is given back to a DAG; false if its dataset is not in Postgres
// storage.
func ReturnedView(ctx context.Context, tx pgx.Tx, org uuid.UUID, h Handover) (storage.View, bool, error) {
	v := storage.View{OrgID: org, DAG: h.To, Name: h.Name, Generations: make([]uuid.UUID, 1)}
	err := tx.QueryRow(ctx, `
		SELECT org_slug($1), g.id FROM dataset_pointers p
		JOIN dataset_versions g ON g.id = p.dataset_version AND g.storage ->> 'kind' = 'postgres' AND g.purged_at IS NULL
		WHERE p.org_id = $1 AND p.dag_name = $2 AND p.dataset_uuid = $3`, org, h.To, h.Dataset).Scan(&v.OrgSlug, &v.Generations[0])
	if errors.Is(err, pgx.ErrNoRows) {
		return v, false, nil
	}
	if err != nil {
		return v, false, fmt.Errorf("view of %s: %w", h.Name, err)
	}
	return v, true, nil
}
