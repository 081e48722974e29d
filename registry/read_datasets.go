package registry

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/internal/clock"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/storage"
)

// DatasetFilter says which datasets to list: in the order of their names, or what a search finds, the best first. Empty
// fields filter nothing.
type DatasetFilter struct {
	Search      string // words of name, description, columns, tags or owner
	Tag         string
	DAG         string
	Unpublished bool   // also those without a published name; writers only
	Late        bool   // late ones only
	After       string // begin after this name; a search begins after AfterHit
	AfterHit    *Hit
	Limit       int
}

// Generation is one dataset version, as people see it.
type Generation struct {
	ID         uuid.UUID  `json:"dataset_version"`
	Served     bool       `json:"served" doc:"Readers see it"`
	DAGVersion int        `json:"dag_version" doc:"The DAG version that introduced it"`
	Storage    string     `json:"storage"`
	Partitions int64      `json:"partitions"`
	Inherited  int64      `json:"inherited,omitempty" doc:"Partitions taken over unchanged from the generation before"`
	Rows       int64      `json:"rows"`
	Bytes      int64      `json:"bytes"`
	CreatedAt  time.Time  `json:"created_at"`
	PurgedAt   *time.Time `json:"purged_at,omitempty"`

	RangeStart    *int64 `json:"range_start,omitempty" doc:"The first position that the definition reads, where it has a fixed range"`
	RangeEnd      *int64 `json:"range_end,omitempty" doc:"The position behind the last one that the definition reads"`
	FirstPosition *int64 `json:"first_position,omitempty" doc:"The first position that its partitions cover, where they are ranges or segments of a cursor"`
	EndPosition   *int64 `json:"end_position,omitempty" doc:"The position behind the last one that its partitions cover; there may be gaps before it"`

	Columns []storage.Column `json:"columns" nullable:"false" doc:"Empty until its first partition is there"`
	Changes []ColumnChange   `json:"changes,omitempty" doc:"What is different from the columns of the generation before"`
}

// ColumnChange is what became of one column from one generation to the next.
type ColumnChange struct {
	Column string `json:"column"`
	Change string `json:"change" enum:"added,removed,type_changed"`
	From   string `json:"from,omitempty" doc:"The type that it had"`
	To     string `json:"to,omitempty" doc:"The type that it has"`
}

// columnChanges compares the columns of two generations, in the order of the later ones; what is gone comes last.
func columnChanges(from, to []storage.Column) (changes []ColumnChange) {
	types := map[string]string{}
	for _, c := range from {
		types[c.Name] = c.Type
	}
	for _, c := range to {
		switch was, ok := types[c.Name]; {
		case !ok:
			changes = append(changes, ColumnChange{Column: c.Name, Change: "added", To: c.Type})
		case was != c.Type:
			changes = append(changes, ColumnChange{Column: c.Name, Change: "type_changed", From: was, To: c.Type})
		}
		delete(types, c.Name)
	}

	for _, c := range from {
		if was, ok := types[c.Name]; ok {
			changes = append(changes, ColumnChange{Column: c.Name, Change: "removed", From: was})
		}
	}
	return changes
}

// datasetColumns are the columns of a catalogue entry, over datasets d.
const datasetColumns = `
	d.id, d.name, d.published, d.producer_dag_name, d.producer_job_name, d.producer_output_index,
	coalesce(d.description, ''), coalesce(d.owner, ''), d.tags, d.columns, d.read_roles,
	g.id, coalesce(g.storage, d.storage), g.partition_by, g.schema,
	coalesce(s.partitions, 0), coalesce(s.rows, 0), coalesce(s.bytes, 0), s.updated_at`

// datasetJoins relies on the primary keys of dag_current_versions and dag_version_datasets, and on
// idx_partition_versions_published.
const datasetJoins = `
	LEFT JOIN dag_current_versions c ON c.org_id = d.org_id AND c.dag_name = d.producer_dag_name
	LEFT JOIN dag_version_datasets p ON p.dag_version_id = c.dag_version_id AND p.dataset_uuid = d.id
	LEFT JOIN dataset_versions g ON g.id = p.dataset_version
	LEFT JOIN LATERAL (
		SELECT count(*) AS partitions, sum(r.row_count)::bigint AS rows, sum(r.bytes)::bigint AS bytes,
		    max(r.materialized_at) AS updated_at
		FROM partition_versions r WHERE r.dataset_version = p.dataset_version AND r.state = 'Published') s ON true`

func scanDataset(row pgx.CollectableRow) (Dataset, error) {
	var (
		d            Dataset
		descriptions map[string]string
		kind         dag.Storage
		schema       []storage.Column
		partitionBy  []byte
	)
	err := row.Scan(&d.ID, &d.Name, &d.Published, &d.DAG, &d.Job, &d.Output, &d.Description, &d.Owner, &d.Tags,
		&descriptions, &d.ReadRoles,
		&d.Version, &kind, &partitionBy, &schema, &d.Partitions, &d.Rows, &d.Bytes, &d.UpdatedAt)
	if err != nil {
		return Dataset{}, err
	}

	d.Storage, d.PartitionBy = string(kind.Kind), json.RawMessage(partitionBy)
	d.Columns = columnsOf(schema, descriptions)
	return d, nil
}

// columnsOf returns the columns of a schema with their descriptions.
func columnsOf(schema []storage.Column, descriptions map[string]string) []ColumnInfo {
	columns := []ColumnInfo{}
	for _, c := range schema {
		columns = append(columns, ColumnInfo{Name: c.Name, Type: c.Type, Description: descriptions[c.Name]})
	}
	return columns
}

// Datasets lists the catalogue entries that the caller may see.
func (r *Registry) Datasets(ctx context.Context, caller authz.Caller, f DatasetFilter) ([]Dataset, error) {
	var found []Dataset
	err := pg.InOrgSnapshot(ctx, r.Requests, caller.OrgID, func(ctx context.Context, tx pgx.Tx) (err error) {
		if f.searches() {
			found, err = r.searched(ctx, tx, caller, f, clock.Now())
			return err
		}

		if f.Late {
			found, err = lateDatasets(ctx, tx, caller, f, clock.Now())
			return err
		}
		if found, err = datasetsPage(ctx, tx, caller, f); err != nil {
			return err
		}
		return MarkLate(ctx, tx, caller.OrgID, found, clock.Now())
	})
	if err != nil {
		return nil, fmt.Errorf("list datasets: %w", err)
	}
	return found, nil
}

// condition returns what datasets d are listed, without the search.
func (f DatasetFilter) condition(caller authz.Caller, args *[]any) string {
	visible := VisibleTo(caller, args)
	n := len(*args)
	*args = append(*args, f.Tag, f.DAG, f.Unpublished, f.Late)
	return fmt.Sprintf(`d.deleted_at IS NULL AND %s
			  AND ($%[2]d = '' OR $%[2]d = ANY(d.tags))
			  AND ($%[3]d = '' OR d.producer_dag_name = $%[3]d)
			  AND ($%[4]d OR d.published)
			  AND (NOT $%[5]d OR d.published AND d.due_within_seconds > 0)`, visible, n+1, n+2, n+3, n+4)
}

// datasetsPage lists entries without marking late ones; with f.Late, it lists those that can be late.
func datasetsPage(ctx context.Context, tx pgx.Tx, caller authz.Caller, f DatasetFilter) ([]Dataset, error) {
	args := []any{caller.OrgID, f.After, f.Limit}
	wanted := f.condition(caller, &args)

	// The page is cut first, from the unique key on (org_id, name), so that sums are computed for its rows only.
	rows, err := tx.Query(ctx, `
		WITH page AS MATERIALIZED (
			SELECT * FROM datasets d
			WHERE d.org_id = $1 AND d.name > $2 AND `+wanted+`
			ORDER BY d.name LIMIT $3)
		SELECT `+datasetColumns+` FROM page d `+datasetJoins+` ORDER BY d.name`, args...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, scanDataset)
}

// Dataset returns one catalogue entry with the results of the checks on the data that readers see. The name may also be
// the dataset's id, for callers whose route lets no slash pass.
func (r *Registry) Dataset(ctx context.Context, caller authz.Caller, name string) (Dataset, error) {
	var found Dataset
	err := pg.InOrgTx(ctx, r.Requests, caller.OrgID, func(ctx context.Context, tx pgx.Tx) error {
		var err error
		if found, err = r.FindDataset(ctx, tx, caller, name); err != nil {
			return err
		}

		one := []Dataset{found}
		if err := MarkLate(ctx, tx, caller.OrgID, one, clock.Now()); err != nil {
			return err
		}
		found.Late = one[0].Late
		if found.Reading, err = newestReading(ctx, tx, caller.OrgID, found.ID); err != nil {
			return err
		}
		if found.BadRows, err = BadRowsOf(ctx, tx, caller, found, ""); err != nil {
			return err
		}

		if caller.May(authz.Inspect, authz.OnDAG(found.DAG)) {
			if found.Withheld, err = withheld(ctx, tx, found); err != nil {
				return err
			}
		}

		if found.Version == nil {
			return nil
		}

		rows, err := tx.Query(ctx, `
			SELECT k.partition_key, k.revision, k.name, k.severity, k.outcome, k.failures, k.sample,
			    coalesce(k.error, ''), k.at
			FROM check_results k
			JOIN partition_versions r ON r.dataset_version = k.dataset_version AND r.partition_key = k.partition_key
			     AND r.revision = k.revision AND r.state = 'Published'
			JOIN dag_version_datasets p ON p.dataset_version = k.dataset_version
			JOIN dag_current_versions c ON c.dag_version_id = p.dag_version_id
			JOIN jobs j ON j.dag_version_id = p.dag_version_id AND j.name = p.job_name
			WHERE k.org_id = $1 AND k.dataset_version = $2 AND `+asked+`
			ORDER BY k.outcome = 'pass', k.at DESC, k.partition_key, k.name
			LIMIT 200`, caller.OrgID, *found.Version)
		if err != nil {
			return err
		}
		found.Checks, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (CheckResult, error) {
			var c CheckResult
			err := row.Scan(&c.Partition, &c.Revision, &c.Name, &c.Severity, &c.Outcome, &c.Failures, &c.Sample,
				&c.Error, &c.At)
			return c, err
		})
		return err
	})
	if err != nil {
		return Dataset{}, fmt.Errorf("dataset %s: %w", name, err)
	}
	return found, nil
}

// RequireStill refuses to act on a dataset that the caller has found before the DAG's lock was held, if meanwhile it
// was closed to the caller, deleted, or made by another DAG. Whoever acts as the owner, whom no wall holds back, asks
// in the transaction that acts.
func (r *Registry) RequireStill(ctx context.Context, tx pgx.Tx, caller authz.Caller, found Dataset) error {
	now, err := r.FindDataset(ctx, tx, caller, found.Name)
	if err == nil && (now.ID != found.ID || now.DAG != found.DAG) {
		return fault.New(fault.Conflict, "dataset %s became another one meanwhile", found.Name).
			WithHint("look at it again")
	}
	return err
}

// FindDataset finds a dataset that the caller may see, by its name or id.
func (r *Registry) FindDataset(ctx context.Context, tx pgx.Tx, caller authz.Caller, name string) (Dataset, error) {
	args := []any{caller.OrgID, name, idOf(name)}
	visible := VisibleTo(caller, &args)
	rows, err := tx.Query(ctx, `SELECT `+datasetColumns+` FROM datasets d `+datasetJoins+`
		WHERE d.org_id = $1 AND (d.name = $2 OR d.id = $3) AND d.deleted_at IS NULL AND `+visible, args...)
	if err != nil {
		return Dataset{}, err
	}
	d, err := pgx.CollectExactlyOneRow(rows, scanDataset)
	if errors.Is(err, pgx.ErrNoRows) {
		return Dataset{}, noDataset(name)
	}
	return d, err
}

func noDataset(name string) error {
	return fault.New(fault.NotFound, "there is no dataset %q", name).
		WithHint("`dagctl datasets list` shows those you may read")
}

func idOf(name string) *uuid.UUID {
	id, err := uuid.Parse(name)
	if err != nil {
		return nil
	}
	return &id
}

// Generations lists those of a dataset's generations that the caller may read, the newest first, each with what its
// columns changed.
func (r *Registry) Generations(ctx context.Context, caller authz.Caller, name string) ([]Generation, error) {
	var found []Generation
	err := pg.InOrgTx(ctx, r.Requests, caller.OrgID, func(ctx context.Context, tx pgx.Tx) error {
		d, err := r.FindDataset(ctx, tx, caller, name)
		if err != nil {
			return err
		}

		args := []any{caller.OrgID, d.ID, d.Version}
		first, end := spanOf()
		rows, err := tx.Query(ctx, `
			SELECT g.id, g.id IS NOT DISTINCT FROM $3::uuid, v.number, coalesce(g.storage ->> 'kind', ''),
			       count(r.revision), count(r.inherited_from), coalesce(sum(r.row_count), 0)::bigint,
			           coalesce(sum(r.bytes), 0)::bigint, g.created_at, g.purged_at, coalesce(g.schema, '[]'),
			       g.range_start, g.range_end, `+first+`, `+end+`
			FROM dataset_versions g
			JOIN dag_versions v ON v.id = g.created_by_dag_version
			LEFT JOIN partition_versions r ON r.dataset_version = g.id AND r.state = 'Published'
			WHERE g.org_id = $1 AND g.dataset_uuid = $2 AND `+GenerationVisibleTo(caller, &args)+`
			GROUP BY g.id, v.number
			ORDER BY g.created_at DESC, g.id DESC
			LIMIT 500`, args...)
		if err != nil {
			return err
		}
		found, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (g Generation, err error) {
			return g, row.Scan(&g.ID, &g.Served, &g.DAGVersion, &g.Storage, &g.Partitions, &g.Inherited, &g.Rows,
				&g.Bytes, &g.CreatedAt, &g.PurgedAt, &g.Columns, &g.RangeStart, &g.RangeEnd,
				&g.FirstPosition, &g.EndPosition)
		})
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("versions of dataset %s: %w", name, err)
	}

	var before []storage.Column
	for i := len(found) - 1; i >= 0; i-- {
		if g := &found[i]; len(g.Columns) > 0 {
			if before != nil {
				g.Changes = columnChanges(before, g.Columns)
			}
			before = g.Columns
		}
	}
	return found, nil
}

// Partitions lists the partitions that readers see, by key. It relies on idx_partition_versions_published.
func (r *Registry) Partitions(ctx context.Context, caller authz.Caller, name string,
	f PartitionFilter) ([]Revision, error) {
	var found []Revision
	err := pg.InOrgTx(ctx, r.Requests, caller.OrgID, func(ctx context.Context, tx pgx.Tx) error {
		d, err := r.FindDataset(ctx, tx, caller, name)
		if err != nil || d.Version == nil {
			return err
		}
		var by dag.Partitioning
		if err := json.Unmarshal(d.PartitionBy, &by); err != nil {
			return err
		}
		args := []any{caller.OrgID, *d.Version, f.After, f.Limit}
		at, err := f.at(d, by, &args)
		if err != nil {
			return err
		}

		rows, err := tx.Query(ctx, `
			SELECT dataset_uuid, dataset_version, partition_key, revision, state, materialized_at, row_count, bytes,
			       coalesce(source_version, ''), task_id, attempt
			FROM partition_versions
			WHERE org_id = $1 AND dataset_version = $2 AND state = 'Published' AND partition_key > $3
			  AND `+at+`
			ORDER BY partition_key LIMIT $4`, args...)
		if err != nil {
			return err
		}
		found, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (Revision, error) {
			var p Revision
			err := row.Scan(&p.Dataset, &p.Version, &p.Key, &p.Revision, &p.State, &p.Materialized, &p.Rows, &p.Bytes,
				&p.SourceVersion, &p.TaskID, &p.Attempt)
			if err == nil {
				p.RangeStart, p.RangeEnd, err = positionsOf(by, p.Key)
			}
			return p, err
		})
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("partitions of dataset %s: %w", name, err)
	}
	return found, nil
}

// ResolveForRead pins what a dataset's readers see now: its generation and the committed files of every partition, by
// key. One statement lists the files, so they are the generation's content at one moment. A cutover in the meantime
// removes none of them, because reader grace keeps them. A dataset that no version serves yet has the zero Generation
// and no partitions.
func (r *Registry) ResolveForRead(ctx context.Context, tx pgx.Tx, caller authz.Caller,
	name string) (storage.Generation, []storage.Partition, Dataset, error) {
	return r.ResolveVersion(ctx, tx, caller, name, Live)
}

// Product is what a job makes: of several datasets the first one by name, and the first owner.
type Product struct{ Dataset, Owner string }

// Products says what the jobs of an org make, by DAG and job.
type Products map[string]map[string]Product

// ProductsOf returns what the jobs of an org make, as far as the caller may see it.
func (r *Registry) ProductsOf(ctx context.Context, tx pgx.Tx, caller authz.Caller) (Products, error) {
	args := []any{caller.OrgID}
	visible := VisibleTo(caller, &args)
	rows, err := tx.Query(ctx, `
		SELECT d.producer_dag_name, d.producer_job_name, min(d.name), coalesce(min(NULLIF(d.owner, '')), '')
		FROM datasets d
		WHERE d.org_id = $1 AND d.deleted_at IS NULL AND `+visible+`
		GROUP BY 1, 2`, args...)
	if err != nil {
		return nil, fmt.Errorf("read what jobs make: %w", err)
	}

	products := Products{}
	var (
		dagName, job string
		made         Product
	)
	_, err = pgx.ForEachRow(rows, []any{&dagName, &job, &made.Dataset, &made.Owner}, func() error {
		if products[dagName] == nil {
			products[dagName] = map[string]Product{}
		}
		products[dagName][job] = made
		return nil
	})
	return products, err
}

// Owner returns the owner of what a job makes, or of all that a DAG makes if no job is given; empty if nobody owns it,
// or several do.
func (p Products) Owner(dagName, job string) (owner string) {
	if job != "" {
		return p[dagName][job].Owner
	}
	for _, made := range p[dagName] {
		if made.Owner == "" {
			continue
		}
		if owner != "" && owner != made.Owner {
			return ""
		}
		owner = made.Owner
	}
	return owner
}

// NameOf returns the name of a dataset, as commands take it.
func NameOf(ctx context.Context, tx pgx.Tx, org, dataset uuid.UUID) (name string, err error) {
	err = tx.QueryRow(ctx, `SELECT name FROM datasets WHERE org_id = $1 AND id = $2`, org, dataset).Scan(&name)
	return name, fault.Wrap(err, "name of a dataset")
}
