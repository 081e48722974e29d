package worker

import (
	"context"

	"github.com/google/uuid"

	"github.com/dagctl/dagctl/worker/protocol"
)

// waitForTask is how long the server may wait for the first task of a poll.
const waitForTask = 20 // seconds

// poll is the Source that asks the server for tasks and lets it wait for the first.
type poll struct{ *Worker }

func (p *poll) Next(ctx context.Context, max int) ([]Given, error) {
	operators, handlers := p.offer()
	answer, err := p.client.Poll(ctx, protocol.PollRequest{WorkerID: p.cfg.ID, Incarnation: p.incarnation,
		Runtime:   p.cfg.Runtime,
		Operators: operators,
		Handlers:  handlers, Max: max, WaitSeconds: waitForTask})
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

// Claim claims one task by its id. It repeats the call while the server does not answer: a message that names the task
// must not be dropped because the server was silent.
func (w *Worker) Claim(ctx context.Context, task uuid.UUID) (claim protocol.Claim, err error) {
	operators, handlers := w.offer()
	request := protocol.ClaimRequest{TaskID: task, WorkerID: w.cfg.ID, Incarnation: w.incarnation,
		Runtime: w.cfg.Runtime, Operators: operators,
		Handlers: handlers}
	err = Repeat(ctx, func(ctx context.Context) (err error) {
		claim, err = w.client.Claim(ctx, request)
		return err
	})
	return claim, err
}
