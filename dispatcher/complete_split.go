package dispatcher

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/dispatcher/tasks"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/operators"
	"github.com/dagctl/dagctl/registry"
	"github.com/dagctl/dagctl/storage"
)

// A run that splits its rows writes many partitions. The marker, a revision of the key `all`, stands for what all of
// them were made from: it decides which of two runs counts.

// marker names the marker of the rows that a completion has split.
func (x *Completing) marker() registry.Ref {
	return registry.Ref{Version: x.Job.Outputs[0].Generation.Version, Key: dag.WholeKey}
}

// markerRevision is the marker that a completion leaves. It is there also if no partition has changed.
func (x *Completing) markerRevision(now time.Time) registry.NewRevision {
	out := x.Job.Outputs[0].Generation
	return registry.NewRevision{OrgID: x.Job.OrgID, Dataset: out.Dataset, Version: out.Version, Key: dag.WholeKey,
		Revision: x.split + 1, Manifest: storage.Manifest{Files: []storage.File{}, Schema: []storage.Column{}},
		SourceVersion: x.Outcome.SourceVersion, TaskID: x.TaskID, Attempt: x.Attempt, Split: true, Pins: x.row.Pins,
		Now: now}
}

// compareSplit is compareBase for rows that were split: made is the marker. The partitions that the run has left alone
// must be at the revisions that it saw, and there must be no others.
func (x *Completing) compareSplit(ctx context.Context, tx pgx.Tx, made registry.Made) error {
	x.split = made.Revision
	if late, err := x.endsLate(ctx, tx, x.marker(), made); err != nil || late {
		return err
	}

	newest, err := registry.NewestRevisions(ctx, tx, x.marker().Version)
	if err != nil {
		return err
	}
	x.last = make([]int64, len(x.Outcome.Written))
	written := map[string]bool{}
	for i, w := range x.Outcome.Written {
		x.last[i], written[w.Partition] = newest[w.Partition].Revision, true
	}
	for key, revision := range x.Outcome.Split.Stands {
		if newest[key].Revision != revision {
			x.err = ErrBaseMoved
		}
	}
	for key := range newest {
		if _, stands := x.Outcome.Split.Stands[key]; !stands && !written[key] {
			x.err = ErrBaseMoved
		}
	}
	return nil
}

// splits knows the partitions that an attempt splits its rows into. It implements operators.Splits.
type splits struct{ noRows }

// Newest implements operators.Splits.
func (s splits) Newest(ctx context.Context) (newest map[string]operators.NewestRevision, err error) {
	job := s.t.Job
	err = pg.InOrgTx(ctx, s.d.Requests, job.OrgID, func(ctx context.Context, tx pgx.Tx) error {
		found, err := registry.NewestRevisions(ctx, tx, job.Outputs[0].Generation.Version)
		newest = make(map[string]operators.NewestRevision, len(found))
		for key, n := range found {
			newest[key] = operators.NewestRevision{Revision: n.Revision, RowsHash: n.SourceVersion,
				Purged: n.State == "Purged"}
		}
		return err
	})
	return newest, err
}

// Reserve implements operators.Splits.
func (s splits) Reserve(ctx context.Context, places []storage.Attempt) error {
	locations := make([]string, len(places))
	for i, p := range places {
		locations[i] = s.d.Storage.Location(p)
	}

	err := pg.InTx(ctx, s.d.Pool, func(ctx context.Context, tx pgx.Tx) error {
		row, err := tasks.LockTask(ctx, tx, s.t.Fence)
		if err != nil {
			return err
		}
		if !row.Holds(s.t.Fence) {
			return row.FencedOff(s.t.Fence)
		}
		_, err = tx.Exec(ctx, `
			WITH tried AS (
				UPDATE task_attempts SET staging = staging || $3 WHERE task_id = $1 AND attempt = $2 RETURNING 1)
			UPDATE leases SET staging = staging || $3
			WHERE task_id = $1 AND attempt = $2 AND NOT EXISTS (SELECT FROM tried)`,
			s.t.TaskID, s.t.Attempt, locations)
		return err
	})
	if err != nil {
		return fmt.Errorf("reserve the places of %d partitions of task %s: %w", len(places), s.t.TaskID, err)
	}
	return nil
}
