package authz

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/late"
	"github.com/dagctl/dagctl/internal/pg"
)

// Org is one tenant.
type Org struct {
	ID       uuid.UUID
	Slug     string
	Name     string
	Settings Settings
}

// Settings are the settings of an org.
type Settings struct {
	// DefaultReadRoles are the read roles of new datasets, each as role:SLUG. Empty: every reader may read them.
	DefaultReadRoles []string `json:"default_read_roles,omitempty"`
	// FileRoots are the folders that file sources may read. The server's administrator sets them.
	FileRoots []string `json:"file_roots,omitempty"`
}

// goodSlug matches what the check on orgs.slug allows.
var goodSlug = late.Pattern(`^[a-z][a-z0-9_]{0,39}$`)

// CreateOrg creates an org. The pool is the owner's, as for all changes of orgs: no org may create or change another.
func CreateOrg(ctx context.Context, owner *pgxpool.Pool, slug, name string) (org Org, err error) {
	err = pg.InTx(ctx, owner, func(ctx context.Context, tx pgx.Tx) error {
		org, err = createOrg(ctx, tx, slug, name)
		return err
	})
	return org, err
}

func createOrg(ctx context.Context, tx pgx.Tx, slug, name string) (Org, error) {
	if !goodSlug.MatchString(slug) {
		return Org{}, fault.New(fault.Invalid, "%q is not an org's slug", slug).
			WithHint("use up to 40 of a-z, 0-9 and _, beginning with a letter")
	}
	if name == "" {
		name = slug
	}

	org := Org{Slug: slug, Name: name}
	err := tx.QueryRow(ctx, `INSERT INTO orgs (slug, name) VALUES ($1, $2) RETURNING id`, slug, name).Scan(&org.ID)
	if violates(err, "orgs_slug_key") {
		return Org{}, fault.New(fault.Conflict, "the org %s already exists", slug)
	}
	if err != nil {
		return Org{}, fmt.Errorf("create org %s: %w", slug, err)
	}
	system := Caller{OrgID: org.ID, OrgSlug: slug, Actor: "system"}
	return org, Audit(ctx, tx, system, "org.create", slug, Change{After: map[string]any{"name": name}})
}

// OrgBySlug finds an org. The pool is the owner's.
func OrgBySlug(ctx context.Context, owner *pgxpool.Pool, slug string) (Org, error) {
	org := Org{Slug: slug}
	err := owner.QueryRow(ctx, `SELECT id, name, settings FROM orgs WHERE slug = $1`, slug).
		Scan(&org.ID, &org.Name, &org.Settings)
	if errors.Is(err, pgx.ErrNoRows) {
		return Org{}, fault.New(fault.NotFound, "there is no org %q", slug)
	}
	if err != nil {
		return Org{}, fmt.Errorf("find org %s: %w", slug, err)
	}
	return org, nil
}

// OrgSettings returns an org's settings. The transaction is the org's own or the owner's.
func OrgSettings(ctx context.Context, tx pgx.Tx, orgID uuid.UUID) (s Settings, err error) {
	if err := tx.QueryRow(ctx, `SELECT settings FROM orgs WHERE id = $1`, orgID).Scan(&s); err != nil {
		return Settings{}, fmt.Errorf("read settings of org %s: %w", orgID, err)
	}
	return s, nil
}

// SetOrgSettings replaces an org's settings. The pool is the owner's.
func SetOrgSettings(ctx context.Context, owner *pgxpool.Pool, caller Caller, s Settings) error {
	return pg.InTx(ctx, owner, func(ctx context.Context, tx pgx.Tx) error {
		before, err := changeSettings(ctx, tx, caller, func(now *Settings) { *now = s })
		if err != nil {
			return err
		}
		return Audit(ctx, tx, caller, "org.settings", caller.OrgSlug, Change{Before: before, After: s})
	})
}

// changeSettings changes an org's settings, and returns those before.
func changeSettings(ctx context.Context, tx pgx.Tx, caller Caller, change func(*Settings)) (before Settings,
	err error) {
	err = tx.QueryRow(ctx, `SELECT settings FROM orgs WHERE id = $1 FOR UPDATE`, caller.OrgID).Scan(&before)
	if err != nil {
		return before, fmt.Errorf("read settings of org %s: %w", caller.OrgID, err)
	}
	after := before
	change(&after)
	if _, err := tx.Exec(ctx, `UPDATE orgs SET settings = $2 WHERE id = $1`, caller.OrgID, after); err != nil {
		return before, fmt.Errorf("set settings of org %s: %w", caller.OrgID, err)
	}
	return before, nil
}

// FirstToken describes the org and the admin token that Bootstrap creates.
type FirstToken struct {
	OrgSlug   string
	OrgName   string
	TokenName string
	TTL       time.Duration // DefaultTTL when zero
	Another   bool          // create another org even if there already is one
}

// Bootstrap creates an org and its first admin token on an installation that has none. The pool is the owner's.
func Bootstrap(ctx context.Context, owner *pgxpool.Pool, f FirstToken) (secret string, org Org, err error) {
	err = pg.InTx(ctx, owner, func(ctx context.Context, tx pgx.Tx) error {
		// Two calls at once must not both find the table empty.
		if _, err := tx.Exec(ctx, `LOCK TABLE orgs IN SHARE ROW EXCLUSIVE MODE`); err != nil {
			return fmt.Errorf("bootstrap: %w", err)
		}
		var any bool
		if err := tx.QueryRow(ctx, `SELECT EXISTS (SELECT FROM orgs)`).Scan(&any); err != nil {
			return fmt.Errorf("bootstrap: %w", err)
		}
		if any && !f.Another {
			return fault.New(fault.Conflict, "this installation has an org already").
				WithHint("an admin of that org can create more tokens; pass --another-org to create another org")
		}

		if org, err = createOrg(ctx, tx, f.OrgSlug, f.OrgName); err != nil {
			return err
		}
		system := Caller{OrgID: org.ID, OrgSlug: org.Slug, Actor: "system", Role: RoleAdmin}
		secret, _, err = createToken(ctx, tx, system, NewToken{Name: f.TokenName, Role: RoleAdmin, TTL: f.TTL})
		return err
	})
	if err != nil {
		return "", Org{}, err
	}
	return secret, org, nil
}

// Querier is a pool or a transaction.
type Querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

// OrgSlugs returns the slugs of all orgs, by id. The connection is the owner's.
func OrgSlugs(ctx context.Context, owner Querier) (map[uuid.UUID]string, error) {
	rows, err := owner.Query(ctx, `SELECT id, slug FROM orgs`)
	if err != nil {
		return nil, fmt.Errorf("slugs of orgs: %w", err)
	}
	slugs := map[uuid.UUID]string{}
	var (
		id   uuid.UUID
		slug string
	)
	_, err = pgx.ForEachRow(rows, []any{&id, &slug}, func() error { slugs[id] = slug; return nil })
	return slugs, err
}
