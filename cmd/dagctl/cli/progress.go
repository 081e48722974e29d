package cli

import (
	"fmt"
	"io"
	"strings"
)

// Progress shows how far some work is: with a bar that it redraws on a terminal, elsewhere with a line per change.
type Progress struct {
	w        io.Writer
	terminal bool
	last     string
}

// NewProgress returns a Progress on standard error.
func (c *CLI) NewProgress() *Progress { return &Progress{w: c.Err, terminal: IsTerminal(c.Err)} }

// Show shows that done of all steps are done, and a text.
func (p *Progress) Show(done, all int, text string) {
	if text == p.last {
		return
	}
	p.last = text
	if !p.terminal {
		fmt.Fprintln(p.w, text)
		return
	}
	const width = 24
	filled := 0
	if all > 0 {
		filled = width * done / all
	}
	fmt.Fprintf(p.w, "\r\x1b[K[%s%s] %s", strings.Repeat("#", filled), strings.Repeat(".", width-filled), text)
}

// End erases the bar, so that what follows begins on a line of its own.
func (p *Progress) End() {
	if p.terminal && p.last != "" {
		fmt.Fprint(p.w, "\r\x1b[K")
	}
}
