package literal

import (
	"encoding/json"
	"fmt"
	"math/big"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/late"
)

// Comparison is what a literal means beside a column.
type Comparison struct {
	Null  bool   // the literal is NULL
	Never bool   // it has the column's kind, but no value of the column's type equals it, as 1.5 in BIGINT
	Value string // the text that DuckDB casts to the column's type without loss
	Type  string // the column's type
}

// Compare returns what a literal means beside a column of a DuckDB type. Numbers compare with numbers by their value,
// without rounding; text compares with text, and with other types if it is the canonical text of one of their values.
// Whatever else never equals the column, so it is an error that says how to write it.
func Compare(column, columnType string, v any) (Comparison, error) {
	c := Comparison{Type: columnType, Null: v == nil}
	if c.Null {
		return c, nil
	}
	kind := kindOf(columnType)
	if kind == others {
		return c, fault.New(fault.Invalid, "column %q is %s, which cannot be compared with the values of a document",
			column, columnType).WithHint("compare it in SQL")
	}

	ok := false
	switch v := v.(type) {
	case bool:
		c.Value, ok = strconv.FormatBool(v), kind == booleans
	case string:
		c.Value, ok = kind.text(columnType, v)
	default:
		number, err := numberOf(v)
		if err != nil {
			return c, fault.New(fault.Invalid, "column %q: %s: %w", column, show(v), err)
		}
		c.Value, ok = kind.number(columnType, number)
		c.Never = kind.numeric() && !ok
	}
	if !ok && !c.Never {
		return c, fault.New(fault.Invalid, "column %q is %s: no value of it equals %s", column, columnType, show(v)).
			WithHint("%s", kind.hint(columnType))
	}
	return c, nil
}

// show returns a literal as a document has it.
func show(v any) string {
	if text, ok := v.(string); ok {
		return "the text " + strconv.Quote(brief(text))
	}
	return brief(fmt.Sprint(v))
}

// numberOf returns a number of any of the types that decoders and tests use.
func numberOf(v any) (decimal, error) {
	switch v := v.(type) {
	case json.Number:
		return parseDecimal(string(v))
	case float64:
		return parseDecimal(strconv.FormatFloat(v, 'g', -1, 64))
	case int, int32, int64:
		return parseDecimal(fmt.Sprint(v))
	}
	return decimal{}, fmt.Errorf("a %T is not a single value", v)
}

// kind is what types have in common as far as literals are concerned.
type kind int

const (
	others kind = iota
	booleans
	wholes
	decimals
	floats
	texts
	enums
	dates
	times
	timestamps
	instants
	uuids
)

func kindOf(columnType string) kind {
	_, whole := wholeTypes[columnType]
	_, timestamp := timestampDigits[columnType]
	switch {
	case whole:
		return wholes
	case timestamp:
		return timestamps
	case decimalType.MatchString(columnType):
		return decimals
	case strings.HasPrefix(columnType, "ENUM("):
		return enums
	}
	return map[string]kind{"BOOLEAN": booleans, "FLOAT": floats, "DOUBLE": floats, "VARCHAR": texts, "DATE": dates,
		"TIME": times, "TIMESTAMP WITH TIME ZONE": instants, "UUID": uuids}[columnType]
}

func (k kind) numeric() bool { return slices.Contains([]kind{wholes, decimals, floats}, k) }

// wholeType is the range of a type of whole numbers.
type wholeType struct {
	bits   uint // 0: unlimited
	signed bool
}

var wholeTypes = map[string]wholeType{
	"TINYINT": {8, true}, "SMALLINT": {16, true}, "INTEGER": {32, true}, "BIGINT": {64, true}, "HUGEINT": {128, true},
	"UTINYINT": {8, false}, "USMALLINT": {16, false}, "UINTEGER": {32, false}, "UBIGINT": {64, false},
	"UHUGEINT": {128, false}, "BIGNUM": {},
}

// holds reports whether a whole number is in the range of a type.
func (t wholeType) holds(n *big.Int) bool {
	if t.bits == 0 {
		return true
	}
	low, high := new(big.Int), new(big.Int).Lsh(big.NewInt(1), t.bits)
	if t.signed {
		low.Rsh(high, 1)
		high.Set(low)
		low.Neg(low)
	}
	return n.Cmp(low) >= 0 && n.Cmp(high) < 0
}

// number returns the text of a number that is exactly a value of the type, or of one that the type shows so.
func (k kind) number(columnType string, d decimal) (text string, ok bool) {
	switch k {
	case wholes:
		if !d.whole() {
			return "", false
		}
		n, ok := new(big.Int).SetString(d.plain(), 10)
		return d.plain(), ok && wholeTypes[columnType].holds(n)
	case decimals:
		width, scale := decimalSize(columnType)
		return d.plain(), d.fraction() <= scale && d.point <= width-scale
	case floats:
		return d.String(), shown(columnType, d)
	}
	return "", false
}

var decimalType = late.Pattern(`^DECIMAL\((\d+), ?(\d+)\)$`)

func decimalSize(columnType string) (width, scale int) {
	if m := decimalType.FindStringSubmatch(columnType); m != nil {
		width, _ = strconv.Atoi(m[1])
		scale, _ = strconv.Atoi(m[2])
	}
	return width, scale
}

// shown reports whether the binary number that is nearest to d, written with as many digits as d has, is d. So 0.1 is a
// value of DOUBLE, though no binary number is exactly a tenth, and 9007199254740993 is none.
func shown(columnType string, d decimal) bool {
	bits := 64
	if columnType == "FLOAT" {
		bits = 32
	}
	nearest, err := strconv.ParseFloat(d.String(), bits)
	if err != nil {
		return false
	}
	back, err := parseDecimal(strconv.FormatFloat(nearest, 'e', max(0, len(d.digits)-1), bits))
	return err == nil && back == d
}

var (
	wholeText   = late.Pattern(`^(0|-?[1-9][0-9]*)$`)
	decimalText = late.Pattern(`^-?(0|[1-9][0-9]*)(\.[0-9]+)?$`)
	floatText   = late.Pattern(`^-?(0|[1-9][0-9]*)(\.[0-9]+)?(e[-+]?[0-9]+)?$`)
	uuidText    = late.Pattern(`^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$`)
	clockText   = late.Pattern(`^(\d{2}:\d{2}:\d{2})(?:\.(\d+))?$`)
	momentText  = late.Pattern(`^(\d{4}-\d{2}-\d{2})[ T](\d{2}:\d{2}:\d{2}(?:\.\d+)?)(Z|[-+]\d{2}(?::?\d{2})?)?$`)
)

// timestampDigits are the digits of a second that types of local timestamps keep.
var timestampDigits = map[string]int{"TIMESTAMP_S": 0, "TIMESTAMP_MS": 3, "TIMESTAMP": 6, "TIMESTAMP_NS": 9}

// text returns a text as DuckDB casts it to the type, if it is the canonical text of a value.
func (k kind) text(columnType, s string) (value string, ok bool) {
	switch k {
	case texts, enums:
		return s, true
	case booleans:
		return s, s == "true" || s == "false"
	case wholes:
		return k.numberText(columnType, s, wholeText)
	case decimals:
		return k.numberText(columnType, s, decimalText)
	case floats:
		if s == "nan" || s == "inf" || s == "-inf" {
			return s, true
		}
		return k.numberText(columnType, s, floatText)
	case uuids:
		return s, uuidText.MatchString(s)
	}
	return k.timeText(columnType, s)
}

// timeText does what text does, for types of dates and times.
func (k kind) timeText(columnType, s string) (value string, ok bool) {
	switch k {
	case dates:
		return s, s == "infinity" || s == "-infinity" || isDate(s)
	case times:
		return s, isClock(s, 6)
	case timestamps:
		local, offset, ok := moment(s, timestampDigits[columnType])
		return local, ok && offset == ""
	case instants:
		local, offset, ok := moment(s, 6)
		if !ok || offset == "" {
			return "", false
		}
		return inUTC(local, offset)
	}
	return "", false
}

func (k kind) numberText(columnType, s string, form *late.Regexp) (value string, ok bool) {
	d, err := parseDecimal(s)
	if err != nil || !form.MatchString(s) {
		return "", false
	}
	return k.number(columnType, d)
}

func isDate(s string) bool {
	at, err := time.Parse(time.DateOnly, s)
	return err == nil && at.Year() > 0
}

// isClock reports whether a text is a time of day with at most some digits behind the second.
func isClock(s string, fraction int) bool {
	m := clockText.FindStringSubmatch(s)
	if m == nil || len(m[2]) > fraction {
		return false
	}
	_, err := time.Parse(time.TimeOnly, m[1])
	return err == nil
}

// moment splits a date with a time of day into its local part, as DuckDB writes it, and its offset.
func moment(s string, fraction int) (local, offset string, ok bool) {
	m := momentText.FindStringSubmatch(s)
	if m == nil || !isDate(m[1]) || !isClock(m[2], fraction) {
		return "", "", false
	}
	return m[1] + " " + m[2], m[3], true
}

// inUTC returns an instant in UTC, with the offset that makes it independent of a session's zone.
func inUTC(local, offset string) (string, bool) {
	switch {
	case len(offset) == len("+09"):
		offset += ":00"
	case len(offset) == len("+0900"):
		offset = offset[:3] + ":" + offset[3:]
	}
	at, err := time.Parse("2006-01-02 15:04:05.999999999Z07:00", local+offset)
	if err != nil || at.UTC().Year() < 1 || at.UTC().Year() > 9999 {
		return "", false
	}
	return at.UTC().Format("2006-01-02 15:04:05.999999") + "+00", true
}

// hint says how values of a type are written.
func (k kind) hint(columnType string) string {
	switch k {
	case texts, enums:
		return "quote it, if it is text"
	case booleans:
		return "write true or false"
	case wholes:
		return "write a whole number of the type, without leading zeros"
	case decimals, floats:
		return "write a number that the type holds without rounding"
	case dates:
		return "write a date, such as 2024-01-31"
	case times:
		return "write a time, such as 05:30:00"
	case timestamps:
		return fmt.Sprintf("write a date and a time without an offset, such as 2024-01-31 05:30:00, with at most %d "+
			"digits behind the second", timestampDigits[columnType])
	case instants:
		return "write a date, a time and an offset, such as 2024-01-31 05:30:00+00"
	case uuids:
		return "write it like 2c5ea4c0-4067-11e9-8bad-9b1deb4d3b7d"
	}
	return ""
}
