package literal

import (
	"errors"
	"fmt"
	"strconv"
)

// Escapes refuses the escapes of a valid JSON text that stand for no character a database can store: U+0000, and a half
// of a surrogate pair without the other one.
func Escapes(text []byte) error {
	for at := 0; at+1 < len(text); at++ {
		if text[at] != '\\' {
			continue
		}
		at++ // what is escaped
		code, ok := unit(text, at)
		if !ok {
			continue
		}

		switch at += 4; {
		case code == 0:
			return errors.New("holds the character U+0000, which no text may")
		case isHigh(code) && followed(text, at+1):
			at += 6
		case isHigh(code) || isLow(code):
			return fmt.Errorf(`holds \u%04x, half of a surrogate pair without the other one, which is no character`, code)
		}
	}
	return nil
}

// followed reports whether the second half of a surrogate pair begins at a position.
func followed(text []byte, at int) bool {
	if at+1 >= len(text) || text[at] != '\\' {
		return false
	}
	code, ok := unit(text, at+1)
	return ok && isLow(code)
}

// unit returns the UTF-16 code unit of an escape whose u is at a position.
func unit(text []byte, at int) (uint16, bool) {
	if at+5 > len(text) || text[at] != 'u' {
		return 0, false
	}
	code, err := strconv.ParseUint(string(text[at+1:at+5]), 16, 16)
	return uint16(code), err == nil
}

func isHigh(code uint16) bool { return code >= 0xd800 && code < 0xdc00 }
func isLow(code uint16) bool  { return code >= 0xdc00 && code < 0xe000 }
