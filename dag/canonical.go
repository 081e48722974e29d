package dag

import (
	"bytes"
	"encoding/json"
	"slices"
)

// canonicalJSON returns v as JSON with sorted keys, so that the order of a struct's fields does not affect hashes, and
// without needless escapes.
func canonicalJSON(v any) ([]byte, error) {
	var b bytes.Buffer
	encoder := json.NewEncoder(&b)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(v); err != nil {
		return nil, err
	}
	text, _ := appendSorted(make([]byte, 0, b.Len()), bytes.TrimSuffix(b.Bytes(), []byte("\n")))
	return text, nil
}

// appendSorted appends the value that text begins with, with the keys of its objects sorted, and returns the text after
// it. The text must be the encoder's: valid and without spaces. Decoding it in order to sort it would take most of the
// time of a deploy.
func appendSorted(to, text []byte) (sorted, rest []byte) {
	switch text[0] {
	case '{':
		return appendObject(to, text[1:])
	case '[':
		to, text = append(to, '['), text[1:]
		for text[0] != ']' {
			if text[0] == ',' {
				to, text = append(to, ','), text[1:]
			}
			to, text = appendSorted(to, text)
		}
		return append(to, ']'), text[1:]

	case '"':
		n := stringLength(text)
		return append(to, text[:n]...), text[n:]
	default: // a number, true, false or null
		n := bytes.IndexAny(text, ",]}")
		if n < 0 {
			n = len(text)
		}
		return append(to, text[:n]...), text[n:]
	}
}

// appendObject does what appendSorted does, for text that begins behind the brace that opens an object.
func appendObject(to, text []byte) (sorted, rest []byte) {
	type member struct{ key, value []byte }
	var members []member
	for text[0] != '}' {
		if text[0] == ',' {
			text = text[1:]
		}
		n := stringLength(text)
		m := member{key: text[1 : n-1]}
		m.value, text = appendSorted(nil, text[n+1:]) // behind the colon
		members = append(members, m)
	}

	slices.SortFunc(members, func(a, b member) int { return bytes.Compare(a.key, b.key) })
	to = append(to, '{')
	for i, m := range members {
		if i > 0 {
			to = append(to, ',')
		}
		to = append(append(append(to, '"'), m.key...), '"', ':')
		to = append(to, m.value...)
	}
	return append(to, '}'), text[1:]
}

// stringLength returns the length of the string that text begins with, quotes included.
func stringLength(text []byte) int {
	for i := 1; ; i++ {
		switch text[i] {
		case '\\':
			i++
		case '"':
			return i + 1
		}
	}
}
