package pgcopy

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"strings"

	"github.com/google/uuid"

	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/relations"
	"github.com/dagctl/dagctl/internal/sqltext"
)

// wire is how values of a type travel.
type wire struct {
	column string // type of the physical column
	give   string // DuckDB's expression of a value on its way out, with %[1]s for the value
	put    func(to []byte, v any) ([]byte, error)

	staged string // DuckDB's type for what get returns
	get    func(from []byte) (any, error)
	take   string // DuckDB's expression that restores the value, with %[1]s for what get returned
}

var errNUL = errors.New("the character NUL, which Postgres cannot hold")

var (
	aBoolean = wire{column: "boolean", give: "%[1]s", staged: "BOOLEAN", take: "%[1]s",
		put: func(to []byte, v any) ([]byte, error) {
			if v.(bool) {
				return append(to, 1), nil
			}
			return append(to, 0), nil
		},
		get: func(from []byte) (any, error) { return len(from) == 1 && from[0] == 1, nil },
	}
	anInt2 = wire{column: "smallint", give: "CAST(%[1]s AS SMALLINT)", staged: "SMALLINT",
		put: func(to []byte, v any) ([]byte, error) {
			return binary.BigEndian.AppendUint16(to, uint16(v.(int16))), nil
		},
		get: sized(2, func(b []byte) any { return int16(binary.BigEndian.Uint16(b)) }),
	}
	anInt4 = wire{column: "integer", give: "CAST(%[1]s AS INTEGER)", staged: "INTEGER",
		put: func(to []byte, v any) ([]byte, error) {
			return binary.BigEndian.AppendUint32(to, uint32(v.(int32))), nil
		},
		get: sized(4, func(b []byte) any { return int32(binary.BigEndian.Uint32(b)) }),
	}
	anInt8 = wire{column: "bigint", give: "CAST(%[1]s AS BIGINT)", staged: "BIGINT",
		put: func(to []byte, v any) ([]byte, error) {
			return binary.BigEndian.AppendUint64(to, uint64(v.(int64))), nil
		},
		get: sized(8, int8Of),
	}
	aFloat4 = wire{column: "real", give: "%[1]s", staged: "FLOAT", take: "%[1]s",
		put: func(to []byte, v any) ([]byte, error) {
			return binary.BigEndian.AppendUint32(to, math.Float32bits(v.(float32))), nil
		},
		get: sized(4, func(b []byte) any { return math.Float32frombits(binary.BigEndian.Uint32(b)) }),
	}
	aFloat8 = wire{column: "double precision", give: "%[1]s", staged: "DOUBLE", take: "%[1]s",
		put: func(to []byte, v any) ([]byte, error) {
			return binary.BigEndian.AppendUint64(to, math.Float64bits(v.(float64))), nil
		},
		get: sized(8, func(b []byte) any { return math.Float64frombits(binary.BigEndian.Uint64(b)) }),
	}
	aNumeric = wire{column: "numeric", give: "CAST(%[1]s AS VARCHAR)", staged: "VARCHAR",
		put: func(to []byte, v any) ([]byte, error) { return putNumeric(to, v.(string)) },
		get: func(from []byte) (any, error) { return getNumeric(from) },
	}
	aText = wire{column: "text", give: "CAST(%[1]s AS VARCHAR)", put: putText, staged: "VARCHAR",
		get: func(from []byte) (any, error) { return string(from), nil }, take: "%[1]s"}
	aBlob = wire{column: "bytea", give: "%[1]s", staged: "BLOB", take: "%[1]s",
		put: func(to []byte, v any) ([]byte, error) { return append(to, v.([]byte)...), nil },
		get: func(from []byte) (any, error) { return append([]byte{}, from...), nil },
	}
	aUUID = wire{column: "uuid", give: "CAST(%[1]s AS VARCHAR)", staged: "VARCHAR",
		put: func(to []byte, v any) ([]byte, error) {
			id, err := uuid.Parse(v.(string))
			return append(to, id[:]...), err
		},
		get: func(from []byte) (any, error) {
			id, err := uuid.FromBytes(from)
			return id.String(), err
		},
	}
	anInterval = wire{column: "interval", give: "%[1]s", put: putInterval, staged: "INTERVAL", get: getInterval,
		take: "%[1]s"}
	aDate = wire{column: "date", put: putDate, staged: "INTEGER", get: anInt4.get,
		give: instantGive("CAST(%[1]s - DATE '2000-01-01' AS BIGINT)", "DATE"),
		take: "CASE %[1]s WHEN 2147483647 THEN DATE 'infinity' WHEN -2147483648 THEN DATE '-infinity' " +
			"ELSE DATE '2000-01-01' + %[1]s END",
	}
	aTime = wire{column: "time", give: "epoch_us(%[1]s)", put: anInt8.put, staged: "BIGINT", get: anInt8.get,
		take: "CASE WHEN %[1]s = 86400000000 THEN TIME '24:00:00' ELSE TIME '00:00:00' + to_microseconds(%[1]s) END"}
	aTimestamp   = instant("timestamp", "TIMESTAMP", "make_timestamp(%[1]s)")
	aTimestampTZ = instant("timestamptz", "TIMESTAMP WITH TIME ZONE",
		"make_timestamptz(%[1]s)")
	aTimestampNS = wire{column: "timestamp", put: putNanos, staged: "BIGINT", get: getMicros,
		give: "CASE WHEN isfinite(%[1]s) THEN epoch_ns(%[1]s) WHEN CAST(%[1]s AS TIMESTAMP) > " +
			"TIMESTAMP '2000-01-01' THEN 9223372036854775807 WHEN %[1]s IS NOT NULL THEN -9223372036854775808 END",
		take: instantTake("TIMESTAMP_NS", "make_timestamp_ns(%[1]s * 1000)"),
	}
	aJSON = wire{column: "json", give: "CAST(%[1]s AS VARCHAR)", put: putText, staged: "VARCHAR", get: aText.get}
)

// wires are the types without parameters and parts.
var wires = map[string]wire{
	"BOOLEAN": aBoolean, "TINYINT": anInt2, "UTINYINT": anInt2, "SMALLINT": anInt2, "USMALLINT": anInt4,
	"INTEGER": anInt4, "UINTEGER": anInt8, "BIGINT": anInt8, "UBIGINT": aNumeric, "FLOAT": aFloat4, "DOUBLE": aFloat8,
	"VARCHAR": aText, "BLOB": aBlob, "UUID": aUUID, "INTERVAL": anInterval, "DATE": aDate, "TIME": aTime,
	"TIMESTAMP": aTimestamp, "TIMESTAMP_NS": aTimestampNS, "TIMESTAMP WITH TIME ZONE": aTimestampTZ, "JSON": aJSON,
	`"NULL"`: aText,
}

// wireOf returns how values of a column travel.
func wireOf(c relations.Column) (wire, error) {
	t := sqltext.TypeOf(c.Type)
	w, known := wires[c.Type]

	switch {
	case known:
	case t.Kind == sqltext.ScalarType && strings.HasPrefix(c.Type, "DECIMAL("):
		w = aNumeric
		w.column += strings.TrimPrefix(c.Type, "DECIMAL")
	case t.Kind != sqltext.ScalarType && !t.Any(unknownInJSON):
		w = nestedWire(t)
	default:
		return w, fault.New(fault.Invalid, "column %q: postgres storage has no type for %s", c.Name, c.Type).
			WithHint("write CAST(%[1]s AS VARCHAR) AS %[1]s", sqltext.Quote(c.Name))
	}
	if w.take == "" {
		w.take = "CAST(%[1]s AS " + c.Type + ")"
	}
	return w, nil
}

// unknownInJSON reports whether JSON text of a type cannot be read back: a struct without names, a map whose keys have
// parts, and what the tables have no type for.
func unknownInJSON(t sqltext.Type) bool {
	switch t.Kind {
	case sqltext.ScalarType:
		return wires[t.Name].column == "" && !strings.HasPrefix(t.Name, "DECIMAL(")
	case sqltext.StructType:
		return t.Fields[0].Name == ""
	case sqltext.MapType:
		return t.Fields[0].Type.Kind != sqltext.ScalarType
	case sqltext.UnionType, sqltext.ArrayType:
		return true
	}
	return false
}

// nestedWire is JSON text. On the way back all of its numbers become text, which DuckDB casts without the detour over a
// DOUBLE that its reader of JSON takes.
func nestedWire(t sqltext.Type) wire {
	texts := t.Map(func(s sqltext.Type) sqltext.Type {
		if s.Name == "BOOLEAN" {
			return s
		}
		return sqltext.Type{Name: "VARCHAR"}
	})
	w := wire{column: "jsonb", give: sqltext.StoredJSON("%[1]s", t), staged: "VARCHAR", put: putJSONB, get: getJSONB,
		take: fmt.Sprintf("CAST(CAST(CAST(%%[1]s AS JSON) AS %s) AS %s)", escaped(texts.String()), escaped(t.String()))}
	w.give = strings.ReplaceAll(w.give, "%", "%%")
	w.give = strings.ReplaceAll(w.give, "%%[1]s", "%[1]s")
	if t.Any(func(t sqltext.Type) bool { return t.Kind == sqltext.MapType }) {
		w.column, w.put, w.get = "json", putNestedJSON, getNestedJSON
	}
	return w
}

// escaped returns a text for use in a format.
func escaped(text string) string { return strings.ReplaceAll(text, "%", "%%") }

// instant is the wire of a type that counts microseconds.
func instant(column, of, take string) wire {
	return wire{column: column, put: putMicros, staged: "BIGINT", get: getMicros,
		give: instantGive("epoch_us(%[1]s)", of), take: instantTake(of, take)}
}

// instantGive gives the infinities as the ends of int64.
func instantGive(finite, of string) string {
	return "CASE WHEN isfinite(%[1]s) THEN " + finite + " WHEN %[1]s = " + of + " 'infinity' THEN " +
		"9223372036854775807 WHEN %[1]s IS NOT NULL THEN -9223372036854775808 END"
}

func instantTake(of, finite string) string {
	return "CASE %[1]s WHEN 9223372036854775807 THEN " + of + " 'infinity' WHEN -9223372036854775808 THEN " + of +
		" '-infinity' ELSE " + finite + " END"
}

// The ends of Postgres's dates and timestamps, and the distance from its epoch, 2000-01-01, to that of Unix.
const (
	firstDay, lastDay     = -2451545, 2145031948 // 4714-11-24 BC
	firstMicro            = -211813488000000000
	sinceUnix             = 946684800000000
	lateDay, earlyDay     = math.MaxInt32, math.MinInt32
	lateMicro, earlyMicro = math.MaxInt64, math.MinInt64
)

var errRange = errors.New("a date or time before 4714-11-24 BC or after the last one of Postgres")

func putDate(to []byte, v any) ([]byte, error) {
	days := v.(int64)
	switch {
	case days == lateMicro:
		days = lateDay
	case days == earlyMicro:
		days = earlyDay
	case days < firstDay || days > lastDay:
		return nil, errRange
	}
	return binary.BigEndian.AppendUint32(to, uint32(int32(days))), nil
}

func putMicros(to []byte, v any) ([]byte, error) {
	micros := v.(int64)
	if micros != lateMicro && micros != earlyMicro {
		if micros < firstMicro+sinceUnix {
			return nil, errRange
		}
		micros -= sinceUnix
	}
	return binary.BigEndian.AppendUint64(to, uint64(micros)), nil
}

func putNanos(to []byte, v any) ([]byte, error) {
	nanos := v.(int64)
	if nanos == lateMicro || nanos == earlyMicro {
		return putMicros(to, nanos)
	}
	if nanos%1000 != 0 {
		return nil, errors.New("a TIMESTAMP_NS that is finer than microseconds, which Postgres counts")
	}
	return putMicros(to, nanos/1000)
}

func getMicros(from []byte) (any, error) {
	v, err := anInt8.get(from)
	micros, _ := v.(int64)
	if micros != lateMicro && micros != earlyMicro {
		micros += sinceUnix
	}
	return micros, err
}

// Interval is an INTERVAL of DuckDB.
type Interval struct {
	Days, Months int32
	Micros       int64
}

func putInterval(to []byte, v any) ([]byte, error) {
	i := v.(Interval)
	to = binary.BigEndian.AppendUint64(to, uint64(i.Micros))
	to = binary.BigEndian.AppendUint32(to, uint32(i.Days))
	return binary.BigEndian.AppendUint32(to, uint32(i.Months)), nil
}

func getInterval(from []byte) (any, error) {
	if len(from) != 16 {
		return nil, errWidth
	}
	return Interval{Micros: int64(binary.BigEndian.Uint64(from)),
		Days: int32(binary.BigEndian.Uint32(from[8:])), Months: int32(binary.BigEndian.Uint32(from[12:]))}, nil
}

var errWidth = errors.New("postgres sent a value of another width")

func sized(width int, of func([]byte) any) func([]byte) (any, error) {
	return func(from []byte) (any, error) {
		if len(from) != width {
			return nil, errWidth
		}
		return of(from), nil
	}
}

func int8Of(b []byte) any { return int64(binary.BigEndian.Uint64(b)) }

func putText(to []byte, v any) ([]byte, error) {
	text := v.(string)
	if strings.IndexByte(text, 0) >= 0 {
		return nil, errNUL
	}
	return append(to, text...), nil
}

// putNestedJSON refuses NUL in texts: json would hold its escape, but not what Postgres's functions make of it.
func putNestedJSON(to []byte, v any) ([]byte, error) {
	text := v.(string)
	for rest := text; ; {
		at := strings.Index(rest, `\u0000`)
		if at < 0 {
			return append(to, text...), nil
		}
		// A backslash that another one escapes begins no escape.
		if before := rest[:at]; (len(before)-len(strings.TrimRight(before, `\`)))%2 == 0 {
			return nil, errNUL
		}
		rest = rest[at+1:]
	}
}

func getNestedJSON(from []byte) (any, error) { return quoteNumbers(string(from)), nil }

// jsonbVersion is the first byte of a jsonb on the wire.
const jsonbVersion = 1

func putJSONB(to []byte, v any) ([]byte, error) { return putNestedJSON(append(to, jsonbVersion), v) }

func getJSONB(from []byte) (any, error) {
	if len(from) == 0 || from[0] != jsonbVersion {
		return nil, errors.New("postgres sent a jsonb of another version")
	}
	return getNestedJSON(from[1:])
}

// quoteNumbers returns JSON with its numbers as text.
func quoteNumbers(text string) string {
	var b strings.Builder
	b.Grow(len(text) + 16)

	for i := 0; i < len(text); {
		c, from := text[i], i
		switch {
		case c == '"':
			for i++; i < len(text) && text[i] != '"'; i++ {
				if text[i] == '\\' {
					i++
				}
			}
			i = min(i+1, len(text))
			b.WriteString(text[from:i])
		case c == '-' || c >= '0' && c <= '9':
			for i < len(text) && strings.IndexByte("+-.0123456789eE", text[i]) >= 0 {
				i++
			}
			b.WriteString(`"` + text[from:i] + `"`)
		default:
			b.WriteByte(c)
			i++
		}
	}
	return b.String()
}
