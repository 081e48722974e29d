// Package rangesplitter has the operator range_splitter, which lists the aligned small ranges that big ones are made
// of, in whatever order and however often those come. A small range that two big ones share is listed once both are
// there. Package ranges does the work. It owns no tables.
package rangesplitter

import (
	"github.com/dagctl/dagctl/operators"
	"github.com/dagctl/dagctl/operators/ranges"
)

// New returns the operator.
func New(operators.Options) (operators.Operator, error) {
	return ranges.Operator("range_splitter"), nil
}
