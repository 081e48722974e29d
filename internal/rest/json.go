package rest

import (
	"encoding/json"
	"errors"
	"fmt"
	"unicode/utf8"

	"github.com/danielgtaylor/huma/v2"

	"github.com/dagctl/dagctl/internal/literal"
)

// jsonFormat is huma's JSON without what encoding/json accepts and PostgreSQL does not: bytes that are not UTF-8, which
// encoding/json replaces silently, escapes that are no character, and numbers that nobody can compute with.
var jsonFormat = huma.Format{
	Marshal: huma.DefaultJSONFormat.Marshal,
	Unmarshal: func(data []byte, v any) error {
		if !utf8.Valid(data) {
			return errors.New("the body is not valid UTF-8")
		}
		if err := literal.Escapes(data); err != nil {
			return fmt.Errorf("the body %w", err)
		}
		if err := literal.Numbers(data); err != nil {
			return fmt.Errorf("the body: %w", err)
		}
		return json.Unmarshal(data, v)
	},
}
