// Package alertroute has the operator alert_route, which tells receivers of alerts.
//
// Vocabulary: a route says which alerts go to which receivers. A message tells one receiver of alerts of one group; it
// is a delivery, as those of webhook_deliver are. A mark is what a receiver was told of an alert last. It owns no
// tables.
package alertroute

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/internal/dial"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/operators"
	"github.com/dagctl/dagctl/operators/alerts"
	"github.com/dagctl/dagctl/operators/webhook"
)

type operator struct{ client *http.Client }

// New returns the operator. Of the options, it needs the addresses that may be reached.
func New(o operators.Options) (operators.Operator, error) {
	d, err := dial.New(dial.Config{Allowed: o.AllowedAddresses})
	if err != nil {
		return nil, err
	}
	return &operator{d.StrictClient(0)}, nil
}

// ServerOnly implements operators.ServerOnly: what was told is in the server's database.
func (*operator) ServerOnly() {}

// Spec implements operators.Operator.
func (*operator) Spec() dag.OperatorSpec {
	return dag.OperatorSpec{
		Name: "alert_route", Version: "1.0.0", Reactive: true, Effect: dag.EffectExternal,
		Delivers:     true,
		ConfigSchema: json.RawMessage(configSchema),
		Operational:  webhook.Operational,
		CheckJob:     checkJob, CheckPartitions: checkPartitions, Targets: targets,
		Shape:    shape,
		SecretTo: secretTo,
		Canonical: func(given map[string]any) (any, *dag.ConfigError) {
			_, err := parse(given)
			return given, err
		},
	}
}

// Run implements operators.Operator.
func (o *operator) Run(ctx context.Context, t *operators.Task) (result operators.Result, err error) {
	c, wrong := parse(t.Config)
	if wrong != nil {
		return result, operators.Permanent(operators.ConfigError(wrong))
	}
	if err := ctx.Err(); err != nil {
		return result, err
	}
	if len(t.Inputs) != 1 {
		return result, operators.Permanent(fault.New(fault.Invalid, "alert_route reads one input"))
	}
	sender, err := webhook.NewSender(t, o.client, c.Sending)
	if err != nil {
		return result, err
	}

	sender.RefusedAgain = true

	t.Progress(0, "reading the alerts")
	rows, err := read(ctx, t)
	if err != nil {
		return result, err
	}
	ends, noted, err := pending(ctx, t.Deliveries)
	if err != nil {
		return result, err
	}
	rows = withPending(rows, ends)
	known, err := c.known(ctx, t.Deliveries, rows)
	if err != nil {
		return result, err
	}
	p := c.planOf(rows, known)
	if err := keepPending(ctx, t.Deliveries, noted, p.ends()); err != nil {
		return result, err
	}
	messages, unreachable := c.messages(t, p)

	sent, _, err := sender.Send(ctx, messages)
	if err != nil {
		return result, err
	}
	if err := t.Deliveries.Mark(ctx, p.marks()); err != nil {
		return result, err
	}
	if err := sender.Unfinished(); err != nil {
		return result, err
	}
	if err := cmp.Or(refused(sent), unreachable); err != nil {
		return result, operators.Permanent(err)
	}
	result.Result, err = json.Marshal(summaryOf(rows, p, sender.Done()))
	return result, err
}

// known returns what receivers were told of the alerts, by the keys of marks.
func (c config) known(
	ctx context.Context, ledger operators.Deliveries, rows []alerts.Alert,
) (map[string]mark, error) {
	var keys []string
	for _, a := range rows {
		stops, _ := c.stops(a)
		for _, s := range stops {
			keys = append(keys, markKey(s.receiver, a))
		}
	}
	marks, err := ledger.Marks(ctx, keys)
	if err != nil {
		return nil, err
	}

	known := make(map[string]mark, len(marks))
	for key, stored := range marks {
		var m mark
		if err := json.Unmarshal(stored.Value, &m); err != nil {
			return nil, fault.New(fault.Internal, "what was told of an alert cannot be read: %w", err)
		}
		known[key] = m
	}
	return known, nil
}

// stored returns a mark as the ledger keeps it. Its position never goes back, so neither does what is known.
func stored(key string, m mark) operators.Mark {
	text, _ := json.Marshal(m) // texts, numbers and times in years of four digits always are JSON
	return operators.Mark{Key: key, Position: m.Seen.UnixMicro(), Value: text}
}

// marks returns the marks of what was seen and is not told.
func (p plan) marks() (all []operators.Mark) {
	for _, key := range slices.Sorted(maps.Keys(p.seen)) {
		all = append(all, stored(key, p.seen[key]))
	}
	return all
}

// messages returns what is to be sent. Receivers that cannot be reached by what the config and its secrets say keep
// nobody else from being told; the error is that of the first.
func (c config) messages(t *operators.Task, p plan) (messages []webhook.Message, unreachable error) {
	targets := map[string]*webhook.Target{}
	for _, b := range p.batches {
		target, tried := targets[b.receiver]
		if !tried {
			var err error
			if target, err = c.target(t, b.receiver); err != nil {
				unreachable = cmp.Or(unreachable, fmt.Errorf("receiver %s: %w", b.receiver, err))
			}
			targets[b.receiver] = target
		}
		if target == nil {
			continue
		}

		key := b.key()
		text, err := json.Marshal(b.bodyOf(t.Deliveries.ID(key), t.OrgSlug, t.DAG, t.Job))
		if err != nil {
			unreachable = cmp.Or(unreachable, err)
			continue
		}
		m := webhook.Message{Key: key, Target: target, Body: text}
		for _, a := range b.alerts {
			m.Marks = append(m.Marks, stored(markKey(b.receiver, a.Alert), a.next))
		}
		messages = append(messages, m)
	}
	return messages, unreachable
}

// target returns where messages to a receiver go.
func (c config) target(t *operators.Task, name string) (*webhook.Target, error) {
	r := c.Receivers[name]
	address, written := r.URL.(string)
	if !written {
		return webhook.SecretTarget(t, r.URL, "config.receivers."+name+".url", r.Headers)
	}
	to, err := url.Parse(address)
	if err != nil {
		return nil, errors.New("its url is none")
	}
	return webhook.NewTarget(t, to, http.MethodPost, webhook.Sending{Headers: r.Headers, Sign: r.Sign})
}

// refused returns an error if receivers have refused messages for good: nobody was told then, which a person is to see.
func refused(sent []webhook.Sent) error {
	count, why := 0, ""
	for _, s := range sent {
		if s.Status == operators.Refused {
			count, why = count+1, cmp.Or(why, s.Error)
		}
	}
	if count == 0 {
		return nil
	}
	return fault.New(fault.Invalid, "%d of %d messages were refused for good, the first because %s", count, len(sent),
		why).
		WithHint("mend the receiver and retry the task: it sends what was not delivered")
}

// summary is the result of a run for people.
type summary struct {
	Alerts   int `json:"alerts"` // that were read or left to be told, each once
	Messages int `json:"messages"`
	Told     int `json:"told"` // alerts in messages
	Muted    int `json:"muted,omitempty"`
	Unrouted int `json:"unrouted,omitempty"`
	webhook.Summary
}

func summaryOf(rows []alerts.Alert, p plan, done webhook.Summary) summary {
	s := summary{Alerts: len(rows), Messages: len(p.batches), Muted: p.muted, Unrouted: p.unrouted, Summary: done}
	for _, b := range p.batches {
		s.Told += len(b.alerts)
	}
	return s
}
