package textfile

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/extensions"

	"github.com/dagctl/dagctl/internal/late"
)

// Kind is what values of a type are.
type Kind int

// The kinds of types that text can have.
const (
	Open Kind = iota // only NULLs were seen
	Text
	Bool
	Int
	Decimal
	Float
	Date
	Time
	Timestamp // without a zone
	Instant   // TIMESTAMP WITH TIME ZONE
	UUID
	JSON
	List
	Struct
)

// Type is a DuckDB type that text can have.
type Type struct {
	Kind             Kind
	Bits             int // of Int and Float
	Unsigned         bool
	Precision, Scale int32   // of Decimal
	Elem             *Type   // of List
	Fields           []Field // of Struct
}

// Field is a part of a Struct.
type Field struct {
	Name string
	Type Type
}

// named are the types without parts, by their names and DuckDB's other names for them. The first name of each is the
// one that is shown.
var named = []struct {
	names []string
	t     Type
}{
	{[]string{"?"}, Type{Kind: Open}},
	{[]string{"VARCHAR", "TEXT", "STRING", "CHAR", "BPCHAR"}, Type{Kind: Text}},
	{[]string{"BOOLEAN", "BOOL", "LOGICAL"}, Type{Kind: Bool}},
	{[]string{"TINYINT", "INT1"}, Type{Kind: Int, Bits: 8}},
	{[]string{"SMALLINT", "INT2", "SHORT", "INT16"}, Type{Kind: Int, Bits: 16}},
	{[]string{"INTEGER", "INT", "INT4", "SIGNED", "INTEGRAL", "INT32"}, Type{Kind: Int, Bits: 32}},
	{[]string{"BIGINT", "INT8", "LONG", "OID", "INT64"}, Type{Kind: Int, Bits: 64}},
	{[]string{"UTINYINT", "UINT8"}, Type{Kind: Int, Bits: 8, Unsigned: true}},
	{[]string{"USMALLINT", "UINT16"}, Type{Kind: Int, Bits: 16, Unsigned: true}},
	{[]string{"UINTEGER", "UINT32"}, Type{Kind: Int, Bits: 32, Unsigned: true}},
	{[]string{"UBIGINT", "UINT64"}, Type{Kind: Int, Bits: 64, Unsigned: true}},
	{[]string{"DECIMAL(38,0)", "HUGEINT", "INT128", "UHUGEINT", "UINT128"}, huge},
	{[]string{"DECIMAL(18,3)", "DECIMAL", "DEC", "NUMERIC"}, Type{Kind: Decimal, Precision: 18, Scale: 3}},
	{[]string{"FLOAT", "REAL", "FLOAT4"}, Type{Kind: Float, Bits: 32}},
	{[]string{"DOUBLE", "FLOAT8", "DOUBLE PRECISION"}, Type{Kind: Float, Bits: 64}},
	{[]string{"DATE"}, Type{Kind: Date}},
	{[]string{"TIME", "TIME WITHOUT TIME ZONE"}, Type{Kind: Time}},
	{[]string{"TIMESTAMP", "DATETIME", "TIMESTAMP_US", "TIMESTAMP_MS", "TIMESTAMP_S", "TIMESTAMP WITHOUT TIME ZONE"},
		Type{Kind: Timestamp}},
	{[]string{"TIMESTAMP WITH TIME ZONE", "TIMESTAMPTZ"}, Type{Kind: Instant}},
	{[]string{"UUID", "GUID"}, Type{Kind: UUID}},
	{[]string{"JSON"}, Type{Kind: JSON}},
}

// huge is what HUGEINT is written as: all storages hold it exactly.
var huge = Type{Kind: Decimal, Precision: 38}

var (
	spaces    = late.Pattern(`\s+`)
	decimalOf = late.Pattern(`^(?:DECIMAL|DEC|NUMERIC) ?\( ?(\d{1,2}) ?(?:, ?(\d{1,2}) ?)?\)$`)
	sizedText = late.Pattern(`^(?:VARCHAR|CHAR|BPCHAR|TEXT|STRING) ?\( ?\d+ ?\)$`)
)

// ParseType reads DuckDB's name of a type. Lists and structs are for JSON; the other types for all formats.
func ParseType(text string) (Type, error) {
	rest, t, err := parseType(text, 0)
	if err == nil && strings.TrimSpace(rest) != "" {
		err = fmt.Errorf("%q is not the name of a DuckDB type", text)
	}
	return t, err
}

const maxDepth = 20

func parseType(text string, depth int) (rest string, t Type, err error) {
	text = strings.TrimLeft(text, " \t\n")
	if depth > maxDepth {
		return "", t, fmt.Errorf("types can be %d deep", maxDepth)
	}

	if after, ok := cutFold(text, "STRUCT"); ok {
		if rest, t, err = parseStruct(after, depth); err != nil {
			return "", t, err
		}
	} else {
		end := scalarEnd(text)
		if t, err = scalarType(text[:end]); err != nil {
			return "", t, err
		}
		rest = text[end:]
	}

	for {
		after, ok := strings.CutPrefix(strings.TrimLeft(rest, " "), "[]")
		if !ok {
			return rest, t, nil
		}
		elem := t
		rest, t = after, Type{Kind: List, Elem: &elem}
	}
}

func cutFold(text, prefix string) (string, bool) {
	if len(text) < len(prefix) || !strings.EqualFold(text[:len(prefix)], prefix) {
		return text, false
	}
	after := strings.TrimLeft(text[len(prefix):], " ")
	return strings.CutPrefix(after, "(")
}

// parseStruct reads the parts of a struct behind its opening parenthesis.
func parseStruct(text string, depth int) (rest string, t Type, err error) {
	t.Kind = Struct
	for {
		text = strings.TrimLeft(text, " \t\n")
		var name string
		if name, text, err = fieldName(text); err != nil {
			return "", t, err
		}
		var field Type
		if text, field, err = parseType(text, depth+1); err != nil {
			return "", t, err
		}
		t.Fields = append(t.Fields, Field{name, field})

		text = strings.TrimLeft(text, " \t\n")
		switch {
		case strings.HasPrefix(text, ","):
			text = text[1:]
		case strings.HasPrefix(text, ")"):
			return text[1:], t, nil
		default:
			return "", t, fmt.Errorf("a STRUCT lacks its closing parenthesis")
		}
	}
}

var plainName = late.Pattern(`^[A-Za-z_][A-Za-z0-9_]*`)

func fieldName(text string) (name, rest string, err error) {
	if !strings.HasPrefix(text, `"`) {
		if name = plainName.FindString(text); name == "" {
			return "", "", fmt.Errorf("a field of a STRUCT needs a name")
		}
		return name, text[len(name):], nil
	}

	var b strings.Builder
	for i := 1; i < len(text); i++ {
		if text[i] != '"' {
			b.WriteByte(text[i])
			continue
		}
		if i+1 == len(text) || text[i+1] != '"' {
			return b.String(), text[i+1:], nil
		}
		b.WriteByte('"')
		i++
	}
	return "", "", fmt.Errorf("a quoted name lacks its end")
}

// scalarEnd returns where a type without parts ends: before a bracket, or a comma or parenthesis that is not its own.
func scalarEnd(text string) int {
	depth := 0
	for i := range len(text) {
		switch text[i] {
		case '(':
			depth++
		case ')':
			if depth == 0 {
				return i
			}
			depth--
		case '[':
			return i
		case ',':
			if depth == 0 {
				return i
			}
		}
	}
	return len(text)
}

func scalarType(text string) (Type, error) {
	name := spaces.ReplaceAllString(strings.ToUpper(strings.TrimSpace(text)), " ")
	for _, n := range named {
		for _, known := range n.names {
			if name == known {
				return n.t, nil
			}
		}
	}

	if sizedText.MatchString(name) {
		return Type{Kind: Text}, nil
	}
	if m := decimalOf.FindStringSubmatch(name); m != nil {
		precision, _ := strconv.Atoi(m[1])
		scale, _ := strconv.Atoi("0" + m[2])
		if precision < 1 || precision > 38 || scale > precision {
			return Type{}, fmt.Errorf("%s: a DECIMAL has 1 to 38 digits, and no more behind the point", text)
		}
		return Type{Kind: Decimal, Precision: int32(precision), Scale: int32(scale)}, nil
	}
	return Type{}, fmt.Errorf("%q is not a type that text can have: read it as VARCHAR and cast it in a sql job", text)
}

// String returns DuckDB's name of the type.
func (t Type) String() string {
	switch t.Kind {
	case Decimal:
		return fmt.Sprintf("DECIMAL(%d,%d)", t.Precision, t.Scale)
	case List:
		return t.Elem.String() + "[]"
	case Struct:
		parts := make([]string, len(t.Fields))
		for i, f := range t.Fields {
			parts[i] = `"` + strings.ReplaceAll(f.Name, `"`, `""`) + `" ` + f.Type.String()
		}
		return "STRUCT(" + strings.Join(parts, ", ") + ")"
	}
	for _, n := range named {
		if n.t.Kind == t.Kind && n.t.Bits == t.Bits && n.t.Unsigned == t.Unsigned {
			return n.names[0]
		}
	}
	return "VARCHAR"
}

// open reports whether the type is not known yet, in any part.
func (t Type) open() bool {
	switch t.Kind {
	case Open:
		return true
	case List:
		return t.Elem.open()
	}
	for _, f := range t.Fields {
		if f.Type.open() {
			return true
		}
	}
	return false
}

// arrow returns the Arrow type that Parquet files of the type are written with.
func (t Type) arrow() arrow.DataType {
	switch t.Kind {
	case Bool:
		return arrow.FixedWidthTypes.Boolean
	case Int:
		return intTypes[t.Bits][t.Unsigned]
	case Decimal:
		return &arrow.Decimal128Type{Precision: t.Precision, Scale: t.Scale}
	case Float:
		if t.Bits == 32 {
			return arrow.PrimitiveTypes.Float32
		}
		return arrow.PrimitiveTypes.Float64
	case Date:
		return arrow.FixedWidthTypes.Date32
	case Time:
		return arrow.FixedWidthTypes.Time64us
	case Timestamp:
		return &arrow.TimestampType{Unit: arrow.Microsecond}
	case Instant:
		return &arrow.TimestampType{Unit: arrow.Microsecond, TimeZone: "UTC"}
	case UUID:
		return extensions.NewUUIDType()
	case List:
		return arrow.ListOf(t.Elem.arrow())
	case Struct:
		fields := make([]arrow.Field, len(t.Fields))
		for i, f := range t.Fields {
			fields[i] = arrow.Field{Name: f.Name, Type: f.Type.arrow(), Nullable: true}
		}
		return arrow.StructOf(fields...)
	case JSON:
		json, _ := extensions.NewJSONType(arrow.BinaryTypes.String) // it is an error for other storage types only
		return json
	}
	return arrow.BinaryTypes.String
}

var intTypes = map[int]map[bool]arrow.DataType{
	8:  {false: arrow.PrimitiveTypes.Int8, true: arrow.PrimitiveTypes.Uint8},
	16: {false: arrow.PrimitiveTypes.Int16, true: arrow.PrimitiveTypes.Uint16},
	32: {false: arrow.PrimitiveTypes.Int32, true: arrow.PrimitiveTypes.Uint32},
	64: {false: arrow.PrimitiveTypes.Int64, true: arrow.PrimitiveTypes.Uint64},
}
