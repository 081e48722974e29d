package textfile

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"
)

// sinceEpoch is the number of days from Unix's epoch to that of package pgcopy, 2000-01-01.
const sinceEpoch = 10957

// Exactly reads a value of a type from its text, and returns it as package pgcopy takes it. Times are in UTC. A text
// that is no value of the type, or that the type does not hold as it is, is an error. Lists and structs are none.
func (t Type) Exactly(text []byte) (any, error) {
	if t.Kind == JSON {
		if !json.Valid(text) {
			return nil, fmt.Errorf("is no JSON")
		}
		return string(text), nil // as it is laid out
	}
	v, err := formats{point: '.', zone: time.UTC}.parse(text, t)
	if err != nil {
		return nil, err
	}

	switch t.Kind {
	case Text:
		return string(text), nil
	case Bool:
		return v.i != 0, nil
	case Int:
		return t.integer(v), nil
	case Decimal:
		return withPoint(v.decimal.BigInt().String(), int(t.Scale)), nil
	case Float:
		if t.Bits == 32 {
			return float32(v.f), nil
		}
		return v.f, nil
	case Date:
		return v.i - sinceEpoch, nil
	case UUID:
		id, err := uuid.FromBytes(v.text)
		return id.String(), err
	}
	return v.i, nil // microseconds
}

// integer returns a whole number in the Go type that holds all of its type, but for UBIGINT, which is text.
func (t Type) integer(v value) any {
	switch {
	case t.Bits == 64 && t.Unsigned:
		return fmt.Sprint(v.u)
	case t.Unsigned:
		v.i = int64(v.u)
	}
	switch {
	case t.Bits == 8, t.Bits == 16 && !t.Unsigned:
		return int16(v.i)
	case t.Bits == 16, t.Bits == 32 && !t.Unsigned:
		return int32(v.i)
	}
	return v.i
}

// withPoint returns a whole number divided by a power of ten.
func withPoint(digits string, scale int) string {
	if scale == 0 {
		return digits
	}
	sign := ""
	if digits[0] == '-' {
		sign, digits = "-", digits[1:]
	}
	if missing := scale + 1 - len(digits); missing > 0 {
		digits = strings.Repeat("0", missing) + digits
	}
	return sign + digits[:len(digits)-scale] + "." + digits[len(digits)-scale:]
}
