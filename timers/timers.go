// Package timers keeps scheduled events: moments at which a timer job gets a task.
//
// Vocabulary: a timer (scheduled event) has a local time and an IANA zone, which together are an instant. It fires
// once, or repeats yearly or by a cron schedule on the zone's wall clock. Each firing is an occurrence, identified by
// its local time. A group holds timers that are moved to another zone or deleted together, such as those of one user. A
// timer names its job by DAG and job name, so it survives every edit of the job.
//
// It is a slice of its own, because all it needs of the dispatcher is to create one task. It owns scheduled_events.
package timers

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/dagctl/dagctl/dispatcher"
	"github.com/dagctl/dagctl/dispatcher/sources"
	"github.com/dagctl/dagctl/dispatcher/workitems"
	"github.com/dagctl/dagctl/internal/clock"
)

// Config has the settings of Timers.
type Config struct {
	Pool       *pgxpool.Pool // the owner's, for the timers of all orgs that are due
	Requests   *pgxpool.Pool // under row-level security
	Dispatcher *dispatcher.Dispatcher
	Sources    *sources.Sources
	Log        *slog.Logger
}

// Timers keeps timers and delivers due ones. Any number of processes may do so on one database.
type Timers struct {
	Config
	items *workitems.Runner
}

// New returns Timers. It returns an error if the config is not complete.
func New(c Config) (*Timers, error) {
	if c.Pool == nil || c.Requests == nil || c.Dispatcher == nil || c.Sources == nil {
		return nil, errors.New("timers: both pools and a dispatcher are needed")
	}
	if c.Log == nil {
		c.Log = slog.Default()
	}
	t := &Timers{Config: c}
	t.items = workitems.New(c.Pool, c.Log, t.settling())
	c.Dispatcher.Timers = t
	return t, nil
}

// Timer is a scheduled event as people see it. The names are those of its columns.
type Timer struct {
	ID             uuid.UUID       `json:"id" format:"uuid"`
	DAG            string          `json:"dag"`
	Job            string          `json:"job"`
	EventType      string          `json:"event_type"`
	Group          string          `json:"group,omitempty"`
	Status         string          `json:"status" enum:"PENDING,PROCESSING,COMPLETED,FAILED" doc:"PROCESSING: its task runs"`
	UTC            time.Time       `json:"target_timestamp_utc" doc:"When it fires next"`
	Local          string          `json:"target_timestamp_local" doc:"The same, in target_timezone"`
	Timezone       string          `json:"target_timezone" example:"Europe/Berlin"`
	Repeat         string          `json:"repeat" enum:"none,yearly,cron" example:"cron"`
	Schedule       string          `json:"schedule,omitempty" doc:"For repeat cron"`
	ExecutedAt     *time.Time      `json:"executed_at,omitempty" doc:"When it fired last"`
	Task           *TimerTask      `json:"task,omitempty" doc:"Of the last occurrence, as long as it is kept"`
	FailureReason  string          `json:"failure_reason,omitempty"`
	RetryCount     int             `json:"retry_count"`
	Version        int             `json:"version" doc:"Grows with every change; the ETag"`
	IdempotencyKey string          `json:"idempotency_key"`
	Payload        json.RawMessage `json:"delivery_payload,omitempty" doc:"The payload of its tasks; for writers"`
	CreatedBy      string          `json:"created_by,omitempty" doc:"The principal, or task:ID, that asked for it"`
	CreatedAt      time.Time       `json:"created_at"`
	UpdatedAt      time.Time       `json:"updated_at"`

	anchor time.Time // the requested local time, on which yearly repetitions are based
	local  time.Time // as Local
	task   *uuid.UUID
}

// TimerTask is the task of an occurrence.
type TimerTask struct {
	ID     uuid.UUID `json:"id" format:"uuid"`
	Status string    `json:"status" enum:"Queued,Running,Completed,Failed,Canceled"`
	Error  string    `json:"error,omitempty" doc:"For writers"`
}

// How a timer repeats.
const (
	never  = "none"
	yearly = "yearly"
	byCron = "cron"
)

// Run delivers what is due, and settles what has been delivered, until ctx ends.
func (t *Timers) Run(ctx context.Context) error {
	defer t.items.End()
	for {
		for more := true; more; {
			var err error
			if more, err = t.deliverDue(ctx, clock.Now()); err != nil && ctx.Err() == nil {
				t.Log.Error("timers could not be delivered, will try again", "error", err)
			}
		}
		if _, err := t.items.Start(ctx, clock.Now()); err != nil && ctx.Err() == nil {
			t.Log.Error("timers could not be settled, will try again", "error", err)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-t.Dispatcher.Wakeups.Timers: // the clock was set
		case <-time.After(time.Duration((0.8 + 0.4*rand.Float64()) * float64(time.Second))):
		}
	}
}

func etagOf(version int) string { return fmt.Sprint(version) }
