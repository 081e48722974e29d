package dag

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"gopkg.in/yaml.v3"
)

// inText returns where in the file the character at an offset of a scalar's value stands. Indentation, folded lines and
// quotes differ between the two, but what is no space comes in the same order, so its number leads from one to the
// other. ok is false where a variable has changed the text.
func (r *report) inText(n *yaml.Node, offset int) (line, column int, ok bool) {
	if _, changed := r.original[n]; changed || n.Kind != yaml.ScalarNode || offset < 0 || offset > len(n.Value) {
		return 0, 0, false
	}
	count := 0
	for _, c := range n.Value[:offset] {
		if !unicode.IsSpace(c) {
			count++
		}
	}

	s := scalarScan{lines: r.lines, style: n.Style}
	s.begin(n.Line, n.Column)
	for {
		c, line, column, more := s.next()
		if !more {
			return 0, 0, false
		}
		if unicode.IsSpace(c) {
			continue
		}
		if count == 0 {
			want, _ := utf8.DecodeRuneInString(n.Value[offset:])
			return line, column, c == want
		}
		count--
	}
}

// scalarScan reads the characters of a scalar in the file, one by one.
type scalarScan struct {
	lines        []string
	line, column int    // of the next character, from 1
	rest         string // what is left of the line
	style        yaml.Style
}

// begin goes to the text of the scalar at a place.
func (s *scalarScan) begin(line, column int) {
	switch {
	case s.style&(yaml.LiteralStyle|yaml.FoldedStyle) != 0:
		s.goTo(line+1, 1)
	case s.style&(yaml.SingleQuotedStyle|yaml.DoubleQuotedStyle) != 0:
		s.goTo(line, column+1)
	default:
		s.goTo(line, column)
	}
}

// goTo goes to a place, which may lie behind the last line.
func (s *scalarScan) goTo(line, column int) {
	s.line, s.column, s.rest = line, 1, ""
	if line >= 1 && line <= len(s.lines) {
		s.rest = s.lines[line-1]
	}
	s.skip(column - 1)
}

// skip goes over characters of the line.
func (s *scalarScan) skip(characters int) {
	for range characters {
		_, size := utf8.DecodeRuneInString(s.rest)
		s.rest = s.rest[size:]
	}
	s.column += characters
}

// next returns the next character, with the place where it begins. The end of a line is a space.
func (s *scalarScan) next() (c rune, line, column int, more bool) {
	if s.line < 1 || s.line > len(s.lines) {
		return 0, 0, 0, false
	}
	line, column = s.line, s.column
	if s.rest == "" {
		s.goTo(line+1, 1)
		return ' ', line, column, true
	}

	c, _ = utf8.DecodeRuneInString(s.rest)
	length := 1
	switch {
	case s.style&yaml.SingleQuotedStyle != 0 && strings.HasPrefix(s.rest, "''"):
		length = 2
	case s.style&yaml.DoubleQuotedStyle != 0 && c == '\\':
		c, length = escaped(s.rest)
	}
	s.skip(length)
	return c, line, column, true
}

// escaped returns the character that an escape of a double-quoted text stands for, and its length there.
func escaped(text string) (c rune, length int) {
	if len(text) < 2 {
		return ' ', 1 // the line goes on without a space
	}

	digits := map[byte]int{'x': 2, 'u': 4, 'U': 8}
	if n := digits[text[1]]; n > 0 && len(text) >= 2+n {
		var code rune
		for _, d := range text[2 : 2+n] {
			code = code<<4 | rune(strings.IndexRune("0123456789abcdef", unicode.ToLower(d)))
		}
		return code, 2 + n
	}

	switch text[1] {
	case 'n', 't', 'r', 'v', 'f', ' ', '\t', 'N', '_', 'L', 'P':
		return ' ', 2
	case '0', 'a', 'b', 'e':
		return 0, 2
	}
	c, _ = utf8.DecodeRuneInString(text[1:])
	return c, 2
}

// statementFault reports what a message says of a value. If the value is a statement that is written here, and the
// message has a place in it, it is reported there.
func (d *decoder) statementFault(at *yaml.Node, message string, here bool) *Problem {
	message = d.macros.withoutPlace(at, message)
	found := placeInSQL.FindStringIndex(message)
	if found == nil || !here {
		return d.node(at, CodeConfig, "%s", message)
	}

	line, column, ok := d.inText(at, offsetOf(at.Value, message[found[0]:found[1]]))
	if !ok {
		return d.node(at, CodeConfig, "%s", message)
	}
	return d.at(line, column, 1, CodeConfig, "%s", message[:found[0]]+message[found[1]:])
}

// offsetOf returns the offset in a text of a place such as " (line 2, column 6)", whose columns count bytes; -1: it is
// none.
func offsetOf(text, place string) int {
	var line, column int
	if _, err := fmt.Sscanf(place, " (line %d, column %d)", &line, &column); err != nil {
		return -1
	}
	start := 0
	for range line - 1 {
		end := strings.IndexByte(text[start:], '\n')
		if end < 0 {
			return -1
		}
		start += end + 1
	}
	return start + column - 1
}
