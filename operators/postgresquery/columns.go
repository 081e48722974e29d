package postgresquery

import (
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/pgcopy"
	"github.com/dagctl/dagctl/internal/relations"
	"github.com/dagctl/dagctl/operators/textfile"
)

// native is a type of PostgreSQL: the DuckDB type that holds each of its values, and its name in a cast. A list has the
// native of its elements.
type native struct {
	duck string // empty: there is none that holds all values
	name string
	of   *native
}

// natives are the types that can be read as they are. The values of all others are text or nothing, which is for the
// query or `types` to say.
var natives = map[uint32]native{
	pgtype.BoolOID: {"BOOLEAN", "boolean", nil}, pgtype.ByteaOID: {"BLOB", "bytea", nil},
	pgtype.Int2OID: {"SMALLINT", "smallint", nil}, pgtype.Int4OID: {"INTEGER", "integer", nil},
	pgtype.Int8OID: {"BIGINT", "bigint", nil}, pgtype.OIDOID: {"BIGINT", "oid", nil},
	pgtype.Float4OID: {"FLOAT", "real", nil}, pgtype.Float8OID: {"DOUBLE", "double precision", nil},
	pgtype.NumericOID: {"", "numeric", nil},
	pgtype.TextOID:    {"VARCHAR", "text", nil}, pgtype.VarcharOID: {"VARCHAR", "varchar", nil},
	pgtype.BPCharOID: {"VARCHAR", "bpchar", nil}, pgtype.NameOID: {"VARCHAR", "name", nil},
	pgtype.DateOID: {"DATE", "date", nil}, pgtype.TimeOID: {"TIME", "time", nil},
	pgtype.TimestampOID:   {"TIMESTAMP", "timestamp", nil},
	pgtype.TimestamptzOID: {"TIMESTAMP WITH TIME ZONE", "timestamptz", nil},
	pgtype.IntervalOID:    {"INTERVAL", "interval", nil}, pgtype.UUIDOID: {"UUID", "uuid", nil},
	pgtype.JSONOID: {"JSON", "json", nil}, pgtype.JSONBOID: {"JSON", "jsonb", nil},
}

// elements are the types of which lists can be read, by the type of the array.
var elements = map[uint32]uint32{
	pgtype.BoolArrayOID: pgtype.BoolOID, pgtype.Int2ArrayOID: pgtype.Int2OID, pgtype.Int4ArrayOID: pgtype.Int4OID,
	pgtype.Int8ArrayOID: pgtype.Int8OID, pgtype.Float4ArrayOID: pgtype.Float4OID,
	pgtype.Float8ArrayOID: pgtype.Float8OID, pgtype.NumericArrayOID: pgtype.NumericOID,
	pgtype.TextArrayOID: pgtype.TextOID, pgtype.VarcharArrayOID: pgtype.VarcharOID,
	pgtype.NameArrayOID: pgtype.NameOID, pgtype.DateArrayOID: pgtype.DateOID,
	pgtype.TimestampArrayOID: pgtype.TimestampOID,
	pgtype.UUIDArrayOID:      pgtype.UUIDOID,
}

// nativeOf returns the native of a column; ok is false for a type that cannot be read as it is.
func nativeOf(oid uint32, modifier int32) (n native, ok bool) {
	if element, list := elements[oid]; list {
		of, _ := nativeOf(element, modifier)
		n = native{name: of.name + "[]", of: &of}
		if of.duck != "" {
			n.duck = of.duck + "[]"
		}
		return n, true
	}
	if n, ok = natives[oid]; oid != pgtype.NumericOID || modifier < 4 {
		return n, ok
	}

	// The modifier of a numeric has its precision, and its scale in 11 bits with a sign.
	precision, scale := (modifier-4)>>16&0xffff, ((modifier-4)&0x7ff^0x400)-0x400
	if precision <= 38 && scale >= 0 && scale <= precision {
		n.duck = fmt.Sprintf("DECIMAL(%d,%d)", precision, scale)
	}
	return n, true
}

// column is a column of the result and how it is selected.
type column struct {
	relations.Column

	value string // SQL expression of its value, in the type that travels
	// SQL expression of whether the value is kept, false or NULL where the type cannot hold it; empty: it can
	kept string
	flat string // SQL expression of the number of an array's dimensions; empty: it is none
}

// inner is the name of a column within the statement, which does not depend on the names that the query gives.
func inner(i int) string { return fmt.Sprintf("q.c%d", i) }

// choose returns the columns to write. standing are those that stand; nil: the config and the query decide.
func (c config) choose(found []pgconn.FieldDescription, standing []textfile.Column) ([]column, error) {
	names := make([]string, len(found))
	for i, f := range found {
		names[i] = f.Name
	}
	choices, err := c.Choose(names, standing)
	if err != nil {
		return nil, err
	}
	chosen := make([]column, len(choices))
	for i, choice := range choices {
		if chosen[i], err = columnOf(choice.Name, inner(choice.From), found[choice.From], choice.Type); err != nil {
			return nil, err
		}
	}
	return chosen, nil
}

// columnOf returns a column as the wanted DuckDB type; empty: the one that its type in PostgreSQL has.
func columnOf(name, value string, f pgconn.FieldDescription, want string) (column, error) {
	c := column{Column: relations.Column{Name: name, Type: want}, value: value}
	of, known := nativeOf(f.DataTypeOID, f.TypeModifier)
	if want == "" {
		c.Type = of.duck
	}
	switch {
	case c.Type == "" && of.name == "numeric":
		return c, fault.New(fault.Invalid, "column %q is a numeric of any precision, which no type holds", name).
			WithHint("declare it, as in `types: { %s: \"DECIMAL(38,9)\" }`: what does not fit is refused", name)
	case c.Type == "", !known && c.Type != "VARCHAR":
		return c, fault.New(fault.Invalid, "column %q has a type of PostgreSQL that is not read as it is (OID %d)",
			name, f.DataTypeOID).
			WithHint("cast it in the query; or declare `types: { %s: VARCHAR }` to have its text", name)
	case !known:
		c.value = value + "::text"
		return c, nil
	}

	if err := c.cast(of, c.Type == of.duck); err != nil {
		return c, fault.New(fault.Invalid, "column %q cannot be read as %s: %w", name, c.Type, err)
	}
	return c, nil
}

// cast makes the value travel: as it is, or by a cast to the type of the column, which is looked at unless the type is
// the native's own.
func (c *column) cast(of native, own bool) error {
	element, list := strings.CutSuffix(c.Type, "[]")
	if list != (of.of != nil) || strings.HasSuffix(element, "[]") {
		return fmt.Errorf("it is %s", of.name)
	}
	target, err := pgcopy.TypeOf(relations.Column{Name: c.Name, Type: element})
	if err != nil {
		return fmt.Errorf("no type of PostgreSQL is like it")
	}

	raw := c.value
	if list {
		target, c.flat = target+"[]", "array_ndims("+raw+")"
	}
	switch {
	case own && !list && target == of.name:
		return nil
	case own:
	case of.name == "json" || of.name == "jsonb": // which have no equality
		if c.Type != "VARCHAR" {
			return fmt.Errorf("it is %s", of.name)
		}
		c.value = raw + "::text"
		return nil
	default:
		c.kept = fmt.Sprintf("%s::%s::%s IS NOT DISTINCT FROM %[1]s", raw, target, of.name)
	}

	switch {
	case own && !list && of.duck == "VARCHAR": // bpchar, varchar and name travel as they are
	case list && element == "BOOLEAN":
		c.value = "to_jsonb(" + raw + "::boolean[])"
	case list: // as texts, which keep -0 and what JSON has no number for
		c.value = fmt.Sprintf("to_jsonb(%s::%s::text[])", raw, target)
	default:
		c.value = raw + "::" + target
	}
	return nil
}

// selection returns the statement that selects the columns, and which values of a row, behind those of the columns,
// say whether they are kept.
func selection(query string, found int, columns []column) (text string, looks []look) {
	var list []string
	for _, c := range columns {
		list = append(list, c.value)
	}
	for i, c := range columns {
		if c.kept != "" {
			looks = append(looks, look{column: i, at: len(list)})
			list = append(list, c.kept)
		}
		if c.flat != "" {
			looks = append(looks, look{column: i, at: len(list), dimensions: true})
			list = append(list, c.flat)
		}
	}

	names := make([]string, found)
	for i := range names {
		_, names[i], _ = strings.Cut(inner(i), ".")
	}
	return fmt.Sprintf("SELECT %s FROM (\n%s\n) AS q(%s)", strings.Join(list, ", "), query,
		strings.Join(names, ", ")), looks
}

// look is a value of a row that says something of a column: whether its value is kept, or how many dimensions it has.
type look struct {
	column, at int
	dimensions bool
}
