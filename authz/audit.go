package authz

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/internal/rest"
)

// Audit records a mutation in the transaction that makes it, so that neither exists without the other. The action is
// noun.verb (dag.deploy) and the object is what changed. detail is what a reader needs besides, such as
// {"before": ..., "after": ...}. It becomes JSON and must hold no secret.
func Audit(ctx context.Context, tx pgx.Tx, caller Caller, action, object string, detail any) error {
	if detail == nil {
		detail = struct{}{}
	}
	data, err := json.Marshal(detail)
	if err != nil {
		return fmt.Errorf("audit %s %s: %w", action, object, err)
	}
	id, err := uuid.NewV7()
	if err != nil {
		return fmt.Errorf("audit %s %s: %w", action, object, err)
	}

	_, err = tx.Exec(ctx, `
		INSERT INTO audit_log (id, org_id, actor, action, object, detail, request_id)
		VALUES ($1, $2, $3, $4, $5, $6, $7)`,
		id, caller.OrgID, caller.Actor, action, object, data, caller.RequestID)
	if err != nil {
		return fmt.Errorf("audit %s %s: %w", action, object, err)
	}
	return nil
}

// AuditEntry is one line of the audit log.
type AuditEntry struct {
	ID        uuid.UUID       `json:"id" format:"uuid"`
	At        time.Time       `json:"at"`
	Actor     string          `json:"actor"`
	Action    string          `json:"action"`
	Object    string          `json:"object"`
	Detail    json.RawMessage `json:"detail"`
	RequestID string          `json:"request_id,omitempty"`
}

// AuditFilter selects entries of the audit log. Empty fields select all.
type AuditFilter struct {
	Actor  string    `query:"actor" doc:"Only by this actor, such as token:ci"`
	Action string    `query:"action" doc:"Only this action, such as dag.deploy"`
	Object string    `query:"object" doc:"Only on this object"`
	Since  time.Time `query:"since" doc:"Only at or after this time"`
}

// auditPosition is where a page of the audit log ends.
type auditPosition struct {
	At time.Time `json:"at"`
	ID uuid.UUID `json:"id"`
}

// ListAudit returns the entries of the caller's org, latest first.
func ListAudit(ctx context.Context, pool *pgxpool.Pool, caller Caller, f AuditFilter,
	page rest.PageInput) (list rest.List[AuditEntry], err error) {
	var after auditPosition
	going, err := page.After(&after)
	if err != nil {
		return list, err
	}

	err = pg.InOrgTx(ctx, pool, caller.OrgID, func(ctx context.Context, tx pgx.Tx) error {
		rows, err := tx.Query(ctx, `
			SELECT id, at, actor, action, object, detail, request_id
			FROM audit_log
			WHERE org_id = $1 AND at >= $2
			  AND ($3 = '' OR actor = $3) AND ($4 = '' OR action = $4) AND ($5 = '' OR object = $5)
			  AND (NOT $6 OR (at <= $7 AND (at, id) < ($7, $8)))
			ORDER BY at DESC, id DESC
			LIMIT $9`, // idx_audit_log_org
			caller.OrgID, f.Since, f.Actor, f.Action, f.Object, going, after.At, after.ID, page.Limit+1)
		if err != nil {
			return err
		}
		entries, err := pgx.CollectRows(rows, pgx.RowToStructByPos[AuditEntry])
		if err != nil {
			return err
		}

		list, err = rest.NewList(entries, page.Limit, func(e AuditEntry) any { return auditPosition{e.At, e.ID} })
		return err
	})
	if err != nil {
		return list, fmt.Errorf("list audit log: %w", err)
	}
	return list, nil
}
