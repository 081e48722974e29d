// Package rangeaggregator has the operator range_aggregator, which collects small ranges, in whatever order and however
// often they come, and lists each aligned big range once all of it is there. Package ranges does the work. It owns no
// tables.
package rangeaggregator

import (
	"context"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/operators"
	"github.com/dagctl/dagctl/operators/ranges"
)

type operator struct{}

// New returns the operator.
func New(operators.Options) (operators.Operator, error) { return operator{}, nil }

func (operator) Spec() dag.OperatorSpec { return ranges.Spec("range_aggregator") }

// Run implements operators.Operator.
func (operator) Run(ctx context.Context, t *operators.Task) (operators.Result, error) {
	return ranges.Run(ctx, t)
}
