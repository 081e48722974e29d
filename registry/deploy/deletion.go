package deploy

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/registry"
	"github.com/dagctl/dagctl/registry/contract"
)

// DeletedDataset is a dataset that is deleted with its DAG.
type DeletedDataset struct {
	ID         uuid.UUID `json:"-"`
	Name       string    `json:"name"`
	Published  bool      `json:"published"`
	Partitions int64     `json:"partitions"`
	Bytes      int64     `json:"bytes"`
	Consumers  []string  `json:"consumers" nullable:"false" doc:"Jobs of other DAGs that read it; if any, the DAG cannot be deleted"`
}

// Deletion is what deleting a DAG removes.
type Deletion struct {
	DAG       string           `json:"dag"`
	Version   int              `json:"version,omitempty" doc:"The active version"`
	Building  int              `json:"building,omitempty" doc:"The version that was being built; it is abandoned"`
	Datasets  []DeletedDataset `json:"datasets" nullable:"false"`
	OpenTasks int              `json:"open_tasks" doc:"Tasks that are canceled"`
	KeptUntil time.Time        `json:"kept_until" doc:"Until then, a rollback to the version restores it"`
	// What readers of the datasets have to know, agree to, or are kept from.
	Findings []contract.Finding `json:"findings" nullable:"false" doc:"What this means for those who read the datasets; refused with 409 if one refuses, or asks and its consent is not given"`
}

// PlanDeletion returns what deleting a DAG removes, and who reads it. It relies on idx_job_inputs_foreign.
func PlanDeletion(ctx context.Context, tx pgx.Tx, org uuid.UUID, dagName string, now time.Time) (Deletion, error) {
	d := Deletion{DAG: dagName, KeptUntil: now.Add(registry.RollbackWindow)}
	var left bool // datasets, or a version that the list of DAGs shows because it failed
	err := tx.QueryRow(ctx, `
		SELECT coalesce((SELECT v.number FROM dag_current_versions c JOIN dag_versions v ON v.id = c.dag_version_id
		                 WHERE c.org_id = $1 AND c.dag_name = $2), 0),
		       coalesce((SELECT max(number) FROM dag_versions
		           WHERE org_id = $1 AND dag_name = $2 AND status IN ('Building', 'Ready')), 0),
		       EXISTS (SELECT FROM datasets WHERE org_id = $1 AND producer_dag_name = $2 AND deleted_at IS NULL)
		           OR EXISTS (SELECT FROM dag_versions WHERE org_id = $1 AND dag_name = $2 AND status = 'Failed')`,
		org, dagName).Scan(&d.Version, &d.Building, &left)
	if err != nil {
		return d, fmt.Errorf("plan deletion of %s: %w", dagName, err)
	}
	if d.Version == 0 && d.Building == 0 && !left {
		return d, fault.New(fault.NotFound, "there is no DAG %q", dagName).WithHint("`dagctl status` lists the DAGs")
	}

	rows, err := tx.Query(ctx, `
		SELECT d.id, d.name, d.published, coalesce(s.partitions, 0), coalesce(s.bytes, 0),
		       ARRAY(SELECT DISTINCT j.dag_name || '/' || j.name FROM job_inputs i
		             JOIN jobs j ON j.id = i.job_id AND j.dag_name <> $2
		             JOIN dag_versions v ON v.id = i.dag_version_id AND v.status IN ('Active', 'Building', 'Ready')
		             WHERE i.dataset_uuid = d.id AND NOT i.in_dag ORDER BY 1)
		FROM datasets d
		LEFT JOIN dataset_pointers p ON p.org_id = d.org_id AND p.dag_name = $2 AND p.dataset_uuid = d.id
		LEFT JOIN LATERAL (SELECT count(*) AS partitions, sum(r.bytes)::bigint AS bytes FROM partition_versions r
		                   WHERE r.dataset_version = p.dataset_version AND r.state = 'Published') s ON true
		WHERE d.org_id = $1 AND d.producer_dag_name = $2 AND d.deleted_at IS NULL
		ORDER BY d.published DESC, d.name`, org, dagName)
	if err != nil {
		return d, fmt.Errorf("plan deletion of %s: %w", dagName, err)
	}
	if d.Datasets, err = pgx.CollectRows(rows, pgx.RowToStructByPos[DeletedDataset]); err != nil {
		return d, fmt.Errorf("plan deletion of %s: %w", dagName, err)
	}

	d.Findings, err = d.compare(ctx, tx, org)
	return d, err
}

// compare compares what the DAG's datasets promise with nothing. Names that it took from other DAGs go back to those.
func (d Deletion) compare(ctx context.Context, tx pgx.Tx, org uuid.UUID) (_ []contract.Finding, err error) {
	var live, nothing contract.Contract
	facts := contract.Facts{Consumers: map[uuid.UUID][]contract.Consumer{}}
	for _, gone := range d.Datasets {
		live.Datasets = append(live.Datasets,
			contract.Dataset{ID: gone.ID, Name: gone.Name, Published: gone.Published})
		for _, address := range gone.Consumers {
			consumer := contract.Consumer{}
			consumer.DAG, consumer.Job, _ = strings.Cut(address, "/")
			facts.Consumers[gone.ID] = append(facts.Consumers[gone.ID], consumer)
		}
	}

	b := registry.Build{OrgID: org, DAG: d.DAG}
	if facts.Returns, err = returns(ctx, tx, b, live, nothing); err != nil {
		return nil, err
	}
	return contract.Compare(live, nothing, facts), nil
}

// DeleteDAG takes a DAG out of service in the caller's transaction, which holds the locks of LockSwap and LockGraph:
// none of its versions is active any more, its datasets lose their names, and gc may remove their data once the window
// has passed. Until then, a rollback to one of its versions restores it.
func DeleteDAG(
	ctx context.Context, tx pgx.Tx, org uuid.UUID, d Deletion, given []registry.Consent, now time.Time,
) error {
	if err := contract.Refusal(d.Findings, given); err != nil {
		return err
	}
	if d.Building > 0 {
		if _, _, err := AbandonBuild(ctx, tx, org, d.DAG, "the DAG was deleted"); err != nil {
			return err
		}
	}

	heirs, err := releaseNames(ctx, tx, org, d.DAG)
	if err != nil {
		return err
	}
	for _, sql := range []string{
		`UPDATE dag_versions SET status = 'Superseded', ended_at = $3
		WHERE org_id = $1 AND dag_name = $2 AND status = 'Active'`,
		`UPDATE dag_versions SET status = 'Abandoned', ended_at = $3
		WHERE org_id = $1 AND dag_name = $2 AND status = 'Failed'`, // its error stays, for history
		`DELETE FROM dag_current_versions WHERE org_id = $1 AND dag_name = $2 AND $3::timestamptz IS NOT NULL`,
		`UPDATE datasets SET deleted_at = $3 WHERE org_id = $1 AND producer_dag_name = $2`,
	} {
		if _, err := tx.Exec(ctx, sql, org, d.DAG, now); err != nil {
			return fmt.Errorf("delete %s: %w", d.DAG, err)
		}
	}
	return renameEntries(ctx, tx, org, append(heirs, d.DAG), now)
}

// OriginsOf lists the origins of a DAG's jobs, over all versions.
func OriginsOf(ctx context.Context, tx pgx.Tx, org uuid.UUID, dagName string) ([]uuid.UUID, error) {
	rows, err := tx.Query(ctx, `SELECT id FROM jobs WHERE org_id = $1 AND dag_name = $2 AND id = origin_job_id`,
		org, dagName)
	if err != nil {
		return nil, fmt.Errorf("origins of %s: %w", dagName, err)
	}
	return pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
}
