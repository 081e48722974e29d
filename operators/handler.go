package operators

import (
	"context"
	"encoding/json"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/internal/fault"
)

// handlerOperator stands for functions of workers. The server knows such a function only by name and runs none itself:
// workers that register its handler claim the jobs of this operator.
type handlerOperator struct{}

func (handlerOperator) Spec() dag.OperatorSpec {
	return dag.OperatorSpec{
		Name: dag.Handler, Source: true, Reactive: true,
		SecretsTo: func(map[string]any) string { return dag.ToProgram },
		// All other fields are for the function.
		ConfigSchema: json.RawMessage(`{
			"type": "object",
			"properties": {
				"handler": {"type": "string", "minLength": 1, "maxLength": 200,
					"pattern": "^[A-Za-z0-9][A-Za-z0-9_.:/-]*$",
					"description": "Name of the worker's function, such as email:send. It gets all other fields"}
			},
			"required": ["handler"]
		}`),
	}
}

func (handlerOperator) Run(context.Context, *Task) (Result, error) {
	return Result{},
		Permanent(fault.New(fault.Invalid, "a handler is a function of a worker: it does not run in the server's "+
			"own process"))
}
