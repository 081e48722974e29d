package inside

import (
	"encoding/json"
	"strings"

	"github.com/dagctl/dagctl/internal/duck"
)

const (
	sampleRows  = 20
	sampleBytes = 32 << 10
)

// sample returns rows as the JSON of an outcome, as many of them as fit.
func sample(columns []duck.Column, rows [][]any) (json.RawMessage, error) {
	names := make([]string, len(columns))
	for i, column := range columns {
		names[i] = column.Name
	}
	for {
		text, err := json.Marshal(map[string]any{"columns": names, "rows": rows})
		if err != nil || len(text) <= sampleBytes || len(rows) == 0 {
			return storable(text), err
		}
		rows = rows[:len(rows)/2]
	}
}

// storable returns JSON that PostgreSQL can store: a replacement character stands for each NUL and each half of a
// surrogate pair, which data may have.
func storable(text json.RawMessage) json.RawMessage {
	const escape, replacement = `\uXXXX`, `\ufffd`
	var out []byte
	done := 0
	for at := 0; at+1 < len(text); at++ {
		if text[at] != '\\' {
			continue
		}
		if text[at+1] != 'u' || at+len(escape) > len(text) {
			at++ // what is escaped
			continue
		}

		code := strings.ToLower(string(text[at+2 : at+len(escape)]))
		switch {
		case isSurrogate(code, "89ab") && at+2*len(escape) <= len(text) && text[at+len(escape)+1] == 'u' &&
			isSurrogate(strings.ToLower(string(text[at+len(escape)+2:at+2*len(escape)])), "cdef"):
			at += len(escape)
		case code == "0000" || isSurrogate(code, "89abcdef"):
			out = append(append(out, text[done:at]...), replacement...)
			done = at + len(escape)
		}
		at += len(escape) - 1
	}
	if done == 0 {
		return text
	}
	return append(out, text[done:]...)
}

// isSurrogate reports whether a code is a half of a surrogate pair, whose second digit says which.
func isSurrogate(code, second string) bool {
	return code[0] == 'd' && strings.IndexByte(second, code[1]) >= 0
}
