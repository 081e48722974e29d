package storage

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/late"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/internal/sqltext"
	"github.com/dagctl/dagctl/internal/wait"
)

// View is the stable view data_<org slug>.<name> over the generations that were or will be published under a name, in
// postgres storage. A generation shows only while the current version of its DAG publishes it under that name. So a
// cutover changes what the view shows by moving a pointer, without DDL, even if two datasets swap their names. While
// none of the generations is published, the view answers with an error that says what became of the name.
type View struct {
	OrgID       uuid.UUID
	OrgSlug     string
	DAG         string      // the DAG whose pointer decides
	Name        string      // published name
	Generations []uuid.UUID // of the DAG; the one that serves, or will, comes first
	Past        []uuid.UUID // of the DAG, for readers in older snapshots; those with other columns are left out
	Beside      []Beside    // generations of other DAGs, to or from which the name moves
}

// Beside is a generation of another DAG, whose own pointer decides about it.
type Beside struct {
	DAG        string
	Generation uuid.UUID
}

var publishedName = late.Pattern(`^[a-z][a-z0-9_]{0,127}$`)

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
// rows, which have no table yet. One view cannot show generations whose columns differ: that is ErrColumnsDiffer, and
// the caller calls ReplaceView with the generation to show, in the swap. Those of the past give way.
func (s *Storage) EnsureView(ctx context.Context, v View) error {
	t, err := s.viewable(v)
	if err != nil {
		return err
	}

	for try := range viewTries {
		if try > 0 {
			if err := wait.For(ctx, time.Duration(try)*lockTimeout); err != nil {
				return err
			}
		}
		err = pg.InTx(ctx, t.pool, func(ctx context.Context, tx pgx.Tx) error { return t.ensureView(ctx, tx, v) })
		if !fault.Is(err, fault.Unavailable) {
			break
		}
	}
	return err
}

// ReplaceView is EnsureView, once, in the caller's transaction. Readers wait until that ends, so call it last.
func (s *Storage) ReplaceView(ctx context.Context, tx pgx.Tx, v View) error {
	t, err := s.viewable(v)
	if err != nil {
		return err
	}
	return t.ensureView(ctx, tx, v)
}

// CheckView returns the error with which ReplaceView would refuse the view because of users' objects that depend on it.
func (s *Storage) CheckView(ctx context.Context, tx pgx.Tx, v View) error {
	t, err := s.viewable(v)
	if err != nil {
		return err
	}
	d, err := t.design(ctx, tx, v)
	if err != nil || d.query == "" || d.fits() {
		return err
	}
	_, err = d.followers(ctx, tx)
	return err
}

// Uncovered returns those of the views whose first generation has a table that the view is not defined over.
func (s *Storage) Uncovered(ctx context.Context, tx pgx.Tx, views []View) (uncovered []View, err error) {
	var names, tables []string
	for _, v := range views {
		p, err := physicalOf(Generation{OrgSlug: v.OrgSlug, Version: v.Generations[0]})
		if err != nil {
			return nil, err
		}
		names = append(names, p.schema+"."+sqltext.Quote(ViewName(v.Name)))
		tables = append(tables, p.table)
	}
	if len(views) == 0 {
		return nil, nil
	}

	rows, err := tx.Query(ctx, `
		SELECT i FROM unnest($1::text[], $2::text[]) WITH ORDINALITY AS w (name, tab, i)
		WHERE to_regclass(tab) IS NOT NULL AND NOT EXISTS (
			SELECT FROM pg_depend d JOIN pg_rewrite r ON d.classid = 'pg_rewrite'::regclass AND r.oid = d.objid
			WHERE d.refclassid = 'pg_class'::regclass AND d.refobjid = to_regclass(tab)
			  AND r.ev_class = to_regclass(name))`, names, tables)
	if err != nil {
		return nil, fmt.Errorf("look for views to define: %w", err)
	}
	var i int
	_, err = pgx.ForEachRow(rows, []any{&i}, func() error { uncovered = append(uncovered, views[i-1]); return nil })
	return uncovered, err
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

// New readers queue behind a change that waits for earlier readers, so it must not wait for long.
const (
	lockTimeout = 40 * time.Millisecond
	viewTries   = 5
)

// ErrColumnsDiffer says that one view cannot show all of its generations.
var ErrColumnsDiffer = fault.New(fault.Conflict, "the columns of its generations differ").
	WithHint("the swap creates the view anew")

// design is how a view is to be.
type design struct {
	view       View
	name       string // quoted, with its schema
	query      string // "": no column is known
	have, want []pgColumn
}

// pgColumn is a column with its Postgres type.
type pgColumn struct{ Name, Type string }

// fits reports whether the view can be replaced as it stands: it keeps all the columns that it has.
func (d design) fits() bool { return len(d.gone()) == 0 }

// gone returns the columns that the view has and will not have, or only with another type.
func (d design) gone() (gone []pgColumn) {
	for _, c := range d.have {
		if !slices.Contains(d.want, c) {
			gone = append(gone, c)
		}
	}
	return gone
}

// design looks up what the view has and its generations' tables have. The columns that the view has stay where they
// are, and new ones come after them. A view none of whose generations has a table keeps its columns.
func (t *tables) design(ctx context.Context, tx pgx.Tx, v View) (design, error) {
	schema, err := schemaOf(v.OrgSlug)
	if err != nil {
		return design{}, err
	}
	shown := v.shown()
	relations := []string{ViewName(v.Name)}
	for _, g := range shown {
		relations = append(relations, tableName(g.Generation))
	}
	columns, err := pgColumns(ctx, tx, schema, relations)
	if err != nil {
		return design{}, fmt.Errorf("columns of view %s: %w", v.Name, err)
	}

	d := design{view: v, name: sqltext.Quote(schema) + "." + sqltext.Quote(relations[0]), have: columns[relations[0]]}
	var together []Beside
	for _, g := range shown {
		own := columns[tableName(g.Generation)]
		switch past := slices.Contains(v.Past, g.Generation); {
		case own == nil && past:
			continue
		case own == nil:
		case d.want == nil:
			d.want = own
		case !slices.Equal(byName(d.want), byName(own)) && past:
			continue
		case !slices.Equal(byName(d.want), byName(own)):
			return design{}, ErrColumnsDiffer
		}
		together = append(together, g)
	}

	if d.want == nil {
		d.want = d.have
	}
	if d.fits() {
		added := slices.DeleteFunc(slices.Clone(d.want), func(c pgColumn) bool { return slices.Contains(d.have, c) })
		d.want = slices.Concat(d.have, added)
	}
	if len(d.want) > 0 {
		d.query = d.define(schema, together, columns)
	}
	return d, nil
}

func byName(columns []pgColumn) []pgColumn {
	return slices.SortedFunc(slices.Values(columns), func(a, b pgColumn) int { return strings.Compare(a.Name, b.Name) })
}

func tableName(generation uuid.UUID) string { return "_g_" + hexOf(generation) }

// shown returns all generations of the view: the DAG's own first, those of the past last.
func (v View) shown() (all []Beside) {
	for _, g := range v.Generations {
		all = append(all, Beside{v.DAG, g})
	}
	all = append(all, v.Beside...)
	for _, g := range v.Past {
		all = append(all, Beside{v.DAG, g})
	}
	return all
}

// pgColumns returns the columns of those relations of a schema that exist.
func pgColumns(ctx context.Context, tx pgx.Tx, schema string, relations []string) (map[string][]pgColumn, error) {
	rows, err := tx.Query(ctx, `
		SELECT c.relname::text, a.attname::text, format_type(a.atttypid, a.atttypmod)
		FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
		WHERE c.relnamespace = to_regnamespace($1) AND c.relname = ANY($2::name[]) AND c.relkind IN ('r', 'v')
		  AND NOT (c.relkind = 'r' AND a.attname IN ('_partition', '_revision', '_row'))
		ORDER BY c.relname, a.attnum`, sqltext.Quote(schema), relations)
	if err != nil {
		return nil, err
	}

	found := map[string][]pgColumn{}
	var (
		relation string
		c        pgColumn
	)
	_, err = pgx.ForEachRow(rows, []any{&relation, &c.Name, &c.Type}, func() error {
		found[relation] = append(found[relation], c)
		return nil
	})
	return found, err
}

// define returns the view's query. DDL takes no parameters; UUIDs and published names are safe as text, and names of
// DAGs are quoted.
func (d design) define(schema string, shown []Beside, columns map[string][]pgColumn) string {
	names, typed := make([]string, len(d.want)), make([]string, len(d.want))
	for i, c := range d.want {
		names[i], typed[i] = sqltext.Quote(c.Name), sqltext.Quote(c.Name)+" "+c.Type
	}
	list := strings.Join(names, ", ")
	// What serves under the name: the newest claim on it owns it.
	pointer := fmt.Sprintf(`SELECT FROM dataset_names o
		JOIN dag_current_versions c ON c.org_id = o.org_id AND c.dag_name = o.dag_name
		JOIN dag_version_datasets d ON d.dag_version_id = c.dag_version_id AND d.dataset_uuid = o.dataset_uuid
		WHERE o.org_id = '%s' AND o.name = '%s' AND NOT EXISTS (
			SELECT FROM dataset_names n WHERE n.org_id = o.org_id AND n.name = o.name AND n.claim > o.claim)`,
		d.view.OrgID, d.view.Name)

	// Sorted, so that the same generations give the same view whichever of them is live.
	var parts, pointers []string
	slices.SortFunc(shown, func(a, b Beside) int { return slices.Compare(a.Generation[:], b.Generation[:]) })
	for _, g := range shown {
		own := fmt.Sprintf(`(c.dag_name = %s AND d.dataset_version = '%s')`, quoteText(g.DAG), g.Generation)
		pointers = append(pointers, own)
		if columns[tableName(g.Generation)] == nil {
			continue
		}
		// A subquery by two unique keys, once per query: the planner makes it a one-time filter, so a generation that
		// does not show is not scanned.
		parts = append(parts, fmt.Sprintf(`SELECT %s FROM %s.%s WHERE EXISTS (%s AND %s)`,
			list, sqltext.Quote(schema), sqltext.Quote(tableName(g.Generation)), pointer, own))
	}

	// The last part is a call of a function, whose columns the planner does not know: with constants there, the
	// condition of a query could keep it from being called. It has another one-time filter.
	unless := "true"
	if len(pointers) > 0 {
		unless = fmt.Sprintf(`NOT EXISTS (%s AND (%s))`, pointer, strings.Join(pointers, " OR "))
	}
	parts = append(parts, fmt.Sprintf(`SELECT %s FROM stable_view_unserved('%s', %s, '%s') AS u (%s) WHERE %s`,
		list, d.view.OrgID, quoteText(d.view.DAG), d.view.Name, strings.Join(typed, ", "), unless))
	return strings.Join(parts, " UNION ALL ")
}

// quoteText returns a Postgres string constant that means the same under any setting.
func quoteText(s string) string {
	return "E'" + strings.NewReplacer(`\`, `\\`, `'`, `\'`).Replace(s) + "'"
}
