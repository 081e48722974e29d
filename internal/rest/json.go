package rest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"unicode/utf8"

	"github.com/danielgtaylor/huma/v2"

	"github.com/dagctl/dagctl/internal/literal"
)

// jsonFormat is huma's JSON without what encoding/json accepts and PostgreSQL does not: bytes that are not UTF-8, which
// encoding/json replaces silently, the NUL character, and numbers that nobody can compute with.
var jsonFormat = huma.Format{
	Marshal: huma.DefaultJSONFormat.Marshal,
	Unmarshal: func(data []byte, v any) error {
		if !utf8.Valid(data) {
			return errors.New("the body is not valid UTF-8")
		}
		if hasNUL(data) {
			return errors.New("the body holds the character U+0000, which no text may")
		}
		if err := literal.Numbers(data); err != nil {
			return fmt.Errorf("the body: %w", err)
		}
		return json.Unmarshal(data, v)
	},
}

// hasNUL reports whether a text has the escape \u0000, with an odd number of backslashes before its u.
func hasNUL(data []byte) bool {
	escape := []byte(`u0000`)
	for from := 0; ; {
		i := bytes.Index(data[from:], escape)
		if i < 0 {
			return false
		}

		i += from
		backslashes := 0
		for i-1-backslashes >= 0 && data[i-1-backslashes] == '\\' {
			backslashes++
		}
		if backslashes%2 == 1 {
			return true
		}
		from = i + len(escape)
	}
}
