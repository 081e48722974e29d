package deploy

import (
	"context"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/registry"
)

// A DAG has one build at a time. A deploy that rebuilds nothing need not wait for it: it passes the build, which goes
// on and is cut over to later, based on what serves then. Nothing passes a deploy that is passing itself, so those come
// one after the other. Nothing passes a rematerialize either: it is made of the document that served when it began, and
// would undo the edit that passed it.

// The ends of a deploy's meeting with a build.
const (
	BuildPassed     = "passed"
	BuildSuperseded = "superseded"
	BuildBlocks     = "blocks"
)

// openVersion is a version that is being built, or is ready and waits.
type openVersion struct {
	Number   int
	Status   registry.Status
	Activate bool // it does not wait for a promotion
	Passes   bool
	Rebuilds bool // it pins a generation that does not serve
	Raises   bool // it computes a definition anew that serves
}

// makeRoom decides what happens to the build that is on its way: the deploy passes it, or abandons it if asked to, or
// is refused because of it.
func (d *deploy) makeRoom(ctx context.Context, tx pgx.Tx) error {
	rows, err := tx.Query(ctx, `
		SELECT v.number, v.status, v.activate, v.passes, EXISTS (
			SELECT FROM dag_version_datasets p WHERE p.dag_version_id = v.id AND NOT EXISTS (
				SELECT FROM dataset_pointers s WHERE s.org_id = p.org_id AND s.dag_name = v.dag_name AND s.dataset_version = p.dataset_version)),
			EXISTS (
			SELECT FROM jobs j
			JOIN dag_current_versions c ON c.org_id = v.org_id AND c.dag_name = v.dag_name
			JOIN jobs s ON s.dag_version_id = c.dag_version_id AND s.identity = j.identity
			  AND s.base_fingerprint = j.base_fingerprint AND s.build_epoch <> j.build_epoch
			WHERE j.dag_version_id = v.id)
		FROM dag_versions v
		WHERE v.org_id = $1 AND v.dag_name = $2 AND v.status IN ('Building', 'Ready') ORDER BY v.number`, d.caller.OrgID, d.doc.Name)
	if err != nil {
		return fmt.Errorf("look for builds of %s: %w", d.doc.Name, err)
	}
	builds, err := pgx.CollectRows(rows, pgx.RowToStructByPos[openVersion])
	if err != nil {
		return fmt.Errorf("look for builds of %s: %w", d.doc.Name, err)
	}
	if len(builds) == 0 {
		return nil
	}

	b := builds[len(builds)-1]
	d.meets = &registry.Meeting{Version: b.Number, Status: b.Status, Outcome: BuildSuperseded}

	if !d.req.Supersede {
		passes, err := d.rebuildsNothing(ctx, tx)
		if err != nil {
			return err
		}
		if passes && d.activate() && len(builds) == 1 && b.Rebuilds && !b.Passes && !b.Raises {
			d.meets.Outcome = BuildPassed
			return nil
		}

		if !d.planning {
			return refuseMeeting(d.doc.Name, b)
		}
		d.meets.Outcome = BuildBlocks
	}

	_, _, err = AbandonBuild(ctx, tx, d.caller.OrgID, d.doc.Name, "superseded by a later deploy")
	return err
}

// passes reports whether the deploy passes a build.
func (d *deploy) passes() bool { return d.meets != nil && d.meets.Outcome == BuildPassed }

// Passing reports whether a version that passes this build is still on its way. Until it serves, the build is not cut
// over to; otherwise the version that was deployed to go first would undo the build's changes.
func Passing(ctx context.Context, tx pgx.Tx, b registry.Build) (passing bool, err error) {
	err = tx.QueryRow(ctx, `SELECT EXISTS (SELECT FROM dag_versions
		WHERE org_id = $1 AND dag_name = $2 AND id <> $3 AND status IN ('Building', 'Ready') AND passes)`,
		b.OrgID, b.DAG, b.ID).Scan(&passing)
	if err != nil {
		return false, fmt.Errorf("look for deploys that pass %s v%d: %w", b.DAG, b.Number, err)
	}
	return passing, nil
}

// rebuildsNothing reports whether every output of the document's jobs has the same definition in the active version.
func (d *deploy) rebuildsNothing(ctx context.Context, tx pgx.Tx) (bool, error) {
	rows, err := tx.Query(ctx, `
		SELECT j.identity, j.fingerprint FROM dag_current_versions c JOIN jobs j ON j.dag_version_id = c.dag_version_id
		WHERE c.org_id = $1 AND c.dag_name = $2`, d.caller.OrgID, d.doc.Name)
	if err != nil {
		return false, fmt.Errorf("definitions that serve: %w", err)
	}

	serving := map[string]string{}
	var identity, fingerprint string
	if _, err := pgx.ForEachRow(rows, []any{&identity, &fingerprint}, func() error {
		serving[identity] = fingerprint
		return nil
	}); err != nil {
		return false, fmt.Errorf("definitions that serve: %w", err)
	}

	for _, job := range d.doc.Jobs {
		if len(job.Outputs) > 0 && serving[job.Identity()] != d.prints[job.Name].Value {
			return false, nil
		}
	}
	return len(serving) > 0, nil
}

// rebase bases the DAG's other builds on the version that was just cut over to: that is what they will replace.
func rebase(ctx context.Context, tx pgx.Tx, b registry.Build) error {
	_, err := tx.Exec(ctx, `UPDATE dag_versions SET base_version_id = $3
		WHERE org_id = $1 AND dag_name = $2 AND status IN ('Building', 'Ready') AND id <> $3`, b.OrgID, b.DAG, b.ID)
	if err != nil {
		return fmt.Errorf("rebase builds of %s: %w", b.DAG, err)
	}
	return nil
}

// checkServing refuses a cutover to a version that was not made, or rebased, to replace what serves. It is the last
// fence between two that want to be next; every cutover rebases the others, so only an unforeseen change fails here.
func checkServing(ctx context.Context, tx pgx.Tx, b registry.Build, previous *uuid.UUID) error {
	var base *uuid.UUID
	if err := tx.QueryRow(ctx, `SELECT base_version_id FROM dag_versions WHERE org_id = $1 AND id = $2`,
		b.OrgID, b.ID).Scan(&base); err != nil {
		return fmt.Errorf("base of %s v%d: %w", b.DAG, b.Number, err)
	}
	if base == nil && previous == nil || base != nil && previous != nil && *base == *previous {
		return nil
	}
	return fault.New(fault.Conflict, "version %d of %s was built to replace a version that no longer serves",
		b.Number, b.DAG).
		WithHint("deploy it again")
}

// refuseMeeting says what a deploy has to wait for.
func refuseMeeting(dagName string, b openVersion) error {
	meets := fault.New(fault.Conflict, "version %d of %s is %s", b.Number, dagName, b.Status)
	if b.Status == registry.Ready && !b.Activate {
		return meets.WithHint("it waits for a person: `dagctl promote %[1]s` lets it serve, `dagctl abandon %[1]s` or "+
			"a deploy with --supersede gives it up and keeps what it built", dagName)
	}
	return meets.WithHint("wait for it, or deploy with --supersede to abandon it and keep what it built")
}
