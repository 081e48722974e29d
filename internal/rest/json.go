package rest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"unicode/utf8"

	"github.com/danielgtaylor/huma/v2"

	"github.com/dagctl/dagctl/internal/literal"
)

// jsonFormat is huma's JSON without what encoding/json accepts and PostgreSQL does not: bytes that are not UTF-8, which
// encoding/json replaces silently, escapes that are no character, and numbers that nobody can compute with. Nor may a
// field stand twice, of which only one would be validated.
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
		if err := literal.Names(data); err != nil {
			return fmt.Errorf("the body: %w", err)
		}
		err := json.Unmarshal(data, v)
		if err == nil {
			return nil
		}
		if found := misfitIn(data, v); found != nil {
			return found
		}
		return tooLarge(err, data)
	},
}

// tooLarge says of a number that is larger than a DOUBLE holds where it is.
func tooLarge(err error, data []byte) error {
	var wrong *json.UnmarshalTypeError
	if !errors.As(err, &wrong) || wrong.Type.Kind() != reflect.Float64 {
		return err
	}
	number, is := strings.CutPrefix(wrong.Value, "number ")
	if !is {
		return err
	}
	before := data[:max(0, bytes.LastIndex(data[:min(int(wrong.Offset), len(data))], []byte(number)))]
	return fmt.Errorf("the body: line %d, column %d: the number %s is refused: it is larger than a DOUBLE holds",
		1+bytes.Count(before, []byte("\n")), len(before)-bytes.LastIndexByte(before, '\n'), number)
}
