package registry

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/internal/clock"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/pg"
)

// Late says that a published dataset lacks data that is due by now.
type Late struct {
	Partition string    `json:"partition,omitempty" doc:"The missing partition; absent if the dataset has none in time"`
	DueAt     time.Time `json:"due_at" doc:"When it was due"`
}

// Lateness decides whether a dataset is late. A dataset with partitions in time is late if the last one that is due by
// now is not published; any other, if it was last published longer ago than `due` allows. since is the time of that
// publication, or of the dataset's creation. It is pure.
func Lateness(p dag.Partitioning, within time.Duration, since time.Time,
	published func(key string) bool, now time.Time) *Late {
	if within <= 0 {
		return nil
	}

	if p.Kind != dag.ByTime {
		if due := since.Add(within); due.Before(now) {
			return &Late{DueAt: due.UTC()}
		}
		return nil
	}

	key := p.LastComplete(now.Add(-within))
	_, end, err := p.Bounds(key)
	if err != nil || published(key) {
		return nil
	}
	return &Late{Partition: key, DueAt: end.Add(within).UTC()}
}

// dueOf is what lateness needs to know about a dataset beyond its catalogue entry.
type dueOf struct {
	within  time.Duration
	created time.Time
}

// MarkLate marks the datasets that are late. It takes two statements, however many datasets there are; the second
// relies on idx_partition_versions_published.
func MarkLate(ctx context.Context, tx pgx.Tx, org uuid.UUID, found []Dataset, now time.Time) error {
	ids := make([]uuid.UUID, len(found))
	for i, d := range found {
		ids[i] = d.ID
	}

	rows, err := tx.Query(ctx, `SELECT id, due_within_seconds, created_at FROM datasets
		WHERE org_id = $1 AND id = ANY($2) AND due_within_seconds > 0 AND published`, org, ids)
	if err != nil {
		return fmt.Errorf("find what is due: %w", err)
	}
	dues := map[uuid.UUID]dueOf{}
	var (
		id      uuid.UUID
		seconds int
		created time.Time
	)
	if _, err := pgx.ForEachRow(rows, []any{&id, &seconds, &created}, func() error {
		dues[id] = dueOf{time.Duration(seconds) * time.Second, created}
		return nil
	}); err != nil || len(dues) == 0 {
		return err
	}

	wanted, partitionings, err := dueKeys(found, dues, now)
	if err != nil {
		return err
	}
	there, err := publishedKeys(ctx, tx, wanted)
	if err != nil {
		return err
	}

	for i := range found {
		d := &found[i]
		due, ok := dues[d.ID]
		if !ok || d.Version == nil {
			continue
		}
		since := due.created
		if d.UpdatedAt != nil {
			since = *d.UpdatedAt
		}
		d.Late = Lateness(partitionings[d.ID], due.within, since,
			func(key string) bool { return there[Ref{*d.Version, key}] }, now)
	}
	return nil
}

// dueKeys lists the partitions that were due last, for datasets with partitions in time.
func dueKeys(found []Dataset, dues map[uuid.UUID]dueOf, now time.Time) ([]Ref, map[uuid.UUID]dag.Partitioning, error) {
	var wanted []Ref
	partitionings := map[uuid.UUID]dag.Partitioning{}
	for _, d := range found {
		due, ok := dues[d.ID]
		if !ok || d.Version == nil {
			continue
		}

		var p dag.Partitioning
		if len(d.PartitionBy) > 0 {
			if err := json.Unmarshal(d.PartitionBy, &p); err != nil {
				return nil, nil, fmt.Errorf("partitioning of %s: %w", d.Name, err)
			}
		}

		partitionings[d.ID] = p
		if p.Kind == dag.ByTime {
			wanted = append(wanted, Ref{*d.Version, p.LastComplete(now.Add(-due.within))})
		}
	}
	return wanted, partitionings, nil
}

func publishedKeys(ctx context.Context, tx pgx.Tx, wanted []Ref) (map[Ref]bool, error) {
	versions, keys := make([]uuid.UUID, len(wanted)), make([]string, len(wanted))
	for i, r := range wanted {
		versions[i], keys[i] = r.Version, r.Key
	}

	rows, err := tx.Query(ctx, `
		SELECT r.dataset_version, r.partition_key FROM partition_versions r
		JOIN unnest($1::uuid[], $2::text[]) AS w(version, key) ON r.dataset_version = w.version
		  AND r.partition_key = w.key
		WHERE r.state = 'Published'`, versions, keys)
	if err != nil {
		return nil, fmt.Errorf("look for what is due: %w", err)
	}

	there := map[Ref]bool{}
	var ref Ref
	_, err = pgx.ForEachRow(rows, []any{&ref.Version, &ref.Key}, func() error { there[ref] = true; return nil })
	return there, err
}

// lateDatasets finds a page of late datasets. To find which are late it reads little of each dataset that can be, and
// the whole entries of those.
func lateDatasets(ctx context.Context, tx pgx.Tx, caller authz.Caller, f DatasetFilter,
	now time.Time) ([]Dataset, error) {
	late, err := lateOutlines(ctx, tx, caller, f, now)
	if err != nil || len(late) == 0 {
		return nil, err
	}
	ids, at := make([]uuid.UUID, len(late)), make(map[uuid.UUID]*Late, len(late))
	for i, d := range late {
		ids[i], at[d.ID] = d.ID, d.Late
	}

	rows, err := tx.Query(ctx, `SELECT `+datasetColumns+` FROM datasets d `+datasetJoins+`
		WHERE d.org_id = $1 AND d.id = ANY($2) ORDER BY d.name`, caller.OrgID, ids)
	if err != nil {
		return nil, err
	}
	found, err := pgx.CollectRows(rows, scanDataset)
	for i := range found {
		found[i].Late = at[found[i].ID]
	}
	return found, err
}

// UpdatedOutOfTime is when the newest partition of generation g was made. It is NULL where partitions in time, whose
// kind is the argument of a statement, say what is due. It relies on idx_partition_versions_newest.
func UpdatedOutOfTime(byTime string) string {
	return `CASE WHEN g.partition_by ->> 'kind' IS DISTINCT FROM ` + byTime + ` THEN (
		SELECT r.materialized_at FROM partition_versions r
		WHERE r.dataset_version = g.id AND r.state = 'Published' AND r.materialized_at IS NOT NULL
		ORDER BY r.materialized_at DESC LIMIT 1) END`
}

// LateOutlines is like Datasets of late datasets, and leaves out all of an entry but its names, owner and lateness.
func (r *Registry) LateOutlines(ctx context.Context, caller authz.Caller, limit int) (found []Dataset, err error) {
	err = pg.InOrgTx(ctx, r.Requests, caller.OrgID, func(ctx context.Context, tx pgx.Tx) error {
		found, err = lateOutlines(ctx, tx, caller, DatasetFilter{Late: true, Limit: limit}, clock.Now())
		return err
	})
	return found, fault.Wrap(err, "list late datasets")
}

// lateOutlines searches the datasets that can be late until it has found a page of late ones. It relies on
// idx_datasets_due and idx_partition_versions_newest: only what has no partitions in time is asked when it was updated.
func lateOutlines(ctx context.Context, tx pgx.Tx, caller authz.Caller, f DatasetFilter,
	now time.Time) (found []Dataset, err error) {
	wanted := f.Limit
	f.Late, f.Limit = true, max(wanted, 500)

	for {
		args := []any{caller.OrgID, f.After, f.Limit, dag.ByTime}
		rows, err := tx.Query(ctx, `
			WITH page AS MATERIALIZED (
				SELECT * FROM datasets d WHERE d.org_id = $1 AND d.name > $2 AND d.due_within_seconds > 0 AND d.published
				  AND `+f.condition(caller, &args)+`
				ORDER BY d.name LIMIT $3)
			SELECT d.id, d.name, d.producer_dag_name, d.producer_job_name, d.producer_output_index,
				coalesce(d.owner, ''),
				g.id, g.partition_by, `+UpdatedOutOfTime("$4")+`
			FROM page d
			LEFT JOIN dag_current_versions c ON c.org_id = d.org_id AND c.dag_name = d.producer_dag_name
			LEFT JOIN dag_version_datasets p ON p.dag_version_id = c.dag_version_id AND p.dataset_uuid = d.id
			LEFT JOIN dataset_versions g ON g.id = p.dataset_version
			ORDER BY d.name`, args...)
		if err != nil {
			return nil, err
		}
		page, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (d Dataset, err error) {
			var by []byte
			err = row.Scan(&d.ID, &d.Name, &d.DAG, &d.Job, &d.Output, &d.Owner, &d.Version, &by, &d.UpdatedAt)
			d.Published, d.PartitionBy = true, json.RawMessage(by)
			return d, err
		})
		if err != nil {
			return nil, err
		}
		if err := MarkLate(ctx, tx, caller.OrgID, page, now); err != nil {
			return nil, err
		}

		for _, d := range page {
			if d.Late == nil {
				continue
			}
			if found = append(found, d); len(found) == wanted {
				return found, nil
			}
		}
		if len(page) < f.Limit {
			return found, nil
		}
		f.After = page[len(page)-1].Name
	}
}
