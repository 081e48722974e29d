package sqltext

import (
	"strings"

	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/relations"
)

// inArrow are the scalar types that Arrow has, too.
var inArrow = Named("BOOLEAN", "TINYINT", "SMALLINT", "INTEGER", "BIGINT", "UTINYINT", "USMALLINT", "UINTEGER",
	"UBIGINT", "FLOAT", "DOUBLE", "VARCHAR", "BLOB", "DATE", "TIME", "TIME_NS", "TIMESTAMP", "TIMESTAMP_S",
	"TIMESTAMP_MS", "TIMESTAMP_NS", "TIMESTAMP WITH TIME ZONE", "UUID", "JSON", "INTERVAL")

// IsGeometry reports whether values of the type are geometry that files have, which Arrow has as bytes.
func IsGeometry(t Type) bool { return Named("GEOMETRY('OGC:CRS84')")(t) }

// InArrow returns the type as which a column is written as Arrow: its own, or one that has each of its values. A type
// that Arrow does not have is a fault.Invalid that names the cast to write.
func InArrow(c relations.Column) (Type, error) {
	if IsGeometry(TypeOf(c.Type)) {
		return Type{Name: "BLOB"}, nil
	}

	refused := ""
	t := lists(TypeOf(c.Type).Map(func(s Type) Type {
		switch {
		case inArrow(s) || strings.HasPrefix(s.Name, "DECIMAL("):
			return s
		case strings.HasPrefix(s.Name, "ENUM("):
			return Type{Name: "VARCHAR"} // Arrow's dictionaries have no order either
		case casts[s.Name] != "":
			return Type{Name: casts[s.Name]}
		case refused == "":
			refused = s.String()
		}
		return s
	}))
	if refused == "" {
		return t, nil
	}
	return t, fault.New(fault.Invalid, "column %q: Arrow has no type for values of type %s", c.Name, refused).
		WithHint("write CAST(%[1]s AS VARCHAR) AS %[1]s", Quote(c.Name))
}
