package dispatcher

import (
	"time"

	"github.com/google/uuid"

	"github.com/dagctl/dagctl/dispatcher/metrics"
	"github.com/dagctl/dagctl/dispatcher/tasks"
)

// The counters of the way of an event.

// countEnded counts attempts by how they ended. It skips tasks that ended without running, and attempts that ended
// after their lease was lost, which were counted then.
func countEnded(m *metrics.Metrics, all []tasks.Ended) {
	for _, t := range all {
		if t.Row.Status != tasks.Running && t.Ending.Status != tasks.Completed {
			continue
		}
		org := t.Org.String()
		outcome := string(t.Ending.Status)
		switch t.Ending.Reason {
		case tasks.ReasonLeaseExpired, tasks.ReasonTimeout, tasks.ReasonHandedBack:
			outcome = string(t.Ending.Reason)
		}

		m.Attempts.WithLabelValues(org, outcome).Inc()
		if t.Ending.Reason == tasks.ReasonLeaseExpired {
			m.Expiries.WithLabelValues(org).Inc()
		}

		switch {
		case t.Ending.Status != tasks.Failed || t.Ending.Reason == tasks.ReasonHandedBack:
		case t.RetryAt != nil:
			m.Retries.WithLabelValues(org).Inc()
		default:
			m.Dead.WithLabelValues(org).Inc()
		}
	}
}

// countRouted counts routed events.
func countRouted(m *metrics.Metrics, events []Event, began time.Time) {
	m.Batch("route", began, len(events))
	by := map[uuid.UUID]int{}
	for _, e := range events {
		by[e.OrgID]++
	}
	for org, n := range by {
		m.Events.WithLabelValues(org.String()).Add(float64(n))
	}
}
