package pg

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// Reader is what decides who may read which rows of an org, beside the org itself. Row-level security hides from the
// transactions of its context what it may not read; see the SQL function reader_policies.
type Reader struct {
	OrgRoles []string // visibility groups, each as role:SLUG
	Inspects []string // DAGs whose unpublished datasets it sees, as patterns of LIKE
}

type readerKey struct{}

// WithReader returns a context whose transactions for an org read as r. Without one they see all rows of the org.
func WithReader(ctx context.Context, r Reader) context.Context {
	return context.WithValue(ctx, readerKey{}, r)
}

// nameOrg adds to b the first statement of a transaction for an org.
func nameOrg(ctx context.Context, b *Batch, orgID uuid.UUID, planOnce bool) {
	settings, args := `set_config('dagctl.org', $1, true)`, []any{orgID.String()}
	if planOnce {
		settings += `, set_config('plan_cache_mode', 'force_generic_plan', true)`
	}
	if r, ok := ctx.Value(readerKey{}).(Reader); ok {
		settings += `, set_config('dagctl.reader', 'some', true), set_config('dagctl.roles', $2::text[]::text, true),
			set_config('dagctl.inspects', $3::text[]::text, true)`
		args = append(args, append([]string{}, r.OrgRoles...), append([]string{}, r.Inspects...))
	}
	b.Exec("name org "+orgID.String(), "SELECT "+settings, args...)
}

// SeeingAll runs fn, which decides something by rows that the Reader of the context may not read: nothing is hidden
// from the transaction until fn returns. What fn tells of it must name none of what is hidden. It does not nest.
func SeeingAll(ctx context.Context, tx pgx.Tx, fn func() error) error {
	if _, ok := ctx.Value(readerKey{}).(Reader); !ok {
		return fn()
	}

	set := func(reader string) error {
		if _, err := tx.Exec(ctx, `SELECT set_config('dagctl.reader', $1, true)`, reader); err != nil {
			return fmt.Errorf("name the reader: %w", err)
		}
		return nil
	}
	if err := set("all"); err != nil {
		return err
	}
	if err := fn(); err != nil { // the transaction ends with it
		return errors.Join(err, set("some"))
	}
	return set("some")
}
