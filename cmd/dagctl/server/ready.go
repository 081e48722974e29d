package server

import (
	"cmp"
	"context"
	"encoding/json"
	"net/http"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/internal/plural"
	"github.com/dagctl/dagctl/internal/rest"
	"github.com/dagctl/dagctl/migrations"
)

// notReady returns the reason why the server cannot serve requests, or an empty text if it can.
func notReady(ctx context.Context, pool *pgxpool.Pool, requestsURL string) string {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	pending, err := migrations.Pending(ctx, pool)
	switch {
	case err != nil:
		return reasonOf(err)
	case len(pending) > 0:
		lacks := plural.Of(len(pending), "migration")
		return "the database lacks " + lacks + "; run `dagctl migrate`, or start with --migrate"
	}

	var readOnly bool
	err = pool.QueryRow(ctx, `SELECT pg_is_in_recovery() OR current_setting('transaction_read_only')::bool`).
		Scan(&readOnly)
	switch {
	case err != nil:
		return reasonOf(err)
	case readOnly:
		return "the database can only be read: it is a standby, or an operator has made it read-only"
	}

	lacks, err := migrations.Lacks(ctx, pool, requestsURL)
	switch {
	case err != nil:
		return reasonOf(err)
	case len(lacks) > 0:
		return migrations.Describe(lacks) + "; run `dagctl migrate`, or start with --migrate"
	}
	return ""
}

// healthy is the answer of a server that is alive, or ready.
type healthy struct {
	Status   string   `json:"status"`
	Warnings []string `json:"warnings,omitempty"`
}

// healthz answers that the process is alive.
func healthz(w http.ResponseWriter, _ *http.Request) { writeHealth(w, nil) }

func writeHealth(w http.ResponseWriter, warnings []string) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(healthy{"ok", warnings}) // nobody is there any more if it fails
}

// readyz answers whether the server can serve requests now, and if not, why.
func (a *App) readyz(w http.ResponseWriter, r *http.Request, requestsURL string) {
	reason := cmp.Or(a.outages.Reason(), notReady(r.Context(), a.pool, requestsURL), a.refusedLogin(r.Context()),
		a.health.Reason())
	if reason != "" {
		rest.WriteProblem(w, r, &rest.Problem{
			Status: http.StatusServiceUnavailable, Detail: "not ready: " + reason,
		})
		return
	}
	writeHealth(w, a.keys.warnings())
}

// refusedLogin returns why requests cannot log in, or an empty text: their password may have changed since the start. A
// pool that is merely busy is none of its business.
func (a *App) refusedLogin(ctx context.Context) string {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	if err := a.requests.Ping(ctx); pg.RefusesLogin(err) {
		return "requests cannot log in as " + a.requests.Config().ConnConfig.User +
			"; run `dagctl migrate`, or restart the server with the password that holds now"
	}
	return ""
}
