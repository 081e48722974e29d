package usage

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/dispatcher/workitems"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/registry/footprint"
)

// KindMeasure is the kind of the work items that measure what is stored, and remove usage that is past its time.
const KindMeasure = "usage_upkeep"

const (
	measureEvery = 15 * time.Minute
	measureBatch = 100  // datasets of a step
	removeBatch  = 5000 // rows of a step
)

// Measuring is the work of measuring what is stored, and of removing what is past its time.
func (u *Usage) Measuring() workitems.Kind {
	return workitems.Kind{
		Name: KindMeasure, Objects: []string{"old", "stored"}, Every: measureEvery,
		Begin: func(_ context.Context, object string, now time.Time) (workitems.Step, error) {
			if object == "stored" {
				return func(ctx context.Context, position string) (workitems.Progress, error) {
					return u.measure(ctx, position, now)
				}, nil
			}
			return func(ctx context.Context, _ string) (workitems.Progress, error) {
				return u.removeOld(ctx, now.Add(-u.Keep))
			}, nil
		},
	}
}

// measure notes what the next datasets hold. The last step removes what is not measured any more.
func (u *Usage) measure(ctx context.Context, position string, now time.Time) (done workitems.Progress, err error) {
	var after uuid.UUID
	if position != "" {
		if after, err = uuid.Parse(position); err != nil {
			return done, fmt.Errorf("position of a measurement: %w", err)
		}
	}
	err = pg.InTx(ctx, u.pool, func(ctx context.Context, tx pgx.Tx) error {
		found, err := footprint.Holdings(ctx, tx, after, measureBatch)
		if err != nil {
			return err
		}
		done = workitems.Progress{Position: position, Rows: int64(len(found)), Over: len(found) < measureBatch}
		if len(found) > 0 {
			done.Position = found[len(found)-1].Dataset.String()
		}

		_, err = tx.Exec(ctx, `
			INSERT INTO usage_stored (org_id, dag_name, job_name, output, bytes, measured_at)
			SELECT org, dag, job, output, sum(bytes), clock_timestamp()
			FROM unnest($1::uuid[], $2::uuid[], $3::text[], $4::text[], $5::int[], $6::bigint[])
				AS h(dataset, org, dag, job, output, bytes)
			GROUP BY 1, 2, 3, 4 ORDER BY 1, 2, 3, 4
			ON CONFLICT (org_id, dag_name, job_name, output) DO UPDATE
			SET bytes = EXCLUDED.bytes, measured_at = EXCLUDED.measured_at`, pg.Columns(found)...)
		if err != nil || !done.Over {
			return err
		}
		_, err = tx.Exec(ctx, `DELETE FROM usage_stored WHERE measured_at < $1`, now.Add(-2*measureEvery))
		return err
	})
	if err != nil {
		return done, fmt.Errorf("measure what is stored: %w", err)
	}
	return done, nil
}

// removeOld removes usage of the time before a moment.
func (u *Usage) removeOld(ctx context.Context, before time.Time) (done workitems.Progress, err error) {
	done.Over = true
	for table, unit := range map[string]string{"usage_hours": "hour", "usage_days": "day", "usage_dag_days": "day"} {
		tag, err := u.pool.Exec(ctx, `DELETE FROM `+table+` WHERE ctid = ANY(ARRAY(
			SELECT ctid FROM `+table+` WHERE `+unit+` < $1 LIMIT $2))`, before, removeBatch)
		if err != nil {
			return done, fmt.Errorf("remove old usage: %w", err)
		}
		done.Rows += tag.RowsAffected()
		done.Over = done.Over && tag.RowsAffected() < removeBatch
	}
	return done, nil
}
