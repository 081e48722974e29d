// Package standard has the operators that every server and worker of the platform runs: those of package operators, and
// those that have a folder of their own beside it. A new operator is added to New. It owns no tables.
package standard

import (
	"github.com/dagctl/dagctl/operators"
	"github.com/dagctl/dagctl/operators/alertevaluate"
	"github.com/dagctl/dagctl/operators/alertroute"
	"github.com/dagctl/dagctl/operators/blockfollower"
	"github.com/dagctl/dagctl/operators/evmrangeingest"
	"github.com/dagctl/dagctl/operators/httpapi"
	"github.com/dagctl/dagctl/operators/integritycheck"
	"github.com/dagctl/dagctl/operators/mysqlquery"
	"github.com/dagctl/dagctl/operators/parquetcompact"
	"github.com/dagctl/dagctl/operators/parquetexport"
	"github.com/dagctl/dagctl/operators/postgresload"
	"github.com/dagctl/dagctl/operators/postgresquery"
	"github.com/dagctl/dagctl/operators/rangeaggregator"
	"github.com/dagctl/dagctl/operators/rangesplitter"
	"github.com/dagctl/dagctl/operators/s3source"
	"github.com/dagctl/dagctl/operators/seed"
	"github.com/dagctl/dagctl/operators/webhook"
)

// New returns the registry of the platform's operators.
func New(o operators.Options) (*operators.Registry, error) {
	var more []operators.Operator
	for _, operator := range []func(operators.Options) (operators.Operator, error){
		alertevaluate.New, alertroute.New, blockfollower.New, evmrangeingest.New, httpapi.New, integritycheck.New,
		mysqlquery.New, parquetcompact.New, parquetexport.New, postgresload.New, postgresquery.New, rangeaggregator.New,
		rangesplitter.New, s3source.New, seed.New, webhook.New,
	} {
		op, err := operator(o)
		if err != nil {
			return nil, err
		}
		more = append(more, op)
	}
	return operators.Builtin(o, more...)
}
