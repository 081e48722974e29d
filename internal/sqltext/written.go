package sqltext

import (
	"slices"
	"strings"

	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/relations"
)

// Here is decided as what type each type is written. Parquet and DuckDB's writer of it lose or change values of some
// types without an error: HUGEINT becomes DOUBLE, INTERVAL is cut to milliseconds, TIMETZ moves to UTC, a UNION becomes
// a STRUCT. So a type is written as it is, or in another one by a cast that keeps every value, or not at all.

// keeps are the scalar types that come back as they were written.
var keeps = Named("BOOLEAN", "TINYINT", "SMALLINT", "INTEGER", "BIGINT", "UTINYINT", "USMALLINT", "UINTEGER",
	"UBIGINT", "FLOAT", "DOUBLE", "VARCHAR", "BLOB", "DATE", "TIME", "TIMESTAMP", "TIMESTAMP_NS",
	"TIMESTAMP WITH TIME ZONE", "UUID", "JSON", "INTERVAL", "GEOMETRY('OGC:CRS84')")

// casts are the scalar types that are written in another type. A value that does not fit it is refused.
var casts = map[string]string{
	"HUGEINT": "DECIMAL(38,0)", "UHUGEINT": "DECIMAL(38,0)", "TIMESTAMP_S": "TIMESTAMP", "TIMESTAMP_MS": "TIMESTAMP",
	`"NULL"`: "INTEGER", "NULL": "INTEGER",
}

// instead are casts to propose for types that are not written; for others it is VARCHAR.
var instead = map[string]string{"VARIANT": "JSON"}

// Written returns the column as files have it. A type that they cannot hold is a fault.Invalid that names the cast to
// write.
func Written(c relations.Column) (relations.Column, error) {
	refused := ""
	t := TypeOf(c.Type)
	written := t.Map(func(s Type) Type {
		if name, ok := casts[s.Name]; ok {
			return Type{Name: name}
		}
		if !keeps(s) && !strings.HasPrefix(s.Name, "DECIMAL(") && refused == "" {
			refused = s.String()
		}
		return s
	})
	if refused == "" {
		return relations.Column{Name: c.Name, Type: lists(written).String()}, nil
	}

	proposed := t.Map(func(s Type) Type {
		switch name, cast := casts[s.Name]; {
		case cast:
			return Type{Name: name}
		case keeps(s) || strings.HasPrefix(s.Name, "DECIMAL("):
			return s
		case instead[s.Name] != "":
			return Type{Name: instead[s.Name]}
		}
		return Type{Name: "VARCHAR"}
	})
	if len(refused) > 80 {
		refused = refused[:80] + "…"
	}
	return c, fault.New(fault.Invalid, "column %q: values of type %s cannot be stored without changing them", c.Name,
		refused).WithHint("write CAST(%[1]s AS %[2]s) AS %[1]s", Quote(c.Name), lists(proposed))
}

// lists returns the type with lists in place of arrays, whose length files do not keep.
func lists(t Type) Type {
	t.Fields = slices.Clone(t.Fields)
	for i := range t.Fields {
		t.Fields[i].Type = lists(t.Fields[i].Type)
	}
	if t.Kind == ArrayType {
		t.Kind, t.Size = ListType, ""
	}
	return t
}

// WrittenAll returns the columns as files have them.
func WrittenAll(columns []relations.Column) (written []relations.Column, err error) {
	written = make([]relations.Column, len(columns))
	for i, c := range columns {
		if written[i], err = Written(c); err != nil {
			return nil, err
		}
	}
	return written, nil
}
