package pg

import (
	"context"
	"net/http"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/dagctl/dagctl/internal/shares"
)

// Turns are the turns of orgs at the connections of a pool. Without them connections go to who asks first, so that one
// org with many requests at once keeps the others waiting. An org may have at most half of the connections, and what
// becomes free goes to the org that has the fewest.
type Turns struct{ slots *shares.Slots }

// NewTurns returns the turns at a pool.
func NewTurns(pool *pgxpool.Pool) *Turns {
	all := int(pool.Config().MaxConns)
	return &Turns{shares.New(all, func(string) int { return max(1, all/2) })}
}

// turn is what a context says of turns: where to take one, or that it has one.
type turn struct {
	turns *Turns
	taken bool
}

type turnKey struct{}

// Handler has transactions for an org that belong to a request of h wait for their turns. A transaction within another
// of the same request is part of that one's turn.
func (t *Turns) Handler(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), turnKey{}, turn{turns: t})))
	})
}

// takeTurn waits for the org's turn, if the context has any and has not taken one. It returns the context of what is
// part of it, and what ends it.
func takeTurn(ctx context.Context, orgID uuid.UUID) (context.Context, func(), error) {
	t, ok := ctx.Value(turnKey{}).(turn)
	if !ok || t.taken {
		return ctx, func() {}, nil
	}
	org := orgID.String()
	if err := t.turns.slots.Take(ctx, org, func() {}); err != nil {
		return ctx, nil, err
	}
	within := context.WithValue(ctx, turnKey{}, turn{taken: true})
	return within, func() { t.turns.slots.Release(org) }, nil
}

var turnsDesc = prometheus.NewDesc("dagctl_db_turns",
	"Transactions of requests: those that have a connection, and those that wait until it is their org's turn.",
	[]string{"state"}, nil)

// Describe implements prometheus.Collector.
func (t *Turns) Describe(out chan<- *prometheus.Desc) { out <- turnsDesc }

// Collect implements prometheus.Collector.
func (t *Turns) Collect(out chan<- prometheus.Metric) {
	taken, waiting := t.slots.Counts()
	out <- prometheus.MustNewConstMetric(turnsDesc, prometheus.GaugeValue, float64(taken), "taken")
	out <- prometheus.MustNewConstMetric(turnsDesc, prometheus.GaugeValue, float64(waiting), "waiting")
}
