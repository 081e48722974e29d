package evm

import (
	"fmt"
	"math/big"
	"strconv"
	"strings"
)

// Quantity returns a number as JSON-RPC writes it.
func Quantity(n int64) string { return "0x" + strconv.FormatInt(n, 16) }

// ParseInt returns a quantity that fits 63 bits.
func ParseInt(quantity string) (int64, error) {
	digits, ok := strings.CutPrefix(quantity, "0x")
	n, err := strconv.ParseUint(digits, 16, 63)
	if !ok || err != nil {
		return 0, fmt.Errorf("%s is not a quantity of at most 63 bits", shown(quantity))
	}
	return int64(n), nil
}

// ParseDecimal returns a quantity of at most 256 bits as decimal digits.
func ParseDecimal(quantity string) (string, error) {
	digits, ok := hexDigits(quantity)
	if !ok || digits == "" || len(digits) > 64 {
		return "", fmt.Errorf("%s is not a quantity of at most 256 bits", shown(quantity))
	}
	n, _ := new(big.Int).SetString(digits, 16) // they are digits
	return n.String(), nil
}

// parseData returns bytes as JSON-RPC writes them, in lower case. size is how many there are; negative: any number.
func parseData(text string, size int) (string, error) {
	digits, ok := hexDigits(text)
	if !ok || len(digits)%2 != 0 || size >= 0 && len(digits) != 2*size {
		return "", fmt.Errorf("%s is not data as it has to be here", shown(text))
	}
	return strings.ToLower(text), nil
}

// hexDigits returns the digits behind 0x; ok is false for anything else.
func hexDigits(text string) (digits string, ok bool) {
	digits, ok = strings.CutPrefix(text, "0x")
	isDigit := func(c rune) bool { return strings.ContainsRune("0123456789abcdefABCDEF", c) }
	return digits, ok && strings.TrimFunc(digits, isDigit) == ""
}

// shown returns a text of a node for an error.
func shown(text string) string {
	if len(text) > 80 {
		text = text[:80] + "…"
	}
	return strconv.Quote(text)
}
