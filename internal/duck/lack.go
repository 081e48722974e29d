package duck

import (
	"errors"

	duckdb "github.com/duckdb/duckdb-go/v2"

	"github.com/dagctl/dagctl/internal/late"
	"github.com/dagctl/dagctl/internal/relations"
)

// What DuckDB says of a column that is not there.
var (
	lacksColumn = late.Pattern(`^Binder Error: Referenced column "((?s:.*?))" not found in FROM clause!`)
	lacksInJoin = late.Pattern(`^Binder Error: Column "((?s:.*?))" does not exist on (?:left|right) side of join!`)
	lacksIn     = late.Pattern(`^Binder Error: (?:Values list|Table) "((?s:.*?))" does not have a column named ` +
		`"((?s:.*?))"\n`)
)

// LackOf returns the column for which a statement could not be bound; nil if that was not why.
func LackOf(err error) *relations.Lack {
	var e *duckdb.Error
	if !errors.As(err, &e) {
		return nil
	}

	var lack relations.Lack
	if at := lineOfSQL.FindStringSubmatch(e.Msg); at != nil {
		lack.Line = at[1]
	}

	for _, alone := range []*late.Regexp{lacksColumn, lacksInJoin} {
		if found := alone.FindStringSubmatch(e.Msg); found != nil {
			lack.Column = found[1]
			return &lack
		}
	}
	if found := lacksIn.FindStringSubmatch(e.Msg); found != nil {
		lack.Table, lack.Column = found[1], found[2]
		return &lack
	}
	return nil
}
