// Package lines splits what a program prints into lines for a log.
package lines

import (
	"strings"
	"unicode/utf8"
)

// Splitter passes on text line by line. A line that is too long is passed on in pieces, and bytes that are no UTF-8 as
// U+FFFD.
type Splitter struct {
	Tell func(line string)
	rest string
}

// longest is the length at which a line is split, in bytes.
const longest = 16 << 10

// Add takes the next text, which may begin and end within a line.
func (s *Splitter) Add(text string) {
	s.rest += text
	for {
		line, rest, whole := strings.Cut(s.rest, "\n")
		if !whole && len(line) < longest+utf8.UTFMax {
			return
		}
		if len(line) > longest {
			n := longest
			for n > longest-utf8.UTFMax && !utf8.RuneStart(line[n]) {
				n--
			}
			line, rest = s.rest[:n], s.rest[n:]
		}
		s.Tell(strings.ToValidUTF8(line, "\uFFFD"))
		s.rest = rest
	}
}

// End passes on a last line without a line break.
func (s *Splitter) End() {
	if s.rest != "" {
		s.Tell(strings.ToValidUTF8(s.rest, "\uFFFD"))
		s.rest = ""
	}
}
