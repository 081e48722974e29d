package literal

import (
	"bytes"
	"cmp"
	"encoding/json"
	"slices"
	"strconv"
	"strings"
)

// Storable refuses a valid JSON text that the database cannot keep, or that readers in other languages could not read:
// because of its escapes, its nesting or its numbers.
func Storable(text []byte) error {
	return cmp.Or(Escapes(text), Nesting(text), Numbers(text))
}

// StoredBytes returns how many bytes PostgreSQL stores for a JSON text, as JSONB. That can be several times the text:
// each value has a word for its place, and numbers and nested values begin at whole words.
func StoredBytes(text []byte) (int, error) {
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber()
	var v any
	if err := decoder.Decode(&v); err != nil {
		return 0, err
	}
	switch v.(type) {
	case []any, map[string]any:
	default:
		v = []any{v} // as JSONB stores a scalar
	}
	return word + endOf(v, 0), nil
}

const word = 4 // in bytes

// StoredOver returns how many bytes PostgreSQL stores for a JSON text if those are more than a limit, and otherwise 0,
// as for a text that is no JSON. Texts far below the limit are not parsed: each of their bytes takes eight at most.
func StoredOver(limit int, text []byte) int {
	if 8*len(text) <= limit {
		return 0
	}
	n, err := StoredBytes(text)
	if err != nil || n <= limit {
		return 0
	}
	return n
}

// endOf returns where a value ends that is stored from an offset on.
func endOf(v any, at int) int {
	switch v := v.(type) {
	case string:
		return at + len(v)
	case json.Number:
		return wholeWords(at) + numericBytes(string(v))
	case []any:
		at = wholeWords(at) + word + word*len(v)
		for _, element := range v {
			at = endOf(element, at)
		}
	case map[string]any:
		at = wholeWords(at) + word + 2*word*len(v)
		keys := make([]string, 0, len(v))
		for key := range v {
			keys = append(keys, key)
			at += len(key)
		}
		slices.SortFunc(keys, func(a, b string) int {
			if len(a) != len(b) {
				return len(a) - len(b)
			}
			return strings.Compare(a, b)
		})
		for _, key := range keys {
			at = endOf(v[key], at)
		}
	}
	return at
}

func wholeWords(n int) int { return (n + word - 1) / word * word }

// numericBytes returns the size of a NUMERIC: a header, and two bytes for each four digits around the point.
func numericBytes(number string) int {
	mantissa, power, _ := strings.Cut(strings.ToLower(strings.TrimPrefix(number, "-")), "e")
	exponent, _ := strconv.Atoi(power)
	whole, fraction, _ := strings.Cut(mantissa, ".")
	scale := len(fraction) - exponent

	digits := strings.TrimLeft(whole+fraction, "0")
	point := len(digits) - len(fraction) + exponent // the number of digits before the point
	digits = strings.TrimRight(digits, "0")
	groups, weight := 0, 0
	if digits != "" {
		weight = floorDiv(point-1, 4)
		groups = (len(digits) + 4*(weight+1) - point + 3) / 4
	}

	header := 6
	if scale > 63 || weight > 63 || weight < -64 {
		header = 8
	}
	return header + 2*groups
}

func floorDiv(a, b int) int {
	q := a / b
	if a%b < 0 {
		q--
	}
	return q
}
