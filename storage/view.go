package storage

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/internal/duck"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/pg"
)

// View is the stable view data_<org slug>.<name> over the generations that were or will be published under a name, in
// postgres storage. A generation shows only while the DAG's current version publishes it under that name. So a cutover
// changes what the view shows by moving a pointer, without DDL, even if two datasets swap their names.
type View struct {
	OrgID       uuid.UUID
	OrgSlug     string
	DAG         string      // the DAG whose pointer decides
	Name        string      // published name
	Generations []uuid.UUID // in any order
}

var publishedName = regexp.MustCompile(`^[a-z][a-z0-9_]{0,127}$`)

// ViewName returns the view's name for a published name: the name itself, or, if Postgres would cut it, a shorter one
// that its hash makes unique.
func ViewName(name string) string {
	if len(name) <= maxIdentifier {
		return name
	}
	sum := sha256.Sum256([]byte(name))
	return name[:maxIdentifier-13] + "_" + hex.EncodeToString(sum[:6])
}

// EnsureView creates or changes the view, in a short transaction of its own that waits for readers no longer than
// lockTimeout and is retried a few times. It does not touch a view that is up to date. It omits generations without
// rows, which have no table yet. One view cannot show generations whose columns differ: that is a fault.Conflict, and
// the caller calls ReplaceView with the generation to show, in the swap.
func (s *Storage) EnsureView(ctx context.Context, v View) error {
	t, err := s.viewable(v)
	if err != nil {
		return err
	}

	for try := range viewTries {
		if try > 0 {
			if err := wait(ctx, time.Duration(try)*lockTimeout); err != nil {
				return err
			}
		}
		err = pg.InTx(ctx, t.pool, func(ctx context.Context, tx pgx.Tx) error { return t.ensureView(ctx, tx, v) })
		if !hasCode(err, lockNotAvailable) {
			break
		}
	}

	return viewFault(v, err)
}

// ReplaceView is EnsureView, once, in the caller's transaction. Readers wait until that ends, so call it last.
func (s *Storage) ReplaceView(ctx context.Context, tx pgx.Tx, v View) error {
	t, err := s.viewable(v)
	if err != nil {
		return err
	}
	return viewFault(v, t.ensureView(ctx, tx, v))
}

func (s *Storage) viewable(v View) (*tables, error) {
	t, ok := s.backends[Postgres].(*tables)
	if !ok {
		return nil, fault.New(fault.Invalid, "storage %q is not available here", Postgres)
	}
	if !publishedName.MatchString(v.Name) {
		return nil, fault.New(fault.Invalid, "dataset name %q cannot be the name of a view", v.Name)
	}
	return t, nil
}

func viewFault(v View, err error) error {
	if hasCode(err, lockNotAvailable) {
		return fault.New(fault.Unavailable, "view %s: readers hold it: %w", v.Name, err)
	}
	if err != nil {
		return fmt.Errorf("view %s: %w", v.Name, err)
	}
	return nil
}

// New readers queue behind a change that waits for earlier readers, so it must not wait for long.
const (
	lockTimeout = 40 * time.Millisecond
	viewTries   = 10
)

func wait(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-timer.C:
		return nil
	}
}

func (t *tables) ensureView(ctx context.Context, tx pgx.Tx, v View) error {
	query, name, err := t.viewQuery(ctx, tx, v)
	if err != nil || query == "" {
		return err
	}

	// The comment has a hash of the query: the definition as Postgres returns it differs from the query.
	comment := fmt.Sprintf("made by dagctl from %x", sha256.Sum256([]byte(query)))
	var made bool
	if err := tx.QueryRow(ctx, `SELECT coalesce(obj_description(to_regclass($1), 'pg_class') = $2, false)`, name,
		comment).Scan(&made); err != nil || made {
		return err
	}
	if _, err := tx.Exec(ctx, fmt.Sprintf(`SET LOCAL lock_timeout = %d`, lockTimeout.Milliseconds())); err != nil {
		return err
	}

	// A savepoint, because a replacement with other columns fails, and the view is then created anew.
	err = pgx.BeginFunc(ctx, tx, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, fmt.Sprintf("CREATE OR REPLACE VIEW %s AS %s", name, query))
		return err
	})
	if hasCode(err, invalidTableDef) {
		_, err = tx.Exec(ctx, fmt.Sprintf("DROP VIEW %s; CREATE VIEW %[1]s AS %[2]s", name, query))
	}
	if err != nil {
		return err
	}

	_, err = tx.Exec(ctx, fmt.Sprintf("COMMENT ON VIEW %s IS '%s'", name, comment))
	return err
}

// viewQuery returns the view's definition and quoted name, or "" while no generation has a table.
func (t *tables) viewQuery(ctx context.Context, tx pgx.Tx, v View) (query, name string, err error) {
	var (
		parts   []string
		columns []Column
	)

	// Sorted, so that the same generations give the same view whichever of them is live.
	for _, version := range slices.SortedFunc(slices.Values(v.Generations), func(a, b uuid.UUID) int {
		return slices.Compare(a[:], b[:])
	}) {
		p, err := physicalOf(Generation{OrgSlug: v.OrgSlug, Version: version})
		if err != nil {
			return "", "", err
		}
		have, err := t.columns(ctx, tx, p)
		switch {
		case err != nil:
			return "", "", err
		case have == nil:
			continue
		case columns == nil:
			columns = have
		case !slices.Equal(columns, have):
			return "", "", fault.New(fault.Conflict, "the columns of its generations differ").
				WithHint("the swap creates the view anew")
		}

		name = p.schema + "." + duck.Quote(ViewName(v.Name))
		// A subquery by two unique keys, once per query: the planner makes it a one-time filter, so a generation that
		// does not show is not scanned. DDL takes no parameters; UUIDs are safe as text, and the DAG's name is quoted.
		parts = append(parts, fmt.Sprintf(`SELECT %s FROM %s WHERE EXISTS (
			SELECT FROM dag_current_versions c JOIN dag_version_datasets d ON d.dag_version_id = c.dag_version_id
			WHERE c.org_id = '%s' AND c.dag_name = %s AND d.published_name = '%s' AND d.dataset_version = '%s')`,
			duck.QuoteAll(columnNames(have)), p.table, v.OrgID, quoteText(v.DAG), v.Name, version))
	}
	return strings.Join(parts, " UNION ALL "), name, nil
}

// quoteText returns a Postgres string constant that means the same under any setting.
func quoteText(s string) string {
	return "E'" + strings.NewReplacer(`\`, `\\`, `'`, `\'`).Replace(s) + "'"
}
