package sources

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/dispatcher/tasks"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/operators"
	"github.com/dagctl/dagctl/registry"
	"github.com/dagctl/dagctl/registry/deploy"
)

// Enumerator returns what lists the units that there are to read for a job, if anything can: its operator, or the
// calendar of a source that is asked for its partitions.
func (src *Sources) Enumerator(job *registry.Job) (operators.Enumerator, bool) {
	op, ok := src.operators.Get(job.Def.Operator)
	if !ok {
		return nil, false
	}
	if job.Def.Asked() {
		return calendar{Operator: op, job: job}, true
	}
	e, ok := op.(operators.Enumerator)
	return e, ok
}

// Units lists all units that there are to read, and makes no tasks.
func (src *Sources) Units(
	ctx context.Context, job *registry.Job, op operators.Enumerator, now time.Time,
) ([]operators.Unit, error) {
	found, err := src.list(ctx, job, op, operators.Enumeration{Now: now})
	return found.Units, err
}

// list lists the units that there are to read, those behind the position of e if it has one. Errors hold no secret.
func (src *Sources) list(
	ctx context.Context, job *registry.Job, op operators.Enumerator, e operators.Enumeration,
) (found operators.Listing, err error) {
	e.Config, e.PartitionBy, e.Roots = job.Def.Config, job.Def.TasksBy(), src.roots(job.OrgSlug, job.DAG)
	if names := job.Def.Secrets; len(names) > 0 {
		if e.Secrets, err = src.vault.Reveal(ctx, job.OrgID, job.SecretUser(), names); err != nil {
			return found, fmt.Errorf("enumerate: %w", err)
		}
	}

	if resumer, ok := op.(operators.Resumer); ok {
		found, err = resumer.Resume(ctx, e)
	} else {
		found.Units, err = op.Enumerate(ctx, e)
	}
	if err != nil {
		return found, fmt.Errorf("enumerate: %w", e.Redact(err))
	}
	return found, nil
}

// Enumerate lists the units that there are to read, and makes a task for each one that its partition was not yet made
// from. It ends the dead tasks of the others, whose content gave way to what was read before, and of units that are
// gone. It returns the number of units. A live source may go on where its last listing ended.
func (src *Sources) Enumerate(
	ctx context.Context, job *registry.Job, op operators.Enumerator, live bool, now time.Time,
) (units int, err error) {
	e, there, err := src.known(ctx, job, live)
	if err != nil {
		return 0, err
	}
	e.Now = now
	if !live {
		op = building(op, there)
	}

	found, err := src.list(ctx, job, op, e)
	if err != nil {
		if live {
			return 0, err
		}
		return 0, errors.Join(err, src.noteUnread(ctx, job, err, now))
	}
	units = found.Before + len(found.Units)

	var (
		wanted []tasks.Request
		done   []tasks.Slot // whose partitions were made from what is there now
		again  []string     // slots of units that are listed each time
		listed = make([]string, len(found.Units))
	)
	for i, u := range found.Units {
		listed[i] = u.Partition
		if u.Version != "" && e.Known[u.Partition] == u.Version {
			done = append(done, tasks.Slot{Origin: job.Origin, Key: u.Partition})
			continue
		}
		t := tasks.Request{Job: job, Kind: tasks.KindSource, Slot: u.Partition, Partition: u.Partition,
			Payload: u.Payload}
		if u.Version != "" {
			// The dedupe key names the revision to be replaced: content that comes back is read again.
			t.Dedupe = fmt.Sprintf(tasks.UnitPrefix+"%s@%s#%d", u.Partition, u.Version, there[u.Partition].Revision)
		}
		if !live {
			t.Kind, t.Class = tasks.KindBuild, tasks.ClassBuild
		}
		wanted = append(wanted, t)
		if u.Again {
			again = append(again, t.Slot)
		}
	}

	err = pg.InTx(ctx, src.pool, func(ctx context.Context, tx pgx.Tx) error {
		if err := tasks.LockOrigins(ctx, tx, []uuid.UUID{job.Origin}); err != nil {
			return err
		}
		retried, err := tasks.AwaitRetry(ctx, tx, job.Origin, again)
		if err != nil {
			return err
		}
		wanted = slices.DeleteFunc(wanted, func(t tasks.Request) bool { return retried[t.Slot] })
		if _, err := src.tasks.Create(ctx, tx, tasks.Creation{Wanted: wanted}, now); err != nil {
			return err
		}
		if _, err := src.tasks.EndDead(ctx, tx, done, now); err != nil {
			return err
		}
		if !found.Partial {
			if _, err := src.tasks.EndUnlisted(ctx, tx, job.Origin, listed, now); err != nil {
				return err
			}
		}
		_, err = tx.Exec(ctx, `
			INSERT INTO enumerations AS e (job_id, org_id, enumerated_at, units, position, left_out)
			VALUES ($1, $2, $3, $4, $5, NULLIF($6, ''))
			ON CONFLICT (job_id) DO UPDATE
			SET enumerated_at = EXCLUDED.enumerated_at, units = EXCLUDED.units,
				position = coalesce(EXCLUDED.position, CASE WHEN $8 THEN e.position END),
				error = NULL, left_out = coalesce(EXCLUDED.left_out, CASE WHEN $7 THEN e.left_out END)`,
			job.ID, job.OrgID, now, units, found.Position, found.LeftOut.Text(), found.Partial,
			job.Def.Asked())
		return err
	})
	return units, err
}

// known returns what there is of a source's partitions and, if it is live, where its last listing ended.
func (src *Sources) known(
	ctx context.Context, job *registry.Job, live bool,
) (e operators.Enumeration, there map[string]registry.SourceVersion, err error) {
	err = pg.InTx(ctx, src.pool, func(ctx context.Context, tx pgx.Tx) error {
		if there, err = registry.SourceVersions(ctx, tx, job.Outputs[0].Generation.Version); err != nil || !live {
			return err
		}
		e.Position, err = positionOf(ctx, tx, job)
		return err
	})

	e.Known, e.Purged = map[string]string{}, map[string]bool{}
	for key, v := range there {
		e.Known[key] = v.Version
		if v.Purged {
			e.Purged[key] = true
		}
	}
	return e, there, err
}

// positionOf returns where a source's last listing ended; nil: everything is to be listed. That of a calendar says up
// to when it has looked back, which a deploy does not change: it is the newest one of any version.
func positionOf(ctx context.Context, tx pgx.Tx, job *registry.Job) (position json.RawMessage, err error) {
	rows, of := []uuid.UUID{job.ID}, "error IS NULL"
	if job.Def.Asked() {
		of = "position IS NOT NULL"
		if rows, err = deploy.RowsOfJob(ctx, tx, job); err != nil {
			return nil, err
		}
	}
	err = tx.QueryRow(ctx, `
		SELECT position FROM enumerations WHERE org_id = $1 AND job_id = ANY($2) AND `+of+`
		ORDER BY enumerated_at DESC LIMIT 1`, job.OrgID, rows).Scan(&position)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil
	}
	return position, err
}

// noteUnread records why a build could not read a source.
func (src *Sources) noteUnread(ctx context.Context, job *registry.Job, cause error, now time.Time) error {
	_, err := src.pool.Exec(ctx, `
		INSERT INTO enumerations (job_id, org_id, enumerated_at, units, error) VALUES ($1, $2, $3, 0, $4)
		ON CONFLICT (job_id) DO UPDATE SET enumerated_at = EXCLUDED.enumerated_at, error = EXCLUDED.error`,
		job.ID, job.OrgID, now, strings.ToValidUTF8(fault.Text(cause), "\uFFFD"))
	if err != nil {
		return fmt.Errorf("note that source %s was not read: %w", job.Address(), err)
	}
	return nil
}
