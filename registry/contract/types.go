package contract

import (
	"fmt"
	"slices"
)

// wider lists, for DuckDB's types, those that hold every value of a type as the same kind of value.
var wider = map[string][]string{
	"TINYINT":   {"SMALLINT", "INTEGER", "BIGINT", "HUGEINT", "FLOAT", "DOUBLE"},
	"SMALLINT":  {"INTEGER", "BIGINT", "HUGEINT", "FLOAT", "DOUBLE"},
	"INTEGER":   {"BIGINT", "HUGEINT", "DOUBLE"},
	"BIGINT":    {"HUGEINT"},
	"UTINYINT":  {"USMALLINT", "UINTEGER", "UBIGINT", "SMALLINT", "INTEGER", "BIGINT", "HUGEINT", "FLOAT", "DOUBLE"},
	"USMALLINT": {"UINTEGER", "UBIGINT", "INTEGER", "BIGINT", "HUGEINT", "FLOAT", "DOUBLE"},
	"UINTEGER":  {"UBIGINT", "BIGINT", "HUGEINT", "DOUBLE"},
	"UBIGINT":   {"HUGEINT"},
	"FLOAT":     {"DOUBLE"},
	"DATE":      {"TIMESTAMP"},
}

// widens reports whether every value of a type is a value of another one, so that whoever reads it goes on working.
func widens(from, to string) bool {
	if slices.Contains(wider[from], to) {
		return true
	}
	var p, s, q, r int
	if n, _ := fmt.Sscanf(from, "DECIMAL(%d,%d)", &p, &s); n != 2 {
		return false
	}
	if n, _ := fmt.Sscanf(to, "DECIMAL(%d,%d)", &q, &r); n != 2 {
		return false
	}
	return r >= s && q-r >= p-s
}
