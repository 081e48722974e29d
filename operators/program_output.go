package operators

import (
	"bytes"
	"strings"
)

// lines returns writers that log a program's stdout, and its stderr as warnings.
func (t *Task) lines() (said, complained *lines) {
	return &lines{tell: func(line string) { t.Log.Info(line) }}, &lines{tell: func(line string) { t.Log.Warn(line) }}
}

// lines passes on a program's output line by line.
type lines struct {
	tell func(line string)
	rest []byte
}

// longestLine is the length at which a line is split, in bytes.
const longestLine = 16 << 10

func (l *lines) Write(p []byte) (int, error) {
	l.rest = append(l.rest, p...)
	todo := l.rest
	for {
		line, rest, whole := bytes.Cut(todo, []byte{'\n'})
		if !whole && len(line) < longestLine {
			l.rest = append(l.rest[:0], todo...)
			return len(p), nil
		}
		if !whole || len(line) > longestLine {
			line, rest = todo[:longestLine], todo[longestLine:]
		}
		l.tell(strings.ToValidUTF8(strings.TrimSuffix(string(line), "\r"), "\uFFFD"))
		todo = rest
	}
}

// end passes on a last line without a line break.
func (l *lines) end() {
	if len(l.rest) > 0 {
		l.tell(strings.ToValidUTF8(string(l.rest), "\uFFFD"))
		l.rest = nil
	}
}
