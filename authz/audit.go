package authz

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// Outcome says whether what an entry of the audit log is about was done.
type Outcome string

// The outcomes.
const (
	Done    Outcome = "done"
	Refused Outcome = "refused"
)

// The actions of entries that are no mutations.
const (
	auditSignIn  = "user.sign_in"
	auditRefusal = "request.refused"
)

// Change is the detail of an entry about what had a state before, or has one after: nil stands for neither.
type Change struct {
	Before any    `json:"before"`
	After  any    `json:"after"`
	Reason string `json:"reason,omitempty"` // that the caller gave
}

// Audit records a mutation in the transaction that makes it, so that neither exists without the other. The action is
// noun.verb (dag.deploy) and the object is what changed. detail is what a reader needs besides, such as a Change.
// It becomes JSON and must hold no secret, no row and no SQL.
func Audit(ctx context.Context, tx pgx.Tx, caller Caller, action, object string, detail any) error {
	return audit(ctx, tx, caller, Done, action, object, detail)
}

// AuditRefused records that a mutation was refused, in another transaction than the one that was to make it.
func AuditRefused(ctx context.Context, tx pgx.Tx, caller Caller, action, object string, detail any) error {
	return audit(ctx, tx, caller, Refused, action, object, detail)
}

// AuditSignIn records that a user signed in to the caller's org, or was refused, such as one who is disabled. detail
// may say by which issuer, and why; it must hold no token.
func AuditSignIn(ctx context.Context, tx pgx.Tx, caller Caller, outcome Outcome, detail any) error {
	return audit(ctx, tx, caller, outcome, auditSignIn, caller.Actor, detail)
}

// audit writes an entry. Servers seal it later (package auditlog), so that writers do not wait for each other.
func audit(
	ctx context.Context, tx pgx.Tx, caller Caller, outcome Outcome, action, object string, detail any,
) error {
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
		INSERT INTO audit_log (id, org_id, actor, action, object, detail, request_id, outcome)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8)`,
		id, caller.OrgID, caller.Actor, action, object, data, caller.RequestID, outcome)
	if err != nil {
		return fmt.Errorf("audit %s %s: %w", action, object, err)
	}
	return nil
}

// AuditEntry is one line of the audit log.
type AuditEntry struct {
	Seq       int64           `json:"seq,omitempty" doc:"Its number in the org's chain. Absent: not sealed yet"`
	Hash      string          `json:"hash,omitempty" doc:"SHA-256, in hex, over the hash before it and itself"`
	ID        uuid.UUID       `json:"id" format:"uuid"`
	At        time.Time       `json:"at"`
	Actor     string          `json:"actor"`
	Action    string          `json:"action"`
	Object    string          `json:"object"`
	Outcome   Outcome         `json:"outcome" enum:"done,refused"`
	Detail    json.RawMessage `json:"detail"`
	RequestID string          `json:"request_id,omitempty"`
}
