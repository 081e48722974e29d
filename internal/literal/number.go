// Package literal has the values that documents and payloads hold: numbers with all their digits, and what a value
// means beside a column of a type. It is pure.
//
// Vocabulary: a literal is a JSON scalar, whose number is a json.Number. A number has one canonical text, whatever it
// was written like, so that equal numbers have equal hashes.
package literal

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/big"
	"strconv"
	"strings"
)

// The limits of a number. Beyond them, a few bytes of text would cost megabytes wherever they are computed with.
const (
	MaxDigits   = 1000
	MaxExponent = 1000
)

// Number returns the canonical text of a decimal number, which may be written as in JSON or in YAML (+1, .5, 5.). It
// never rounds.
//
// The canonical text is what encoding/json writes for a float64, with all digits: 1.50 is 1.5, 1.0 and 1e0 are 1, and
// small numbers have an exponent. Whole numbers below 1e40 have none, so that everybody reads them as whole numbers.
func Number(text string) (json.Number, error) {
	d, err := parseDecimal(text)
	if err != nil {
		return "", err
	}
	return json.Number(d.String()), nil
}

// Whole returns the canonical text of a whole number in the notations of YAML: 0x1F, 0o17, 0b101 and 1_000 too.
func Whole(text string) (json.Number, error) {
	if len(text) > MaxDigits {
		return "", fmt.Errorf("it has more than %d digits", MaxDigits)
	}
	n, ok := new(big.Int).SetString(strings.ReplaceAll(text, "_", ""), 0)
	if !ok {
		return "", errNoNumber
	}
	return Number(n.String())
}

var errNoNumber = errors.New("it is not a number")

// decimal is the number 0.DIGITS * 10^point. Digits neither begin nor end with a zero; zero has none.
type decimal struct {
	negative bool
	digits   string
	point    int
}

func parseDecimal(text string) (d decimal, err error) {
	if len(text) > MaxDigits+10 {
		return d, fmt.Errorf("it has more than %d digits", MaxDigits)
	}
	rest := text
	if strings.HasPrefix(rest, "-") || strings.HasPrefix(rest, "+") {
		d.negative, rest = rest[0] == '-', rest[1:]
	}

	exponent := 0
	if at := strings.IndexAny(rest, "eE"); at >= 0 {
		if exponent, err = strconv.Atoi(rest[at+1:]); err != nil && !errors.Is(err, strconv.ErrRange) {
			return d, errNoNumber
		}
		if err != nil || exponent > MaxExponent || exponent < -MaxExponent {
			return d, fmt.Errorf("its exponent is not between -%[1]d and %[1]d", MaxExponent)
		}
		rest = rest[:at]
	}

	whole, fraction, _ := strings.Cut(rest, ".")
	d.digits = whole + fraction
	if d.digits == "" || strings.Trim(d.digits, "0123456789") != "" {
		return d, errNoNumber
	}
	d.point = len(whole) + exponent
	trimmed := strings.TrimLeft(d.digits, "0")
	d.point -= len(d.digits) - len(trimmed)
	d.digits = strings.TrimRight(trimmed, "0")
	if d.digits == "" {
		return decimal{}, nil
	}
	return d, nil
}

// whole reports whether the number has no fraction.
func (d decimal) whole() bool { return len(d.digits) <= d.point }

// fraction is the number of digits behind the point.
func (d decimal) fraction() int { return max(0, len(d.digits)-d.point) }

// plain returns the number without an exponent.
func (d decimal) plain() string {
	if d.digits == "" {
		return "0"
	}

	text := d.digits
	switch {
	case d.point <= 0:
		text = "0." + strings.Repeat("0", -d.point) + text
	case d.whole():
		text += strings.Repeat("0", d.point-len(text))
	default:
		text = text[:d.point] + "." + text[d.point:]
	}
	if d.negative {
		return "-" + text
	}
	return text
}

func (d decimal) String() string {
	const (
		lowest  = -5 // of 1e-6, the smallest that encoding/json writes without an exponent
		float   = 21 // of numbers below 1e21, the largest of those
		highest = 40 // of numbers below 1e40: all of HUGEINT
	)
	if d.digits == "" || d.point >= lowest && d.point <= float || d.whole() && d.point <= highest {
		return d.plain()
	}

	text := d.digits[:1]
	if len(d.digits) > 1 {
		text += "." + d.digits[1:]
	}
	if d.negative {
		text = "-" + text
	}
	return fmt.Sprintf("%se%+d", text, d.point-1)
}

// Float returns a number as people write it: in full, with an exponent where it would have many zeros.
func Float(f float64) string {
	if size := math.Abs(f); size != 0 && (size < 1e-6 || size >= 1e21) {
		return strconv.FormatFloat(f, 'g', -1, 64)
	}
	return strconv.FormatFloat(f, 'f', -1, 64)
}
