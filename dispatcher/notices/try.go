package notices

import (
	"context"
	"errors"
	"slices"
	"sync"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/internal/clock"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/registry"
)

// ReceiverAnswer is what a receiver did with a test message.
type ReceiverAnswer struct {
	DAG     string   `json:"dag"`
	Format  string   `json:"format" enum:"webhook,slack,teams,pagerduty,email"`
	Secret  string   `json:"secret" doc:"Name of the secret that has the receiver's address"`
	To      []string `json:"to,omitempty" doc:"Of an e-mail"`
	Arrived bool     `json:"arrived"`
	Said    string   `json:"answer" doc:"What the receiver answered, or why it could not be asked"`
}

// TryFor is Try for somebody, noted in the audit log. The caller has looked whether they may see the DAG.
func (n *Notices) TryFor(ctx context.Context, caller authz.Caller, dagName string) ([]ReceiverAnswer, error) {
	err := pg.InOrgTx(ctx, n.pool, caller.OrgID, func(ctx context.Context, tx pgx.Tx) error {
		return authz.Audit(ctx, tx, caller, "notify.test", dagName, nil)
	})
	if err != nil {
		return nil, err
	}
	return n.Try(ctx, caller.OrgID, dagName)
}

// Receivers returns those that a DAG names, in the order of their names.
func (n *Notices) Receivers(ctx context.Context, org uuid.UUID, dagName string) ([]registry.Receiver, error) {
	to, err := n.listener(ctx, org, dagName)
	return to.Receivers, err
}

func (n *Notices) listener(ctx context.Context, org uuid.UUID, dagName string) (to registry.Listener, err error) {
	err = pg.InTx(ctx, n.pool, func(ctx context.Context, tx pgx.Tx) (err error) {
		to, err = registry.ListenerOfDAG(ctx, tx, org, dagName, "")
		return err
	})
	slices.SortFunc(to.Receivers, registry.CompareReceivers)
	return to, err
}

// Try sends a test message to each receiver that a DAG names, and returns what they answer, in the order of their
// names. It stores nothing and tries once.
func (n *Notices) Try(ctx context.Context, org uuid.UUID, dagName string) ([]ReceiverAnswer, error) {
	to, err := n.listener(ctx, org, dagName)
	if err != nil {
		return nil, err
	}
	answers := make([]ReceiverAnswer, len(to.Receivers))
	var wg sync.WaitGroup
	for i, r := range to.Receivers {
		wg.Go(func() { answers[i] = n.try(ctx, org, to, r) })
	}
	wg.Wait()
	return answers, ctx.Err()
}

func (n *Notices) try(ctx context.Context, org uuid.UUID, of registry.Listener, r registry.Receiver) ReceiverAnswer {
	p := payload{Receiver: r, Whom: r.Name(),
		Notice: newNotice(noticeTest, NoticeData{Org: of.Org, DAG: of.DAG}, clock.Now())}
	p.Notice.Data.Link = n.link(p.Notice)
	a := ReceiverAnswer{DAG: of.DAG, Format: formatOf(r.Format), Secret: r.Secret, To: r.To}
	said, err := n.post(ctx, org, p)
	if err == nil {
		a.Arrived, a.Said = true, said
		return a
	}

	a.Said = err.Error()
	if known := (*fault.Error)(nil); errors.As(err, &known) && known.Hint != "" {
		a.Said += "; " + known.Hint
	}
	return a
}
