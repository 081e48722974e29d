package proof_test

import (
	"fmt"
	"math/big"
	"math/rand/v2"
	"strconv"
	"strings"

	"github.com/google/uuid"

	"github.com/dagctl/dagctl/internal/sqltext"
)

// A sample is a value of a random type: its SQL, and what it must be on every way out.
type sample struct {
	sql   string
	text  string // of a scalar, as DuckDB writes it
	parts []sample
	keys  []string // of a struct its members, of a map its keys
	null  bool
}

// A shape is a random type.
type shape struct {
	name   string // DuckDB's
	scalar *scalarKind
	kind   sqltext.TypeKind
	of     []shape  // elements, members, or the values of a map
	keys   []string // members of a struct
	key    *scalarKind
	size   int // of an array; 0: a list of any length
}

// scalarKind is a type without parts. random returns SQL of a value and its text; nil: there is none but NULL.
type scalarKind struct {
	name   string
	number bool // JSON has it as a number, or as text where that is not exact
	float  int  // bits
	json   bool
	random func(r *rand.Rand) (sql, text string)
}

func whole(name string, bits int, signed bool) scalarKind {
	return scalarKind{name: name, number: true, random: func(r *rand.Rand) (string, string) {
		n := new(big.Int).Lsh(big.NewInt(1), uint(r.IntN(bits+1)))
		n.Sub(n, big.NewInt(1))
		if signed {
			n.Rsh(n, 1)
			if r.IntN(2) == 0 {
				n.Not(n)
			}
		}
		return fmt.Sprintf("CAST('%s' AS %s)", n, name), n.String()
	}}
}

func decimalKind(width, scale int) scalarKind {
	name := fmt.Sprintf("DECIMAL(%d,%d)", width, scale)
	return scalarKind{name: name, number: true, random: func(r *rand.Rand) (string, string) {
		digits := make([]byte, 1+r.IntN(width))
		for i := range digits {
			digits[i] = byte('0' + r.IntN(10))
		}
		n, _ := new(big.Int).SetString(string(digits), 10)
		text := fmt.Sprintf("%0*s", scale+1, n.String())
		if scale > 0 {
			text = text[:len(text)-scale] + "." + text[len(text)-scale:]
		}
		if r.IntN(2) == 0 && n.Sign() > 0 {
			text = "-" + text
		}
		return fmt.Sprintf("CAST('%s' AS %s)", text, name), text
	}}
}

func floating(name string, bits int) scalarKind {
	return scalarKind{name: name, float: bits, random: func(r *rand.Rand) (string, string) {
		text := pick(r, "nan", "inf", "-inf", "-0.0", "0.0", "1.5", "0.1", "1e-30", "1e+30")
		if r.IntN(2) == 0 {
			text = strconv.FormatFloat(r.NormFloat64(), 'g', -1, bits)
		}
		return fmt.Sprintf("CAST('%s' AS %s)", text, name), text
	}}
}

// oneOf picks texts that are cast to the type, and that DuckDB writes in the same way.
func oneOf(name string, texts ...string) scalarKind {
	return scalarKind{name: name, random: func(r *rand.Rand) (string, string) {
		text := pick(r, texts...)
		return "CAST(" + sqltext.Literal(text) + " AS " + name + ")", text
	}}
}

func pick[T any](r *rand.Rand, from ...T) T { return from[r.IntN(len(from))] }

var documents = []string{`{"b":  1.12345678901234567890,` + "\n" + ` "a": [1E400, null]}`, "null", `"x"`, "[]", " 1.10 "}

var scalarKinds = []scalarKind{
	oneOf("BOOLEAN", "true", "false"), whole("TINYINT", 8, true), whole("UTINYINT", 8, false),
	whole("SMALLINT", 16, true), whole("USMALLINT", 16, false), whole("INTEGER", 32, true),
	whole("UINTEGER", 32, false), whole("BIGINT", 64, true), whole("UBIGINT", 64, false), whole("HUGEINT", 126, true),
	whole("UHUGEINT", 126, false), floating("FLOAT", 32), floating("DOUBLE", 64), decimalKind(4, 1),
	decimalKind(18, 3), decimalKind(38, 20), decimalKind(38, 0),
	oneOf("VARCHAR", "", "x", "é😀", "a\rb", "\r\n", `"`, `\`, `\N`, "NULL", "null", "-1.10", "a,b;c\t", "[1]", "{'a': 1}",
		`\u0000`, "\x01\x7f", " x ", "'"),
	{name: "BLOB", random: func(r *rand.Rand) (string, string) {
		sql, text := "", ""
		for range r.IntN(5) {
			b := pick(r, byte(0), '\\', '"', 'a', '\n', 0xff, byte(r.IntN(256)))
			sql += fmt.Sprintf("%02X", b)
			if b >= ' ' && b <= '~' && !strings.ContainsRune(`\'"`, rune(b)) {
				text += string(rune(b))
			} else {
				text += fmt.Sprintf(`\x%02X`, b)
			}
		}
		return "unhex('" + sql + "')", text
	}},
	oneOf("DATE", "0044-03-15 (BC)", "infinity", "-infinity", "2024-02-29", "0001-01-01", "9999-12-31"),
	oneOf("TIME", "00:00:00", "24:00:00", "12:34:56.789012"),
	oneOf("TIMESTAMP", "0044-03-15 (BC) 01:02:03.000001", "infinity", "-infinity", "1969-12-31 23:59:59.999999"),
	oneOf("TIMESTAMP_S", "1969-12-31 23:59:59", "infinity", "-infinity"),
	oneOf("TIMESTAMP_MS", "1969-12-31 23:59:59.999", "2024-01-01 00:00:00"),
	oneOf("TIMESTAMP_NS", "2024-01-01 01:02:03.123456", "1969-12-31 23:59:59.999999", "infinity"),
	oneOf("TIMESTAMP WITH TIME ZONE", "0044-03-15 (BC) 01:02:03.000001+00", "infinity", "2024-01-31 12:34:56+00"),
	oneOf("INTERVAL", "1 year 2 days 00:00:03.123", "100000 days 1193:00:00", "00:00:00", "1 month"),
	{name: "UUID", random: func(r *rand.Rand) (string, string) {
		id := uuid.UUID{byte(r.IntN(256)), 1, 2, 3, 4, 5, 0x46, 7, 0x88, byte(r.IntN(256))}.String()
		return "CAST('" + id + "' AS UUID)", id
	}},
	{name: "JSON", json: true, random: oneOf("JSON", documents...).random},
	{name: `"NULL"`},
}

// randomShape returns a type. Keys of maps are scalars whose text is a key of JSON's objects.
func randomShape(r *rand.Rand, depth int) shape {
	if depth == 0 || r.IntN(3) > 0 {
		k := pick(r, scalarKinds...)
		return shape{name: k.name, scalar: &k}
	}

	inner := randomShape(r, depth-1)
	switch r.IntN(4) {
	case 0:
		return shape{name: inner.name + "[]", kind: sqltext.ListType, of: []shape{inner}}
	case 3:
		size := 1 + r.IntN(3)
		return shape{name: fmt.Sprintf("%s[%d]", inner.name, size), kind: sqltext.ListType, of: []shape{inner},
			size: size}
	case 1:
		key := scalarKinds[pick(r, 5, 7, 15, 17, 19)]
		return shape{name: fmt.Sprintf("MAP(%s, %s)", key.name, inner.name), kind: sqltext.MapType, of: []shape{inner},
			key: &key}
	}
	s := shape{kind: sqltext.StructType, keys: []string{"z", "Ä b\"", "%s"}[:1+r.IntN(3)]}
	members := make([]string, len(s.keys))
	for i, key := range s.keys {
		s.of = append(s.of, inner)
		members[i] = sqltext.Quote(key) + " " + inner.name
		inner = randomShape(r, depth-1)
	}
	s.name = "STRUCT(" + strings.Join(members, ", ") + ")"
	return s
}

func (s shape) random(r *rand.Rand) (v sample) {
	if r.IntN(6) == 0 || s.scalar != nil && s.scalar.random == nil {
		return sample{sql: "CAST(NULL AS " + s.name + ")", null: true}
	}
	if s.scalar != nil {
		v.sql, v.text = s.scalar.random(r)
		return v
	}

	var parts []string
	add := func(label string, of shape) {
		part := of.random(r)
		v.parts = append(v.parts, part)
		parts = append(parts, label+part.sql)
	}
	switch s.kind {
	case sqltext.ListType:
		size := s.size
		if size == 0 {
			size = r.IntN(4)
		}
		for range size {
			add("", s.of[0])
		}
		v.sql = "[" + strings.Join(parts, ", ") + "]"
	case sqltext.StructType:
		for i, key := range s.keys {
			v.keys = append(v.keys, key)
			add(sqltext.Literal(key)+": ", s.of[i])
		}
		v.sql = "{" + strings.Join(parts, ", ") + "}"
	case sqltext.MapType:
		seen := map[string]bool{}
		for range r.IntN(4) {
			sql, text := s.key.random(r)
			if seen[text] {
				continue
			}
			seen[text], v.keys = true, append(v.keys, text)
			add(sql+": ", s.of[0])
		}
		v.sql = "MAP {" + strings.Join(parts, ", ") + "}"
	}
	v.sql = "CAST(" + v.sql + " AS " + s.name + ")"
	return v
}
