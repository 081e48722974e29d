package mysqlquery

import (
	"fmt"
	"slices"
	"strings"

	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/mysqlremote"
	"github.com/dagctl/dagctl/internal/relations"
	"github.com/dagctl/dagctl/operators/remotequery"
	"github.com/dagctl/dagctl/operators/textfile"
)

// class is what values of a type of MySQL are.
type class int

const (
	unknown class = iota // no value of it is read
	integer
	bits
	year
	decimal
	float
	text // in UTF-8
	label
	bytes
	date
	datetime // without a zone
	instant
	span // a time of day, or a span of up to 838 hours
	document
	nothing // only NULLs
)

// native is a type of MySQL: what its values are, and the DuckDB type that holds each of them; empty: none does.
type native struct {
	class class
	duck  string
}

// natives are the types by the driver's names.
var natives = map[string]native{
	"TINYINT": {integer, "TINYINT"}, "UNSIGNED TINYINT": {integer, "UTINYINT"},
	"SMALLINT": {integer, "SMALLINT"}, "UNSIGNED SMALLINT": {integer, "USMALLINT"},
	"MEDIUMINT": {integer, "INTEGER"}, "UNSIGNED MEDIUMINT": {integer, "UINTEGER"},
	"INT": {integer, "INTEGER"}, "UNSIGNED INT": {integer, "UINTEGER"},
	"BIGINT": {integer, "BIGINT"}, "UNSIGNED BIGINT": {integer, "UBIGINT"},
	"BIT": {bits, "UBIGINT"}, "YEAR": {year, "SMALLINT"}, "DECIMAL": {decimal, ""},
	"FLOAT": {float, "FLOAT"}, "DOUBLE": {float, "DOUBLE"},
	"CHAR": {text, "VARCHAR"}, "VARCHAR": {text, "VARCHAR"}, "TINYTEXT": {text, "VARCHAR"}, "TEXT": {text, "VARCHAR"},
	"MEDIUMTEXT": {text, "VARCHAR"}, "LONGTEXT": {text, "VARCHAR"}, "ENUM": {label, ""}, "SET": {label, ""},
	"BINARY": {bytes, "BLOB"}, "VARBINARY": {bytes, "BLOB"}, "TINYBLOB": {bytes, "BLOB"}, "BLOB": {bytes, "BLOB"},
	"MEDIUMBLOB": {bytes, "BLOB"}, "LONGBLOB": {bytes, "BLOB"},
	"DATE": {date, "DATE"}, "DATETIME": {datetime, "TIMESTAMP"}, "TIMESTAMP": {instant, "TIMESTAMP WITH TIME ZONE"},
	"TIME": {span, "TIME"}, "JSON": {document, "JSON"}, "NULL": {nothing, "VARCHAR"},
}

// kinds are the types that values of a class can be declared as, besides VARCHAR.
var kinds = map[class][]textfile.Kind{
	integer: {textfile.Bool, textfile.Int, textfile.Decimal, textfile.Float},
	bits:    {textfile.Bool, textfile.Int, textfile.Decimal, textfile.Float},
	year:    {textfile.Int, textfile.Decimal},
	decimal: {textfile.Bool, textfile.Int, textfile.Decimal, textfile.Float},
	float:   {textfile.Int, textfile.Decimal, textfile.Float},
	text: {textfile.Bool, textfile.Int, textfile.Decimal, textfile.Float, textfile.Date, textfile.Time,
		textfile.Timestamp, textfile.UUID, textfile.JSON},
	date:     {textfile.Date, textfile.Timestamp},
	datetime: {textfile.Date, textfile.Timestamp, textfile.Instant},
	instant:  {textfile.Instant},
	span:     {textfile.Time},
	document: {textfile.JSON},
	nothing: {textfile.Bool, textfile.Int, textfile.Decimal, textfile.Float, textfile.Date, textfile.Time,
		textfile.Timestamp, textfile.Instant, textfile.UUID, textfile.JSON},
}

// column is a column to write and where its values come from.
type column struct {
	relations.Column
	from  int // its place in the result
	class class
	of    textfile.Type // the column's; none for BLOB
}

// choose returns the columns to write. standing are those that stand; nil: the config and the query decide.
func (c config) choose(found []mysqlremote.Column, standing []textfile.Column) ([]column, error) {
	names := make([]string, len(found))
	for i, f := range found {
		if names[i] = f.Name; f.Name == "" {
			return nil, fault.New(fault.Invalid, "column %d of the query has no name", i+1).
				WithHint("give it one: expression AS name")
		}
	}

	choices, err := c.Choose(names, standing)
	if err != nil {
		return nil, err
	}
	chosen := make([]column, len(choices))
	for i, choice := range choices {
		if chosen[i], err = columnOf(choice, found[choice.From]); err != nil {
			return nil, err
		}
	}
	return chosen, nil
}

// columnOf returns a column as the type that it has to have.
func columnOf(choice remotequery.Choice, f mysqlremote.Column) (column, error) {
	of := natives[f.Type]
	if of.class == decimal && f.Precision <= 38 {
		of.duck = fmt.Sprintf("DECIMAL(%d,%d)", max(f.Precision, f.Scale, 1), f.Scale)
	}
	c := column{relations.Column{Name: choice.Name, Type: choice.Type}, choice.From, of.class, textfile.Type{}}
	if c.Type == "" {
		c.Type = of.duck
	}

	switch name := choice.Name; {
	case of.class == unknown:
		return c, fault.New(fault.Invalid, "column %q is %s, which is not read as it is", name, article(f.Type)).
			WithHint("convert it in the query, as in ST_AsText(%[1]s) AS %[1]s or ST_AsBinary(%[1]s) AS %[1]s", name)
	case c.Type == "" && of.class == decimal:
		return c, fault.New(fault.Invalid, "column %q is a DECIMAL(%d,%d), which no type holds", name, f.Precision,
			f.Scale).
			WithHint("declare it, as in `types: { %s: \"DECIMAL(38,9)\" }`: what does not fit is refused", name)
	case c.Type == "":
		return c, fault.New(fault.Invalid, "column %q is %s, which DuckDB orders in another way", name,
			article(f.Type)).
			WithHint("declare `types: { %s: VARCHAR }` to have its text", name)
	case f.Inexact:
		return c, fault.New(fault.Invalid, "column %q is %s without a number of digits after the second", name,
			article(f.Type)).
			WithHint("say how many it has: CAST(%[1]s AS %s(6)) AS %[1]s", name, castable(f.Type))
	case c.Type == "BLOB" && of.class == bytes:
		return c, nil
	}

	t, err := textfile.ParseType(c.Type)
	allowed := t.Kind == textfile.Text && of.class != bytes || slices.Contains(kinds[of.class], t.Kind)
	if c.of = t; err != nil || !allowed {
		e := fault.New(fault.Invalid, "column %q cannot be read as %s: it is %s", choice.Name, c.Type, article(f.Type))
		if of.class == bytes {
			e = e.WithHint("write CONVERT(%[1]s USING utf8mb4) AS %[1]s, HEX(%[1]s) AS %[1]s or BIN_TO_UUID(%[1]s) AS "+
				"%[1]s in the query", choice.Name)
		}
		return c, e
	}
	return c, nil
}

// article returns the name of a type of MySQL in a sentence.
func article(name string) string {
	switch {
	case name == "":
		return "of a type that is not known"
	case strings.HasPrefix(name, "UNSIGNED"), strings.HasPrefix(name, "INT"), strings.HasPrefix(name, "ENUM"):
		return "an " + name
	}
	return "a " + name
}

// castable returns the type that a CAST names for a type of times.
func castable(name string) string {
	if name == "TIMESTAMP" {
		return "DATETIME"
	}
	return name
}
