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

// View is the stable view data_<org slug>.<name> over the generations of a dataset in postgres storage. Each generation
// shows only while the DAG's current version points at it, so a cutover changes what the view shows by moving a pointer
// and runs no DDL.
type View struct {
	OrgID       uuid.UUID
	OrgSlug     string
	DAG         string // whose pointer decides
	Dataset     uuid.UUID
	Name        string // published name
	Generations []uuid.UUID
}

var publishedName = regexp.MustCompile(`^[a-z][a-z0-9_]{0,127}$`)

// ViewName is the view's name for a published name: itself, or cut and told apart by its hash where Postgres would cut it.
func ViewName(name string) string {
	if len(name) <= maxIdentifier {
		return name
	}
	sum := sha256.Sum256([]byte(name))
	return name[:maxIdentifier-13] + "_" + hex.EncodeToString(sum[:6])
}

// EnsureView makes or changes the view, in a short transaction of its own that waits for no reader longer than
// lockTimeout, and tries again a few times. Generations that have no rows yet, and so no table, are left out.
// Generations whose columns differ cannot be shown by one view: that is a fault.Conflict, and the caller calls again
// with the one generation that is to be shown, right after the swap.
func (s *Storage) EnsureView(ctx context.Context, v View) error {
	t, ok := s.backends[Postgres].(*tables)
	if !ok {
		return fault.New(fault.Invalid, "storage %q is not available here", Postgres)
	}
	if !publishedName.MatchString(v.Name) {
		return fault.New(fault.Invalid, "dataset name %q cannot name a view", v.Name)
	}
	var err error
	for try := range viewTries {
		if try > 0 {
			if err := wait(ctx, time.Duration(try)*lockTimeout); err != nil {
				return err
			}
		}
		if err = t.ensureView(ctx, v); !hasCode(err, lockNotAvailable) {
			break
		}
	}
	if hasCode(err, lockNotAvailable) {
		return fault.New(fault.Unavailable, "view %s: readers hold it: %w", v.Name, err)
	}
	if err != nil {
		return fmt.Errorf("view %s: %w", v.Name, err)
	}
	return nil
}

const (
	lockTimeout = 200 * time.Millisecond
	viewTries   = 5
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

func (t *tables) ensureView(ctx context.Context, v View) error {
	return pg.InTx(ctx, t.pool, func(ctx context.Context, tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, fmt.Sprintf(`SET LOCAL lock_timeout = %d`, lockTimeout.Milliseconds())); err != nil {
			return err
		}
		query, name, err := t.viewQuery(ctx, tx, v)
		if err != nil || query == "" {
			return err
		}
		// A savepoint: a replacement with other columns fails, and the view is then made anew.
		err = pgx.BeginFunc(ctx, tx, func(tx pgx.Tx) error {
			_, err := tx.Exec(ctx, fmt.Sprintf("CREATE OR REPLACE VIEW %s AS %s", name, query))
			return err
		})
		if hasCode(err, invalidTableDef) {
			_, err = tx.Exec(ctx, fmt.Sprintf("DROP VIEW %s; CREATE VIEW %[1]s AS %[2]s", name, query))
		}
		return err
	})
}

// viewQuery is the view's definition and quoted name. It is empty while no generation has a table.
func (t *tables) viewQuery(ctx context.Context, tx pgx.Tx, v View) (query, name string, err error) {
	var (
		parts   []string
		columns []Column
	)
	for _, version := range v.Generations {
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
			return "", "", fault.New(fault.Conflict, "its generations differ in their columns").WithHint("the view is made anew at the swap")
		}
		name = p.schema + "." + duck.Quote(ViewName(v.Name))
		// One row by two primary keys, once per query: the planner makes it a one-time filter, so the generation that
		// does not show is not scanned. DDL takes no parameters; UUIDs are safe as text, and the DAG's name is quoted.
		parts = append(parts, fmt.Sprintf(`SELECT %s FROM %s WHERE EXISTS (
			SELECT FROM dag_current_versions c JOIN dag_version_datasets d ON d.dag_version_id = c.dag_version_id
			WHERE c.org_id = '%s' AND c.dag_name = %s AND d.dataset_uuid = '%s' AND d.dataset_version = '%s')`,
			duck.QuoteAll(columnNames(have)), p.table, v.OrgID, quoteText(v.DAG), v.Dataset, version))
	}
	return strings.Join(parts, " UNION ALL "), name, nil
}

// quoteText writes a Postgres string constant that no setting changes the reading of.
func quoteText(s string) string {
	return "E'" + strings.NewReplacer(`\`, `\\`, `'`, `\'`).Replace(s) + "'"
}
