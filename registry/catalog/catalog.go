// Package catalog says what is known about one dataset beyond its entry in the catalogue: where it comes from and who
// consumes it, what its checks found, which deploys changed what readers see, how its size went, and who reads it.
//
// Vocabulary: a profile is all of that. A tip is the newest revision of a partition, whatever its state.
//
// It owns no tables; those that it reads are registry's.
package catalog

import (
	"context"
	"net/http"

	"github.com/danielgtaylor/huma/v2"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/internal/clock"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/registry"
)

// Catalog answers for datasets.
type Catalog struct {
	*registry.Registry
}

// New returns a Catalog over a registry.
func New(r *registry.Registry) *Catalog { return &Catalog{r} }

// Profile is what is known about a dataset. It names nothing that the caller may not see.
type Profile struct {
	Dataset   string     `json:"dataset"`
	Producer  Maker      `json:"producer"`
	Consumers []Consumer `json:"consumers" nullable:"false" doc:"The jobs that read it, in the versions that serve"`
	Checks    []Check    `json:"checks" nullable:"false" doc:"What its checks found in the generation that readers see"`
	Deploys   []Deploy   `json:"deploys" nullable:"false" doc:"The cutovers that changed which generation readers see, the newest first"`
	Trend     []Point    `json:"trend" nullable:"false" doc:"Its last revisions, the oldest first: of a dataset with partitions the last of them that are published, by key"`

	Readers      []authz.ReadBy `json:"readers,omitempty" doc:"Who read it in the last 30 days; for admins, and for writers of its DAG"`
	ReadersShown bool           `json:"readers_shown" doc:"The caller may know who reads it"`
}

// AddRoutes adds the operations to an API.
func (c *Catalog) AddRoutes(api *authz.API) {
	type output struct{ Body Profile }
	authz.Handle(api, authz.Reader, huma.Operation{
		OperationID: "get-dataset-profile", Method: http.MethodGet, Path: "/v1/datasets/{name}/profile",
		Tags:        []string{"datasets"},
		Summary:     "Get what is known about a dataset: inputs, consumers, checks, deploys, sizes and readers",
		Description: registry.NameDoc,
	}, func(ctx context.Context, caller authz.Caller, in *registry.NameInput) (*output, error) {
		p, err := c.Profile(ctx, caller, in.Name)
		return &output{p}, err
	})
}

// Profile returns what is known about a dataset, all of one moment.
func (c *Catalog) Profile(ctx context.Context, caller authz.Caller, name string) (p Profile, err error) {
	err = pg.InOrgSnapshot(ctx, c.Requests, caller.OrgID, func(ctx context.Context, tx pgx.Tx) error {
		d, err := c.FindDataset(ctx, tx, caller, name)
		if err != nil {
			return err
		}

		p = Profile{Dataset: d.Name}
		if p.Producer, err = c.maker(ctx, tx, caller, d); err != nil {
			return err
		}
		if p.Consumers, err = c.consumers(ctx, tx, caller, d); err != nil {
			return err
		}
		if p.Deploys, err = deploys(ctx, tx, caller, d); err != nil {
			return err
		}
		if p.Checks, err = checks(ctx, tx, caller.OrgID, d.Version); err != nil {
			return err
		}
		if p.Trend, err = trend(ctx, tx, caller.OrgID, d); err != nil {
			return err
		}

		if p.ReadersShown = caller.May(authz.Operate, authz.OnDAG(d.DAG)); p.ReadersShown {
			p.Readers, err = authz.ReadersOf(ctx, tx, caller.OrgID, d.Name, clock.Now().AddDate(0, 0, -30))
		}
		return err
	})
	return p, fault.Wrap(err, "profile of dataset "+name)
}

// Maker is the job that makes a dataset.
type Maker struct {
	DAG    string  `json:"dag"`
	Job    string  `json:"job"`
	Inputs []Input `json:"inputs" nullable:"false" doc:"What it reads, in the version that serves"`
}

// Input is a dataset that a job reads.
type Input struct {
	Dataset string `json:"dataset,omitempty" doc:"Empty where the caller may not see it"`
	DAG     string `json:"dag,omitempty"`
	Hidden  bool   `json:"hidden,omitempty"`
}

func (c *Catalog) maker(ctx context.Context, tx pgx.Tx, caller authz.Caller, d registry.Dataset) (Maker, error) {
	m := Maker{DAG: d.DAG, Job: d.Job, Inputs: []Input{}}
	args := []any{caller.OrgID, d.DAG, d.Job}
	rows, err := tx.Query(ctx, `
		SELECT coalesce(d.name, ''), CASE WHEN d.id IS NULL THEN '' ELSE d.producer_dag_name END, d.id IS NULL
		FROM dag_current_versions c
		JOIN jobs j ON j.dag_version_id = c.dag_version_id AND j.name = $3
		JOIN job_inputs i ON i.job_id = j.id
		LEFT JOIN datasets d ON d.id = i.dataset_uuid AND `+registry.VisibleTo(caller, &args)+`
		WHERE c.org_id = $1 AND c.dag_name = $2 ORDER BY i.input_index`, args...)
	if err != nil {
		return m, err
	}
	inputs, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Input])
	m.Inputs = append(m.Inputs, inputs...)
	return m, err
}

// Consumer is a job that reads a dataset.
type Consumer struct {
	DAG    string   `json:"dag,omitempty"`
	Job    string   `json:"job,omitempty"`
	Makes  []string `json:"makes,omitempty" doc:"What it makes, of what the caller may see"`
	Hidden bool     `json:"hidden,omitempty" doc:"The caller may not see it"`
}

// consumers relies on idx_job_inputs_dataset.
func (c *Catalog) consumers(
	ctx context.Context, tx pgx.Tx, caller authz.Caller, d registry.Dataset,
) ([]Consumer, error) {
	args := []any{caller.OrgID, d.ID}
	rows, err := tx.Query(ctx, `
		SELECT DISTINCT j.id, j.dag_name, j.name, ARRAY(
			SELECT d.name FROM dag_version_datasets p JOIN datasets d ON d.id = p.dataset_uuid
			WHERE p.dag_version_id = j.dag_version_id AND p.job_name = j.name AND `+registry.VisibleTo(caller, &args)+`
			ORDER BY p.output_index)
		FROM dag_current_versions c
		JOIN job_inputs i ON i.dataset_uuid = $2 AND i.dag_version_id = c.dag_version_id
		JOIN jobs j ON j.id = i.job_id
		WHERE c.org_id = $1 ORDER BY j.dag_name, j.name LIMIT 200`, args...)
	if err != nil {
		return nil, err
	}

	var jobs []*registry.Job
	found := []Consumer{}
	var (
		id  uuid.UUID
		one Consumer
	)
	_, err = pgx.ForEachRow(rows, []any{&id, &one.DAG, &one.Job, &one.Makes}, func() error {
		jobs, found = append(jobs, &registry.Job{ID: id}), append(found, one)
		one.Makes = nil
		return nil
	})
	if err != nil {
		return nil, err
	}

	readable, err := c.ReadableJobs(ctx, tx, caller, jobs)
	for i, j := range jobs {
		if !readable[j.ID] {
			found[i] = Consumer{Hidden: true}
		}
	}
	return found, err
}
