package main

import (
	"fmt"
	"io"
	"strings"
)

// progress tells how far long work is: a bar that is redrawn on a terminal, a line per change elsewhere.
type progress struct {
	w        io.Writer
	terminal bool
	last     string
}

func (c *cli) progress() *progress { return &progress{w: c.err, terminal: isTerminal(c.err)} }

func (p *progress) show(done, all int, text string) {
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

// end leaves the line, so that what follows begins on one of its own.
func (p *progress) end() {
	if p.terminal && p.last != "" {
		fmt.Fprint(p.w, "\r\x1b[K")
	}
}
