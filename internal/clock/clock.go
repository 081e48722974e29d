// Package clock tells the time by the database's clock, which all processes share: one whose own clock is minutes off
// holds leases, fires schedules and ends pauses at the same moments as the others. It owns no tables.
//
// A process measures how far its own clock is off, and counts on from there by its monotonic clock, which nobody sets.
// Spans of time need no common clock: they are measured with package time.
package clock

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
)

// anchor is a moment at which both clocks were read.
type anchor struct{ own, shared time.Time }

var current atomic.Pointer[anchor]

// Every is how often a process looks whether its time is still the database's. Tests look more often: see skew.go.
var Every = 5 * time.Second

// own is the process's own clock. Tests set it wrong: see skew.go.
var own = time.Now

// Now returns the database's time, to within the time of a query; until the first Measure, the process's own.
func Now() time.Time { return current.Load().at(own()) }

// at returns the database's time when the process's own clock says now.
func (a *anchor) at(now time.Time) time.Time {
	if a == nil {
		return now
	}
	return a.shared.Add(now.Sub(a.own))
}

// Querier is a pool or a connection.
type Querier interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// Measure reads the database's clock. What is known stays if the reading does not contradict it: a slow answer says
// little.
func Measure(ctx context.Context, db Querier) error {
	before := own()
	var shared time.Time
	if err := db.QueryRow(ctx, `SELECT clock_timestamp()`).Scan(&shared); err != nil {
		return fmt.Errorf("read the database's clock: %w", err)
	}
	after := own()

	was := current.Load()
	if was == nil || shared.Before(was.at(before)) || shared.After(was.at(after)) {
		middle := before.Add(after.Sub(before) / 2)
		current.CompareAndSwap(was, &anchor{middle, shared.UTC()})
	}
	return nil
}
