// Package webhook has the operator webhook_deliver, which sends each row of its input to an address of the user's.
//
// Vocabulary: a delivery is what is sent for one key, under one Idempotency-Key. A try is one of its requests. The
// ledger is operators.Deliveries, which remembers deliveries beyond the run. It owns no tables.
package webhook

import (
	"context"
	"encoding/json"
	"net/http"
	"net/url"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/internal/dial"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/operators"
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

// ServerOnly implements operators.ServerOnly: the ledger is in the server's database.
func (*operator) ServerOnly() {}

// Spec implements operators.Operator.
func (*operator) Spec() dag.OperatorSpec {
	return dag.OperatorSpec{
		Name: "webhook_deliver", Version: "1.0.0", Source: true, Reactive: true, Effect: dag.EffectExternal,
		Delivers:     true,
		ConfigSchema: json.RawMessage(configSchema),
		Operational:  Operational,
		CheckJob:     checkJob, CheckPartitions: checkPartitions, Targets: targets,
		Shape: shape,
		SecretsTo: func(config map[string]any) string {
			address, _ := config["url"].(string)
			return operators.ExpandURL(address, nil)
		},
		Canonical: func(given map[string]any) (any, *dag.ConfigError) {
			_, err := parse(given)
			return given, err
		},
	}
}

// Run implements operators.Operator.
func (o *operator) Run(ctx context.Context, t *operators.Task) (operators.Result, error) {
	c, configFault := parse(t.Config)
	if configFault != nil {
		return operators.Result{}, operators.Permanent(operators.ConfigError(configFault))
	}
	to, err := url.Parse(operators.ExpandURL(c.URL, t.Partition))
	if err != nil {
		return operators.Result{}, operators.Permanent(fault.New(fault.Invalid, "config.url is not a URL"))
	}

	target, err := NewTarget(t, to, c.Method, c.Sending)
	if err != nil {
		return operators.Result{}, err
	}
	s, err := NewSender(t, o.client, c.Sending)
	if err != nil {
		return operators.Result{}, err
	}
	message := func(row Row) (Message, error) {
		key, err := row.Key(c.Key)
		if err != nil {
			return Message{}, err
		}
		body, err := row.Body(c.Columns)
		return Message{Key: key, Target: target, Body: body}, err
	}
	if len(t.Outputs) == 0 {
		row, err := payloadRow(t)
		if err != nil {
			return operators.Result{}, err
		}
		m, err := message(row)
		if err != nil {
			return operators.Result{}, err
		}
		return s.runPayload(ctx, m)
	}
	return s.Run(ctx, func(row Row) ([]Message, error) {
		m, err := message(row)
		return []Message{m}, err
	})
}
