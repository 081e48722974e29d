package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"golang.org/x/term"
	"gopkg.in/yaml.v3"
)

var outputs = []string{"table", "json", "yaml"}

// outputMarkdown is for pull requests; only plan has it.
const outputMarkdown = "markdown"

// print writes a value in the form that --output asks for; people get what human writes.
func (c *cli) print(v any, human func(w io.Writer)) error {
	if c.output == "table" {
		var b bytes.Buffer
		human(&b)
		_, err := c.out.Write(b.Bytes())
		return err
	}
	text, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return fmt.Errorf("write as JSON: %w", err)
	}
	if c.output == "yaml" {
		if text, err = yamlFromJSON(text); err != nil {
			return fmt.Errorf("write as YAML: %w", err)
		}
		_, err = c.out.Write(text)
		return err
	}
	_, err = fmt.Fprintf(c.out, "%s\n", text)
	return err
}

// yamlFromJSON keeps the order of the fields, which a detour over maps would lose.
func yamlFromJSON(text []byte) ([]byte, error) {
	var node yaml.Node
	if err := yaml.Unmarshal(text, &node); err != nil {
		return nil, err
	}
	blockStyle(&node)
	return yaml.Marshal(&node)
}

// blockStyle takes JSON's braces and quotes off, but the quotes of strings that would read as something else.
func blockStyle(n *yaml.Node) {
	n.Style = 0
	if n.Tag == "!!str" {
		if plain, err := yaml.Marshal(n.Value); err != nil || bytes.ContainsAny(plain[:1], `"'`) {
			n.Style = yaml.DoubleQuotedStyle
		}
	}
	for _, child := range n.Content {
		blockStyle(child)
	}
}

// isTerminal reports whether a person reads or writes there.
func isTerminal(stream any) bool {
	f, ok := stream.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// style colours text, or leaves it as it is.
type style bool

func (c *cli) style(w io.Writer) style {
	return style(isTerminal(w) && c.getenv("NO_COLOR") == "" && c.getenv("TERM") != "dumb")
}

func (s style) paint(code, text string) string {
	if !s || text == "" {
		return text
	}
	return "\x1b[" + code + "m" + text + "\x1b[0m"
}

func (s style) bad(text string) string  { return s.paint("31", text) }
func (s style) good(text string) string { return s.paint("32", text) }
func (s style) busy(text string) string { return s.paint("33", text) }
func (s style) dim(text string) string  { return s.paint("2", text) }
func (s style) bold(text string) string { return s.paint("1", text) }

// status colours a state by what it means for the person who reads it.
func (s style) status(text string) string {
	switch text {
	case "Active", "Completed", "pass":
		return s.good(text)
	case "Failed", "Dead", "dead", "fail", "error":
		return s.bad(text)
	case "Building", "Running", "Ready":
		return s.busy(text)
	}
	return text
}

// table aligns cells in columns. Numbers go to the right.
type table struct {
	style  style
	header []string
	rows   [][]string
	paint  map[int]func(string) string // by column
}

func (t *table) add(cells ...string) { t.rows = append(t.rows, cells) }

func (t *table) write(w io.Writer) {
	widths := make([]int, len(t.header))
	numeric := make([]bool, len(t.header))
	for i, h := range t.header {
		widths[i], numeric[i] = utf8.RuneCountInString(h), len(t.rows) > 0
	}
	for _, row := range t.rows {
		for i, cell := range row {
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
			numeric[i] = numeric[i] && (cell == "" || isNumber(cell))
		}
	}
	line := func(row []string, paint func(i int, text string) string) {
		var b strings.Builder
		for i, cell := range row {
			pad := strings.Repeat(" ", widths[i]-utf8.RuneCountInString(cell))
			switch {
			case numeric[i]:
				b.WriteString(pad + paint(i, cell))
			case i == len(row)-1:
				b.WriteString(paint(i, cell))
			default:
				b.WriteString(paint(i, cell) + pad)
			}
			if i < len(row)-1 {
				b.WriteString("  ")
			}
		}
		fmt.Fprintln(w, strings.TrimRight(b.String(), " "))
	}
	line(t.header, func(_ int, text string) string { return t.style.dim(text) })
	for _, row := range t.rows {
		line(row, func(i int, text string) string {
			if paint := t.paint[i]; paint != nil {
				return paint(text)
			}
			return text
		})
	}
}

func isNumber(text string) bool {
	_, err := strconv.ParseFloat(text, 64)
	return err == nil
}

// oneLine makes foreign text safe and short enough for a cell: no control characters reach the terminal.
func oneLine(text string, widest int) string {
	text = strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || (r >= 0x80 && r < 0xa0) || r == utf8.RuneError {
			return ' '
		}
		return r
	}, text)
	if utf8.RuneCountInString(text) <= widest {
		return text
	}
	return string([]rune(text)[:widest-1]) + "…"
}

// ago is how long before now something was, for people.
func ago(t *time.Time, now time.Time) string {
	if t == nil || t.IsZero() {
		return ""
	}
	d := now.Sub(*t)
	if d < 0 {
		return "in " + duration(-d)
	}
	return duration(d) + " ago"
}

func duration(d time.Duration) string {
	switch {
	case d < time.Second:
		return fmt.Sprintf("%dms", d.Milliseconds())
	case d < time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%dm", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh", int(d.Hours()))
	default:
		return fmt.Sprintf("%dd", int(d.Hours())/24)
	}
}
