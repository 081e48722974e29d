package textfile

import (
	"bytes"
	"strings"
)

// JSON has no NaN and no infinity, but programs write them in lines all the same: Python, DuckDB, and dagctl itself.

// notFiniteAt returns the length of a NaN, Infinity or -Infinity at the beginning of a text; 0: there is none.
func notFiniteAt(text []byte) int {
	for _, word := range []string{"NaN", "Infinity", "-Infinity"} {
		if len(text) >= len(word) && string(text[:len(word)]) == word {
			return len(word)
		}
	}
	return 0
}

// finite returns a line with zeros in place of numbers that are not finite; nil where it has none.
func finite(line []byte) (out []byte) {
	quoted := false
	for i := 0; i < len(line); i++ {
		switch c := line[i]; {
		case quoted && c == '\\':
			i++
		case c == '"':
			quoted = !quoted
		case !quoted && i > 0 && strings.IndexByte("NI-", c) >= 0 && strings.IndexByte(":,[ \t", line[i-1]) >= 0:
			n := notFiniteAt(line[i:])
			if n == 0 {
				continue
			}
			if out == nil {
				out = bytes.Clone(line)
			}
			copy(out[i:], "0          "[:n])
			i += n - 1
		}
	}
	return out
}
