package worker

import (
	"context"

	"github.com/dagctl/dagctl/worker/protocol"
)

// waitForTask is how long the server may wait for the first task of a poll.
const waitForTask = 20 // seconds

// poll asks the server for tasks, and waits there for the first.
type poll struct{ *Worker }

func (p *poll) Next(ctx context.Context, max int) ([]Given, error) {
	operators, handlers := p.offer()
	answer, err := p.client.Poll(ctx, protocol.PollRequest{WorkerID: p.cfg.ID, Runtime: p.cfg.Runtime, Operators: operators,
		Handlers: handlers, Max: max, WaitSeconds: waitForTask})
	if err != nil {
		return nil, err
	}
	given := make([]Given, len(answer.Tasks))
	for i, claim := range answer.Tasks {
		given[i].Claim = claim
	}
	switch {
	case answer.Drain:
		return given, ErrDrained
	case answer.Idle:
		return given, ErrIdle
	}
	return given, nil
}
