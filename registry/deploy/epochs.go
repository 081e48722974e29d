package deploy

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/registry"
)

// A build epoch counts how often a definition had to be computed anew as a whole. It is part of the fingerprint of the
// job and of everything downstream of it, so raising an epoch makes new generations as any other change does. It is
// also part of the version's hash, so deploying the same file again afterwards changes nothing.
//
// A version keeps the epochs that it was made with (jobs.build_epoch). A deploy begins with those of the version that
// serves, so a rollback restores epochs, and a build that raised one and failed changes nothing for later deploys. For
// definitions that do not serve, build_epochs has the epoch with which each served last. A raised epoch is always one
// that no version ever had.

// startEpoch is the epoch with which a deploy begins, and whether the definition serves with it.
type startEpoch struct {
	epoch  int
	serves bool
}

// fingerprint computes the fingerprint of each job. It raises the epoch of a job if the deploy asks for that, and if
// the generation of its definition was purged, because a purged generation is never used again.
func (d *deploy) fingerprint(ctx context.Context, tx pgx.Tx) (err error) {
	if d.bare, err = d.definitions.Fingerprints(nil); err != nil {
		return err
	}
	if err := d.readEpochs(ctx, tx); err != nil {
		return err
	}
	return d.raise(ctx, tx, d.force)
}

// raise raises the epochs of jobs, and computes all fingerprints.
func (d *deploy) raise(ctx context.Context, tx pgx.Tx, jobs []string) (err error) {
	for {
		for _, job := range jobs {
			if err := d.raiseEpoch(ctx, tx, job); err != nil {
				return err
			}
		}
		if d.prints, err = d.definitions.Fingerprints(d.epoch); err != nil {
			return err
		}
		if jobs, err = d.purgedJobs(ctx, tx); err != nil || len(jobs) == 0 {
			return err
		}
	}
}

// identify returns the version that the document already is, nil if it is new, and its hash. For a new document, it
// raises the epochs of the sources that begin anew with every version (bootstrap.reset_outputs) and have live outputs.
func (d *deploy) identify(ctx context.Context, tx pgx.Tx,
	live []planned) (existing *registry.Version, hash string, err error) {
	existing, hash, err = d.known(ctx, tx)
	if err != nil || existing != nil || d.force != nil {
		return existing, hash, err
	}

	var anew, all []string
	for _, job := range d.doc.Jobs {
		all = append(all, job.Name)
		if resets(job) && slices.ContainsFunc(live, func(p planned) bool { return p.job == job.Name }) {
			anew = append(anew, job.Name)
		}
	}
	if len(anew) == 0 {
		return nil, hash, nil
	}

	// It begins anew once: a version of the document with the epochs that were raised last is that version. A
	// forward-only deploy raises others along with them.
	for _, jobs := range [][]string{anew, all} {
		existing, hash, err = d.raisedBefore(ctx, tx, jobs)
		if err != nil || existing != nil {
			return existing, hash, err
		}
	}
	if err := d.raise(ctx, tx, anew); err != nil {
		return nil, "", err
	}
	return d.known(ctx, tx)
}

// known returns the version that the document is with the epochs of the deploy, nil if there is none, and its hash.
func (d *deploy) known(ctx context.Context, tx pgx.Tx) (*registry.Version, string, error) {
	hash := dag.Hash(d.doc, d.epoch, d.bindings)
	existing, err := versionByHash(ctx, tx, d.caller.OrgID, d.doc.Name, hash)
	return existing, hash, err
}

// raisedBefore returns the version that the document is with the highest epochs of some jobs, and takes those epochs
// over; nil if there is none.
func (d *deploy) raisedBefore(ctx context.Context, tx pgx.Tx, jobs []string) (*registry.Version, string, error) {
	epochs := maps.Clone(d.epoch)
	for _, job := range jobs {
		epochs[job] = max(epochs[job], d.highest[d.bare[job].Base])
	}
	hash := dag.Hash(d.doc, epochs, d.bindings)
	existing, err := d.withEpochs(ctx, tx, hash, epochs)
	return existing, hash, err
}

// withEpochs returns the version with a hash, and makes the epochs that it was made with the deploy's; nil if there is
// none, or if one of its generations was purged.
func (d *deploy) withEpochs(ctx context.Context, tx pgx.Tx, hash string,
	epochs map[string]int) (*registry.Version, error) {
	existing, err := versionByHash(ctx, tx, d.caller.OrgID, d.doc.Name, hash)
	if err != nil || existing == nil {
		return nil, err
	}

	epoch, prints := d.epoch, d.prints
	d.epoch = epochs
	if d.prints, err = d.definitions.Fingerprints(epochs); err != nil {
		return nil, err
	}
	purged, err := d.purgedJobs(ctx, tx)
	if err != nil || len(purged) > 0 {
		d.epoch, d.prints = epoch, prints
		return nil, err
	}
	return existing, nil
}

// resets reports whether the job's outputs begin anew with every version.
func resets(job dag.Job) bool { return job.Bootstrap != nil && job.Bootstrap.ResetOutputs }

// readEpochs reads the epoch with which each definition in the document begins, and the highest that it ever had. Both
// belong to the job's identity.
func (d *deploy) readEpochs(ctx context.Context, tx pgx.Tx) error {
	rows, err := tx.Query(ctx, `
		SELECT job_name, fingerprint, epoch, highest, false FROM build_epochs WHERE org_id = $1 AND dag_name = $2
		UNION ALL
		SELECT j.identity, j.base_fingerprint, j.build_epoch, j.build_epoch, true
		FROM dag_current_versions c JOIN jobs j ON j.dag_version_id = c.dag_version_id
		WHERE c.org_id = $1 AND c.dag_name = $2`, d.caller.OrgID, d.doc.Name)
	if err != nil {
		return fmt.Errorf("build epochs: %w", err)
	}

	type definition struct{ job, base string }
	var (
		at      definition
		e       startEpoch
		highest int
	)
	found := map[definition]startEpoch{}
	d.highest = map[string]int{}
	_, err = pgx.ForEachRow(rows, []any{&at.job, &at.base, &e.epoch, &highest, &e.serves}, func() error {
		if !found[at].serves {
			found[at] = e
		}
		d.highest[at.base] = max(d.highest[at.base], highest)
		return nil
	})
	if err != nil {
		return fmt.Errorf("build epochs: %w", err)
	}

	d.epoch, d.serving = map[string]int{}, map[string]int{}
	for _, job := range d.doc.Jobs {
		base := d.bare[job.Name].Base
		e, ok := found[definition{job.Identity(), base}]
		if !ok { // epochs were kept by the name, once
			e = startEpoch{epoch: found[definition{job.Name, base}].epoch}
		}
		d.epoch[job.Name] = e.epoch
		if e.serves {
			d.serving[job.Name] = e.epoch
		}
	}
	return nil
}

// raiseEpoch raises the build epoch of a job's definition above all that it ever had. Deploys of a definition that does
// not serve begin with it from now on; one that serves keeps its epoch until a version with another one is cut over to.
func (d *deploy) raiseEpoch(ctx context.Context, tx pgx.Tx, job string) error {
	base := d.bare[job].Base
	raised := max(d.epoch[job], d.highest[base]) + 1
	begin, serves := d.serving[job]
	if !serves {
		begin = raised
	}
	d.epoch[job], d.highest[base] = raised, raised
	def, _ := d.doc.Job(job)

	_, err := tx.Exec(ctx, `
		INSERT INTO build_epochs (org_id, dag_name, job_name, fingerprint, epoch, highest)
		VALUES ($1, $2, $3, $4, $5, $6)
		ON CONFLICT (org_id, dag_name, job_name, fingerprint) DO UPDATE
		SET epoch = EXCLUDED.epoch, highest = EXCLUDED.highest`,
		d.caller.OrgID, d.doc.Name, def.Identity(), base, begin, raised)
	if err != nil {
		return fmt.Errorf("raise the build epoch of %s: %w", job, err)
	}
	return nil
}

// keepEpochs records the epochs with which a version serves, for when its definitions are deployed again after they
// no longer serve.
func keepEpochs(ctx context.Context, tx pgx.Tx, b registry.Build) error {
	_, err := tx.Exec(ctx, `
		INSERT INTO build_epochs (org_id, dag_name, job_name, fingerprint, epoch, highest)
		SELECT j.org_id, j.dag_name, j.identity, j.base_fingerprint, j.build_epoch, j.build_epoch
		FROM jobs j
		LEFT JOIN build_epochs e ON e.org_id = j.org_id AND e.dag_name = j.dag_name AND e.job_name = j.identity
		  AND e.fingerprint = j.base_fingerprint
		WHERE j.dag_version_id = $1 AND j.build_epoch <> coalesce(e.epoch, 0)
		ON CONFLICT (org_id, dag_name, job_name, fingerprint) DO UPDATE SET epoch = EXCLUDED.epoch`, b.ID)
	if err != nil {
		return fmt.Errorf("keep the build epochs of %s v%d: %w", b.DAG, b.Number, err)
	}
	return nil
}

// purgedJobs returns the jobs whose definition has a purged generation. It relies on idx_dataset_versions_config.
func (d *deploy) purgedJobs(ctx context.Context, tx pgx.Tx) ([]string, error) {
	type generation struct {
		dataset    uuid.UUID
		configHash string
	}
	owner, hashes := map[generation]string{}, make([]string, 0, len(d.datasets))
	for ref, dataset := range d.datasets {
		hash := d.prints[ref.job].ConfigHash(ref.index)
		owner[generation{dataset, hash}], hashes = ref.job, append(hashes, hash)
	}

	rows, err := tx.Query(ctx, `SELECT dataset_uuid, config_hash FROM dataset_versions
		WHERE org_id = $1 AND config_hash = ANY($2) AND purged_at IS NOT NULL`, d.caller.OrgID, hashes)
	if err != nil {
		return nil, fmt.Errorf("find purged generations: %w", err)
	}

	var (
		jobs []string
		g    generation
	)
	if _, err := pgx.ForEachRow(rows, []any{&g.dataset, &g.configHash}, func() error {
		if job, ok := owner[g]; ok {
			jobs = append(jobs, job)
		}
		return nil
	}); err != nil {
		return nil, fmt.Errorf("find purged generations: %w", err)
	}
	slices.Sort(jobs)
	return slices.Compact(jobs), nil
}
