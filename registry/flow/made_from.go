package flow

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/registry"
)

// RevisionRef names one revision of one partition.
type RevisionRef struct {
	Dataset  uuid.UUID
	Version  uuid.UUID // the generation
	Key      string
	Revision int64
}

// MadeFrom is a revision with the revisions that it was made from.
type MadeFrom struct {
	RevisionRef
	Made      *time.Time // nil: the row of the revision is gone
	Task      *uuid.UUID // that made it
	Attempt   int
	Rows      int64
	State     string
	Inherited bool // taken over from an earlier generation, which the task made
	Inputs    []RevisionRef
}

// ServedRevision returns the revision of a partition that readers of a generation saw at an instant, or see now. It
// reports false if there was none. It relies on the primary key of partition_versions.
func ServedRevision(ctx context.Context, tx pgx.Tx, org, generation uuid.UUID, key string,
	at *time.Time) (ref RevisionRef, found bool, err error) {
	where, args := `state = 'Published'`, []any{org, generation, key}
	if at != nil {
		where = `state IN ('Published', 'Replaced', 'Purged') AND materialized_at <= $4
			AND (ended_at IS NULL OR ended_at > $4)`
		args = append(args, *at)
	}
	ref = RevisionRef{Version: generation, Key: key}
	err = tx.QueryRow(ctx, `
		SELECT dataset_uuid, revision FROM partition_versions
		WHERE org_id = $1 AND dataset_version = $2 AND partition_key = $3 AND `+where+`
		ORDER BY revision DESC LIMIT 1`, args...).Scan(&ref.Dataset, &ref.Revision)
	if errors.Is(err, pgx.ErrNoRows) {
		return ref, false, nil
	}
	if err != nil {
		return ref, false, fmt.Errorf("served revision of %s, partition %q: %w", generation, key, err)
	}
	return ref, true, nil
}

// Inputs returns what some revisions were made from, in their order. A revision of an appended output holds what all
// its revisions so far have read. At most limit inputs of each are returned, and more reports whether one has more.
// Inputs that the caller may not read are left out.
func Inputs(ctx context.Context, tx pgx.Tx, caller authz.Caller, refs []RevisionRef,
	limit int) (made []MadeFrom, more bool, err error) {
	made = make([]MadeFrom, len(refs))
	versions, keys, revisions := make([]uuid.UUID, len(refs)), make([]string, len(refs)), make([]int64, len(refs))
	for i, r := range refs {
		made[i].RevisionRef = r
		versions[i], keys[i], revisions[i] = r.Version, r.Key, r.Revision
	}

	args := []any{caller.OrgID, versions, keys, revisions, limit + 1}
	readable := registry.GenerationVisibleTo(caller, &args)
	rows, err := tx.Query(ctx, `
		SELECT w.n - 1, r.materialized_at, r.task_id, coalesce(r.attempt, 0), coalesce(r.row_count, 0),
		       coalesce(r.state, ''), coalesce(r.inherited_from IS NOT NULL, false),
		       i.input_dataset, i.input_version, coalesce(i.input_key, ''), coalesce(i.input_revision, 0)
		FROM unnest($2::uuid[], $3::text[], $4::bigint[]) WITH ORDINALITY AS w(version, key, revision, n)
		LEFT JOIN partition_versions r ON r.org_id = $1 AND r.dataset_version = w.version AND r.partition_key = w.key
		     AND r.revision = w.revision
		LEFT JOIN dataset_versions own ON own.id = w.version
		LEFT JOIN jobs j ON j.id = own.origin_job_id
		LEFT JOIN LATERAL (
			SELECT DISTINCT i.input_dataset, i.input_version, i.input_key, i.input_revision
			FROM partition_inputs i JOIN dataset_versions g ON g.id = i.input_version
			WHERE i.org_id = $1 AND i.output_version = w.version AND i.output_key = w.key AND `+readable+`
			  AND (i.output_revision = w.revision
			    OR j.update_strategy = 'append' AND i.output_revision < w.revision AND EXISTS (
			        SELECT FROM partition_versions o WHERE o.dataset_version = w.version AND o.partition_key = w.key
			          AND o.revision = i.output_revision AND o.state <> 'Rejected'))
			ORDER BY 1, 3, 4, 2 LIMIT $5) AS i ON true
		ORDER BY w.n, i.input_dataset, i.input_key, i.input_revision`, args...)
	if err != nil {
		return nil, false, fmt.Errorf("what %d revisions were made from: %w", len(refs), err)
	}

	var (
		n     int64
		m     MadeFrom
		input RevisionRef
		of    *uuid.UUID
		gen   *uuid.UUID
	)
	_, err = pgx.ForEachRow(rows, []any{&n, &m.Made, &m.Task, &m.Attempt, &m.Rows, &m.State, &m.Inherited, &of, &gen,
		&input.Key, &input.Revision}, func() error {
		at := &made[n]
		at.Made, at.Task, at.Attempt, at.Rows, at.State, at.Inherited = m.Made, m.Task, m.Attempt, m.Rows, m.State,
			m.Inherited
		switch {
		case of == nil: // it reads nothing
		case len(at.Inputs) == limit:
			more = true
		default:
			input.Dataset, input.Version = *of, *gen
			at.Inputs = append(at.Inputs, input)
		}
		return nil
	})
	if err != nil {
		return nil, false, fmt.Errorf("what %d revisions were made from: %w", len(refs), err)
	}
	return made, more, nil
}
