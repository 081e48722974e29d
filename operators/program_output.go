package operators

import (
	"strings"

	"github.com/dagctl/dagctl/internal/lines"
	"github.com/dagctl/dagctl/internal/secret"
)

// printed takes what a program prints on stdout or stderr: first the task's secrets are removed, over all seams between
// the program's writes, then control characters, and only then is it split into lines for the log and cut to its tail.
type printed struct {
	*secret.Stream
	lines lines.Splitter
	tail  tail
}

// printed returns writers that log a program's stdout, and its stderr as warnings.
func (t *Task) printed() (said, complained *printed) {
	r := t.redactor()
	return newPrinted(r, func(line string) { t.Log.Info(line) }),
		newPrinted(r, func(line string) { t.Log.Warn(line) })
}

func newPrinted(r *secret.Redactor, tell func(line string)) *printed {
	p := &printed{lines: lines.Splitter{Tell: tell}, tail: tail{limit: 8 << 10}}
	p.Stream = r.Stream(func(text string) {
		text = strings.Map(func(c rune) rune {
			if c != '\n' && secret.IsControl(c) {
				return -1
			}
			return c
		}, text)
		p.lines.Add(text)
		_, _ = p.tail.Write([]byte(text))
	})
	return p
}

// end passes on the rest. It must be called once the program has ended.
func (p *printed) end() {
	p.End()
	p.lines.End()
}
