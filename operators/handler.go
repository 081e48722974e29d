package operators

import (
	"context"
	"encoding/json"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/internal/fault"
)

// handlerOperator stands for functions that workers bring along. The server knows such a function by its name alone, so
// it runs none: a job of this operator is claimed by workers that say they have its handler.
type handlerOperator struct{}

func (handlerOperator) Spec() dag.OperatorSpec {
	return dag.OperatorSpec{
		Name: dag.Handler, Source: true, Reactive: true,
		SecretsTo: func(map[string]any) string { return dag.ToProgram },
		// What else a function wants to be told is its own affair.
		ConfigSchema: json.RawMessage(`{
			"type": "object",
			"properties": {
				"handler": {"type": "string", "minLength": 1, "maxLength": 200, "pattern": "^[A-Za-z0-9][A-Za-z0-9_.:/-]*$",
					"description": "Name of the worker's function, such as email:send. The other fields are handed to it as they are"}
			},
			"required": ["handler"]
		}`),
	}
}

func (handlerOperator) Run(context.Context, *Task) (Result, error) {
	return Result{}, Permanent(fault.New(fault.Invalid, "a handler is a function of a worker: it does not run in the server's own process"))
}
