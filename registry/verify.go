package registry

import (
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"

	"github.com/danielgtaylor/huma/v2"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/internal/rest"
	"github.com/dagctl/dagctl/storage"
)

// LostRevision is a revision whose files do not match its row.
type LostRevision struct {
	Dataset  string    `json:"dataset"`
	DAG      string    `json:"dag"`
	Job      string    `json:"job"`
	Version  uuid.UUID `json:"dataset_version"`
	Served   bool      `json:"served" doc:"Readers see this dataset version now"`
	Key      string    `json:"partition"`
	Revision int64     `json:"revision"`
	Problem  string    `json:"problem"`
	Remedy   string    `json:"remedy,omitempty" doc:"What makes a served partition again, where no copy of its file is left"`
}

// RevisionPosition is the end of a page of revisions.
type RevisionPosition struct {
	Version  uuid.UUID `json:"version"`
	Key      string    `json:"key"`
	Revision int64     `json:"revision"`
}

// VerifyFiles compares up to limit revisions, beginning after a position, with the storage: every file that a revision
// names must exist with its size. It returns the revisions with a problem, how many it checked, and where it ended;
// next is nil after the last revision.
func (r *Registry) VerifyFiles(ctx context.Context, caller authz.Caller, after RevisionPosition,
	limit int) (lost []LostRevision, checked int, next *RevisionPosition, err error) {
	type row struct {
		LostRevision
		maker      *maker
		held       bool
		generation storage.Generation
		manifest   storage.Manifest
	}

	var found []row
	err = pg.InOrgTx(ctx, r.Requests, caller.OrgID, func(ctx context.Context, tx pgx.Tx) error {
		rows, err := tx.Query(ctx, `
			SELECT d.name, d.producer_dag_name, d.producer_job_name, `+makerOf+`, r.dataset_version,
			       EXISTS (SELECT FROM dataset_pointers p
			           WHERE p.org_id = r.org_id AND p.dataset_version = r.dataset_version),
			       r.partition_key, r.revision, r.state = 'Held', r.location, r.files, org_slug(r.org_id),
			       r.dataset_uuid, g.storage
			FROM partition_versions r
			JOIN dataset_versions g ON g.id = r.dataset_version AND g.purged_at IS NULL
			JOIN datasets d ON d.org_id = r.org_id AND d.id = r.dataset_uuid
			WHERE r.org_id = $1 AND r.state IN ('Published', 'Held')
			  AND (r.dataset_version, r.partition_key, r.revision) > ($2, $3, $4)
			ORDER BY r.dataset_version, r.partition_key, r.revision LIMIT $5`,
			caller.OrgID, after.Version, after.Key, after.Revision, limit)
		if err != nil {
			return err
		}
		found, err = pgx.CollectRows(rows, func(rows pgx.CollectableRow) (row, error) {
			v := row{generation: storage.Generation{OrgID: caller.OrgID}}
			var store []byte
			if err := rows.Scan(&v.Dataset, &v.DAG, &v.Job, &v.maker, &v.Version, &v.Served, &v.Key, &v.Revision,
				&v.held, &v.manifest.Location, &v.manifest.Files,
				&v.generation.OrgSlug, &v.generation.Dataset, &store); err != nil {
				return v, err
			}
			return v, SetGeneration(&v.generation, v.Version, store)
		})
		return err
	})

	for _, v := range found {
		if err != nil {
			break
		}
		check := func() error { return r.Storage.VerifyPublished(ctx, v.generation, v.Key, v.Revision, v.manifest) }
		if v.held {
			check = func() error { return r.Storage.Verify(ctx, v.manifest) }
		}
		if v.Problem, err = problemOf(check()); v.Problem != "" {
			if v.Served {
				v.Remedy = remake(v.Dataset, v.DAG+"/"+v.Job, v.maker, v.Key)
			}
			lost = append(lost, v.LostRevision)
		}
	}
	if err != nil {
		return nil, 0, nil, fmt.Errorf("verify files: %w", err)
	}

	if n := len(found); n == limit {
		next = &RevisionPosition{found[n-1].Version, found[n-1].Key, found[n-1].Revision}
	}
	return lost, len(found), next, nil
}

// problemOf parts what a check found to be wrong with a revision from an error of the check itself.
func problemOf(err error) (problem string, failed error) {
	if fault.Is(err, fault.NotFound) || fault.Is(err, fault.Invalid) {
		return err.Error(), nil
	}
	return "", err
}

// Stored is a published revision as its row describes it.
type Stored struct {
	Revision
	generation storage.Generation
}

// LoadStored loads a published revision of an org's dataset, to be compared with the storage.
func LoadStored(ctx context.Context, tx pgx.Tx, org uuid.UUID, ref Ref, revision int64) (s Stored, err error) {
	if s.Revision, err = LoadRevision(ctx, tx, ref, revision); err != nil {
		return s, err
	}
	s.generation = storage.Generation{OrgID: org, Dataset: s.Dataset}
	var store []byte
	if err := tx.QueryRow(ctx, `SELECT org_slug(org_id), storage FROM dataset_versions WHERE org_id = $1 AND id = $2`,
		org, ref.Version).Scan(&s.generation.OrgSlug, &store); err != nil {
		return s, fmt.Errorf("storage of a dataset version: %w", err)
	}
	return s, SetGeneration(&s.generation, ref.Version, store)
}

// VerifyStored compares a published revision with the storage, as VerifyFiles does. An error says nothing about the
// revision.
func (r *Registry) VerifyStored(ctx context.Context, s Stored) (problem string, err error) {
	return problemOf(r.Storage.VerifyPublished(ctx, s.generation, s.Key, s.Revision.Revision, s.Manifest))
}

// maker is what the job that makes a dataset now is like.
type maker struct {
	Source  string            `json:"source"` // its kind; empty: it has none
	Appends bool              `json:"appends"`
	Parts   dag.PartitionKind `json:"parts"`
}

// makerOf is the SQL of the maker of dataset d, as JSON; null: no job makes it now.
const makerOf = `(
	SELECT jsonb_build_object('source', j.source ->> 'kind', 'appends', j.update_strategy = 'append',
		'parts', j.partition_by ->> 'kind')
	FROM dag_current_versions c JOIN jobs j ON j.dag_version_id = c.dag_version_id
	WHERE c.org_id = d.org_id AND c.dag_name = d.producer_dag_name AND j.name = d.producer_job_name)`

// Remake says what makes a partition of a generation's dataset again whose file is lost, as in ", or run `…`"; nothing
// if no command does. An empty key stands for any partition.
func (r *Registry) Remake(ctx context.Context, g storage.Generation, dataset, key string) (says string, err error) {
	var job string
	var by *maker
	err = pg.InOrgTx(ctx, r.Requests, g.OrgID, func(ctx context.Context, tx pgx.Tx) error {
		err := tx.QueryRow(ctx, `SELECT d.producer_dag_name || '/' || d.producer_job_name, `+makerOf+`
			FROM datasets d WHERE d.org_id = $1 AND d.id = $2`, g.OrgID, g.Dataset).Scan(&job, &by)
		if errors.Is(err, pgx.ErrNoRows) {
			return nil // it was deleted meanwhile
		}
		return err
	})
	if err != nil {
		return "", fmt.Errorf("who makes dataset %s: %w", dataset, err)
	}
	if says = remake(dataset, job, by, key); says != "" {
		says = ", or " + says
	}
	return says, nil
}

// remake is Remake for a job, without the comma. What somebody else has begun, a rebuild cannot begin again, and a
// source is not asked again for what it gave to be appended. It is pure.
func remake(dataset, job string, by *maker, key string) string {
	switch {
	case by == nil || by.Appends && by.Source != "":
		return ""
	case by.Source == "manual" && by.Parts == dag.Unpartitioned:
		return fmt.Sprintf("run `dagctl run %s`, with the payload that it had, if any", job)
	case by.Source == "manual":
		return fmt.Sprintf("run `dagctl run %s --partition %s`, with the payload that it had, if any", job,
			cmp.Or(key, "KEY"))
	case by.Source == "timer":
		return fmt.Sprintf("let a timer fire for it again: `dagctl timers create %s`", job)
	case by.Source == "webhook":
		return "let its sender deliver it again"
	}
	return "run `dagctl rematerialize " + dataset + "`"
}

func (r *Registry) addVerifyRoute(api *authz.API) {
	authz.Handle(api, authz.Admin, huma.Operation{
		OperationID: "verify-files", Method: http.MethodGet, Path: "/v1/lost-revisions", Tags: []string{"upkeep"},
		Summary: "Compare a page of revisions with the files that the storage has",
		Description: "Lists the revisions with a file that is missing or has another size. " +
			"An empty page is not the last one: continue while there is a next_cursor.",
	}, r.handleVerify)
}

// VerifiedPage is the result for one page of revisions.
type VerifiedPage struct {
	rest.List[LostRevision]
	Checked int `json:"checked" doc:"How many revisions were checked"`
}

type verifyOutput struct{ Body VerifiedPage }

func (r *Registry) handleVerify(ctx context.Context, caller authz.Caller,
	in *struct{ rest.PageInput }) (*verifyOutput, error) {
	var after RevisionPosition
	if _, err := in.After(&after); err != nil {
		return nil, err
	}

	lost, checked, next, err := r.VerifyFiles(ctx, caller, after, in.Limit)
	if err != nil {
		return nil, err
	}

	out := &verifyOutput{VerifiedPage{List: rest.List[LostRevision]{Items: lost}, Checked: checked}}
	if out.Body.Items == nil {
		out.Body.Items = []LostRevision{}
	}

	if next != nil {
		position, err := json.Marshal(next)
		if err != nil {
			return nil, err
		}
		out.Body.NextCursor = base64.RawURLEncoding.EncodeToString(position)
	}
	return out, nil
}
