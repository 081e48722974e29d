package duck

import (
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// Quote returns a name as an identifier.
func Quote(name string) string { return `"` + strings.ReplaceAll(name, `"`, `""`) + `"` }

// QuoteAll returns names as a list of identifiers.
func QuoteAll(names []string) string {
	quoted := make([]string, len(names))
	for i, n := range names {
		quoted[i] = Quote(n)
	}
	return strings.Join(quoted, ", ")
}

// Literal returns a JSON scalar, an integer or an instant as a literal. In DuckDB, a backslash in '...' is a backslash,
// so only quotes need escaping, by doubling them.
func Literal(v any) string {
	switch v := v.(type) {
	case nil:
		return "NULL"
	case bool:
		return strconv.FormatBool(v)
	case int:
		return strconv.Itoa(v)
	case int64:
		return strconv.FormatInt(v, 10)
	case float64:
		if v == math.Trunc(v) && math.Abs(v) < 1<<53 {
			return strconv.FormatInt(int64(v), 10)
		}
		return "'" + strconv.FormatFloat(v, 'g', -1, 64) + "'::DOUBLE"
	case json.Number:
		if _, err := strconv.ParseInt(v.String(), 10, 64); err == nil {
			return v.String()
		}
		f, _ := v.Float64()
		return "'" + strconv.FormatFloat(f, 'g', -1, 64) + "'::DOUBLE"
	case time.Time:
		return "TIMESTAMPTZ '" + v.UTC().Format("2006-01-02 15:04:05.999999") + "+00'"
	case string:
		return "'" + strings.ReplaceAll(v, "'", "''") + "'"
	default:
		return Literal(fmt.Sprint(v))
	}
}

func literalList[T any](values []T) string {
	literals := make([]string, len(values))
	for i, v := range values {
		literals[i] = Literal(v)
	}
	return "[" + strings.Join(literals, ", ") + "]"
}
