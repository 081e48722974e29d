// Package rangeaggregator has the operator range_aggregator, which collects small ranges, in whatever order and however
// often they come, and lists each aligned big range once all of it is there. Package ranges does the work. It owns no
// tables.
package rangeaggregator

import (
	"github.com/dagctl/dagctl/operators"
	"github.com/dagctl/dagctl/operators/ranges"
)

// New returns the operator.
func New(operators.Options) (operators.Operator, error) {
	return ranges.Operator("range_aggregator"), nil
}
