package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"golang.org/x/term"
	"gopkg.in/yaml.v3"

	"github.com/dagctl/dagctl/internal/fault"
)

// outputs are the forms that every command has.
var outputs = []string{"table", "json", "yaml"}

// The forms of output that single commands have besides.
const (
	OutputMarkdown = "markdown" // for pull requests
	OutputCSV      = "csv"      // for spreadsheets and other programs
	OutputNDJSON   = "ndjson"   // a JSON object for each row
	OutputArrow    = "arrow"    // for programs that want exact types
	OutputParquet  = "parquet"  // a file with exact types
)

// moreOutputs are those forms, by command.
var moreOutputs = map[string][]string{
	"plan": {OutputMarkdown}, "costs": {OutputCSV}, "preview": {OutputCSV},
	"query": {OutputCSV, OutputNDJSON, OutputArrow, OutputParquet},
}

// Print writes a value in the form that --output names. For the form table, human writes it.
func (c *CLI) Print(v any, human func(w io.Writer)) error {
	if c.Output == "table" {
		b := screen{width: widthOf(c.Out)}
		human(&b)
		_, err := c.Out.Write(b.Bytes())
		return err
	}
	text, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return fmt.Errorf("write as JSON: %w", err)
	}

	if c.Output == "yaml" {
		if text, err = yamlFromJSON(text); err != nil {
			return fmt.Errorf("write as YAML: %w", err)
		}
		_, err = c.Out.Write(text)
		return err
	}

	_, err = fmt.Fprintf(c.Out, "%s\n", text)
	return err
}

// screen gathers what people see. Tables in it are no wider than their terminal.
type screen struct {
	bytes.Buffer

	width int // 0: any
}

// widthOf returns how many columns a terminal has; 0: it is none, or does not say.
func widthOf(stream any) int {
	f, ok := stream.(*os.File)
	if !ok {
		return 0
	}
	width, _, err := term.GetSize(int(f.Fd()))
	if err != nil {
		return 0
	}
	return width
}

// yamlFromJSON converts JSON to YAML and keeps the order of the fields, which a map would lose.
func yamlFromJSON(text []byte) ([]byte, error) {
	var node yaml.Node
	if err := yaml.Unmarshal(text, &node); err != nil {
		return nil, err
	}
	blockStyle(&node)
	return yaml.Marshal(&node)
}

// blockStyle removes JSON's braces and quotes, except for strings that YAML would read as something else.
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

// IsTerminal reports whether a stream is a terminal.
func IsTerminal(stream any) bool {
	f, ok := stream.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// Style colors text for a terminal. Its zero value leaves text as it is.
type Style bool

// Style returns the style for a stream: in color on a terminal, unless NO_COLOR is set.
func (c *CLI) Style(w io.Writer) Style {
	return Style(IsTerminal(w) && c.Getenv("NO_COLOR") == "" && c.Getenv("TERM") != "dumb")
}

func (s Style) paint(code, text string) string {
	if !s || text == "" {
		return text
	}
	return "\x1b[" + code + "m" + text + "\x1b[0m"
}

func (s Style) Bad(text string) string  { return s.paint("31", text) }
func (s Style) Good(text string) string { return s.paint("32", text) }
func (s Style) Busy(text string) string { return s.paint("33", text) }
func (s Style) Dim(text string) string  { return s.paint("2", text) }
func (s Style) Bold(text string) string { return s.paint("1", text) }

// Status colors the name of a state: green for good ones, red for bad ones, yellow for those that will change.
func (s Style) Status(text string) string {
	switch text {
	case "Active", "Completed", "pass":
		return s.Good(text)
	case "Failed", "Dead", "dead", "fail", "error":
		return s.Bad(text)
	case "Building", "Running", "Ready":
		return s.Busy(text)
	}
	return text
}

// Table aligns cells in columns; numbers are aligned on the right.
type Table struct {
	Style  Style
	Header []string
	rows   [][]string
	Paint  map[int]func(string) string // by column
}

// Add adds a row.
func (t *Table) Add(cells ...string) { t.rows = append(t.rows, cells) }

// Write writes the header and all rows.
func (t *Table) Write(w io.Writer) {
	widths := make([]int, len(t.Header))
	numeric := make([]bool, len(t.Header))
	for i, h := range t.Header {
		widths[i], numeric[i] = Width(h), len(t.rows) > 0
	}

	for _, row := range t.rows {
		for i, cell := range row {
			widths[i] = max(widths[i], Width(cell))
			numeric[i] = numeric[i] && (cell == "" || isNumber(cell))
		}
	}

	if s, ok := w.(*screen); ok && s.width > 0 {
		t.narrow(widths, numeric, s.width)
	}
	line := func(row []string, paint func(i int, text string) string) {
		var b strings.Builder
		for i, cell := range row {
			if Width(cell) > widths[i] {
				cell = OneLine(cell, widths[i])
			}
			pad := strings.Repeat(" ", widths[i]-Width(cell))
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

	line(t.Header, func(_ int, text string) string { return t.Style.Dim(text) })
	for _, row := range t.rows {
		line(row, func(i int, text string) string {
			if paint := t.Paint[i]; paint != nil {
				return paint(text)
			}
			return text
		})
	}
}

// WriteTraceback writes the traceback of an error line by line, or nothing if it has none.
func WriteTraceback(w io.Writer, indent, text string) {
	_, trace := fault.CutTraceback(text)
	for line := range strings.Lines(trace) {
		fmt.Fprintln(w, strings.TrimRight(indent+strings.Map(harmless, strings.TrimRight(line, "\r\n")), " "))
	}
}

// Ago returns how long before now something was, such as "3h ago", or an empty text for no time.
func Ago(t *time.Time, now time.Time) string {
	if t == nil || t.IsZero() {
		return ""
	}
	d := now.Sub(*t)
	if d < 0 {
		return "in " + Duration(-d)
	}
	return Duration(d) + " ago"
}

// Duration returns a duration in its largest unit, such as "3h".
func Duration(d time.Duration) string {
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

// UpperFirst returns s with its first letter in upper case.
func UpperFirst(s string) string { return strings.ToUpper(s[:1]) + s[1:] }
