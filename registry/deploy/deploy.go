package deploy

import (
	"cmp"
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
	"github.com/dagctl/dagctl/registry"
	"github.com/dagctl/dagctl/registry/contract"
)

// Deploy makes a version of the document. The dispatcher builds it, and cuts over to it once it is ready. The same
// document is the same version: deploying it again changes nothing, unless the version had failed or been replaced;
// then it is built again and keeps everything that it built before.
func (dp *Deployer) Deploy(ctx context.Context, caller authz.Caller, dagName string,
	req registry.DeployRequest) (registry.Deployment, error) {
	var deployed registry.Deployment
	if len(req.Beside) > 0 {
		return deployed, fault.New(fault.Invalid, "`beside` is for plans: a deploy reads what serves").
			WithHint("deploy the DAGs that publish those datasets first, and leave `beside` out")
	}
	err := dp.define(ctx, caller, dagName, req, func(doc *dag.Document, definitions *dag.Definitions) error {
		return pg.InOrgTx(ctx, dp.requests, caller.OrgID, func(ctx context.Context, tx pgx.Tx) error {
			d := &deploy{deployer: dp, caller: caller, req: req, doc: doc, definitions: definitions,
				now: clock.Now(), force: req.Force}
			err := registry.LockDAG(ctx, tx, caller.OrgID, dagName)
			if err != nil {
				return err
			}
			deployed, err = d.run(ctx, tx)
			if err != nil {
				return err
			}

			// A deploy is rare, so it may pay for its own notification; the dispatcher would find the version without
			// it.
			_, err = tx.Exec(ctx, `SELECT pg_notify('dagctl', 'build')`)
			return err
		})
	})
	if err != nil {
		return registry.Deployment{}, fmt.Errorf("deploy %s: %w", dagName, err)
	}
	return deployed, nil
}

// parse parses a document that was sent to a DAG, and refuses one that the DAG or this server cannot take. Its inputs
// from other DAGs are checked against the datasets that serve.
func (dp *Deployer) parse(
	ctx context.Context, caller authz.Caller, dagName string, req registry.DeployRequest,
) (*dag.Document, error) {
	file := dag.File{Name: "dag.yaml", Text: []byte(req.YAML), Files: dag.InMemory(req.Files), Vars: req.Vars}
	var err error
	if file.Datasets, file.Columns, err = dp.readDatasets(ctx, caller, file.Reads()); err != nil {
		return nil, err
	}
	readBeside(file, req.Beside)

	catalog := dp.catalogFor(ctx, caller)
	if folders := dp.registry.Folders; folders != nil {
		catalog.Folders = func(dag, path string) error { return fault.Hinted(folders(caller.OrgSlug, dag, path)) }
	}
	doc, problems := dag.Parse(file, catalog)
	if err := cmp.Or(ctx.Err(), problems.Unseen()); err != nil {
		return nil, err
	}
	if len(problems) > 0 {
		return nil, problems.Fault()
	}
	if doc.Name != dagName {
		return nil, fault.New(fault.Invalid, "the document defines DAG %q, but was sent to %q", doc.Name, dagName).
			WithHint("deploy it to /v1/dags/%s/versions", doc.Name)
	}
	return doc, refuseUnserved(doc, dp.catalog.Operators)
}

// catalogFor returns the catalog whose functions work for the caller's org, as long as ctx does.
func (dp *Deployer) catalogFor(ctx context.Context, caller authz.Caller) dag.Catalog {
	return dp.catalog.For(dag.Org{ID: caller.OrgID.String(), Slug: caller.OrgSlug}).
		While(func() bool { return ctx.Err() == nil })
}

// define parses a document and hashes the definitions of its jobs: the part of a deploy that needs no lock. It calls
// with with the result, and again with a new one where what the document depends on changed meanwhile.
func (dp *Deployer) define(ctx context.Context, caller authz.Caller, dagName string, req registry.DeployRequest,
	with func(*dag.Document, *dag.Definitions) error) error {
	var changed error
	for range 3 {
		doc, err := dp.parse(ctx, caller, dagName, req)
		if err != nil {
			return err
		}
		if err := dp.identifyJobs(ctx, caller.OrgID, doc, req.YAML); err != nil {
			return err
		}
		definitions, err := dag.Define(doc, dp.catalogFor(ctx, caller))
		if err = cmp.Or(ctx.Err(), err); err != nil {
			return err
		}
		changed = with(doc, definitions)
		if !errors.Is(changed, errReadsChanged) && !errors.Is(changed, errIdentitiesChanged) {
			return changed
		}
	}
	return changed
}

// deploy is one deploy in its transaction, under the DAG's lock.
type deploy struct {
	deployer    *Deployer
	caller      authz.Caller
	req         registry.DeployRequest
	doc         *dag.Document
	definitions *dag.Definitions
	now         time.Time
	planning    bool     // it is rolled back at its end, so no build is in its way
	force       []string // jobs to rebuild even if their outputs exist

	bare     map[string]dag.Fingerprint // by job name, without epochs
	prints   map[string]dag.Fingerprint // by job name
	epoch    map[string]int             // build epochs, by job name
	bindings map[string]string          // ids of the datasets of other DAGs that it reads, by name
	highest  map[string]int             // the highest epoch of a definition in any version, by its base fingerprint
	serving  map[string]int             // the epochs of the very definitions that serve, by job name
	version  uuid.UUID
	datasets map[outputRef]uuid.UUID
	named    map[string]bool // the names of all datasets of the DAG
	reads    map[inputRef]edge
	// generations has each output's dataset version, and whether it has published revisions already.
	generations map[outputRef]generationRef
	origins     map[string]uuid.UUID     // by job name
	rows        map[string]uuid.UUID     // the version's own job rows, by job name
	names       map[outputRef]string     // published names, once they were asked for
	meets       *registry.Meeting        // the build of the DAG that was on its way
	taken       map[string]takenName     // published names of other DAGs
	continued   map[string]*continuation // by job name: what a forward-only deploy takes over
	serves      uuid.UUID                // the version that serves; Nil if none does
	unfit       []contract.Unfit
	findings    []contract.Finding
	inVain      []contract.Finding // `renamed_from` of jobs that it makes no other job
	given       []registry.Consent
}

type outputRef struct {
	job   string
	index int
}

type generationRef struct {
	id     uuid.UUID
	filled bool
}

// run makes the document's version the one that is built next, and refuses if that would cancel tasks unasked.
func (d *deploy) run(ctx context.Context, tx pgx.Tx) (registry.Deployment, error) {
	deployed, err := d.decide(ctx, tx)
	if err != nil {
		return registry.Deployment{}, err
	}
	deployed.Findings = d.findings
	if deployed.Version.Status == registry.Active {
		return deployed, nil
	}

	d.given = d.consents(deployed.Version.Consents)
	if err := d.refuseFindings(); err != nil {
		return registry.Deployment{}, err
	}
	if deployed.Cancels, err = d.queues(ctx, tx, deployed.Version); err != nil {
		return registry.Deployment{}, err
	}
	deployed.Version.Consents = d.given
	return deployed, d.consent(ctx, tx, deployed.Version.ID)
}

// decide returns the version that the document already is, builds that version again, or makes a new one.
func (d *deploy) decide(ctx context.Context, tx pgx.Tx) (registry.Deployment, error) {
	live, err := d.prepare(ctx, tx)
	if err != nil {
		return registry.Deployment{}, err
	}

	existing, hash, err := d.find(ctx, tx, live)
	if err != nil {
		return registry.Deployment{}, err
	}
	if existing != nil && (existing.Status == registry.Active || existing.Status == registry.Building ||
		existing.Status == registry.Ready) {
		// What is being built would replace the version that this deploy asks for.
		if existing.Status == registry.Active && d.req.Supersede {
			if err := d.makeRoom(ctx, tx); err != nil {
				return registry.Deployment{}, err
			}
		}
		return d.again(ctx, tx, *existing, live)
	}

	for _, step := range []func(context.Context, pgx.Tx) error{d.makeRoom, d.checkSecrets, d.claimHooks} {
		if err := step(ctx, tx); err != nil {
			return registry.Deployment{}, err
		}
	}
	if existing != nil {
		deployed, err := d.takeUp(ctx, tx, *existing, live)
		deployed.Was = existing.Status
		return deployed, err
	}
	return d.introduce(ctx, tx, live, hash)
}

// prepare checks what the document refers to and computes its fingerprints. It returns the live pointer set.
func (d *deploy) prepare(ctx context.Context, tx pgx.Tx) ([]planned, error) {
	if err := registry.RefuseUnknownBundles(ctx, tx, d.caller.OrgID, d.doc); err != nil {
		return nil, err
	}
	for _, step := range []func(context.Context, pgx.Tx) error{
		d.sameIdentities, d.bind, d.findDatasets, d.fingerprint,
	} {
		if err := step(ctx, tx); err != nil {
			return nil, err
		}
	}
	live, err := d.live(ctx, tx)
	if err != nil {
		return nil, err
	}
	return live, d.checkBase(ctx, tx)
}

// find returns the version that the document already is, nil if it is new, and its hash.
func (d *deploy) find(ctx context.Context, tx pgx.Tx, live []planned) (*registry.Version, string, error) {
	existing, hash, err := d.identify(ctx, tx, live)
	if err == nil && d.req.ForwardOnly {
		existing, hash, err = d.bound(ctx, tx, live, existing, hash)
	}
	if err == nil && d.req.Resume {
		existing, hash, err = d.resumable(ctx, tx, existing, hash)
	}
	return existing, hash, err
}

// introduce makes a new version and returns it with what it changes.
func (d *deploy) introduce(ctx context.Context, tx pgx.Tx, live []planned, hash string) (registry.Deployment, error) {
	version, err := d.create(ctx, tx, hash)
	if err != nil {
		return registry.Deployment{}, err
	}
	changes, err := d.changes(ctx, tx, live, d.planned(), version.ID)
	if err != nil {
		return registry.Deployment{}, err
	}

	err = d.audit(ctx, tx, version.Number, map[string]any{"yaml_hash": hash})
	return registry.Deployment{Version: version, Created: true, Changes: changes, Meets: d.meets}, err
}

// again answers a deploy of a version that is active or on its way.
func (d *deploy) again(ctx context.Context, tx pgx.Tx, v registry.Version,
	live []planned) (registry.Deployment, error) {
	if (v.Status == registry.Ready || v.HeldBecause != "") && d.activate() {
		if err := registry.TakeAuthority(ctx, tx, d.caller, v.ID); err != nil {
			return registry.Deployment{}, err
		}
		if _, err := tx.Exec(ctx, `UPDATE dag_versions SET activate = true, held_because = NULL,
				building_at = `+waited("$3")+`
			WHERE org_id = $1 AND id = $2 AND status IN ('Building', 'Ready')`,
			d.caller.OrgID, v.ID, d.now); err != nil {
			return registry.Deployment{}, err
		}
		if err := d.audit(ctx, tx, v.Number, map[string]any{"yaml_hash": v.Hash, "again": true}); err != nil {
			return registry.Deployment{}, err
		}
	} else if _, err := registry.RelieveAuthority(ctx, tx, d.caller, v.ID); err != nil {
		return registry.Deployment{}, err
	}
	if v.Status == registry.Active {
		if err := giveUpFailed(ctx, tx, d.caller.OrgID, d.doc.Name, v.Number); err != nil {
			return registry.Deployment{}, err
		}
	}

	next, err := pointerSet(ctx, tx, d.caller.OrgID, v.ID)
	if err != nil {
		return registry.Deployment{}, err
	}
	changes, err := d.changes(ctx, tx, live, next, v.ID)
	return registry.Deployment{Version: v, Changes: changes, Meets: d.meets}, err
}

// takeUp builds again a version that failed, was abandoned or was replaced. What it built is still there.
func (d *deploy) takeUp(ctx context.Context, tx pgx.Tx, v registry.Version,
	live []planned) (registry.Deployment, error) {
	d.version = v.ID
	if err := d.takeAuthority(ctx, tx); err != nil {
		return registry.Deployment{}, err
	}
	if err := d.claimNames(ctx, tx); err != nil {
		return registry.Deployment{}, err
	}
	if err := d.refuseCycle(ctx, tx); err != nil {
		return registry.Deployment{}, err
	}
	if err := d.readsUnchanged(ctx, tx); err != nil {
		return registry.Deployment{}, err
	}

	tag, err := tx.Exec(ctx, `
		UPDATE dag_versions SET status = 'Building', building_at = $3, ready_at = NULL, error = NULL,
			held_because = NULL, activate = $4, passes = $5,
			base_version_id = (SELECT dag_version_id FROM dag_current_versions WHERE org_id = $1 AND dag_name = dag_versions.dag_name)
		WHERE org_id = $1 AND id = $2 AND status IN ('Staged', 'Failed', 'Abandoned', 'Superseded')`,
		d.caller.OrgID, v.ID, d.now, d.activate(), d.passes())
	if err != nil {
		return registry.Deployment{}, err
	}
	if tag.RowsAffected() == 0 {
		return registry.Deployment{}, fault.New(fault.Conflict, "somebody else is changing version %d of %s",
			v.Number, v.DAG)
	}

	v.Status, v.Error, v.ReadyAt, v.Consents = registry.Building, "", nil, nil
	next, err := pointerSet(ctx, tx, d.caller.OrgID, v.ID)
	if err != nil {
		return registry.Deployment{}, err
	}
	changes, err := d.changes(ctx, tx, live, next, v.ID)
	if err != nil {
		return registry.Deployment{}, err
	}
	err = d.audit(ctx, tx, v.Number, map[string]any{"yaml_hash": v.Hash, "again": true})
	return registry.Deployment{Version: v, Changes: changes, Meets: d.meets}, err
}

// audit records a deploy: which version serves, and which one is built, to serve after it unless it waits.
func (d *deploy) audit(ctx context.Context, tx pgx.Tx, number int, detail map[string]any) (err error) {
	if detail["before"], err = registry.ActiveNumber(ctx, tx, d.caller.OrgID, d.doc.Name); err != nil {
		return err
	}
	detail["after"], detail["activate"] = number, d.activate()
	return authz.Audit(ctx, tx, d.caller, "dag.deploy", fmt.Sprintf("%s v%d", d.doc.Name, number), detail)
}

// takeAuthority lets the version run on the caller's authority. It refuses one whose inputs the caller may not read.
func (d *deploy) takeAuthority(ctx context.Context, tx pgx.Tx) error {
	return registry.TakeAuthority(ctx, tx, d.caller, d.version)
}

// activate reports whether the version is cut over to as soon as it is ready.
func (d *deploy) activate() bool { return d.req.Activate == nil || *d.req.Activate }

// create writes the version with its jobs, datasets, generations, pointer set and edges.
func (d *deploy) create(ctx context.Context, tx pgx.Tx, hash string) (registry.Version, error) {
	version, err := d.insertVersion(ctx, tx, hash)
	if err != nil {
		return registry.Version{}, err
	}
	d.version = version.ID
	for _, step := range []func(context.Context, pgx.Tx) error{
		d.claimNames, d.insertDatasets, d.resolveInputs, d.insertJobs, d.insertGenerations,
		d.insertPointers, d.insertInputs, d.takeAuthority, d.holdInherited, d.refuseCycle, d.readsUnchanged,
	} {
		if err := step(ctx, tx); err != nil {
			return registry.Version{}, err
		}
	}
	return version, nil
}

// insertVersion writes the version's own row under the DAG's next number.
func (d *deploy) insertVersion(ctx context.Context, tx pgx.Tx, hash string) (registry.Version, error) {
	files, err := json.Marshal(d.doc.Files)
	if err != nil {
		return registry.Version{}, err
	}

	row := tx.QueryRow(ctx, `
		INSERT INTO dag_versions (id, org_id, dag_name, number, yaml_hash, source_hash, yaml, files, vars, status, activate,
		                          created_by, source_ref, base_version_id, created_at, building_at, forward_only, forward_from, passes, notify)
		SELECT $1, $2, $3, coalesce((SELECT max(number) FROM dag_versions WHERE org_id = $2 AND dag_name = $3), 0) + 1,
		       $4, $5, $6, $7, $8, 'Building', $9, $10, NULLIF($11, ''),
		       (SELECT dag_version_id FROM dag_current_versions WHERE org_id = $2 AND dag_name = $3), $12, $12, $13, NULLIF($14, ''), $15, coalesce($16::jsonb, '[]')
		RETURNING `+registry.VersionColumns,
		uuid.Must(uuid.NewV7()), d.caller.OrgID, d.doc.Name, hash, dag.SourceHash([]byte(d.req.YAML)), d.req.YAML,
		files,
		d.doc.Vars, d.activate(), d.caller.Actor, d.req.SourceRef, d.now, len(d.continued) > 0,
		d.req.ForwardFrom, d.passes(), d.doc.Notify)

	v, err := registry.ScanVersion(row)
	if err != nil {
		return registry.Version{}, fmt.Errorf("insert version: %w", err)
	}
	return v, nil
}

// planned returns the version's own pointer set, in the order of the document.
func (d *deploy) planned() []planned {
	var out []planned
	for _, job := range d.doc.Jobs {
		for i := range job.Outputs {
			ref := outputRef{job.Name, i}
			_, published := d.publishedName(ref)
			out = append(out, planned{job: job.Name, output: i, id: d.datasets[ref], dataset: d.datasetName(ref),
				generation: d.generations[ref].id, origin: d.origins[job.Name],
				configHash: d.definitions.Local(job.Name), epoch: d.epoch[job.Name], reset: resets(job),
				exists: d.generations[ref].filled, continues: d.continues(ref), partitionBy: job.PartitionBy,
				published: published})
		}
	}
	return out
}

// datasetName returns the name of an output's dataset once the version serves.
func (d *deploy) datasetName(ref outputRef) string {
	if name, ok := d.publishedName(ref); ok {
		return name
	}
	job, _ := d.doc.Job(ref.job)
	return derivedName(d.doc.Name, ref.job, job.Outputs[ref.index])
}

// publishedName returns the name under which an output is published; false if it is not.
func (d *deploy) publishedName(ref outputRef) (string, bool) {
	if d.names == nil {
		d.names = make(map[outputRef]string, len(d.doc.Publish))
		for _, p := range d.doc.Publish {
			d.names[outputRef{p.Job, p.Output}] = p.Name
		}
	}
	name, ok := d.names[ref]
	return name, ok
}

// derivedName returns the name of a dataset that is not published.
func derivedName(dagName, job, output string) string { return dagName + "/" + job + "/" + output }

// live returns the pointer set that serves now; nil if none does.
func (d *deploy) live(ctx context.Context, tx pgx.Tx) ([]planned, error) {
	err := tx.QueryRow(ctx, `SELECT dag_version_id FROM dag_current_versions WHERE org_id = $1 AND dag_name = $2`,
		d.caller.OrgID, d.doc.Name).Scan(&d.serves)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return pointerSet(ctx, tx, d.caller.OrgID, d.serves)
}

// pointerSet reads a version's pointer set for a plan.
func pointerSet(ctx context.Context, tx pgx.Tx, org, version uuid.UUID) ([]planned, error) {
	rows, err := tx.Query(ctx, `
		SELECT p.job_name, p.output_index, p.dataset_uuid, p.name, p.dataset_version, j.origin_job_id, j.config_hash, j.build_epoch,
		       has.bytes IS NOT NULL, coalesce(has.bytes, 0)::bigint,
		       CASE WHEN g.continues IS NOT NULL AND NOT EXISTS (
		           SELECT FROM dag_version_datasets s JOIN dag_versions v ON v.id = s.dag_version_id AND v.activated_at IS NOT NULL
		           WHERE s.dataset_version = g.id) THEN g.continues END,
		       g.partition_by, p.published_name IS NOT NULL
		FROM dag_version_datasets p
		JOIN dataset_versions g ON g.id = p.dataset_version
		JOIN jobs j ON j.dag_version_id = p.dag_version_id AND j.name = p.job_name
		CROSS JOIN LATERAL (SELECT sum(r.bytes) AS bytes FROM partition_versions r
		    WHERE r.dataset_version = p.dataset_version AND r.state = 'Published') AS has
		WHERE p.org_id = $1 AND p.dag_version_id = $2
		ORDER BY j.id, p.output_index`, org, version)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (planned, error) {
		var p planned
		err := row.Scan(&p.job, &p.output, &p.id, &p.dataset, &p.generation, &p.origin, &p.configHash, &p.epoch,
			&p.exists, &p.bytes, &p.continues, &p.partitionBy, &p.published)
		return p, err
	})
}

// versionByHash returns the DAG's version with a hash; nil if there is none, or only its record is left.
func versionByHash(ctx context.Context, tx pgx.Tx, org uuid.UUID, dagName, hash string) (*registry.Version, error) {
	v, err := registry.ScanVersion(tx.QueryRow(ctx, `SELECT `+registry.VersionColumns+` FROM dag_versions
		WHERE org_id = $1 AND dag_name = $2 AND yaml_hash = $3 AND shrunk_at IS NULL`, org, dagName, hash))
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil
	}
	return &v, err
}
