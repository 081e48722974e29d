package authz

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/pg"
)

// What a caller was refused with 403 is in the audit log. A refusal is counted in memory and written later, so that it
// costs its request nothing, and a flood of them leaves one entry a minute for each caller and route. An entry names
// the route and not what the request was about, which the caller may not even know to exist. A 404 is no refusal: it
// says the same of what is missing and of what is hidden.

const (
	// quietFor is how long after an entry there is no other one of the same caller and route.
	quietFor = time.Minute
	// writeRefusalsEvery is how often refusals are written.
	writeRefusalsEvery = time.Second
	// mostRefusals is how many callers and routes are counted apart at once. What else is refused meanwhile is counted
	// for the org as a whole.
	mostRefusals = 400
	// mostOrgsRefused is how many orgs are counted as a whole at once.
	mostOrgsRefused = 400
)

// Refusals writes what callers of a server were refused to the audit log. A nil Refusals writes nothing.
type Refusals struct {
	requests *pgxpool.Pool
	log      *slog.Logger

	mu      sync.Mutex
	counted map[refusalKey]*refused
	orgs    int   // of counted: those as a whole
	lost    int64 // in orgs beyond mostOrgsRefused
	writing sync.Mutex
}

// refusalKey is what has one entry a minute.
type refusalKey struct {
	org          uuid.UUID
	actor, route string
}

// refused is what a key was refused since its last entry, as its first request was.
type refused struct {
	caller  Caller
	detail  refusalDetail
	written time.Time // the last entry; zero: none
}

// refusalDetail is the detail of an entry.
type refusalDetail struct {
	Action Action    `json:"action,omitempty"` // what the caller wanted to do
	Need   Role      `json:"need,omitempty"`   // the role that it takes, where the caller lacked that
	Count  int64     `json:"count"`            // how many refusals the entry stands for
	Since  time.Time `json:"since"`            // the first of them
}

// The key of an org's refusals that are not counted apart.
const (
	manyActors = "system"
	manyRoutes = "many routes"
)

// NewRefusals returns an empty Refusals.
func NewRefusals(requests *pgxpool.Pool, log *slog.Logger) *Refusals {
	return &Refusals{requests: requests, log: log, counted: map[refusalKey]*refused{}}
}

// note counts an error with which a route answered a caller, if it is a refusal.
func (r *Refusals) note(caller Caller, route Route, err error, now time.Time) {
	if r == nil || caller.OrgID == uuid.Nil || !fault.Is(err, fault.Forbidden) {
		return
	}
	detail := refusalDetail{Action: route.Rule.action, Since: now.UTC()}
	if lack := (*lacksRole)(nil); errors.As(err, &lack) {
		detail.Action, detail.Need = lack.action, leastRoles[lack.action]
	}

	r.mu.Lock()
	defer r.mu.Unlock()
	key := refusalKey{caller.OrgID, caller.Actor, route.Method + " " + route.Path}
	if r.counted[key] == nil && len(r.counted)-r.orgs >= mostRefusals {
		key = refusalKey{caller.OrgID, manyActors, manyRoutes}
		caller, detail = Caller{OrgID: caller.OrgID, Actor: manyActors}, refusalDetail{Since: detail.Since}
	}

	n := r.counted[key]
	switch {
	case n == nil && key.route == manyRoutes && r.orgs == mostOrgsRefused:
		r.lost++
		return
	case n == nil:
		n = &refused{}
		r.counted[key] = n
		if key.route == manyRoutes {
			r.orgs++
		}
	}
	if n.detail.Count == 0 {
		n.caller, n.detail = caller, detail
	}
	n.detail.Count++
}

// Run writes refusals until ctx ends. What is left then is Flush's.
func (r *Refusals) Run(ctx context.Context) error {
	tick := time.NewTicker(writeRefusalsEvery)
	defer tick.Stop()
	for failing := false; ; {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}

		err := r.Write(ctx, time.Now())
		if err != nil && !failing && ctx.Err() == nil {
			r.log.Warn("refused requests could not be audited, will try again", "error", err)
		}
		failing = err != nil
	}
}

// Flush writes all that is left, for the end of a server.
func (r *Refusals) Flush(ctx context.Context) {
	if r == nil {
		return
	}
	if err := r.Write(ctx, time.Now().Add(quietFor)); err != nil {
		r.mu.Lock()
		defer r.mu.Unlock()
		left := r.lost
		for _, n := range r.counted {
			left += n.detail.Count
		}
		r.log.Error("refused requests are not in the audit log", "requests", left, "error", err)
	}
}

// Write writes the refusals of callers and routes that had no entry for a minute, and forgets those that had none of
// either.
func (r *Refusals) Write(ctx context.Context, now time.Time) error {
	r.writing.Lock()
	defer r.writing.Unlock()
	due, lost := r.take(now)
	if lost > 0 {
		r.log.Warn("requests were refused in more orgs than are counted", "requests", lost)
	}

	var failed error
	for org, all := range due {
		err := pg.InOrgTx(ctx, r.requests, org, func(ctx context.Context, tx pgx.Tx) error {
			for key, n := range all {
				if err := audit(ctx, tx, n.caller, Refused, auditRefusal, key.route, n.detail); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			failed = fmt.Errorf("audit refused requests: %w", err)
			r.putBack(all)
		}
	}
	return failed
}

// take returns what is due, by org, and the number of refusals that were not counted.
func (r *Refusals) take(now time.Time) (due map[uuid.UUID]map[refusalKey]refused, lost int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	due = map[uuid.UUID]map[refusalKey]refused{}

	for key, n := range r.counted {
		switch {
		case now.Sub(n.written) < quietFor:
		case n.detail.Count == 0:
			delete(r.counted, key)
			if key.route == manyRoutes {
				r.orgs--
			}
		default:
			if due[key.org] == nil {
				due[key.org] = map[refusalKey]refused{}
			}
			due[key.org][key] = *n
			n.detail.Count, n.written = 0, now
		}
	}

	lost, r.lost = r.lost, 0
	return due, lost
}

// putBack counts again what could not be written.
func (r *Refusals) putBack(all map[refusalKey]refused) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for key, n := range all {
		n.detail.Count += r.counted[key].detail.Count // a key stays for a minute after it was taken
		r.counted[key] = &n
	}
}
