// Package rangesplitter has the operator range_splitter, which lists the aligned small ranges that big ones are made
// of, in whatever order and however often those come. A small range that two big ones share is listed once both are
// there. Package ranges does the work. It owns no tables.
package rangesplitter

import (
	"context"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/operators"
	"github.com/dagctl/dagctl/operators/ranges"
)

type operator struct{}

// New returns the operator.
func New(operators.Options) (operators.Operator, error) { return operator{}, nil }

func (operator) Spec() dag.OperatorSpec { return ranges.Spec("range_splitter") }

// Run implements operators.Operator.
func (operator) Run(ctx context.Context, t *operators.Task) (operators.Result, error) {
	return ranges.Run(ctx, t)
}
