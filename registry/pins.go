package registry

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/internal/clock"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/pg"
)

// VersionPin keeps a DAG version, with every generation it points at, from gc: rolling back to it stays instant.
type VersionPin struct {
	DAG    string     `json:"dag"`
	Number int        `json:"version"`
	Actor  string     `json:"actor"`
	Reason string     `json:"reason"`
	Until  *time.Time `json:"until,omitempty" doc:"Absent: forever"`
	At     time.Time  `json:"at"`
}

// Pin pins a version, or changes its pin. A version is pinned as a whole, because a rollback moves all of its datasets.
func (r *Registry) Pin(ctx context.Context, caller authz.Caller, dagName string, number int, until *time.Time,
	reason string) (VersionPin, error) {
	pin := VersionPin{DAG: dagName, Number: number, Actor: caller.Actor, Reason: reason, Until: until}
	if until != nil && !until.After(clock.Now()) {
		return pin, fault.New(fault.Invalid, "pin %s v%d: %s has passed", dagName, number, until.Format(time.RFC3339))
	}

	err := pg.InOrgTx(ctx, r.Requests, caller.OrgID, func(ctx context.Context, tx pgx.Tx) error {
		// gc marks under the same lock, so what is not purged now stays.
		if err := LockDAG(ctx, tx, caller.OrgID, dagName); err != nil {
			return err
		}
		version, err := versionNumbered(ctx, tx, caller.OrgID, dagName, number)
		if err != nil {
			return err
		}
		if err := refusePurged(ctx, tx, version, dagName, number); err != nil {
			return err
		}

		before, err := pinOf(ctx, tx, caller.OrgID, version)
		if err != nil {
			return err
		}
		err = tx.QueryRow(ctx, `
			INSERT INTO pins (org_id, dag_name, dag_version_id, actor, reason, until) VALUES ($1, $2, $3, $4, $5, $6)
			ON CONFLICT (dag_version_id) DO UPDATE
			SET actor = EXCLUDED.actor, reason = EXCLUDED.reason, until = EXCLUDED.until, at = now()
			RETURNING at`, caller.OrgID, dagName, version, caller.Actor, reason, until).Scan(&pin.At)
		if err != nil {
			return err
		}

		return authz.Audit(ctx, tx, caller, "dag.pin", fmt.Sprintf("%s v%d", dagName, number),
			authz.Change{Before: before, After: pinState{caller.Actor, reason, until}})
	})
	if err != nil {
		return pin, fmt.Errorf("pin %s v%d: %w", dagName, number, err)
	}
	return pin, nil
}

// pinState is what the audit log says of a pin.
type pinState struct {
	Actor  string     `json:"actor"`
	Reason string     `json:"reason"`
	Until  *time.Time `json:"until"`
}

// pinOf locks the pin of a version and returns it; nil: there is none.
func pinOf(ctx context.Context, tx pgx.Tx, org, version uuid.UUID) (*pinState, error) {
	rows, err := tx.Query(ctx, `SELECT actor, reason, until FROM pins WHERE org_id = $1 AND dag_version_id = $2
		FOR UPDATE`, org, version)
	if err != nil {
		return nil, err
	}
	found, err := pgx.CollectRows(rows, pgx.RowToAddrOfStructByPos[pinState])
	if err != nil || len(found) == 0 {
		return nil, err
	}
	return found[0], nil
}

// Unpin removes a version's pin, so that gc may remove the version's data once no window protects it either.
func (r *Registry) Unpin(ctx context.Context, caller authz.Caller, dagName string, number int) error {
	err := pg.InOrgTx(ctx, r.Requests, caller.OrgID, func(ctx context.Context, tx pgx.Tx) error {
		version, err := versionNumbered(ctx, tx, caller.OrgID, dagName, number)
		if err != nil {
			return err
		}

		before, err := pinOf(ctx, tx, caller.OrgID, version)
		if err != nil {
			return err
		}
		if before == nil {
			return fault.New(fault.Conflict, "version %d of %s is not pinned", number, dagName)
		}

		if _, err := tx.Exec(ctx, `DELETE FROM pins WHERE org_id = $1 AND dag_version_id = $2`, caller.OrgID,
			version); err != nil {
			return err
		}
		return authz.Audit(ctx, tx, caller, "dag.unpin", fmt.Sprintf("%s v%d", dagName, number),
			authz.Change{Before: before})
	})
	if err != nil {
		return fmt.Errorf("unpin %s v%d: %w", dagName, number, err)
	}
	return nil
}

// Pins lists a DAG's pinned versions, the newest first.
func (r *Registry) Pins(ctx context.Context, caller authz.Caller, dagName string) ([]VersionPin, error) {
	var pins []VersionPin
	err := pg.InOrgTx(ctx, r.Requests, caller.OrgID, func(ctx context.Context, tx pgx.Tx) error {
		rows, err := tx.Query(ctx, `
			SELECT k.dag_name, v.number, k.actor, k.reason, k.until, k.at FROM pins k
			JOIN dag_versions v ON v.id = k.dag_version_id
			WHERE k.org_id = $1 AND k.dag_name = $2 AND (k.until IS NULL OR k.until > now())
			ORDER BY v.number DESC`, caller.OrgID, dagName)
		if err != nil {
			return err
		}
		pins, err = pgx.CollectRows(rows, pgx.RowToStructByPos[VersionPin])
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("pins of %s: %w", dagName, err)
	}
	return pins, nil
}

func versionNumbered(ctx context.Context, tx pgx.Tx, org uuid.UUID, dagName string,
	number int) (id uuid.UUID, err error) {
	err = tx.QueryRow(ctx, `SELECT id FROM dag_versions WHERE org_id = $1 AND dag_name = $2 AND number = $3`, org,
		dagName, number).Scan(&id)
	if errors.Is(err, pgx.ErrNoRows) {
		return id, fault.New(fault.NotFound, "%s has no version %d", dagName, number).
			WithHint("`dagctl history %s` lists its versions", dagName)
	}
	return id, err
}

func refusePurged(ctx context.Context, tx pgx.Tx, version uuid.UUID, dagName string, number int) error {
	var purged []string
	err := tx.QueryRow(ctx, `
		SELECT array(SELECT p.name FROM dag_version_datasets p JOIN dataset_versions g ON g.id = p.dataset_version
			WHERE p.dag_version_id = $1 AND g.purged_at IS NOT NULL ORDER BY p.name)`, version).Scan(&purged)
	if err != nil || len(purged) == 0 {
		return err
	}
	return PurgedFrom(purged, dagName, number)
}

// PurgedFrom returns the refusal of a version whose datasets have lost their data while it did not serve.
func PurgedFrom(datasets []string, dagName string, number int) error {
	named := strings.Join(datasets[:min(len(datasets), 3)], ", ")
	if more := len(datasets) - 3; more > 0 {
		named += fmt.Sprintf(" and %d more", more)
	}
	return fault.New(fault.Conflict, "version %d of %s cannot serve again: its data of %s was purged, or collected "+
		"once the retention was over", number, dagName, named).
		WithHint("deploy its document again: that rebuilds the missing data")
}
