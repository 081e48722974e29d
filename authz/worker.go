package authz

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/pg"
)

// Worker is a process that a worker token authenticated. It has no role and is not a Caller: it may only claim the
// tasks that its token allows. The zero Worker may claim nothing.
type Worker struct {
	OrgID     uuid.UUID   // the org that its token belongs to, and in which the token is audited
	TokenName string      // unique within OrgID
	Orgs      []uuid.UUID // whose tasks it may claim
	Runtimes  []string    // those it may serve; empty: all
	Operators []string    // those it may run; empty: all
}

// MayClaim reports whether the worker's token lets it claim a task of this org, runtime and operator. Callers must
// treat a task that it may not claim like one that does not exist.
func (w Worker) MayClaim(org uuid.UUID, runtime, operator string) bool {
	return slices.Contains(w.Orgs, org) &&
		(len(w.Runtimes) == 0 || slices.Contains(w.Runtimes, runtime)) &&
		(len(w.Operators) == 0 || slices.Contains(w.Operators, operator))
}

// Actor returns the name of the worker's token for logs and the audit log.
func (w Worker) Actor() string { return "token:" + w.TokenName }

// AuthenticateWorker returns the worker of a service token of kind worker, or an Unauthenticated fault for anything
// else.
func (a *Tokens) AuthenticateWorker(r *http.Request) (Worker, error) {
	secret, ok := Bearer(r)
	if !ok {
		return Worker{}, fault.New(fault.Unauthenticated, "this needs a worker token").
			WithHint("send the header Authorization: Bearer dagctl_worker_..., or set DAGCTL_TOKEN for `dagctl worker`")
	}
	if kind, _ := SecretKind(secret); kind == string(KindUser) {
		return Worker{}, fault.New(fault.Unauthenticated, "a user token claims no tasks").
			WithHint("`dagctl tokens create NAME --kind worker --runtime RUNTIME` creates a token that does")
	} else if kind == string(KindSCIM) {
		return Worker{}, fault.New(fault.Unauthenticated, "a scim token claims no tasks")
	} else if kind != string(KindWorker) {
		return Worker{}, badToken()
	}
	return a.findWorker(r.Context(), secret)
}

// lookup is a worker token that waits for a batch. Tokens of calls that arrive at the same time are looked up together;
// no call is answered from a look-up that began before it arrived.
type lookup struct {
	hash []byte
	done chan struct{} // closed when what follows is the answer

	worker Worker
	err    error
}

// lookupBatch is the number of worker tokens that one statement may look up, and lookupLanes the number of such
// statements that a process runs at once.
const (
	lookupBatch   = 250
	lookupLanes   = 2
	lookupTimeout = 30 * time.Second
)

// findWorker looks up a worker token, as find looks up a user token.
func (a *Tokens) findWorker(ctx context.Context, secret string) (Worker, error) {
	x := &lookup{hash: HashSecret(secret), done: make(chan struct{})}
	a.lookups.Add(x)
	select {
	case <-x.done:
		return x.worker, x.err
	case <-ctx.Done():
		return Worker{}, fmt.Errorf("look up worker token: %w", context.Cause(ctx))
	}
}

// findWorkers answers a batch of lookups.
func (a *Tokens) findWorkers(batch []*lookup) {
	ctx, cancel := context.WithTimeout(context.Background(), lookupTimeout)
	defer cancel()
	asking := map[string][]*lookup{}
	var hashes [][]byte
	for _, x := range batch {
		if x.err = badToken(); asking[string(x.hash)] == nil {
			hashes = append(hashes, x.hash)
		}
		asking[string(x.hash)] = append(asking[string(x.hash)], x)
	}

	err := a.workersOf(ctx, hashes, func(hash []byte, w Worker) {
		for _, x := range asking[string(hash)] {
			x.worker, x.err = w, nil
		}
	})
	for _, x := range batch {
		if err != nil {
			x.worker, x.err = Worker{}, fmt.Errorf("look up worker token: %w", err)
		}
		close(x.done)
	}
}

// workersOf calls found for each of the tokens that is valid.
func (a *Tokens) workersOf(ctx context.Context, hashes [][]byte, found func(hash []byte, w Worker)) error {
	rows, err := a.pool.Query(ctx, `
		WITH token AS (
			SELECT t.id, t.hash, t.org_id, t.name, t.orgs, t.runtimes, t.operators
			FROM unnest($1::bytea[]) AS shown
			CROSS JOIN LATERAL (SELECT * FROM service_tokens WHERE hash = shown LIMIT 1) AS t
			WHERE t.kind = 'worker' AND t.revoked_at IS NULL AND t.expires_at > now()
		), touched AS (
			UPDATE service_tokens t SET last_used_at = now()
			FROM token
			WHERE t.id = token.id AND (t.last_used_at IS NULL OR t.last_used_at < now() - interval '1 minute')
		)
		SELECT hash, org_id, name, orgs, runtimes, operators FROM token`, hashes) // service_tokens_hash_key
	if err != nil {
		return err
	}
	for rows.Next() {
		var (
			hash []byte
			w    Worker
		)
		if err := rows.Scan(&hash, &w.OrgID, &w.TokenName, &w.Orgs, &w.Runtimes, &w.Operators); err != nil {
			rows.Close()
			return err
		}
		found(hash, w)
	}
	return rows.Err()
}

// CreateWorkerToken creates a worker token for several orgs, by slug. It belongs to the first of them and is audited in
// all. The pool is the owner's, because no org may act for another.
func CreateWorkerToken(ctx context.Context, owner *pgxpool.Pool, n NewToken) (secret string, t Token, err error) {
	if len(n.Orgs) == 0 {
		return "", Token{}, fault.New(fault.Invalid, "a worker token needs the orgs whose tasks it may claim")
	}
	n.Kind, n.Orgs = KindWorker, distinct(n.Orgs)
	err = pg.InTx(ctx, owner, func(ctx context.Context, tx pgx.Tx) error {
		slugs, err := OrgSlugs(ctx, tx)
		if err != nil {
			return err
		}

		ids := make([]uuid.UUID, len(n.Orgs))
		for i, slug := range n.Orgs {
			for id, s := range slugs {
				if s == slug {
					ids[i] = id
				}
			}
			if ids[i] == uuid.Nil {
				return fault.New(fault.NotFound, "there is no org %q", slug)
			}
		}

		system := Caller{OrgID: ids[0], OrgSlug: n.Orgs[0], Actor: "system"}
		if secret, t, err = insertToken(ctx, tx, system, n, ids); err != nil {
			return err
		}
		for i, id := range ids[1:] {
			system.OrgID, system.OrgSlug = id, n.Orgs[i+1]
			if err := Audit(ctx, tx, system, "token.create", n.Orgs[0]+"/token:"+t.Name,
				Change{After: t}); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return "", Token{}, err
	}
	return secret, t, nil
}

// distinct returns the names without duplicates, in their order.
func distinct(names []string) (once []string) {
	for _, name := range names {
		if !slices.Contains(once, name) {
			once = append(once, name)
		}
	}
	return once
}

// RevokeAnyToken is like RevokeToken for the server's administrator, and can revoke tokens of several orgs.
func RevokeAnyToken(ctx context.Context, owner *pgxpool.Pool, orgSlug, name string) error {
	org, err := OrgBySlug(ctx, owner, orgSlug)
	if err != nil {
		return err
	}
	return pg.InTx(ctx, owner, func(ctx context.Context, tx pgx.Tx) error {
		_, revoked, err := lockToken(ctx, tx, org.ID, name)
		if err != nil || revoked {
			return err
		}
		return revokeToken(ctx, tx, Caller{OrgID: org.ID, OrgSlug: org.Slug, Actor: "system"}, name)
	})
}
