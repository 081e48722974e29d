package registry

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/pg"
)

// A version runs on somebody's authority: whoever deployed it, or made it serve since. What its jobs read is compared
// with what that person or pipeline may read, whenever somebody takes the authority, and each time a task is claimed.

// RequireReadable refuses a version that reads what the caller may not read, from its own DAG or another: whoever
// deploys it or makes it serve answers for what its jobs do with that.
func RequireReadable(ctx context.Context, tx pgx.Tx, caller authz.Caller, version uuid.UUID) error {
	if caller.ReadsAll() {
		return nil
	}
	unread, err := unreadable(ctx, tx, caller, version)
	if err != nil || len(unread) == 0 {
		return err
	}
	first := slices.Min(slices.Collect(maps.Values(unread[version])))
	return fault.New(fault.Forbidden, "job %s reads what %s may not read", first, caller.Actor).
		WithHint("ask an admin of the org %s for the org roles that may read it", caller.OrgSlug)
}

// unreadable returns the jobs of versions that read what the caller may not read: their names by their ids, by version.
func unreadable(ctx context.Context, tx pgx.Tx, caller authz.Caller,
	versions ...uuid.UUID) (map[uuid.UUID]map[uuid.UUID]string, error) {
	args := []any{versions}
	rows, err := tx.Query(ctx, `SELECT j.dag_version_id, j.id, j.name FROM jobs j
		WHERE j.dag_version_id = ANY($1) AND `+hiddenInput(caller, &args), args...)
	if err != nil {
		return nil, fmt.Errorf("inputs of versions %v: %w", versions, err)
	}

	jobs := map[uuid.UUID]map[uuid.UUID]string{}
	var (
		version, id uuid.UUID
		name        string
	)
	_, err = pgx.ForEachRow(rows, []any{&version, &id, &name}, func() error {
		if jobs[version] == nil {
			jobs[version] = map[uuid.UUID]string{}
		}
		jobs[version][id] = name
		return nil
	})
	return jobs, err
}

// RequireReadableVersion is RequireReadable for a version by its number. One that does not exist is refused later.
func (r *Registry) RequireReadableVersion(ctx context.Context, caller authz.Caller, dagName string, number int) error {
	if caller.ReadsAll() {
		return nil
	}
	return pg.InOrgTx(ctx, r.Requests, caller.OrgID, func(ctx context.Context, tx pgx.Tx) error {
		var version uuid.UUID
		err := tx.QueryRow(ctx, `SELECT id FROM dag_versions WHERE org_id = $1 AND dag_name = $2 AND number = $3`,
			caller.OrgID, dagName, number).Scan(&version)
		if errors.Is(err, pgx.ErrNoRows) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("find version %d of %s: %w", number, dagName, err)
		}
		return RequireReadable(ctx, tx, caller, version)
	})
}

// requireKept refuses a version without a dataset that its DAG serves now and that is hidden from the caller: nobody
// takes away from others what they may not see themselves.
func requireKept(ctx context.Context, tx pgx.Tx, caller authz.Caller, version uuid.UUID) error {
	if caller.ReadsAll() {
		return nil
	}
	args := []any{version, caller.OrgID}
	var dag string
	err := tx.QueryRow(ctx, `
		SELECT v.dag_name
		FROM dag_versions v
		JOIN dag_current_versions c ON c.org_id = v.org_id AND c.dag_name = v.dag_name
		JOIN pointer_outlines p ON p.dag_version_id = c.dag_version_id
		WHERE v.id = $1 AND v.org_id = $2 AND `+HiddenDataset("p.dataset_uuid", HiddenFrom(caller, &args))+`
		  AND NOT EXISTS (SELECT FROM pointer_outlines n WHERE n.dag_version_id = v.id AND n.dataset_uuid = p.dataset_uuid)
		LIMIT 1`, args...).Scan(&dag)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("what version %s removes: %w", version, err)
	}
	return fault.New(fault.Forbidden, "the version removes a dataset of %s that %s may not read", dag, caller.Actor).
		WithHint("keep the jobs that the DAG has, or ask an admin of the org %s", caller.OrgSlug)
}

// TakeAuthority lets a version run on the caller's authority, who must be able to read all that it reads, and all that
// it removes.
func TakeAuthority(ctx context.Context, tx pgx.Tx, caller authz.Caller, version uuid.UUID) error {
	if err := RequireReadable(ctx, tx, caller, version); err != nil {
		return err
	}
	if err := requireKept(ctx, tx, caller, version); err != nil {
		return err
	}
	_, err := tx.Exec(ctx, `UPDATE dag_versions SET authority = $3 WHERE org_id = $1 AND id = $2`,
		caller.OrgID, version, []string(caller.Authority()))
	if err != nil {
		return fmt.Errorf("take the authority of version %s: %w", version, err)
	}
	return nil
}

// RelieveAuthority lets a version run on the caller's authority if the one that it runs on is lost, and the caller may
// read what it reads. It reports whether it did.
func RelieveAuthority(ctx context.Context, tx pgx.Tx, caller authz.Caller, version uuid.UUID) (bool, error) {
	found, err := LostAuthorityIn(ctx, tx, caller.OrgID, version)
	lost, is := found[version]
	if err != nil || !is {
		return false, err
	}
	err = TakeAuthority(ctx, tx, caller, version)
	if fault.Is(err, fault.Forbidden) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	return true, authz.Audit(ctx, tx, caller, "dag.authority", fmt.Sprintf("%s v%d", lost.DAG, lost.Version),
		authz.Change{Before: lost.Actors, After: caller.Authority()})
}

// RelieveAuthorities is RelieveAuthority for the versions of a DAG that serve or are on their way.
func RelieveAuthorities(ctx context.Context, tx pgx.Tx, caller authz.Caller, dagName string) error {
	rows, err := tx.Query(ctx, `SELECT id FROM dag_versions
		WHERE org_id = $1 AND dag_name = $2 AND status IN ('Active', 'Building', 'Ready')`, caller.OrgID, dagName)
	if err != nil {
		return fmt.Errorf("versions of %s: %w", dagName, err)
	}
	versions, err := pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
	if err != nil {
		return fmt.Errorf("versions of %s: %w", dagName, err)
	}

	for _, v := range versions {
		if _, err := RelieveAuthority(ctx, tx, caller, v); err != nil {
			return err
		}
	}
	return nil
}

// LostAuthority says that jobs of a version read what those may not read any more on whose authority it runs.
type LostAuthority struct {
	DAG     string
	Version int
	Actors  authz.Authority
	Jobs    map[uuid.UUID]string // their names, by the ids of their rows
}

// Why says it to people.
func (l LostAuthority) Why() string { return WhyLost(l.Version, l.Who()) }

// Who names the actors.
func (l LostAuthority) Who() string { return strings.Join(l.Actors, ", ") }

// WhyLost says to people whose authority is lost. It does not name what is read: not everybody may know of it.
func WhyLost(version int, who string) string {
	return fmt.Sprintf("version %d runs on the authority of %s, who may no longer read all that this job reads",
		version, who)
}

// LostAuthorityIn returns those of some versions of an org whose jobs read what those may not read any more on whose
// authority they run. A transaction that is limited to what somebody may read finds only jobs that this person may see.
func LostAuthorityIn(
	ctx context.Context, tx pgx.Tx, org uuid.UUID, versions ...uuid.UUID,
) (map[uuid.UUID]LostAuthority, error) {
	rows, err := tx.Query(ctx, `
		SELECT v.id, v.dag_name, v.number, v.authority FROM dag_versions v
		WHERE v.org_id = $1 AND v.id = ANY($2) AND v.authority IS NOT NULL
		  AND EXISTS (SELECT FROM datasets d WHERE d.org_id = $1 AND d.read_roles <> '{}') -- idx_datasets_guarded`,
		org, versions)
	if err != nil {
		return nil, fmt.Errorf("authority of versions %v: %w", versions, err)
	}
	var (
		id uuid.UUID
		l  LostAuthority

		found = map[uuid.UUID]LostAuthority{}
		of    = map[string][]uuid.UUID{} // the versions of the same actors
	)
	_, err = pgx.ForEachRow(rows, []any{&id, &l.DAG, &l.Version, &l.Actors}, func() error {
		l.Actors = slices.Clone(l.Actors)
		found[id] = l
		of[l.Who()] = append(of[l.Who()], id)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("authority of versions %v: %w", versions, err)
	}

	lost := map[uuid.UUID]LostAuthority{}
	for _, same := range of {
		now, err := found[same[0]].Actors.Now(ctx, tx, org)
		if err != nil {
			return nil, err
		}
		if now.ReadsAll() {
			continue
		}
		jobs, err := unreadable(ctx, tx, now, same...)
		if err != nil {
			return nil, err
		}
		for version, names := range jobs {
			l := found[version]
			l.Jobs = names
			lost[version] = l
		}
	}
	return lost, nil
}

// authorityKept is how long the answer about a version holds: roles that are taken from somebody keep a version's tasks
// from being claimed that much later at most.
const authorityKept = 2 * time.Second

// authorities remembers what LostAuthorityOf found a moment ago, so that claims do not ask for each task.
type authorities struct {
	mu    sync.Mutex
	found map[uuid.UUID]foundAuthority // by version
}

type foundAuthority struct {
	LostAuthority
	at time.Time
}

// manyAuthorities is how many answers are kept before those that do not hold any more are dropped.
const manyAuthorities = 1000

func (a *authorities) get(version uuid.UUID) (LostAuthority, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	f, ok := a.found[version]
	return f.LostAuthority, ok && time.Since(f.at) < authorityKept
}

func (a *authorities) put(version uuid.UUID, l LostAuthority) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.found == nil {
		a.found = map[uuid.UUID]foundAuthority{}
	}
	if len(a.found) >= manyAuthorities {
		for id, f := range a.found {
			if time.Since(f.at) >= authorityKept {
				delete(a.found, id)
			}
		}
	}
	a.found[version] = foundAuthority{l, time.Now()}
}

// LostAuthorityOf returns those of some jobs that read what those may not read any more on whose authority their
// versions run, by the ids of the jobs' rows. An answer may be two seconds old. It is for the owner's transactions,
// which see all jobs.
func (r *Registry) LostAuthorityOf(
	ctx context.Context, tx pgx.Tx, jobs []*Job,
) (map[uuid.UUID]LostAuthority, error) {
	lost := map[uuid.UUID]LostAuthority{}
	for _, j := range jobs {
		if len(j.Inputs) == 0 {
			continue
		}

		l, ok := r.authorities.get(j.VersionID)
		if !ok {
			found, err := LostAuthorityIn(ctx, tx, j.OrgID, j.VersionID)
			if err != nil {
				return nil, err
			}
			l = found[j.VersionID]
			r.authorities.put(j.VersionID, l)
		}
		if _, is := l.Jobs[j.ID]; is {
			lost[j.ID] = l
		}
	}
	return lost, nil
}
