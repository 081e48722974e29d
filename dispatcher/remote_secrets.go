package dispatcher

import (
	"context"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/worker/protocol"
)

// Secrets opens the secrets that a running attempt's job names, each only if an admin has it bound to the job now. Code that
// users upload gets none, wherever it runs. A function of the worker's own is a program, which may send things anywhere, so a
// secret must be bound to any host for it; operators of the platform keep to the hosts that are told with the values.
func (d *Dispatcher) Secrets(ctx context.Context, c authz.Capability, f protocol.Fence) (protocol.Secrets, error) {
	answer := protocol.Secrets{Secrets: map[string]string{}, Hosts: map[string][]string{}}
	g, err := d.Given(ctx, c, f)
	if err != nil {
		return answer, err
	}
	if !dag.Trusted(g.Runtime, g.Job.Def.Operator) {
		return answer, fault.New(fault.Forbidden, "task %s runs code that users upload, which gets no secrets", g.TaskID)
	}
	if len(g.Job.Def.Secrets) == 0 {
		return answer, nil
	}
	values, err := d.Vault.Reveal(ctx, g.OrgID, g.Job.Address(), g.Job.Def.Secrets)
	if err != nil {
		return answer, err
	}
	for name, value := range values {
		text := value.Reveal()
		if g.Job.Def.Operator == dag.Handler {
			if text, err = value.ForProgram(); err != nil {
				return protocol.Secrets{}, err
			}
		}
		answer.Secrets[name], answer.Hosts[name] = text, value.Hosts()
	}
	return answer, nil
}
