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

// appendObject does what appendSorted does, for text that begins behind the brace that opens an object. It appends the
// members as they come, and sorts them in place where that is not their order.
func appendObject(to, text []byte) (sorted, rest []byte) {
	type member struct{ begin, key, end int } // the key ends before the colon; the end is behind the comma
	var few [16]member
	members, inOrder := few[:0], true
	to = append(to, '{')
	begin := len(to)
	for text[0] != '}' {
		if text[0] == ',' {
			text = text[1:]
		}
		n := stringLength(text)
		m := member{begin: len(to), key: len(to) + n}
		to = append(to, text[:n+1]...)
		to, text = appendSorted(to, text[n+1:])
		to = append(to, ',')
		m.end = len(to)

		if last := len(members) - 1; last >= 0 {
			inOrder = inOrder && bytes.Compare(unquoted(to[members[last].begin:members[last].key]),
				unquoted(to[m.begin:m.key])) < 0
		}
		members = append(members, m)
	}

	if !inOrder {
		was := bytes.Clone(to[begin:])
		slices.SortFunc(members, func(a, b member) int {
			return bytes.Compare(unquoted(was[a.begin-begin:a.key-begin]), unquoted(was[b.begin-begin:b.key-begin]))
		})
		to = to[:begin]
		for _, m := range members {
			to = append(to, was[m.begin-begin:m.end-begin]...)
		}
	}
	if len(members) > 0 {
		to = to[:len(to)-1] // the last comma
	}
	return append(to, '}'), text[1:]
}

func unquoted(key []byte) []byte { return key[1 : len(key)-1] }

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
