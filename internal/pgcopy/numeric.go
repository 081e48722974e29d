package pgcopy

import (
	"encoding/binary"
	"errors"
	"strconv"
	"strings"
)

// A numeric on the wire has four int16 (digits, weight, sign, scale) and its digits, each an int16 below 10000. The
// weight is the power of 10000 of the first digit.

const negativeNumeric = 0x4000

// putNumeric writes a decimal number without exponent.
func putNumeric(to []byte, text string) ([]byte, error) {
	sign := uint16(0)
	if strings.HasPrefix(text, "-") {
		sign, text = negativeNumeric, text[1:]
	}
	whole, fraction, _ := strings.Cut(text, ".")
	scale := len(fraction)
	whole = strings.Repeat("0", (4-len(whole)%4)%4) + whole
	fraction += strings.Repeat("0", (4-scale%4)%4)
	digits, weight := whole+fraction, len(whole)/4-1
	for strings.HasPrefix(digits, "0000") {
		digits, weight = digits[4:], weight-1
	}
	for strings.HasSuffix(digits, "0000") {
		digits = digits[:len(digits)-4]
	}
	if digits == "" {
		weight, sign = 0, 0
	}

	for _, n := range []uint16{uint16(len(digits) / 4), uint16(int16(weight)), sign, uint16(scale)} {
		to = binary.BigEndian.AppendUint16(to, n)
	}
	for i := 0; i < len(digits); i += 4 {
		n, err := strconv.ParseUint(digits[i:i+4], 10, 16)
		if err != nil {
			return nil, err
		}
		to = binary.BigEndian.AppendUint16(to, uint16(n))
	}
	return to, nil
}

func getNumeric(from []byte) (string, error) {
	const head = 8
	if len(from) < head || len(from) != head+2*int(binary.BigEndian.Uint16(from)) {
		return "", errWidth
	}
	weight, sign := int(int16(binary.BigEndian.Uint16(from[2:]))), binary.BigEndian.Uint16(from[4:])
	scale, digits := int(binary.BigEndian.Uint16(from[6:])), from[head:]
	if sign != 0 && sign != negativeNumeric {
		return "", errors.New("postgres sent a numeric that is not finite")
	}

	text := make([]byte, 0, 48)
	if sign == negativeNumeric {
		text = append(text, '-')
	}
	group := func(power int) string {
		i := 2 * (weight - power)
		if i < 0 || i >= len(digits) {
			return "0000"
		}
		return strconv.Itoa(10000 + int(binary.BigEndian.Uint16(digits[i:])))[1:]
	}
	for power := max(weight, 0); power >= 0; power-- {
		text = append(text, group(power)...)
	}
	if scale > 0 {
		text = append(text, '.')
		end := len(text) + scale
		for power := -1; len(text) < end; power-- {
			text = append(text, group(power)...)
		}
		text = text[:end]
	}
	return string(text), nil
}
