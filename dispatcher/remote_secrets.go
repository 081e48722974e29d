package dispatcher

import (
	"context"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/secret"
	"github.com/dagctl/dagctl/worker/protocol"
)

// RedactorFor returns what removes the secrets of an attempt's job from what it says; nil: it gets none. That it gets
// none is remembered, so that asking with each call costs nothing.
func (d *Dispatcher) RedactorFor(
	ctx context.Context, c authz.Capability, f protocol.Fence,
) (*secret.Redactor, error) {
	of := attemptOf{f.TaskID, f.Attempt}
	if _, bare := d.bare.Get(of); bare {
		return nil, nil
	}
	attempt, err := d.loadAttempt(ctx, c, f)
	if err == nil {
		err = d.redactFor(ctx, &attempt)
	}
	if err == nil && len(attempt.Job.Def.Secrets) == 0 {
		d.bare.Put(of, true)
	}
	return attempt.Assignment.Redactor, err
}

// Secrets returns the secrets that a running attempt's job names. An admin must have bound each of them to the job.
// Code that users upload gets no secrets, wherever it runs. A handler is the worker's own program, which may send
// values anywhere, so its secrets must be bound to any host. Operators of the platform send values only to the hosts
// that are returned with them.
func (d *Dispatcher) Secrets(ctx context.Context, c authz.Capability, f protocol.Fence) (protocol.Secrets, error) {
	answer := protocol.Secrets{Secrets: map[string]string{}, Hosts: map[string][]string{}}
	attempt, err := d.RunningAttempt(ctx, c, f)
	if err != nil {
		return answer, err
	}
	if !dag.Trusted(attempt.Runtime, attempt.Job.Def.Operator) {
		return answer, fault.New(fault.Forbidden,
			"task %s runs code that users upload, which gets no secrets", attempt.TaskID)
	}

	if len(attempt.Job.Def.Secrets) == 0 {
		return answer, nil
	}

	values, err := d.Vault.Reveal(ctx, attempt.OrgID, attempt.Job.SecretUser(), attempt.Job.Def.Secrets)
	if err != nil {
		return answer, err
	}

	for name, value := range values {
		text := value.Reveal()
		granted, err := value.ForProgram(attempt.Job.Address())
		switch {
		case err == nil:
			text, answer.Granted = granted, append(answer.Granted, name)
		case attempt.Job.Def.Operator == dag.Handler:
			return protocol.Secrets{}, err
		}
		answer.Secrets[name], answer.Hosts[name] = text, value.Hosts()
	}
	return answer, nil
}
