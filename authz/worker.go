package authz

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/internal/fault"
)

// Worker is a process that a worker token vouches for. It has no role and is nobody's Caller: all it may do is claim
// tasks, and only those that its token names. The zero Worker may claim nothing.
type Worker struct {
	OrgID     uuid.UUID   // where its token belongs and is audited
	TokenName string      // unique within OrgID
	Orgs      []uuid.UUID // whose tasks it may claim
	Runtimes  []string    // that it may serve; none: every runtime
	Operators []string    // that it may run; none: every operator
}

// MayClaim reports whether the worker's token lets it claim a task of this org, runtime and operator. A task that it may
// not claim is to look like one that does not exist.
func (w Worker) MayClaim(org uuid.UUID, runtime, operator string) bool {
	return slices.Contains(w.Orgs, org) &&
		(len(w.Runtimes) == 0 || slices.Contains(w.Runtimes, runtime)) &&
		(len(w.Operators) == 0 || slices.Contains(w.Operators, operator))
}

// Actor names the worker's token in logs and the audit trail.
func (w Worker) Actor() string { return "token:" + w.TokenName }

// AuthenticateWorker recognises a service token of kind worker. err is an Unauthenticated fault for everything else.
func (a *Tokens) AuthenticateWorker(r *http.Request) (Worker, error) {
	secret, ok := bearer(r)
	if !ok {
		return Worker{}, fault.New(fault.Unauthenticated, "this needs a worker token").
			WithHint("send the header Authorization: Bearer dagctl_worker_..., or set DAGCTL_WORKER_TOKEN for `dagctl worker`")
	}
	if kind, _ := secretKind(secret); kind == string(KindUser) {
		return Worker{}, fault.New(fault.Unauthenticated, "a user token claims no tasks").
			WithHint("`dagctl tokens create NAME --kind worker --runtime RUNTIME` makes a token that does")
	} else if kind != string(KindWorker) {
		return Worker{}, badToken()
	}
	return a.findWorker(r.Context(), secret)
}

// findWorker looks a worker token up, as find does a user's.
func (a *Tokens) findWorker(ctx context.Context, secret string) (Worker, error) {
	var w Worker
	err := a.pool.QueryRow(ctx, `
		WITH token AS (
			SELECT t.id, t.org_id, t.name, t.orgs, t.runtimes, t.operators
			FROM service_tokens t
			WHERE t.hash = $1 AND t.kind = 'worker' AND t.revoked_at IS NULL AND t.expires_at > now()
		), touched AS (
			UPDATE service_tokens t SET last_used_at = now()
			FROM token
			WHERE t.id = token.id AND (t.last_used_at IS NULL OR t.last_used_at < now() - interval '1 minute')
		)
		SELECT org_id, name, orgs, runtimes, operators FROM token`, hashSecret(secret)). // service_tokens_hash_key
		Scan(&w.OrgID, &w.TokenName, &w.Orgs, &w.Runtimes, &w.Operators)
	if errors.Is(err, pgx.ErrNoRows) {
		return Worker{}, badToken()
	}
	if err != nil {
		return Worker{}, fmt.Errorf("look up worker token: %w", err)
	}
	return w, nil
}
