package secret

import (
	"html"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"
)

// escapesWithin is how many escapes within each other are undone, such as a JSON text in a JSON text.
const escapesWithin = 2

// escape is a way of writing bytes as others.
type escape struct {
	mark byte // begins an escape; a text without it has none of this kind
	also byte // begins an escape as well
	most int  // length in bytes of the longest one
	// one undoes an escape at the beginning of a text, n bytes of it; 0: there is none.
	one func(text string) (plain string, n int)
}

// escapes are those that are undone. What is escaped differs from program to program, and so does the spelling (%2f and
// %2F), which is why the values are not escaped instead.
var escapes = []escape{{'%', '%', 3, unescapeURL}, {'+', '%', 3, unescapeQuery},
	{'\\', '\\', 12, unescapeString}, {'&', '&', longestEntity, unescapeHTML}}

// view is a text with escapes undone, or with characters left out.
type view struct {
	text string
	from []int // where each of its bytes comes from, and at the end the length of the origin
	gaps bool  // characters were left out: a part ends with its last byte
}

// origin returns the part of the original text that a part of the view comes from.
func (v view) origin(s span) span {
	end := s.end
	for end < len(v.text) && v.from[end] == v.from[s.end-1] { // bytes of the same escape
		end++
	}

	last := s.end - 1
	s.start, s.end = v.from[s.start], v.from[end]
	switch {
	case s.open:
		s.end = v.from[len(v.text)]
	case v.gaps:
		s.end = v.from[last] + 1
	}
	return s
}

// IsControl reports whether those who store or show a text leave a character out: control characters but tabs.
func IsControl(c rune) bool { return c != '\t' && unicode.IsControl(c) }

// withoutControls returns a view of a text that lacks its control characters. What is not UTF-8 stays.
func withoutControls(text string) view {
	first := strings.IndexFunc(text, IsControl)
	if first < 0 {
		return view{text: text}
	}

	out := make([]byte, 0, len(text))
	from := make([]int, 0, len(text)+1)
	for i, n := 0, 0; i < len(text); i += n {
		var c rune
		if c, n = utf8.DecodeRuneInString(text[i:]); IsControl(c) {
			continue
		}
		for at := range n {
			out, from = append(out, text[i+at]), append(from, i+at)
		}
	}
	return view{string(out), append(from, len(text)), true}
}

// undo returns a view of a text; ok reports whether the text has escapes. Where the text may go on (cut), the view ends
// before an escape that may be a part of a longer one.
func (e escape) undo(text string, cut bool) (v view, ok bool) {
	if strings.IndexByte(text, e.mark) < 0 {
		return v, false
	}
	out := make([]byte, 0, len(text))
	v.from = make([]int, 0, len(text)+1)
	for i := 0; i < len(text); {
		plain, n := text[i:i+1], 0
		if c := text[i]; c == e.mark || c == e.also {
			undone, of := e.one(text[i:])
			if cut && (i+of == len(text) || of == 0 && i+e.most > len(text)) {
				ok = true
				break
			}
			if of > 0 {
				plain, n, ok = undone, of, true
			}
		}

		out = append(out, plain...)
		for range len(plain) {
			v.from = append(v.from, i)
		}
		i += max(n, 1)
	}

	v.text, v.from = string(out), append(v.from, len(text))
	return v, ok
}

// unescapeURL undoes an escape of a URL's path.
func unescapeURL(text string) (plain string, n int) {
	return number(text, 1, 2, 16, asByte)
}

// unescapeQuery undoes an escape of a URL's query or of a form.
func unescapeQuery(text string) (plain string, n int) {
	if text[0] == '+' {
		return " ", 1
	}
	return unescapeURL(text)
}

// unescapeString undoes an escape in a string of JSON, Go, C, Python or JavaScript.
func unescapeString(text string) (plain string, n int) {
	if len(text) < 2 {
		return "", 0
	}
	switch c := text[1]; {
	case c == 'x':
		return number(text, 2, 2, 16, asByte)
	case c == 'U':
		return number(text, 2, 8, 16, asRune)
	case c == 'u':
		return unescapeUTF16(text)
	case c >= '0' && c <= '7':
		return number(text, 1, 3, 8, asByte)
	case c < utf8.RuneSelf:
		if i := strings.IndexByte("abfnrtv", c); i >= 0 {
			return "\a\b\f\n\r\t\v"[i : i+1], 2
		}
		return text[1:2], 2
	}
	return "", 0
}

// unescapeUTF16 undoes \uXXXX, or two of them that make one rune.
func unescapeUTF16(text string) (plain string, n int) {
	plain, n = number(text, 2, 4, 16, asRune)
	if n == 0 || len(text) < 12 || text[6:8] != `\u` {
		return plain, n
	}
	high, _ := strconv.ParseUint(text[2:6], 16, 32)
	low, err := strconv.ParseUint(text[8:12], 16, 32)
	if r := utf16.DecodeRune(rune(high), rune(low)); err == nil && r != utf8.RuneError {
		return string(r), 12
	}
	return plain, n
}

// longestEntity is the length in bytes of HTML's longest entity, &CounterClockwiseContourIntegral;.
const longestEntity = 33

// unescapeHTML undoes an entity of HTML, by name or number.
func unescapeHTML(text string) (plain string, n int) {
	end := strings.IndexByte(text[:min(len(text), longestEntity)], ';') + 1
	if end == 0 || strings.LastIndexByte(text[:end], '&') > 0 {
		return "", 0
	}
	if plain = html.UnescapeString(text[:end]); plain == text[:end] {
		return "", 0
	}
	return plain, end
}

func asByte(code uint64) string { return string([]byte{byte(code)}) }
func asRune(code uint64) string { return string(rune(code)) }

// number undoes an escape that gives a code by digits, which begin at a place in the text.
func number(text string, at, digits, base int, as func(code uint64) string) (plain string, n int) {
	if len(text) < at+digits {
		return "", 0
	}
	code, err := strconv.ParseUint(text[at:at+digits], base, 32)
	if err != nil {
		return "", 0
	}
	return as(code), at + digits
}
