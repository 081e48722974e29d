package deploy

import (
	"context"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/registry"
)

// A build epoch counts how often a definition had to be computed anew as a whole. It is part of the fingerprint of the
// job and of everything downstream of it, so raising an epoch makes new generations as any other change does. It is
// also part of the version's hash, so deploying the same file again afterwards changes nothing.

// fingerprint computes the fingerprint of each job. It raises the epoch of a job if the deploy asks for that, and if
// the generation of its definition was purged, because a purged generation is never used again.
func (d *deploy) fingerprint(ctx context.Context, tx pgx.Tx) error {
	bare, err := d.definitions.Fingerprints(nil)
	if err != nil {
		return err
	}
	if d.epoch, err = d.epochs(ctx, tx, bare); err != nil {
		return err
	}

	raise := d.force
	for {
		for _, job := range raise {
			if err := d.raiseEpoch(ctx, tx, job, bare[job].Base); err != nil {
				return err
			}
		}
		if d.prints, err = d.definitions.Fingerprints(d.epoch); err != nil {
			return err
		}
		if raise, err = d.purgedJobs(ctx, tx); err != nil || len(raise) == 0 {
			break
		}
	}
	return err
}

// identify returns the version that the document already is, nil if it is new, and its hash. For a new document, it
// raises the epochs of the sources that begin anew with every version (bootstrap.reset_outputs) and have live outputs.
// It does so once, because from then on the document is known under its hash with those epochs.
func (d *deploy) identify(ctx context.Context, tx pgx.Tx,
	live []planned) (existing *registry.Version, hash string, err error) {
	for {
		hash = dag.Hash(d.doc, d.epoch, d.bindings)
		existing, err = versionByHash(ctx, tx, d.caller.OrgID, d.doc.Name, hash)
		if err != nil || existing != nil || d.force != nil {
			return existing, hash, err
		}

		d.force = []string{}
		for _, job := range d.doc.Jobs {
			if resets(job) && slices.ContainsFunc(live, func(p planned) bool { return p.job == job.Name }) {
				d.force = append(d.force, job.Name)
			}
		}

		if len(d.force) == 0 {
			return nil, hash, nil
		}
		if err := d.fingerprint(ctx, tx); err != nil {
			return nil, "", err
		}
	}
}

// resets reports whether the job's outputs begin anew with every version.
func resets(job dag.Job) bool { return job.Bootstrap != nil && job.Bootstrap.ResetOutputs }

// epochs reads the build epoch of every definition in the document, also under the job's former name.
func (d *deploy) epochs(ctx context.Context, tx pgx.Tx, bare map[string]dag.Fingerprint) (map[string]int, error) {
	jobs := map[string][]string{} // by the name under which the epoch may be kept
	for _, job := range d.doc.Jobs {
		jobs[job.Name] = append(jobs[job.Name], job.Name)
		if job.RenamedFrom != "" {
			jobs[job.RenamedFrom] = append(jobs[job.RenamedFrom], job.Name)
		}
	}

	rows, err := tx.Query(ctx, `SELECT job_name, fingerprint, epoch FROM build_epochs
		WHERE org_id = $1 AND dag_name = $2`,
		d.caller.OrgID, d.doc.Name)
	if err != nil {
		return nil, fmt.Errorf("build epochs: %w", err)
	}

	epochs := map[string]int{}
	var (
		name, fingerprint string
		epoch             int
	)
	_, err = pgx.ForEachRow(rows, []any{&name, &fingerprint, &epoch}, func() error {
		for _, job := range jobs[name] {
			if bare[job].Base == fingerprint {
				epochs[job] = max(epochs[job], epoch)
			}
		}
		return nil
	})
	return epochs, err
}

// raiseEpoch raises the build epoch of a job's definition by one.
func (d *deploy) raiseEpoch(ctx context.Context, tx pgx.Tx, job, base string) error {
	d.epoch[job]++
	_, err := tx.Exec(ctx, `
		INSERT INTO build_epochs (org_id, dag_name, job_name, fingerprint, epoch) VALUES ($1, $2, $3, $4, $5)
		ON CONFLICT (org_id, dag_name, job_name, fingerprint) DO UPDATE SET epoch = EXCLUDED.epoch`,
		d.caller.OrgID, d.doc.Name, job, base, d.epoch[job])
	if err != nil {
		return fmt.Errorf("raise the build epoch of %s: %w", job, err)
	}
	return nil
}

// purgedJobs returns the jobs whose definition has a purged generation. It relies on idx_dataset_versions_config.
func (d *deploy) purgedJobs(ctx context.Context, tx pgx.Tx) ([]string, error) {
	type output struct{ producer, configHash string }
	owner := map[output]string{}
	var hashes []string
	for _, job := range d.doc.Jobs {
		for i := range job.Outputs {
			hash := d.prints[job.Name].ConfigHash(i)
			owner[output{job.Name, hash}], owner[output{job.Identity(), hash}] = job.Name, job.Name
			hashes = append(hashes, hash)
		}
	}

	rows, err := tx.Query(ctx, `
		WITH purged AS MATERIALIZED ( -- few, so they are found first
			SELECT dataset_uuid, config_hash FROM dataset_versions
			WHERE org_id = $1 AND config_hash = ANY($3) AND purged_at IS NOT NULL)
		SELECT d.producer_job_name, p.config_hash FROM purged p
		JOIN datasets d ON d.org_id = $1 AND d.id = p.dataset_uuid AND d.producer_dag_name = $2`,
		d.caller.OrgID, d.doc.Name, hashes)
	if err != nil {
		return nil, fmt.Errorf("find purged generations: %w", err)
	}

	var (
		jobs []string
		o    output
	)
	if _, err := pgx.ForEachRow(rows, []any{&o.producer, &o.configHash}, func() error {
		if job, ok := owner[o]; ok {
			jobs = append(jobs, job)
		}
		return nil
	}); err != nil {
		return nil, fmt.Errorf("find purged generations: %w", err)
	}
	slices.Sort(jobs)
	return slices.Compact(jobs), nil
}
