package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/dagctl/dagctl/dispatcher/upkeep"
	"github.com/dagctl/dagctl/internal/pg"
)

// outages knows whether the database works, by the errors that are logged: dozens of loops meet the same outage several
// times a second. It is said once when it begins and once when it is over, and the errors in between are counted.
type outages struct {
	log  *slog.Logger // says where an outage begins and ends
	pool *pgxpool.Pool

	mu     sync.Mutex
	reason string // empty: the database works
	began  time.Time
	last   time.Time // when the newest error was met
	errors int       // since it began
	ended  time.Time // when the last one was over
}

// The reasons of a database that cannot be used.
const (
	awayReason    = "the database does not answer"
	refusesReason = "the database refuses the login of this server: its password or its role has changed"
)

// reasonOf returns the reason for which a database gave an error, where all that is known is that it gave one.
func reasonOf(err error) string {
	if pg.RefusesLogin(err) {
		return refusesReason
	}
	return awayReason
}

const (
	// outagePing is how long a ping may take that tells an outage of the database from others'.
	outagePing = time.Second
	// outageLook is how often somebody looks whether an outage is over.
	outageLook = time.Second
	// frozenAfter is how long a database may take to answer before it counts as one that does not.
	frozenAfter = 5 * time.Second
	// refusedFor is how long after the last refusal a database counts as one that stores again.
	refusedFor = 15 * time.Second
	// trailing is how long after an outage a library may still tell of it.
	trailing = 15 * time.Second
)

// logger returns a logger that leaves out what an outage explains.
func (o *outages) logger() *slog.Logger { return slog.New(quieted{o.log.Handler(), o, false}) }

// Reason returns why the database cannot be used, or an empty text if it can.
func (o *outages) Reason() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.reason
}

// explains reports whether an outage of the database, which may have begun just now, explains an error.
func (o *outages) explains(ctx context.Context, err error) bool {
	reason := pg.Refusing(err)
	if reason == "" && timedOut(err) && o.Reason() == awayReason {
		reason = awayReason // a database that is frozen breaks no connection: what waits for it runs out of time
	}
	if reason == "" {
		if o.pool == nil || !pg.Away(err) && !pg.RefusesLogin(err) {
			return false // somebody else may be away
		}
		if reason = o.away(ctx); reason == "" {
			return false
		}
	}
	o.note(reason, err)
	return true
}

// explainsText is explains for a library that tells errors of the database as text alone.
func (o *outages) explainsText(ctx context.Context, text string) bool {
	o.mu.Lock()
	over := time.Since(o.ended) < trailing
	o.mu.Unlock()
	if over {
		return true
	}
	if o.pool == nil {
		return false
	}
	reason := o.away(ctx)
	if reason != "" {
		o.note(reason, errors.New(text))
	}
	return reason != ""
}

// note counts an error that an outage explains, and says so if that is new.
func (o *outages) note(reason string, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	now := time.Now()
	if o.reason != reason {
		o.reason, o.began, o.errors = reason, now, 0
		o.log.Error("the database cannot be used", "reason", reason, "error", err)
	}
	o.last = now
	o.errors++
}

// away returns why the database is known not to be usable, or is not usable now; empty: it answers.
func (o *outages) away(ctx context.Context) string {
	if known := o.Reason(); known != "" {
		return known
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), outagePing)
	defer cancel()
	if err := o.pool.Ping(ctx); pg.Away(err) || pg.RefusesLogin(err) {
		return reasonOf(err)
	}
	return ""
}

// watch looks for the end of outages until ctx ends, and for a database that is frozen: no error tells of it, since
// what asks it just waits.
func (o *outages) watch(ctx context.Context) error {
	return each(ctx, outageLook, func() {
		if o.Reason() != "" {
			o.look(ctx)
			return
		}
		if err := o.frozen(ctx); err != nil && ctx.Err() == nil {
			o.note(awayReason, err)
		}
	})
}

// frozen returns an error if the database does not answer in time, although connections to it are not broken. A pool
// all of whose connections are busy is no sign of that: then a connection of its own has to be answered.
func (o *outages) frozen(ctx context.Context) error {
	within, cancel := context.WithTimeout(ctx, frozenAfter)
	defer cancel()
	conn, err := o.pool.Acquire(within)
	if err == nil {
		defer conn.Release()
		err = conn.Ping(within)
	} else if used := o.pool.Stat(); timedOut(err) && used.AcquiredConns() == used.MaxConns() {
		err = pingApart(ctx, o.pool.Config().ConnConfig)
	}
	if !timedOut(err) {
		return nil // it answers, or the error is one that is told where it is met
	}
	return fmt.Errorf("it has not answered for %s: %w", frozenAfter, err)
}

// pingApart asks a database over a connection of its own.
func pingApart(ctx context.Context, config *pgx.ConnConfig) error {
	ctx, cancel := context.WithTimeout(ctx, frozenAfter)
	defer cancel()
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return err
	}
	defer conn.Close(ctx) //nolint:errcheck // it was only there to ask
	return conn.Ping(ctx)
}

// timedOut reports whether a database took too long for an error.
func timedOut(err error) bool { return pgconn.Timeout(err) || errors.Is(err, context.DeadlineExceeded) }

// look ends an outage that is over: the database answers, and has refused nothing for a while.
func (o *outages) look(ctx context.Context) {
	if o.Reason() == "" {
		return
	}
	ping, cancel := context.WithTimeout(ctx, outagePing)
	defer cancel()
	if o.pool.Ping(ping) != nil {
		return
	}

	o.mu.Lock()
	defer o.mu.Unlock()
	now := time.Now()
	if o.reason != awayReason && o.reason != refusesReason && now.Sub(o.last) < refusedFor {
		return
	}
	o.log.Info("the database works again", "after", now.Sub(o.began).Round(time.Second).String(), "errors", o.errors)
	o.reason, o.ended = "", now
}

// quieted is a handler of log records that leaves out those whose error an outage explains.
type quieted struct {
	slog.Handler
	outages *outages
	river   bool // the records are River's, which are all about the database, and have errors as text
}

// Handle implements slog.Handler.
func (q quieted) Handle(ctx context.Context, r slog.Record) error {
	var failed error
	r.Attrs(func(a slog.Attr) bool {
		if err, ok := a.Value.Any().(error); ok && (a.Key == "error" || q.river) {
			failed = err
		}
		return failed == nil
	})
	if failed != nil && q.outages.explains(ctx, failed) {
		return nil
	}
	if q.river && r.Level >= slog.LevelWarn && q.outages.explainsText(ctx, r.Message) {
		return nil
	}
	return q.Handler.Handle(ctx, r)
}

// WithAttrs implements slog.Handler.
func (q quieted) WithAttrs(attrs []slog.Attr) slog.Handler {
	river := q.river || slices.ContainsFunc(attrs, func(a slog.Attr) bool { return a.Equal(upkeep.OfRiver) })
	return quieted{q.Handler.WithAttrs(attrs), q.outages, river}
}

// WithGroup implements slog.Handler.
func (q quieted) WithGroup(name string) slog.Handler {
	return quieted{q.Handler.WithGroup(name), q.outages, q.river}
}
