package literal

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/go-json-experiment/json/jsontext"
)

// Decode decodes a JSON text into strings, booleans, nil, []any, map[string]any and, for numbers, json.Number with the
// canonical text.
func Decode(text []byte) (any, error) {
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber()
	var v any
	if err := decoder.Decode(&v); err != nil {
		return nil, err
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("there is more behind the JSON value")
	}
	return canonical(v)
}

func canonical(v any) (any, error) {
	var err error
	switch v := v.(type) {
	case json.Number:
		return Number(string(v))
	case []any:
		for i := range v {
			if v[i], err = canonical(v[i]); err != nil {
				return nil, err
			}
		}
	case map[string]any:
		for key := range v {
			if v[key], err = canonical(v[key]); err != nil {
				return nil, err
			}
		}
	}
	return v, nil
}

// Numbers reports the first number of a JSON text that is beyond the limits, with its position. It reports nothing else
// that may be wrong with the text.
func Numbers(text []byte) error {
	for i := 0; i < len(text); {
		switch c := text[i]; {
		case c == '"':
			i = afterString(text, i)
		case c == '-' || isDigit(c):
			end := i + 1
			for end < len(text) && (isDigit(text[end]) || bytes.IndexByte([]byte("+-.eE"), text[end]) >= 0) {
				end++
			}
			if _, err := parseDecimal(string(text[i:end])); err != nil && !errors.Is(err, errNoNumber) {
				line := 1 + bytes.Count(text[:i], []byte("\n"))
				column := i - bytes.LastIndexByte(text[:i], '\n')
				return fmt.Errorf("line %d, column %d: the number %s is refused: %w", line, column,
					brief(string(text[i:end])), err)
			}
			i = end
		default:
			i++
		}
	}
	return nil
}

// Names reports the first field that an object of a JSON text has twice, with its position: readers differ on which of
// the two counts. It reports nothing else that may be wrong with the text.
func Names(text []byte) error {
	if jsontext.Value(text).IsValid() {
		return nil
	}
	d := jsontext.NewDecoder(bytes.NewReader(text))
	for {
		_, err := d.ReadToken()
		if errors.Is(err, jsontext.ErrDuplicateName) {
			at := int(d.InputOffset())
			at += bytes.IndexByte(text[at:], '"')
			return fmt.Errorf("line %d, column %d: the field %s appears twice", 1+bytes.Count(text[:at], []byte("\n")),
				at-bytes.LastIndexByte(text[:at], '\n'), brief(string(text[at:afterString(text, at)])))
		}
		if err != nil {
			return nil
		}
	}
}

// afterString returns the index behind the string that begins at an index.
func afterString(text []byte, i int) int {
	for i++; i < len(text); i++ {
		switch text[i] {
		case '\\':
			i++
		case '"':
			return i + 1
		}
	}
	return i
}

func isDigit(c byte) bool { return c >= '0' && c <= '9' }

// brief cuts the middle out of a long text.
func brief(text string) string {
	if len(text) <= 40 {
		return text
	}
	return text[:20] + "…" + text[len(text)-10:]
}
