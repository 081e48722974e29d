package textfile

import (
	"bytes"
	"math"
	"math/big"
	"strconv"
	"strings"

	"github.com/apache/arrow-go/v18/arrow/decimal128"
)

// number is a decimal number as it is written: digits × 10^exponent.
type number struct {
	negative bool
	digits   []byte // without zeros in front; none for zero
	exponent int
	whole    bool // written without a point and without an exponent
	leading  bool // written with zeros in front, or a plus
}

const maxExponent = 10_000

// parseNumber reads a number. point separates the fraction.
func parseNumber(text []byte, point byte) (n number, ok bool) {
	n.whole = true
	if len(text) > 0 && (text[0] == '-' || text[0] == '+') {
		n.negative, n.leading = text[0] == '-', text[0] == '+'
		text = text[1:]
	}

	integer, text := leadingDigits(text)
	var fraction []byte
	if len(text) > 0 && text[0] == point {
		n.whole = false
		fraction, text = leadingDigits(text[1:])
	}
	if len(integer)+len(fraction) == 0 {
		return n, false
	}
	if len(text) > 0 {
		n.whole = false
		if n.exponent, ok = parseExponent(text); !ok {
			return n, false
		}
	}

	n.leading = n.leading || len(integer) > 1 && integer[0] == '0'
	n.digits, n.exponent = integer, n.exponent-len(fraction)
	if len(fraction) > 0 {
		n.digits = append(append(make([]byte, 0, len(integer)+len(fraction)), integer...), fraction...)
	}
	n.digits = bytes.TrimLeft(n.digits, "0")
	return n, true
}

// leadingDigits cuts the digits at the beginning off a text.
func leadingDigits(text []byte) (digits, rest []byte) {
	i := 0
	for i < len(text) && isDigit(text[i]) {
		i++
	}
	return text[:i], text[i:]
}

func parseExponent(text []byte) (int, bool) {
	if text[0] != 'e' && text[0] != 'E' {
		return 0, false
	}
	e, err := strconv.Atoi(string(text[1:]))
	return e, err == nil && e <= maxExponent && e >= -maxExponent
}

func isDigit(c byte) bool { return c >= '0' && c <= '9' }

// scaled returns the number × 10^scale if that is a whole number of at most limit digits.
func (n number) scaled(scale, limit int) (digits []byte, ok bool) {
	if len(n.digits) == 0 {
		return nil, true
	}
	zeros := n.exponent + scale
	if zeros >= 0 {
		if len(n.digits)+zeros > limit {
			return nil, false
		}
		return append(bytes.Clone(n.digits), bytes.Repeat([]byte("0"), zeros)...), true
	}

	cut := len(n.digits) + zeros
	if cut <= 0 || cut > limit || len(bytes.Trim(n.digits[cut:], "0")) > 0 {
		return nil, false
	}
	return n.digits[:cut], true
}

// integer returns a whole number of 64 bits; ok is false if it is none.
func (n number) integer(bits int, unsigned bool) (signed int64, u uint64, ok bool) {
	digits := n.digits
	if n.exponent != 0 {
		if digits, ok = n.scaled(0, 20); !ok {
			return 0, 0, false
		}
	}
	if len(digits) > 20 {
		return 0, 0, false
	}

	for _, d := range digits {
		next := u*10 + uint64(d-'0')
		if u > math.MaxUint64/10 || next < u*10 {
			return 0, 0, false
		}
		u = next
	}

	if unsigned {
		return 0, u, (!n.negative || u == 0) && (bits == 64 || u < 1<<bits)
	}
	limit := uint64(1) << (bits - 1)
	if n.negative {
		return -int64(u), 0, u <= limit
	}
	return int64(u), 0, u < limit
}

// decimal returns the number as a DECIMAL if it is one, exactly.
func (n number) decimal(precision, scale int32) (decimal128.Num, bool) {
	digits, ok := n.scaled(int(scale), int(precision))
	if !ok {
		return decimal128.Num{}, false
	}
	if len(digits) <= 18 {
		var v int64
		for _, d := range digits {
			v = v*10 + int64(d-'0')
		}
		if n.negative {
			v = -v
		}
		return decimal128.FromI64(v), true
	}

	v, _ := new(big.Int).SetString(string(digits), 10)
	if n.negative {
		v.Neg(v)
	}
	return decimal128.FromBigInt(v), true
}

// safe returns how many digits a DOUBLE or a FLOAT gives back as they were written, and up to which power of ten, in
// both directions, that holds.
func safe(bits int) (digits, exponent int) {
	if bits == 32 {
		return 6, 30
	}
	return 15, 290
}

// float returns the nearest floating-point number. It is not ok where the number is too large, where a whole number is
// not held exactly, or where a number with a fraction or an exponent does not come back as it was written.
func (n number) float(text []byte, point byte, bits int) (float64, bool) {
	written := string(text)
	if point != '.' {
		written = strings.Replace(written, string(point), ".", 1)
	}
	f, err := strconv.ParseFloat(written, bits)
	if err != nil {
		return 0, false
	}
	size := len(n.digits) + n.exponent
	if digits, exponent := safe(bits); len(n.digits) <= digits && -exponent < size && size < exponent {
		return f, true
	}
	if !n.whole {
		return f, n.comesBack(f, bits)
	}

	exact, ok := new(big.Int).SetString("0"+string(n.digits), 10)
	if !ok {
		return 0, false
	}
	held, _ := big.NewFloat(math.Abs(f)).Int(nil)
	return f, held.Cmp(exact) == 0
}

// comesBack reports whether a floating-point number is the number as it was written: in the shortest text that tells it
// from its neighbours, or rounded to as many digits as were written.
func (n number) comesBack(f float64, bits int) bool {
	written := n.significant()
	for _, digits := range []int{-1, max(len(n.digits)-1, 0)} {
		back, ok := parseNumber(strconv.AppendFloat(nil, math.Abs(f), 'e', digits, bits), '.')
		if ok && back.significant() == written {
			return true
		}
	}
	return false
}

// significant returns the digits without zeros at either end and their exponent: the same for equal numbers but for the
// sign.
func (n number) significant() string {
	digits := bytes.TrimRight(n.digits, "0")
	if len(digits) == 0 {
		return "0"
	}
	return string(digits) + "e" + strconv.Itoa(n.exponent+len(n.digits)-len(digits))
}
