package operators

import (
	"strings"
	"unicode/utf8"

	"github.com/dagctl/dagctl/internal/secret"
)

// printed takes what a program prints on stdout or stderr: first the task's secrets are removed, over all seams between
// the program's writes, then control characters, and only then is it split into lines for the log and cut to its tail.
type printed struct {
	*secret.Stream
	lines lines
	tail  tail
}

// printed returns writers that log a program's stdout, and its stderr as warnings.
func (t *Task) printed() (said, complained *printed) {
	r := t.redactor()
	return newPrinted(r, func(line string) { t.Log.Info(line) }),
		newPrinted(r, func(line string) { t.Log.Warn(line) })
}

func newPrinted(r *secret.Redactor, tell func(line string)) *printed {
	p := &printed{lines: lines{tell: tell}, tail: tail{limit: 8 << 10}}
	p.Stream = r.Stream(func(text string) {
		text = strings.Map(func(c rune) rune {
			if c != '\n' && secret.IsControl(c) {
				return -1
			}
			return c
		}, text)
		p.lines.add(text)
		_, _ = p.tail.Write([]byte(text))
	})
	return p
}

// end passes on the rest. It must be called once the program has ended.
func (p *printed) end() {
	p.End()
	p.lines.end()
}

// lines passes on a program's output line by line.
type lines struct {
	tell func(line string)
	rest string
}

// longestLine is the length at which a line is split, in bytes.
const longestLine = 16 << 10

func (l *lines) add(text string) {
	l.rest += text
	for {
		line, rest, whole := strings.Cut(l.rest, "\n")
		if !whole && len(line) < longestLine+utf8.UTFMax {
			return
		}
		if len(line) > longestLine {
			n := longestLine
			for n > longestLine-utf8.UTFMax && !utf8.RuneStart(line[n]) {
				n--
			}
			line, rest = l.rest[:n], l.rest[n:]
		}
		l.tell(strings.ToValidUTF8(line, "\uFFFD"))
		l.rest = rest
	}
}

// end passes on a last line without a line break.
func (l *lines) end() {
	if l.rest != "" {
		l.tell(strings.ToValidUTF8(l.rest, "\uFFFD"))
		l.rest = ""
	}
}
