package flow

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/registry"
)

// Serving is a pointer set over all DAGs: at most one version of each, and which moment that is.
type Serving struct {
	At      *time.Time // the last instant of the moment; nil: it lasts until now
	DAG     string     // whose version was asked for, if one was
	Version int        // its number; 0: none was
	Never   bool       // that version has never served; its DAG is read as if it did
	Records bool       // of some versions that served then, only the record is left

	ids     []uuid.UUID
	dags    []string
	numbers []int
}

// served is the table of a pointer set, of which args returns the parameters.
const served = `unnest($2::uuid[], $3::text[], $4::int[]) AS s(id, dag_name, number)`

// args returns the first parameters of a statement over served, and then others.
func (s Serving) args(org uuid.UUID, others ...any) []any {
	return append([]any{org, s.ids, s.dags, s.numbers}, others...)
}

// ServingAt returns what served at a moment: now ("" or "live"), at an RFC 3339 instant, or at the last instant at
// which a version served, written as its number, as v3, or with its DAG as sales@v3; the DAG is ofDAG by default. A
// version that has never served, and "candidate", the one on its way, are read beside what other DAGs serve now, by
// those who work on the DAG.
func ServingAt(ctx context.Context, tx pgx.Tx, caller authz.Caller, ofDAG, which string) (s Serving, err error) {
	if which == "" || which == registry.Live {
		return s, s.loadLive(ctx, tx, caller.OrgID)
	}
	if at, err := time.Parse(time.RFC3339Nano, which); err == nil {
		s.At = &at
		return s, s.loadAt(ctx, tx, caller.OrgID)
	}

	s.DAG = ofDAG
	number := which
	if dagName, after, ok := strings.Cut(which, "@"); ok {
		s.DAG, number = dagName, after
	}
	n, isNumber := registry.VersionNumber(number)
	if !isNumber && number != registry.Candidate {
		return s, fault.New(fault.Invalid, "%q is no moment", which).
			WithHint("use a version such as v3 or %s@v3, candidate, or an instant such as 2026-01-31T12:00:00Z",
				ofDAG)
	}

	id, err := s.find(ctx, tx, caller, n, number)
	if err != nil {
		return s, err
	}
	if s.At != nil {
		return s, s.loadAt(ctx, tx, caller.OrgID)
	}
	if err := s.loadLive(ctx, tx, caller.OrgID); err != nil || !s.Never {
		return s, err
	}
	s.replace(id)
	return s, nil
}

// find looks the version up that was asked for, and sets when it served.
func (s *Serving) find(ctx context.Context, tx pgx.Tx, caller authz.Caller, number int,
	which string) (id uuid.UUID, err error) {
	where, args := `v.number = $3`, []any{caller.OrgID, s.DAG, number}
	if which == registry.Candidate {
		where, args = registry.CandidateVersion, args[:2]
	}
	var (
		began, ended, next *time.Time
		record, current    bool
	)
	err = tx.QueryRow(ctx, `
		SELECT v.id, v.number, v.shrunk_at IS NOT NULL, v.ended_at, a.at, n.at, c.dag_version_id IS NOT NULL
		FROM dag_versions v
		LEFT JOIN dag_current_versions c ON c.org_id = v.org_id AND c.dag_name = v.dag_name AND c.dag_version_id = v.id
		LEFT JOIN LATERAL (SELECT max(at) AS at FROM dag_activations
		    WHERE org_id = v.org_id AND dag_name = v.dag_name AND dag_version_id = v.id) AS a ON true
		LEFT JOIN LATERAL (SELECT min(at) AS at FROM dag_activations
		    WHERE org_id = v.org_id AND dag_name = v.dag_name AND at > a.at) AS n ON true
		WHERE v.org_id = $1 AND v.dag_name = $2 AND `+where+`
		ORDER BY v.status = 'Failed', v.number DESC LIMIT 1`, args...).
		Scan(&id, &s.Version, &record, &ended, &began, &next, &current)

	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return id, fault.New(fault.NotFound, "DAG %s has no version %s", s.DAG, which).
			WithHint("`dagctl history %s` lists its versions", s.DAG)
	case err != nil:
		return id, fmt.Errorf("find version %s of %s: %w", which, s.DAG, err)
	case record:
		return id, fault.New(fault.Conflict, "of version v%d of DAG %s only the record is left", s.Version, s.DAG).
			WithHint("it is past the version retention: what it read and made is not kept")
	case began == nil && !caller.May(authz.Inspect, authz.OnDAG(s.DAG)):
		return id, fault.New(fault.Forbidden, "only writers read what does not serve").
			WithHint("ask for a version that has served: `dagctl history %s`", s.DAG)
	case began == nil:
		s.Never = true
		return id, nil
	case current:
		return id, nil
	}

	// It served until the next one did, or until its DAG was deleted.
	if next == nil {
		next = ended
	}
	if next != nil {
		last := next.Add(-time.Microsecond)
		s.At = &last
	}
	return id, nil
}

func (s *Serving) loadLive(ctx context.Context, tx pgx.Tx, org uuid.UUID) error {
	return s.load(ctx, tx, `
		SELECT v.id, v.dag_name, v.number, false
		FROM dag_current_versions c JOIN dag_versions v ON v.id = c.dag_version_id
		WHERE c.org_id = $1`, org)
}

// loadAt relies on idx_dag_activations_dag. A version that ended after its last activation, and before the instant,
// ended because its DAG was deleted.
func (s *Serving) loadAt(ctx context.Context, tx pgx.Tx, org uuid.UUID) error {
	return s.load(ctx, tx, `
		SELECT v.id, v.dag_name, v.number, v.shrunk_at IS NOT NULL
		FROM (SELECT DISTINCT ON (dag_name) dag_name, dag_version_id, at FROM dag_activations
		      WHERE org_id = $1 AND at <= $2 ORDER BY dag_name, at DESC) AS a
		JOIN dag_versions v ON v.id = a.dag_version_id
		WHERE v.ended_at IS NULL OR v.ended_at > $2 OR v.ended_at < a.at`, org, *s.At)
}

func (s *Serving) load(ctx context.Context, tx pgx.Tx, sql string, args ...any) error {
	rows, err := tx.Query(ctx, sql, args...)
	if err != nil {
		return fmt.Errorf("versions that served: %w", err)
	}

	var (
		id     uuid.UUID
		name   string
		number int
		record bool
	)
	_, err = pgx.ForEachRow(rows, []any{&id, &name, &number, &record}, func() error {
		if s.Records = s.Records || record; !record {
			s.ids, s.dags, s.numbers = append(s.ids, id), append(s.dags, name), append(s.numbers, number)
		}
		return nil
	})
	return err
}

// replace puts the version that was asked for in the place of the one of its DAG that serves.
func (s *Serving) replace(id uuid.UUID) {
	for i, name := range s.dags {
		if name == s.DAG {
			s.ids[i], s.numbers[i] = id, s.Version
			return
		}
	}
	s.ids, s.dags, s.numbers = append(s.ids, id), append(s.dags, s.DAG), append(s.numbers, s.Version)
}
