// Package auditlog keeps the audit log of each org as a chain, and shows, exports and verifies it. Package authz writes
// the entries.
//
// Vocabulary: an entry is sealed when a Sealer gives it its number within the org (1, 2, 3, ... in the order of
// sealing) and a hash over itself and the hash before it. The chain is an org's sealed entries; its Head is the number
// and hash of the last one. Who changes, removes, puts in or moves a sealed entry breaks the chain there, unless they
// write all that follows anew, which a Head that was kept elsewhere shows. It owns no tables of its own: authz owns
// audit_log and audit_heads.
package auditlog

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/internal/rest"
)

// Filter selects entries of the audit log. Empty fields select all.
type Filter struct {
	Actor   string        `query:"actor" doc:"Only by this actor, such as token:ci"`
	Action  string        `query:"action" doc:"Only this action, such as dag.deploy, or all that begin so, such as token.*"`
	Object  string        `query:"object" doc:"Only on this object"`
	Dataset string        `query:"dataset" doc:"Only queries and previews that read this dataset"`
	Outcome authz.Outcome `query:"outcome" enum:"done,refused" doc:"Only what was done, or what was refused"`
	Since   time.Time     `query:"since" doc:"Only at or after this time"`
	Until   time.Time     `query:"until" doc:"Only before this time"`
}

// conditions returns the filter as conditions in SQL, each after AND.
func (f Filter) conditions(args *[]any) (string, error) {
	var where strings.Builder
	add := func(condition string, arg any) {
		*args = append(*args, arg)
		fmt.Fprintf(&where, " AND "+condition, len(*args))
	}

	before, pattern := strings.CutSuffix(f.Action, "*")
	if strings.Contains(before, "*") {
		return "", fault.New(fault.Invalid, "action %q has a * that is not its end", f.Action).
			WithHint("write token.* for all actions on tokens")
	}
	if pattern {
		add("starts_with(action, $%d)", before)
	} else if f.Action != "" {
		add("action = $%d", f.Action)
	}

	for _, field := range []struct{ condition, value string }{
		{"actor = $%d", f.Actor}, {"object = $%d", f.Object}, {"outcome = $%d", string(f.Outcome)},
		{"detail @> jsonb_build_object('datasets', jsonb_build_array(jsonb_build_object('dataset', $%d::text)))",
			f.Dataset},
	} {
		if field.value != "" {
			add(field.condition, field.value)
		}
	}
	if !f.Since.IsZero() {
		add("at >= $%d", f.Since)
	}
	if !f.Until.IsZero() {
		add("at < $%d", f.Until)
	}
	return where.String(), nil
}

// columns are those of an authz.AuditEntry, in the order of its fields.
const columns = `coalesce(seq, 0), coalesce(encode(hash, 'hex'), ''), id, at, actor, action, object, outcome, detail,
	request_id`

// position is where a page of the list ends.
type position struct {
	At time.Time `json:"at"`
	ID uuid.UUID `json:"id"`
}

// List returns the entries of the caller's org, latest first. The pool is the requests'.
func List(ctx context.Context, requests *pgxpool.Pool, caller authz.Caller, f Filter, page rest.PageInput) (
	list rest.List[authz.AuditEntry], err error,
) {
	args := []any{caller.OrgID}
	where, err := f.conditions(&args)
	if err != nil {
		return list, err
	}
	var after position
	going, err := page.After(&after)
	if err != nil {
		return list, err
	}
	if going {
		args = append(args, after.At, after.ID)
		where += fmt.Sprintf(" AND (at, id) < ($%d, $%d)", len(args)-1, len(args))
	}

	args = append(args, page.Limit+1)
	err = pg.InOrgTx(ctx, requests, caller.OrgID, func(ctx context.Context, tx pgx.Tx) error {
		entries, err := collect(ctx, tx, `SELECT `+columns+` FROM audit_log WHERE org_id = $1`+where+`
			ORDER BY at DESC, id DESC LIMIT $`+fmt.Sprint(len(args)), args...) // idx_audit_log_org
		if err != nil {
			return err
		}
		list, err = rest.NewList(entries, page.Limit, func(e authz.AuditEntry) any { return position{e.At, e.ID} })
		return err
	})
	if err != nil {
		return list, fmt.Errorf("list audit log: %w", err)
	}
	return list, nil
}

func collect(ctx context.Context, tx pgx.Tx, sql string, args ...any) ([]authz.AuditEntry, error) {
	rows, err := tx.Query(ctx, sql, args...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowToStructByPos[authz.AuditEntry])
}

// Verify walks along the chain of the caller's org, page by page, as it was at one moment. remembered is a head that
// the chain must have had; the zero Head is none. The pool is the requests'.
func Verify(ctx context.Context, requests *pgxpool.Pool, caller authz.Caller, remembered Head) (
	found ChainCheck, err error,
) {
	err = pg.InOrgSnapshot(ctx, requests, caller.OrgID, func(ctx context.Context, tx pgx.Tx) error {
		kept, _, err := headOf(ctx, tx, caller.OrgID, "")
		if err != nil {
			return err
		}

		w := &walk{org: caller.OrgID, kept: &kept, remembered: remembered}
		if err := w.along(ctx, tx); err != nil {
			return err
		}
		found = w.end()
		found.Unsealed, err = unsealed(ctx, tx, caller.OrgID)
		return err
	})
	if err != nil {
		return found, fmt.Errorf("verify audit log: %w", err)
	}
	return found, nil
}

// pageSize is how many entries are in memory at once.
const pageSize = 1000

// along steps to each sealed entry of the org, until the chain breaks.
func (w *walk) along(ctx context.Context, tx pgx.Tx) error {
	for last, more := int64(0), true; more; {
		page, err := sealedAfter(ctx, tx, w.org, last, "", nil)
		if err != nil {
			return err
		}
		more = len(page) == pageSize
		for _, e := range page {
			if last = e.Seq; !w.step(e) {
				return nil
			}
		}
	}
	return nil
}

// sealedAfter returns the next page of the org's sealed entries, those that meet the conditions.
func sealedAfter(
	ctx context.Context, tx pgx.Tx, org uuid.UUID, last int64, where string, args []any,
) ([]authz.AuditEntry, error) {
	args = append([]any{org}, append(args, last, pageSize)...)
	return collect(ctx, tx, fmt.Sprintf(`SELECT %s FROM audit_log WHERE org_id = $1%s AND seq > $%d
		ORDER BY seq LIMIT $%d`, columns, where, len(args)-1, len(args)), args...) // audit_log_org_id_seq_key
}

// headOf returns where the org's chain ends. It is zero if nothing is sealed, or if there is no row, which there says:
// lock is empty or a locking clause.
func headOf(ctx context.Context, tx pgx.Tx, org uuid.UUID, lock string) (h Head, there bool, err error) {
	var hash []byte
	err = tx.QueryRow(ctx, `SELECT seq, hash FROM audit_heads WHERE org_id = $1 `+lock, org).Scan(&h.Seq, &hash)
	if errors.Is(err, pgx.ErrNoRows) {
		return Head{}, false, nil
	}
	copy(h.Hash[:], hash)
	return h, true, err
}

// unsealed counts the entries that have no place in the chain yet.
func unsealed(ctx context.Context, tx pgx.Tx, org uuid.UUID) (n int64, err error) {
	err = tx.QueryRow(ctx, `SELECT count(*) FROM audit_log WHERE org_id = $1 AND seq IS NULL`, org).
		Scan(&n) // idx_audit_log_unsealed
	return n, err
}
