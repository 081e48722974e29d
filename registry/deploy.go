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
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/pg"
)

// Deploy makes a version of the document and has it built; the dispatcher cuts over to it once it is ready. The same
// document is the same version: deployed again, it says so and changes nothing, unless it had failed or been replaced,
// in which case it is taken up again with everything it built before.
func (r *Registry) Deploy(ctx context.Context, caller authz.Caller, dagName string, req DeployRequest) (Deployment, error) {
	doc, definitions, err := r.define(dagName, req)
	if err != nil {
		return Deployment{}, err
	}
	var deployed Deployment
	err = pg.InOrgTx(ctx, r.Requests, caller.OrgID, func(ctx context.Context, tx pgx.Tx) error {
		d := &deploy{registry: r, caller: caller, req: req, doc: doc, definitions: definitions, now: time.Now(), force: req.force}
		if err := LockDAG(ctx, tx, caller.OrgID, dagName); err != nil {
			return err
		}
		deployed, err = d.run(ctx, tx)
		if err != nil {
			return err
		}
		// A deploy is rare, so it may pay for its own notification; the dispatcher would find the version without it.
		_, err = tx.Exec(ctx, `SELECT pg_notify('dagctl', 'build')`)
		return err
	})
	if err != nil {
		return Deployment{}, fmt.Errorf("deploy %s: %w", dagName, err)
	}
	return deployed, nil
}

func (r *Registry) parse(dagName string, req DeployRequest) (*dag.Document, error) {
	doc, problems := dag.Parse(dag.File{Name: "dag.yaml", Text: []byte(req.YAML), Files: dag.InMemory(req.Files), Vars: req.Vars}, r.Catalog)
	if len(problems) > 0 {
		return nil, problems.Fault()
	}
	if doc.Name != dagName {
		return nil, fault.New(fault.Invalid, "the document is of DAG %q, but was sent to %q", doc.Name, dagName).
			WithHint("deploy it to /v1/dags/%s/versions", doc.Name)
	}
	return doc, refuseUnserved(doc, r.Catalog.Operators)
}

// define parses a document and hashes what its jobs say: all of a deploy that needs no lock.
func (r *Registry) define(dagName string, req DeployRequest) (*dag.Document, *dag.Definitions, error) {
	doc, err := r.parse(dagName, req)
	if err != nil {
		return nil, nil, err
	}
	definitions, err := dag.Define(doc, r.Catalog)
	return doc, definitions, err
}

// deploy is one deploy in its transaction, under the DAG's lock.
type deploy struct {
	registry    *Registry
	caller      authz.Caller
	req         DeployRequest
	doc         *dag.Document
	definitions *dag.Definitions
	now         time.Time
	planning    bool     // it is undone at its end, so nothing is in its way
	force       []string // jobs that are to be rebuilt whatever they have

	prints   map[string]dag.Fingerprint // by job name
	epoch    map[string]int             // build epochs, by job name
	version  uuid.UUID
	datasets map[outputRef]uuid.UUID
	reads    map[inputRef]edge
	// generations tells what each output's dataset version is, and whether it holds revisions already.
	generations map[outputRef]generationRef
	origins     map[string]uuid.UUID     // by job name
	rows        map[string]uuid.UUID     // the version's own job rows, by job name
	meets       *Meeting                 // the build of the DAG that was on its way
	taken       map[string]takenName     // published names of other DAGs
	continued   map[string]*continuation // by job name: what a forward-only deploy takes over
}

type outputRef struct {
	job   string
	index int
}

type generationRef struct {
	id     uuid.UUID
	filled bool
}

// run decides what the document is, and makes it the version that is built next, unless that would lose tasks.
func (d *deploy) run(ctx context.Context, tx pgx.Tx) (Deployment, error) {
	deployed, err := d.decide(ctx, tx)
	if err != nil {
		return Deployment{}, err
	}
	deployed.Cancels, err = d.queues(ctx, tx, deployed.Version)
	return deployed, err
}

func (d *deploy) decide(ctx context.Context, tx pgx.Tx) (Deployment, error) {
	if err := refuseUnknownBundles(ctx, tx, d.caller.OrgID, d.doc); err != nil {
		return Deployment{}, err
	}
	if err := d.fingerprint(ctx, tx); err != nil {
		return Deployment{}, err
	}
	live, err := d.live(ctx, tx)
	if err != nil {
		return Deployment{}, err
	}
	if err := d.checkBase(ctx, tx); err != nil {
		return Deployment{}, err
	}
	existing, hash, err := d.identify(ctx, tx, live)
	if err == nil && d.req.ForwardOnly {
		existing, hash, err = d.bound(ctx, tx, live, existing, hash)
	}
	if err != nil {
		return Deployment{}, err
	}
	if d.req.Resume {
		if err := d.resumable(ctx, tx, existing); err != nil {
			return Deployment{}, err
		}
	}
	if existing != nil && (existing.Status == Active || existing.Status == Building || existing.Status == Ready) {
		if existing.Status == Active && d.req.Supersede { // what is being built would replace what was just asked for
			if err := d.makeRoom(ctx, tx); err != nil {
				return Deployment{}, err
			}
		}
		return d.again(ctx, tx, *existing, live)
	}
	if err := d.makeRoom(ctx, tx); err != nil {
		return Deployment{}, err
	}
	for _, check := range []func(context.Context, pgx.Tx) error{d.checkSecrets, d.claimHooks} {
		if err := check(ctx, tx); err != nil {
			return Deployment{}, err
		}
	}
	if existing != nil {
		return d.takeUp(ctx, tx, *existing, live)
	}
	version, err := d.create(ctx, tx, hash)
	if err != nil {
		return Deployment{}, err
	}
	changes, err := d.changes(ctx, tx, live, d.planned())
	if err != nil {
		return Deployment{}, err
	}
	return Deployment{Version: version, Created: true, Changes: changes, Meets: d.meets},
		authz.Audit(ctx, tx, d.caller, "dag.deploy", fmt.Sprintf("%s v%d", d.doc.Name, version.Number), map[string]any{"yaml_hash": hash})
}

// again answers a deploy of a version that is active or on its way.
func (d *deploy) again(ctx context.Context, tx pgx.Tx, v Version, live []planned) (Deployment, error) {
	if v.Status == Ready && d.activate() {
		if _, err := tx.Exec(ctx, `UPDATE dag_versions SET activate = true WHERE org_id = $1 AND id = $2 AND status = 'Ready'`,
			d.caller.OrgID, v.ID); err != nil {
			return Deployment{}, err
		}
	}
	next, err := pointerSet(ctx, tx, d.caller.OrgID, v.ID)
	if err != nil {
		return Deployment{}, err
	}
	changes, err := d.changes(ctx, tx, live, next)
	return Deployment{Version: v, Changes: changes, Meets: d.meets}, err
}

// takeUp builds a version again that had failed, been abandoned or been replaced. What it built is still there.
func (d *deploy) takeUp(ctx context.Context, tx pgx.Tx, v Version, live []planned) (Deployment, error) {
	d.version = v.ID
	if err := d.claimNames(ctx, tx); err != nil {
		return Deployment{}, err
	}
	if err := d.refuseCycle(ctx, tx); err != nil {
		return Deployment{}, err
	}
	tag, err := tx.Exec(ctx, `
		UPDATE dag_versions SET status = 'Building', building_at = $3, ready_at = NULL, error = NULL, activate = $4, passes = $5,
			base_version_id = (SELECT dag_version_id FROM dag_current_versions WHERE org_id = $1 AND dag_name = dag_versions.dag_name)
		WHERE org_id = $1 AND id = $2 AND status IN ('Staged', 'Failed', 'Abandoned', 'Superseded')`,
		d.caller.OrgID, v.ID, d.now, d.activate(), d.passes())
	if err != nil {
		return Deployment{}, err
	}
	if tag.RowsAffected() == 0 {
		return Deployment{}, fault.New(fault.Conflict, "version %d of %s is being changed by someone else", v.Number, v.DAG)
	}
	v.Status, v.Error, v.ReadyAt = Building, "", nil
	next, err := pointerSet(ctx, tx, d.caller.OrgID, v.ID)
	if err != nil {
		return Deployment{}, err
	}
	changes, err := d.changes(ctx, tx, live, next)
	if err != nil {
		return Deployment{}, err
	}
	return Deployment{Version: v, Changes: changes, Meets: d.meets}, authz.Audit(ctx, tx, d.caller, "dag.deploy",
		fmt.Sprintf("%s v%d", v.DAG, v.Number), map[string]any{"yaml_hash": v.Hash, "again": true})
}

func (d *deploy) activate() bool { return d.req.Activate == nil || *d.req.Activate }

// create writes the version with its jobs, datasets, generations, pointer set and edges.
func (d *deploy) create(ctx context.Context, tx pgx.Tx, hash string) (Version, error) {
	version, err := d.insertVersion(ctx, tx, hash)
	if err != nil {
		return Version{}, err
	}
	d.version = version.ID
	for _, step := range []func(context.Context, pgx.Tx) error{
		d.claimNames, d.insertDatasets, d.resolveInputs, d.insertJobs, d.insertGenerations, d.insertPointers, d.insertInputs, d.holdInherited, d.refuseCycle,
	} {
		if err := step(ctx, tx); err != nil {
			return Version{}, err
		}
	}
	return version, nil
}

func (d *deploy) insertVersion(ctx context.Context, tx pgx.Tx, hash string) (Version, error) {
	files, err := json.Marshal(d.doc.Files)
	if err != nil {
		return Version{}, err
	}
	row := tx.QueryRow(ctx, `
		INSERT INTO dag_versions (id, org_id, dag_name, number, yaml_hash, source_hash, yaml, files, vars, status, activate,
		                          created_by, source_ref, base_version_id, created_at, building_at, forward_only, forward_from, passes, notify)
		SELECT $1, $2, $3, coalesce((SELECT max(number) FROM dag_versions WHERE org_id = $2 AND dag_name = $3), 0) + 1,
		       $4, $5, $6, $7, $8, 'Building', $9, $10, NULLIF($11, ''),
		       (SELECT dag_version_id FROM dag_current_versions WHERE org_id = $2 AND dag_name = $3), $12, $12, $13, NULLIF($14, ''), $15, coalesce($16::jsonb, '[]')
		RETURNING `+versionColumns,
		uuid.Must(uuid.NewV7()), d.caller.OrgID, d.doc.Name, hash, dag.SourceHash([]byte(d.req.YAML)), d.req.YAML, files,
		d.doc.Vars, d.activate(), d.caller.Actor, d.req.SourceRef, d.now, len(d.continued) > 0, d.req.ForwardFrom, d.passes(), d.doc.Notify)
	v, err := scanVersion(row)
	if err != nil {
		return Version{}, fmt.Errorf("insert version: %w", err)
	}
	return v, nil
}

// planned is the version's own pointer set, in the order of the document.
func (d *deploy) planned() []planned {
	var out []planned
	for _, job := range d.doc.Jobs {
		for i := range job.Outputs {
			ref := outputRef{job.Name, i}
			out = append(out, planned{job: job.Name, output: i, id: d.datasets[ref], dataset: d.datasetName(ref), generation: d.generations[ref].id, origin: d.origins[job.Name],
				configHash: d.definitions.Local(job.Name), epoch: d.epoch[job.Name], reset: resets(job), exists: d.generations[ref].filled, continues: d.continues(ref)})
		}
	}
	return out
}

// datasetName is what the dataset will be called once the version serves.
func (d *deploy) datasetName(ref outputRef) string {
	for _, p := range d.doc.Publish {
		if p.Job == ref.job && p.Output == ref.index {
			return p.Name
		}
	}
	job, _ := d.doc.Job(ref.job)
	return derivedName(d.doc.Name, ref.job, job.Outputs[ref.index])
}

// derivedName is the name of a dataset that is not published.
func derivedName(dagName, job, output string) string { return dagName + "/" + job + "/" + output }

// live is the pointer set that serves now.
func (d *deploy) live(ctx context.Context, tx pgx.Tx) ([]planned, error) {
	var current uuid.UUID
	err := tx.QueryRow(ctx, `SELECT dag_version_id FROM dag_current_versions WHERE org_id = $1 AND dag_name = $2`,
		d.caller.OrgID, d.doc.Name).Scan(&current)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return pointerSet(ctx, tx, d.caller.OrgID, current)
}

// pointerSet reads a version's pointer set as the plan wants it.
func pointerSet(ctx context.Context, tx pgx.Tx, org, version uuid.UUID) ([]planned, error) {
	rows, err := tx.Query(ctx, `
		SELECT p.job_name, p.output_index, p.dataset_uuid, p.name, p.dataset_version, j.origin_job_id, j.config_hash, j.build_epoch,
		       EXISTS (SELECT FROM partition_versions r WHERE r.dataset_version = p.dataset_version AND r.state = 'Published'),
		       coalesce((SELECT sum(r.bytes) FROM partition_versions r WHERE r.dataset_version = p.dataset_version AND r.state = 'Published'), 0)::bigint,
		       (SELECT g.continues FROM dataset_versions g WHERE g.id = p.dataset_version AND NOT EXISTS (
		           SELECT FROM dag_version_datasets s JOIN dag_versions v ON v.id = s.dag_version_id AND v.activated_at IS NOT NULL
		           WHERE s.dataset_version = g.id))
		FROM dag_version_datasets p
		JOIN jobs j ON j.dag_version_id = p.dag_version_id AND j.name = p.job_name
		WHERE p.org_id = $1 AND p.dag_version_id = $2
		ORDER BY j.id, p.output_index`, org, version)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (planned, error) {
		var p planned
		err := row.Scan(&p.job, &p.output, &p.id, &p.dataset, &p.generation, &p.origin, &p.configHash, &p.epoch, &p.exists, &p.bytes, &p.continues)
		return p, err
	})
}

const versionColumns = `id, dag_name, number, yaml_hash, source_hash, status, created_by, coalesce(source_ref, ''),
	created_at, building_at, ready_at, activated_at, coalesce(error, ''), forward_only, coalesce(forward_from, '')`

func scanVersion(row pgx.Row) (Version, error) {
	var v Version
	err := row.Scan(&v.ID, &v.DAG, &v.Number, &v.Hash, &v.SourceHash, &v.Status, &v.CreatedBy, &v.SourceRef,
		&v.CreatedAt, &v.BuildingAt, &v.ReadyAt, &v.ActivatedAt, &v.Error, &v.ForwardOnly, &v.ForwardFrom)
	return v, err
}

func versionByHash(ctx context.Context, tx pgx.Tx, org uuid.UUID, dagName, hash string) (*Version, error) {
	v, err := scanVersion(tx.QueryRow(ctx, `SELECT `+versionColumns+` FROM dag_versions
		WHERE org_id = $1 AND dag_name = $2 AND yaml_hash = $3`, org, dagName, hash))
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil
	}
	return &v, err
}
