package storage

import (
	"strings"

	"github.com/dagctl/dagctl/internal/duck"
	"github.com/dagctl/dagctl/internal/fault"
)

// Rows travel between DuckDB and Postgres as CSV text in which every value is quoted and NULL is an unquoted \N. The
// comment of a physical column has DuckDB's name of its type, so that reading restores the type.
//
// TIMESTAMP_NS loses its nanoseconds, because Postgres counts microseconds. Lists, structs and maps become jsonb, which
// has no NaN and no infinity; text cannot hold NUL. All other values come back unchanged.

// postgresTypes are the types without parameters; the others are in postgresType.
var postgresTypes = map[string]string{
	"BOOLEAN": "boolean", "TINYINT": "smallint", "UTINYINT": "smallint", "SMALLINT": "smallint", "USMALLINT": "integer",
	"INTEGER": "integer", "UINTEGER": "bigint", "BIGINT": "bigint", "UBIGINT": "numeric", "HUGEINT": "numeric",
	"UHUGEINT": "numeric", "BIGNUM": "numeric", "FLOAT": "real", "DOUBLE": "double precision", "VARCHAR": "text",
	"DATE": "date", "TIME": "time", "TIME WITH TIME ZONE": "timetz", "TIMESTAMP": "timestamp",
	"TIMESTAMP_S":  "timestamp",
	"TIMESTAMP_MS": "timestamp", "TIMESTAMP_NS": "timestamp", "TIMESTAMP WITH TIME ZONE": "timestamptz",
	"INTERVAL": "interval", "UUID": "uuid", "BLOB": "bytea", "BIT": "text", "JSON": "jsonb",
	`"NULL"`: "text", "NULL": "text",
}

// postgresType returns the type of the physical column for a DuckDB type.
func postgresType(c Column) (string, error) {
	if t, ok := postgresTypes[c.Type]; ok {
		return t, nil
	}
	switch {
	case nested(c.Type):
		return "jsonb", nil
	case strings.HasPrefix(c.Type, "DECIMAL("):
		return "numeric" + strings.TrimPrefix(c.Type, "DECIMAL"), nil
	case strings.HasPrefix(c.Type, "ENUM("):
		return "text", nil
	}
	return "", fault.New(fault.Invalid, "column %q: postgres storage has no type for %s", c.Name, c.Type).
		WithHint("cast it, for example to VARCHAR")
}

// toText returns the DuckDB expression that writes a column as Postgres reads it.
func toText(c Column) string {
	name := duck.Quote(c.Name)
	switch {
	case c.Type == "BLOB":
		return `'\x' || hex(` + name + ")"
	case nested(c.Type):
		return "CAST(to_json(" + name + ") AS VARCHAR)"
	}
	return "CAST(" + name + " AS VARCHAR)"
}

// fromText returns the DuckDB expression that reads what Postgres wrote.
func fromText(c Column) string {
	name := duck.Quote(c.Name)
	value := "CAST(" + name + " AS " + c.Type + ")"
	switch {
	case c.Type == "BLOB":
		value = "unhex(substr(" + name + ", 3))"
	case c.Type != "JSON" && nested(c.Type):
		value = "CAST(CAST(" + name + " AS JSON) AS " + c.Type + ")"
	}
	return value + " AS " + name
}

// maxIdentifier is NAMEDATALEN-1: Postgres silently cuts longer names, and two could become one.
const maxIdentifier = 63

func checkColumns(columns []Column) error {
	for _, c := range columns {
		if len(c.Name) > maxIdentifier {
			return fault.New(fault.Invalid, "column %q: postgres storage allows names of %d bytes", c.Name,
				maxIdentifier)
		}
		if c.Name == partitionColumn || c.Name == revisionColumn || c.Name == rowColumn {
			return fault.New(fault.Invalid, "column %q: postgres storage uses a column with this name itself", c.Name).
				WithHint("rename it in the query")
		}
		if _, err := postgresType(c); err != nil {
			return err
		}
	}
	return nil
}
