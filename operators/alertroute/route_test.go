package alertroute

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/operators/alerts"
)

var begin = time.Date(2026, 1, 31, 0, 0, 0, 0, time.UTC)

func hour(n int) time.Time { return begin.Add(time.Duration(n) * time.Hour) }

// alert returns an alert of a key at an hour, of the team that the key begins with.
func alert(key string, status alerts.Status, at int, severity ...string) alerts.Alert {
	a := alerts.Alert{Name: "disk", Key: key, Severity: "error", Status: status, StartedAt: begin,
		EvaluatedAt: hour(at), Labels: map[string]string{"team": key[:1]}}
	if len(severity) > 0 {
		a.Severity = severity[0]
	}
	return a
}

func parsed(t testing.TB, text string) config {
	var given map[string]any
	require.NoError(t, json.Unmarshal([]byte(text), &given))
	c, wrong := parse(given)
	require.Nil(t, wrong)
	return c
}

const receivers = `"receivers": {"one": {"url": "https://a.example"}, "two": {"url": "https://b.example"}}`

// told does what a task does with its rows, when all receivers answer: it returns the messages, and keeps the marks.
func told(c config, known map[string]mark, rows ...alerts.Alert) (messages []string) {
	p := c.planOf(rows, known)
	for _, b := range p.batches {
		text := b.receiver + ":"
		for _, a := range b.alerts {
			text += fmt.Sprintf(" %s %s", a.Key, a.Status)
			known[markKey(b.receiver, a.Alert)] = a.next
		}
		messages = append(messages, text)
	}
	for key, m := range p.seen {
		known[key] = m
	}
	return messages
}

func TestAnAlertIsToldOnceInAWhile(t *testing.T) {
	t.Parallel()
	c := parsed(t, `{`+receivers+`, "routes": [{"to": ["one"], "repeat_every": "4h"}]}`)
	known := map[string]mark{}
	require.Empty(t, told(c, known, alert("a", alerts.Resolved, 0)), "nobody has heard that it fires")
	require.Equal(t, []string{"one: a firing"}, told(c, known, alert("a", alerts.Firing, 1)))
	require.Empty(t, told(c, known, alert("a", alerts.Firing, 1)))
	require.Empty(t, told(c, known, alert("a", alerts.Firing, 4)))
	require.Empty(t, told(c, known, alert("a", alerts.Resolved, 3)), "older than what was seen")
	require.Equal(t, []string{"one: a firing"}, told(c, known, alert("a", alerts.Firing, 5)))
	late := alert("a", alerts.Resolved, 9)
	late.Late = true
	require.Empty(t, told(c, known, late))
	require.Equal(t, []string{"one: a resolved"}, told(c, known, alert("a", alerts.Resolved, 6)))
	require.Empty(t, told(c, known, alert("a", alerts.Resolved, 6)))
	require.Equal(t, []string{"one: a firing"}, told(c, known, alert("a", alerts.Firing, 6)),
		"newer data of the same time says that it is not over")
	require.Empty(t, told(c, known, alert("a", alerts.Firing, 6)), "a repetition")
	require.Equal(t, []string{"one: a resolved"}, told(c, known, alert("a", alerts.Resolved, 6)))
	require.Empty(t, told(c, known, alert("a", alerts.Firing, 2)))
	require.Equal(t, []string{"one: a firing"}, told(c, known, alert("a", alerts.Firing, 7)))
	require.Equal(t, 6, known[markKey("one", alert("a", alerts.Firing, 0))].Sent)

	never := parsed(t, `{`+receivers+`, "routes": [{"to": ["one"], "repeat_every": "never"}]}`)
	require.Empty(t, told(never, known, alert("a", alerts.Firing, 7000)))
}

// An alert that began later than the one that was told is another one, though nobody was told of the end of that.
func TestAnotherAlertIsTold(t *testing.T) {
	t.Parallel()
	c := parsed(t, `{`+receivers+`, "routes": [{"to": ["one"], "repeat_every": "never"}]}`)
	since := func(start, at int) alerts.Alert {
		a := alert("a", alerts.Firing, at)
		a.StartedAt = hour(start)
		return a
	}
	known := map[string]mark{}
	require.Equal(t, []string{"one: a firing"}, told(c, known, since(2, 3)))
	require.Empty(t, told(c, known, since(1, 4)), "older data has come: it is the same")
	require.Empty(t, told(c, known, since(2, 5)))
	require.Equal(t, []string{"one: a firing"}, told(c, known, since(7, 8)))
	require.Empty(t, told(c, known, since(7, 9)))
	require.Empty(t, told(c, known, since(9, 8)), "older than what was seen")

	before := map[string]mark{}
	for key, m := range known {
		m.StartedAt = time.Time{}
		before[key] = m
	}
	require.Empty(t, told(c, before, since(7, 10)), "an older server noted no start")
	require.Equal(t, []string{"one: a firing"}, told(c, before, since(11, 11)))
}

func TestRoutes(t *testing.T) {
	t.Parallel()
	c := parsed(t, `{`+receivers+`, "routes": [
		{"to": ["one"], "severity": "critical", "continue": true},
		{"to": ["two", "one"], "match": {"team": ["b*", "?"]}, "alerts": ["d*k"], "group_by": ["team"]},
		{"to": ["two"]}],
		"mute": [{"match": {"team": "m"}, "until": "2026-01-31T02:00:00Z"}]}`)
	require.Equal(t, []string{"one: a firing, c firing"}, joined(told(c, map[string]mark{},
		alert("a", alerts.Firing, 0, "critical"), alert("c", alerts.Firing, 0, "critical"))[:1]))
	known := map[string]mark{}
	require.Equal(t, []string{"one: a firing", "one: b firing", "two: a firing", "two: b firing"},
		told(c, known, alert("a", alerts.Firing, 0), alert("b", alerts.Firing, 0)), "a message for each team")

	other := alert("a", alerts.Firing, 0)
	other.Name, other.Labels = "cpu", nil
	require.Equal(t, []string{"two: a firing"}, told(c, known, other))

	require.Empty(t, told(c, known, alert("m", alerts.Firing, 1)), "it is muted")
	require.Len(t, told(c, known, alert("m", alerts.Firing, 2)), 2, "up to that time")
	require.Len(t, told(c, known, alert("m", alerts.Resolved, 3)), 2)
	known = map[string]mark{}
	require.Len(t, told(c, known, alert("m", alerts.Firing, 3)), 2)
	require.Len(t, told(c, known, alert("m", alerts.Resolved, 4)), 2)

	none := parsed(t, `{`+receivers+`, "routes": [{"to": ["one"], "severity": "critical"}]}`)
	require.Equal(t, 1, none.planOf([]alerts.Alert{alert("a", alerts.Firing, 0)}, nil).unrouted)
}

func joined(messages []string) (all []string) {
	for _, m := range messages {
		all = append(all, strings.Replace(m, "firing c", "firing, c", 1))
	}
	return all
}

// A message has a bounded number of alerts, and its key is that of what it tells.
func TestMessages(t *testing.T) {
	t.Parallel()
	c := parsed(t, `{`+receivers+`, "routes": [{"to": ["one"]}]}`)
	var rows []alerts.Alert
	for n := range 2*mostAlerts + 1 {
		rows = append(rows, alert(fmt.Sprintf("a%03d", n), alerts.Firing, 0))
	}
	p := c.planOf(rows, nil)
	require.Len(t, p.batches, 3)
	require.NotEqual(t, p.batches[0].key(), p.batches[1].key())
	for i := range rows {
		rows[i].EvaluatedAt = hour(1)
	}
	require.Equal(t, p.batches[0].key(), c.planOf(rows, nil).batches[0].key(), "another task that decides the same")

	text, err := json.Marshal(c.planOf([]alerts.Alert{alert("a", alerts.Firing, 0, "info"),
		alert("b", alerts.Firing, 2, "critical")}, nil).batches[0].bodyOf("id", "acme", "d", "j"))
	require.NoError(t, err)
	require.JSONEq(t, `{"id": "id", "type": "alerts", "timestamp": "2026-01-31T02:00:00Z", "data": {"org": "acme",
		"dag": "d", "job": "j", "receiver": "one", "status": "firing", "severity": "critical", "group": {},
		"title": "firing: disk", "alerts": [
		{"alert": "disk", "key": "a", "severity": "info", "status": "firing", "started_at": "2026-01-31T00:00:00Z",
			"evaluated_at": "2026-01-31T00:00:00Z", "value": null, "labels": {"team": "a"}, "summary": ""},
		{"alert": "disk", "key": "b", "severity": "critical", "status": "firing", "started_at": "2026-01-31T00:00:00Z",
			"evaluated_at": "2026-01-31T02:00:00Z", "value": null, "labels": {"team": "b"}, "summary": ""}]}}`,
		string(text))
}

// The severity of a message is that of what fires, and of what is over only if nothing fires.
func TestTheSeverityOfAMessage(t *testing.T) {
	t.Parallel()
	of := func(rows ...alerts.Alert) string {
		b := batch{receiver: "one"}
		for _, a := range rows {
			b.alerts = append(b.alerts, due{Alert: a})
		}
		m := b.bodyOf("id", "acme", "d", "j").Data
		return string(m.Status) + " " + m.Severity
	}
	over, minor := alert("a", alerts.Resolved, 1, "critical"), alert("b", alerts.Resolved, 1, "info")
	warning, info := alert("c", alerts.Firing, 1, "warning"), alert("d", alerts.Firing, 1, "info")
	require.Equal(t, "firing warning", of(over, warning, info))
	require.Equal(t, "firing warning", of(info, warning, over))
	require.Equal(t, "firing info", of(over, info, minor))
	require.Equal(t, "resolved critical", of(minor, over))
	require.Equal(t, "resolved info", of(minor))
}

// Rows in any order, with repetitions: a receiver is told of the end exactly if the newest row is one and it had heard
// that the alert fires, and two tellings that it fires lie as far apart as they should, unless it had ended between.
func TestRowsInAnyOrder(t *testing.T) {
	t.Parallel()
	c := parsed(t, `{`+receivers+`, "routes": [{"to": ["one"], "repeat_every": "4h"}]}`)
	for seed := range uint64(500) {
		random := rand.New(rand.NewPCG(seed, 83))
		statuses := make([]alerts.Status, 12)
		for i := range statuses {
			statuses[i] = []alerts.Status{alerts.Firing, alerts.Firing, alerts.Resolved}[random.IntN(3)]
		}
		known, newest := map[string]mark{}, -1
		var last *alerts.Alert
		for _, at := range slices.Concat(random.Perm(12), random.Perm(12)[:5]) {
			row := alert("a", statuses[at], at)
			messages := told(c, known, row)
			newest = max(newest, at)
			if len(messages) == 0 {
				continue
			}
			if last != nil {
				require.False(t, row.EvaluatedAt.Before(last.EvaluatedAt), "seed %d: older than what was told", seed)
				require.False(t, last.Status == alerts.Resolved && row.Status == alerts.Resolved, "seed %d", seed)
				if last.Status == alerts.Firing && row.Status == alerts.Firing {
					require.GreaterOrEqual(t, row.EvaluatedAt.Sub(last.EvaluatedAt), 4*time.Hour, "seed %d", seed)
				}
			} else {
				require.Equal(t, alerts.Firing, row.Status)
			}
			last = &row
		}
		if last != nil && last.EvaluatedAt.Equal(hour(newest)) {
			require.Equal(t, statuses[newest], last.Status)
		}
		if last != nil && statuses[newest] == alerts.Resolved {
			require.Equal(t, alerts.Resolved, last.Status, "seed %d: it has heard of the end", seed)
		}
	}
}
