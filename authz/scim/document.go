package scim

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// document is a resource as decoded JSON, with names in lower case.
type document map[string]any

// maxText is the most bytes of a text that is kept.
const maxText = 500

// readDocument reads the body of a request.
func readDocument(r *http.Request) (document, error) {
	text, err := io.ReadAll(r.Body)
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge):
		return nil, err
	case err != nil:
		return nil, invalid(invalidSyntax, "the request's body was cut off")
	}

	var body map[string]any
	if err := decode(text, &body); err != nil {
		return nil, err
	}
	if body == nil {
		return nil, invalid(invalidSyntax, "the request's body is not a JSON object")
	}
	return lowered(body)
}

// decode reads JSON, which all texts of requests come as: those of bodies, and those in filters. It refuses a text that
// could not be kept as it was sent.
func decode(text []byte, into any) error {
	if !utf8.Valid(text) {
		return invalid(invalidSyntax, "the request is not UTF-8")
	}
	if err := json.Unmarshal(text, into); err != nil {
		return invalid(invalidSyntax, "the request is not the JSON that belongs there")
	}

	for rest := text; ; {
		i := bytes.IndexByte(rest, '\\')
		if i < 0 {
			return nil
		}
		rest = rest[i:]
		unit, escaped := escapedUnit(rest)
		if !escaped {
			rest = rest[2:]
			continue
		}

		low, _ := escapedUnit(rest[6:])
		switch {
		case unit == 0:
			return invalid(invalidValue, "a text has a character that cannot be stored, U+0000")
		case !utf16.IsSurrogate(unit):
			rest = rest[6:]
		case utf16.DecodeRune(unit, low) == utf8.RuneError:
			return invalid(invalidValue, "a text has half a character, %s", rest[:6])
		default:
			rest = rest[12:]
		}
	}
}

// escapedUnit returns the UTF-16 unit that a text of JSON begins with, written as \uXXXX. ok is false if it begins
// otherwise.
func escapedUnit(text []byte) (unit rune, ok bool) {
	if len(text) < 6 || text[0] != '\\' || text[1] != 'u' {
		return 0, false
	}
	n, err := strconv.ParseUint(string(text[2:6]), 16, 16)
	return rune(n), err == nil
}

// lowered returns an object with names in lower case, in all depths.
func lowered(object map[string]any) (document, error) {
	low := document{}
	for name, value := range object {
		key := strings.ToLower(name)
		if _, twice := low[key]; twice {
			return nil, invalid(invalidSyntax, "the attribute %.100q is there twice", name)
		}
		clean, err := loweredValue(value)
		if err != nil {
			return nil, err
		}
		low[key] = clean
	}
	return low, nil
}

func loweredValue(value any) (any, error) {
	switch v := value.(type) {
	case map[string]any:
		low, err := lowered(v)
		return map[string]any(low), err
	case []any:
		all := make([]any, len(v))
		for i, element := range v {
			clean, err := loweredValue(element)
			if err != nil {
				return nil, err
			}
			all[i] = clean
		}
		return all, nil
	}
	return value, nil
}

// text returns an attribute that is a text; null and no attribute are an empty one.
func (d document) text(name string) (string, error) {
	switch v := d[strings.ToLower(name)].(type) {
	case nil:
		return "", nil
	case string:
		if len(v) > maxText {
			return "", invalid(invalidValue, "%s has more than %d bytes", name, maxText)
		}
		return v, nil
	}
	return "", invalid(invalidValue, "%s is no text", name)
}

// required returns an attribute that is a text, and not an empty one.
func (d document) required(name string) (string, error) {
	text, err := d.text(name)
	if err == nil && strings.TrimSpace(text) == "" {
		return "", invalid(invalidValue, "%s is missing", name)
	}
	return text, err
}

// object returns an attribute that is an object; an empty one if there is none.
func (d document) object(name string) (document, error) {
	switch v := d[strings.ToLower(name)].(type) {
	case nil:
		return document{}, nil
	case map[string]any:
		return v, nil
	}
	return nil, invalid(invalidValue, "%s is no object", name)
}

// objects returns the objects of an attribute that is a list of them. One alone counts as a list.
func (d document) objects(name string) (all []document, err error) {
	value := d[strings.ToLower(name)]
	if one, ok := value.(map[string]any); ok {
		value = []any{one}
	}

	list, ok := value.([]any)
	if !ok && value != nil {
		return nil, invalid(invalidValue, "%s is no list", name)
	}
	for _, element := range list {
		object, ok := element.(map[string]any)
		if !ok {
			return nil, invalid(invalidValue, "%s has an element that is no object", name)
		}
		all = append(all, object)
	}
	return all, nil
}

// truth returns a truth value. Some providers write it as a text.
func truth(value any) (bool, error) {
	switch v := value.(type) {
	case bool:
		return v, nil
	case string:
		switch strings.ToLower(v) {
		case "true":
			return true, nil
		case "false":
			return false, nil
		}
	}
	return false, invalid(invalidValue, "a truth value must be true or false")
}
