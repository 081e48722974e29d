package alertroute

import (
	"encoding/json"
	"slices"
	"strings"
	"time"

	"github.com/dagctl/dagctl/operators/alerts"
)

// mark is what a receiver was told of an alert last. Its position is the time of the newest row that was seen since.
type mark struct {
	Status alerts.Status `json:"status"`
	SentAt time.Time     `json:"sent_at"` // the time of the data that was told
	Sent   int           `json:"sent"`    // how often something was told of the alert
	Seen   time.Time     `json:"seen"`
	// Since when the alert that was told holds, or held
	StartedAt time.Time `json:"started_at,omitzero"`
}

// another reports whether a row is of another alert than the one that was told: it began later. One that began earlier
// is the same, of which older data has come.
func (m mark) another(a alerts.Alert) bool {
	since := m.StartedAt
	if since.IsZero() { // an older server noted none
		since = m.Seen
	}
	return a.StartedAt.After(since)
}

// decide returns whether a receiver is to be told of a row, and the mark after that. It is told that an alert fires if
// it was not told of this one, or long enough ago (repeat; 0: never again), and that it is resolved if it was told that
// it fires. A row that is older than another one that was seen tells nothing, and neither does one that is late. Of two
// rows of the same time, the second is of a newer revision of the data, and counts.
func decide(known *mark, a alerts.Alert, repeat time.Duration) (send bool, next mark) {
	if known == nil {
		switch {
		case a.Late:
			return false, mark{}
		case a.Status == alerts.Resolved: // so that what is older tells nothing
			return false, mark{Status: alerts.Resolved, Seen: a.EvaluatedAt, StartedAt: a.StartedAt}
		}
		return true, mark{alerts.Firing, a.EvaluatedAt, 1, a.EvaluatedAt, a.StartedAt}
	}

	next = *known
	if a.Late || a.EvaluatedAt.Before(known.Seen) {
		return false, next
	}
	switch again := repeat > 0 && a.EvaluatedAt.Sub(known.SentAt) >= repeat; {
	case a.Status == alerts.Firing && (known.Status == alerts.Resolved || known.another(a) || again),
		a.Status == alerts.Resolved && known.Status == alerts.Firing:
		return true, mark{a.Status, a.EvaluatedAt, known.Sent + 1, a.EvaluatedAt, a.StartedAt}
	}
	next.Seen = a.EvaluatedAt
	return false, next
}

// stop is where an alert goes to: a receiver, in a group, by a route.
type stop struct {
	receiver string
	group    map[string]string
	repeat   time.Duration
}

// stops returns where an alert goes to, each receiver once, by the first route that leads there. An alert that fires
// and is muted goes nowhere; what has ended is told to those who know that it fired.
func (c config) stops(a alerts.Alert) (all []stop, muted bool) {
	if a.Status == alerts.Firing && slices.ContainsFunc(c.Mute, func(m mute) bool {
		return m.matches(a) && a.EvaluatedAt.Before(m.until)
	}) {
		return nil, true
	}
	for _, r := range c.Routes {
		if !r.matches(a) {
			continue
		}
		group := map[string]string{}
		for _, label := range r.GroupBy {
			group[label] = a.Labels[label]
		}
		for _, name := range r.To {
			if !slices.ContainsFunc(all, func(s stop) bool { return s.receiver == name }) {
				all = append(all, stop{name, group, r.repeat})
			}
		}
		if !r.Continue {
			break
		}
	}
	return all, false
}

// markKey is the key of what a receiver was told of an alert.
func markKey(receiver string, a alerts.Alert) string { return textOf("alert", receiver, a.Name, a.Key) }

// textOf returns values as the text of a JSON list.
func textOf(values ...any) string {
	text, _ := json.Marshal(values) // texts, numbers and lists of them always are JSON
	return string(text)
}

// due is an alert that a receiver is to be told of.
type due struct {
	alerts.Alert
	next mark
}

// batch is what one message has.
type batch struct {
	receiver string
	group    map[string]string
	alerts   []due
}

// mostAlerts is how many alerts one message may have.
const mostAlerts = 100

// plan is what a task has to do.
type plan struct {
	batches  []batch
	seen     map[string]mark // what was only seen, by its key
	muted    int
	unrouted int
}

// planOf decides what receivers are told, given what they were told before.
func (c config) planOf(rows []alerts.Alert, known map[string]mark) plan {
	p := plan{seen: map[string]mark{}}
	groups := map[string]*batch{}
	var order []string
	for _, a := range rows {
		stops, muted := c.stops(a)
		switch {
		case muted:
			p.muted++
		case len(stops) == 0:
			p.unrouted++
		}
		for _, s := range stops {
			key := markKey(s.receiver, a)
			var before *mark
			if m, ok := known[key]; ok {
				before = &m
			}
			send, next := decide(before, a, s.repeat)
			if !send {
				if before == nil && !a.Late || before != nil && !next.Seen.Equal(before.Seen) {
					p.seen[key] = next
				}
				continue
			}
			of := textOf(s.receiver, s.group)
			if groups[of] == nil {
				groups[of] = &batch{receiver: s.receiver, group: s.group}
				order = append(order, of)
			}
			groups[of].alerts = append(groups[of].alerts, due{a, next})
		}
	}

	slices.Sort(order)
	for _, of := range order {
		for some := range slices.Chunk(groups[of].alerts, mostAlerts) {
			p.batches = append(p.batches, batch{groups[of].receiver, groups[of].group, some})
		}
	}
	return p
}

// key identifies the message: it tells a receiver of these alerts, each for the so-manieth time. Two tasks that decide
// the same have the same key, so that one of them sends it.
func (b batch) key() string {
	told := make([][]any, len(b.alerts))
	for i, a := range b.alerts {
		told[i] = []any{a.Name, a.Key, a.Status, a.next.Sent}
	}
	return textOf("alerts", b.receiver, b.group, told)
}

// body is what a receiver gets.
type body struct {
	ID        string    `json:"id"`        // the same at each try; also sent as Idempotency-Key
	Type      string    `json:"type"`      // alerts
	Timestamp time.Time `json:"timestamp"` // the latest time of the data
	Data      bodyData  `json:"data"`
}

type bodyData struct {
	Org      string            `json:"org"`
	DAG      string            `json:"dag"`
	Job      string            `json:"job"`
	Receiver string            `json:"receiver"`
	Status   alerts.Status     `json:"status"`   // firing, if one of the alerts is
	Severity string            `json:"severity"` // the highest of those that fire, or of all if none does
	Group    map[string]string `json:"group"`
	Title    string            `json:"title"`
	Alerts   []alerts.Alert    `json:"alerts"`
}

// bodyOf returns the body of a message.
func (b batch) bodyOf(id, org, dag, job string) body {
	m := body{ID: id, Type: "alerts", Data: bodyData{Org: org, DAG: dag, Job: job, Receiver: b.receiver,
		Status: alerts.Resolved, Severity: alerts.Severities[0], Group: b.group}}

	var titles []string
	for _, a := range b.alerts {
		if a.EvaluatedAt.After(m.Timestamp) {
			m.Timestamp = a.EvaluatedAt
		}
		first := a.Status == alerts.Firing && m.Data.Status != alerts.Firing // what has ended counts no more
		if first {
			m.Data.Status = alerts.Firing
		}
		if first || a.Status == m.Data.Status && alerts.AtLeast(a.Severity, m.Data.Severity) {
			m.Data.Severity = a.Severity
		}
		if title := string(a.Status) + ": " + a.Name; !slices.Contains(titles, title) {
			titles = append(titles, title)
		}
		m.Data.Alerts = append(m.Data.Alerts, a.Alert)
	}
	m.Data.Title = strings.Join(titles, ", ")
	return m
}
